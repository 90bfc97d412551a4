"""What a run would cost, without training it or allocating its arrays: parameters, FLOPs, memory, hours on a device.

Memory is what XLA plans for the real step at its real size, on abstract inputs, as compiled where the plan is made. On
a CPU that is more than an accelerator takes, as its kernels compute bfloat16 in float32.
"""
from launch.cluster.kinds import KINDS
from mlm.base import config, errors, fields
from mlm.data.rows import pack
from mlm.models import lm
from mlm.report.table import Column
from mlm.train.step import cost, program

USABLE = 0.9  # of a device's memory: the runtime and the collectives need the rest

COLUMNS = (Column("point", "point"), Column("parameters", "parameters", ",d"), Column("tokens", "tokens", ".3g"),
           Column("flops", "training FLOPs", ".2e"), Column("memory", "GB a device", ".1f"),
           Column("hours", "hours", ".3g"), Column("fits", "fits"))


def vocab_size(cfg: config.Config) -> int:
    """The entries of a run's vocabulary; where the corpus decides, the rows are packed to count them."""
    return cfg.tokenizer.vocab_size or pack.load(cfg).tokenizer.vocab_size


def point(name: str, cfg: config.Config, kind: str, number: int, utilisation: float, rates: tuple[float, float]
          ) -> dict:
    """A row of the plan: a run on `number` devices of a kind, at a utilisation of their dense bfloat16 peak.

    rates: the lowest and the highest masking rate that the step is to be compiled for, so that runs that differ in it
    alone share two compilations. Memory between them is interpolated, which is never too little: with the predictions
    all that is alive at a moment grows linearly, and the peak is the largest over moments, hence convex. Tokens count
    padding, too.
    """
    device, entries = KINDS[kind], vocab_size(cfg)
    devices = number * device.chips
    flops = cost.per_step(cfg, entries)
    steps, rows = cfg.train.steps, cfg.train.batch_size
    row = {"point": name, **lm.count(cost.abstract(program.blank(cfg), entries).params["model"]),
           "tokens": float(steps * rows * cfg.pack.length), "flops": flops and flops * steps,
           "hours": flops and flops * steps / (device.flops * utilisation * devices) / 3600}
    if rows % (devices * cfg.train.accumulate):
        return row | {"fits": f"no: batch_size = {rows} does not divide by {devices} devices"
                              f" x accumulate = {cfg.train.accumulate}"}

    def memory(accumulate):
        one_step = {"train.batch_size": rows // devices, "train.steps": 1, "train.accumulate": accumulate}
        low, high = (cost.memory(program.blank(fields.override(cfg, one_step | {"mask.rate": rate,
                                                                                "mask.max_rate": rate})), entries)
                     for rate in rates)
        share = (cfg.mask.max_rate - rates[0]) / ((rates[1] - rates[0]) or 1)
        return low + share * (high - low)

    now, room = memory(cfg.train.accumulate), device.memory * USABLE
    row["memory"] = now / 1e9
    return row | {"fits": "yes" if now <= room else _remedy(cfg, rows // devices, memory, now, room, number)}


def _remedy(cfg, rows, memory, now, room, number) -> str:
    """What would make a step of `rows` a device fit: parts of a size that the compiler then confirms."""
    needs = now
    for accumulate in range(cfg.train.accumulate + 1, rows + 1):
        share = cfg.train.accumulate / accumulate
        if rows % accumulate or (now * share > room and accumulate < rows):  # less than this share it cannot take
            continue
        needs = memory(accumulate)
        if needs <= room:
            return (f"no: train.accumulate = {accumulate} would ({needs / 1e9:.1f} GB), or "
                    f"--devices={-(-number * accumulate // cfg.train.accumulate)}")
    return f"no, nor with one row at a time ({needs / 1e9:.1f} GB): a smaller model or a device with more memory"


def table(points: dict[str, config.Config], kind: str, number: int, utilisation: float) -> list[dict]:
    """A row for each of the points, by name, and their sum."""
    errors.one_of("--device", kind, list(KINDS))
    alike = {}
    for cfg in points.values():
        alike.setdefault(_but_rate(cfg), []).append(cfg.mask.max_rate)
    rows = [point(name, cfg, kind, number, utilisation, (min(alike[_but_rate(cfg)]), max(alike[_but_rate(cfg)])))
            for name, cfg in points.items()]
    total = {name: sum(row[name] or 0 for row in rows) for name in ("tokens", "flops", "hours")}
    return [*rows, {"point": f"{len(rows)} points", **total}]


def _but_rate(cfg):
    return program.blank(fields.override(cfg, {"mask.max_rate": 0.0, "train.steps": 1}))
