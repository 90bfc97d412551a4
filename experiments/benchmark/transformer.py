"""Part transformer: a masked-LM step against Hugging Face's BertForMaskedLM, stock and tuned, and against its limit.

Forward pass, backward pass, clipping and AdamW, dropout 0.1, 30,522 entries, 15% masked. The peer gets its rows masked,
and no attention mask, where ours draws the one and applies the other.
"""
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from experiments.benchmark import apart, limit, ours, peers, timing
from mlm.base import config

SECONDS = 12   # of rounds, a case
STOCK = "stock BertForMaskedLM"
TOLERANCE = 1e-4
LIMITED = ("mini", "base", "large")  # sizes whose products are timed beside their step


class Case(NamedTuple):
    size: str
    rows: int
    length: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.size} {self.rows} x {self.length} {self.dtype}"

    def config(self, **fields) -> config.Config:
        """The case's config; fields of config.model may be changed."""
        return ours.checked({"model.size": self.size, "train.batch_size": self.rows, "pack.seq_len": self.length,
                             "model.dtype": self.dtype} | {f"model.{name}": value for name, value in fields.items()})


CASES = {
    "cpu": [Case(size, rows, 128, dtype) for dtype in ("float32", "bfloat16")
            for size, rows in (("mini", 32), ("small", 32), ("base", 8))],
    "accelerator": [Case(size, rows, length, "bfloat16") for size, rows, length in
                    (("base", 256, 128), ("base", 64, 512), ("large", 128, 128), ("large", 32, 512))],
}


def cases() -> list[Case]:
    return CASES["cpu" if jax.default_backend() == "cpu" else "accelerator"]


def rows() -> Iterator[dict]:
    why = peers.absent("torch", "transformers")
    if why:
        print(f"the peers are left out: {why}")
    attention: dict[tuple[str, int], peers.Setting] = {}
    compiling: dict[str, bool] = {}
    with apart.Processes() as processes:
        if not why:
            print(processes.run(STOCK, check, cases()[0]._replace(rows=2, dtype="float32").config()), flush=True)
        for case in cases():
            cfg, limited = case.config(), case.size in LIMITED
            of_kind = case.dtype, case.length
            if not why and of_kind not in attention:
                attention[of_kind] = faster_attention(processes, case)
            sides = ours.sides(processes, cfg, plain=case.size == cases()[0].size)
            if not why:
                sides |= peer_sides(processes, case, attention[of_kind], compiling.get(case.dtype, True))
            times = timing.measure(sides | (limit.sides(processes, cfg) if limited else {}), SECONDS)
            processes.forget()
            of_sides = {name: times[name] for name in sides}
            compiling[case.dtype] = peers.compiled(of_sides)
            if limited:
                yield from ({"part": "limit"} | row for row in limit.rows(str(case), cfg, times))
            yield from timing.against(str(case), "tokens/s", of_sides, work=ours.tokens(cfg))


def faster_attention(processes: apart.Processes, case: Case) -> peers.Setting:
    """PyTorch's attention that is faster in one layer of the case's width; its share falls as nets grow wider."""
    from experiments.benchmark import bert

    setting = peers.best(peers.settings(attention=("sdpa", "eager")),
                         lambda setting: processes.side(str(setting), bert.tuned, case.config(layers=1), setting))
    processes.forget()
    return setting


def peer_sides(processes: apart.Processes, case: Case, setting: peers.Setting, compiling: bool) -> dict[str, Callable]:
    """The tuned peer as it is and, if `compiling`, compiled; in the first case the stock one too.

    compiling: whether torch.compile was faster for a narrower net. What it spares, passes between products, counts the
    less the wider the net is.
    """
    from experiments.benchmark import bert

    cfg = case.config()
    sides = peers.as_it_is_and_compiled("tuned BertForMaskedLM", setting, compiling,
                                        lambda setting: processes.side(str(setting), bert.tuned, cfg, setting))
    return sides | ({STOCK: processes.side(STOCK, bert.stock, cfg)} if case == cases()[0] else {})


def check(cfg: config.Config) -> str:
    """Says how equal both sides are. Raises RuntimeError unless their parameters are as many, and the same ones give
    the same loss under both of the peer's heads."""
    import torch

    from experiments.benchmark import bert, torch_step
    from mlm.models import lm

    params, network = ours.parameters(cfg), bert.network(cfg)
    bert.load(network, params)
    count, peer_count = lm.count(params)["parameters"], torch_step.count(network)
    with jax.default_matmul_precision("highest"):
        loss, masked = ours.forward(cfg, params, ours.batches(cfg)[0])
    arrays = torch_step.arrays(masked)
    with torch.no_grad():
        network.eval()
        stock, tuned = float(bert.stock_loss(network)(arrays)), float(bert.tuned_loss(network)(arrays))
    if count != peer_count or max(abs(stock - loss), abs(tuned - loss)) > TOLERANCE:
        raise RuntimeError(f"not the same work: {count:,} parameters and loss {loss:.6f} here, {peer_count:,} and "
                           f"{stock:.6f} (stock), {tuned:.6f} (tuned) there")
    return f"{count:,} parameters on both sides; the same ones give loss {loss:.5f} here, {tuned:.5f} there"
