"""Part head: loss and gradient over the masked positions only, against the same over all positions.

The project's objective on given states of width 256: with as many slots a row as its rate asks for, and with a slot for
every token. Memory is what the compiled program holds beside its inputs and results.
"""
from collections.abc import Callable, Iterator

import jax

from experiments.benchmark import ours, timing
from mlm.base import config
from mlm.train.step import program, update

SECONDS = 4    # of rounds, a vocabulary
RATES = (0.15, 0.4, 0.8)
ALL = 0.999    # a mask.max_rate that makes a slot for every token
VOCABULARIES = (8_192, 30_522, 250_000)


def recipe(vocab_size: int, rate: float, max_rate: float = 0.0) -> config.Config:
    rows = 4 if jax.default_backend() == "cpu" else 64
    return ours.checked({"model.size": "mini", "model.num_layers": 1, "tokenizer.vocab_size": vocab_size,
                         "mask.rate": rate, "mask.max_rate": max_rate, "train.batch_size": rows, "pack.seq_len": 128})


def build(cfg: config.Config) -> tuple[Callable[[], None], int]:
    """A function that computes loss and gradient once, and the bytes that it holds meanwhile."""
    model, objective = program.parts(cfg, ours.about(cfg))
    knobs, batch = program.knobs(cfg), ours.batches(cfg)[0]

    def loss(h_BxLxD, params):
        given = model._replace(encode=lambda params, text, source=None, *, key_B=None: (h_BxLxD,))
        key_B = update.row_keys(knobs.seed, 0, batch.index_B)
        losses = objective.loss({"model": params, "objective": {}}, given, batch, key_B, knobs, train=True)
        return losses.loss_B["mlm"].sum()

    params = ours.parameters(cfg)
    h_BxLxD = jax.random.normal(jax.random.key(1), (*batch.text.ids_BxL.shape, cfg.model.width))
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    analysis = gradient.lower(h_BxLxD, params).compile().memory_analysis()
    return (lambda: jax.block_until_ready(gradient(h_BxLxD, params))), analysis.temp_size_in_bytes if analysis else 0


def rows() -> Iterator[dict]:
    for vocab_size in VOCABULARIES:
        built = {rate: build(recipe(vocab_size, rate)) for rate in RATES}
        built["all"] = build(recipe(vocab_size, max(RATES), ALL))
        times = timing.measure({name: side for name, (side, _) in built.items()}, SECONDS)
        for rate in RATES:
            case = f"{vocab_size:,} entries, {rate:.0%} masked"
            yield timing.row(case, "ms", times[rate], times["all"], "all positions")
            if built["all"][1]:
                yield timing.size_row(case, "MiB", built[rate][1] / 2**20, built["all"][1] / 2**20,
                                      "all positions")
        del built
        jax.clear_caches()
