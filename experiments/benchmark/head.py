"""Part head: loss and gradient over the masked positions only, beside the same over all positions.

This project's objective on fixed states of width 256, with as many slots as the masking rate needs, and with a slot for
every token. Memory is what the compiled program needs besides inputs and results.
"""

import dataclasses
from collections.abc import Callable, Iterator

import jax

from experiments.benchmark import mlm_step, timing
from mlm.base import config
from mlm.training.step import program, update

SECONDS = 4  # of rounds for each vocabulary
RATES = (0.15, 0.4, 0.8)
ALL_POSITIONS_RATE = 0.999  # a mask.max_rate that gives every token a slot
VOCABULARIES = (8_192, 30_522, 250_000)


def make_config(vocab_size: int, rate: float, max_rate: float = 0.0) -> config.Config:
    batch_size = 4 if jax.default_backend() == "cpu" else 64
    return mlm_step.make_config(
        {
            "model.size": "mini",
            "model.num_layers": 1,
            "tokenizer.vocab_size": vocab_size,
            "mask.rate": rate,
            "mask.max_rate": max_rate,
            "train.batch_size": batch_size,
            "pack.seq_len": 128,
        }
    )


def build_gradient(cfg: config.Config) -> tuple[Callable[[], None], int]:
    """A function that computes loss and gradient once, and the bytes that it needs."""
    model, objective = program.build_model_and_objective(cfg, mlm_step.make_dataset_info(cfg))
    hparams, batch = program.make_train_hparams(cfg), mlm_step.make_batches(cfg)[0]

    def loss(h_BxLxD, params):
        fixed_model = dataclasses.replace(model, encode=lambda params, text, source=None, *, key_B=None: (h_BxLxD,))
        key_B = update.make_example_keys(hparams.seed, 0, batch.index_B)
        losses = objective.loss({"model": params, "objective": {}}, fixed_model, batch, key_B, hparams, train=True)
        return losses.loss_B["mlm"].sum()

    params = mlm_step.make_params(cfg)
    h_BxLxD = jax.random.normal(jax.random.key(1), (*batch.text.ids_BxL.shape, cfg.model.width))
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    analysis = gradient.lower(h_BxLxD, params).compile().memory_analysis()
    return (lambda: jax.block_until_ready(gradient(h_BxLxD, params))), analysis.temp_size_in_bytes if analysis else 0


def measure() -> Iterator[dict]:
    for vocab_size in VOCABULARIES:
        gradients = {rate: build_gradient(make_config(vocab_size, rate)) for rate in RATES}
        gradients["all"] = build_gradient(make_config(vocab_size, max(RATES), ALL_POSITIONS_RATE))
        times = timing.measure_times({name: side for name, (side, _) in gradients.items()}, SECONDS)
        for rate in RATES:
            case = f"{vocab_size:,} entries, {rate:.0%} masked"
            yield timing.make_row(case, "ms", times[rate], times["all"], "all positions")
            if gradients["all"][1]:
                yield timing.make_size_row(
                    case, "MiB", gradients[rate][1] / 2**20, gradients["all"][1] / 2**20, "all positions"
                )
        del gradients
        jax.clear_caches()
