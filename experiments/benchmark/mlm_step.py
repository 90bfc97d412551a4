"""This project's side: its training step, and batches and masks for both sides."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.benchmark import side_processes
from mlm.base import config, fields, types
from mlm.base.special import CLS, NUM_SPECIAL, SEP
from mlm.data.rows import pack
from mlm.models import lm, platform_kernels
from mlm.objectives import masking
from mlm.training.compilation import cost
from mlm.training.run import resolution
from mlm.training.step import parallel, program, update

NUM_BATCHES = 4  # distinct batches, used in turn


class TimedStep(NamedTuple):
    """A training step, ready to be timed."""

    step: Callable[..., None]  # (count=1) makes this many updates and waits for the last
    num_parameters: int
    memory: int  # bytes that the compiled step needs besides its inputs; 0: unknown


def make_config(changes: Mapping[str, Any]) -> config.Config:
    """A checked config with BERT's vocabulary size, dropout, post-norm and positions, and with `changes`, by name.

    Its corpus is never read: `make_batches` makes random examples.
    """
    changes = {"data.corpus": "docstrings", "tokenizer.vocab_size": 30_522, "model.dropout": 0.1} | dict(changes)
    if changes.get("model.family", "transformer") == "transformer":
        bert = {"model.norm_placement": "post", "model.positions": "learned", "model.attention_dropout": 0.1}
        changes = bert | changes
    cfg = resolution.resolve(fields.override(config.Config(), changes))
    return cfg


def make_dataset_info(cfg: config.Config) -> types.DatasetInfo:
    """A data set of the config's shape with equally frequent tokens."""
    return pack.build_dataset_info(cfg, cfg.tokenizer.vocab_size)


def build_sides(
    processes: side_processes.SideProcesses, cfg: config.Config, *, with_plain: bool
) -> dict[str, Callable[[], None]]:
    """Our step; with_plain: also without hand-written kernels, on devices that have some."""
    sides = {"ours": processes.build_side("ours", build_step, cfg)}
    if with_plain and platform_kernels.resolve_kernels(cfg.model.kernels) != platform_kernels.REFERENCE:
        name = "our plain formulas"
        plain = fields.override(cfg, {"model.kernels": platform_kernels.REFERENCE})
        sides[name] = processes.build_side(name, build_step, plain)
    return sides


def build_step(cfg: config.Config) -> Callable[[], None]:
    return build_timed_step(cfg).step


def make_batches(cfg: config.Config) -> list[types.Batch]:
    """Batches of random tokens between [CLS] and [SEP], without padding; those of a classifier have labels."""
    rng, shape = np.random.default_rng(0), (cfg.train.batch_size, cfg.pack.seq_len)
    batches = []
    for _ in range(NUM_BATCHES):
        ids_BxL = rng.integers(NUM_SPECIAL, cfg.tokenizer.vocab_size, shape, np.int32)
        ids_BxL[:, 0], ids_BxL[:, -1] = CLS, SEP
        positions_BxL = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
        text = types.Tokens(ids_BxL, np.ones(shape, np.int32), positions_BxL, np.zeros(shape, np.int32))
        labels = {name: make_labels(ids_BxL) for name in make_dataset_info(cfg).label_names}
        batches.append(types.Batch(text, labels, np.arange(shape[0], dtype=np.int32)))
    return batches


def make_labels(ids_BxL):
    """One of two classes for each example."""
    return ids_BxL[:, 1] % 2


def mask_batch(
    cfg: config.Config, rate: float, batch: types.Batch, key_B, hparams: types.TracedHparams
) -> masking.MaskedBatch:
    """Masks a batch as this project does; returns NumPy arrays. Peers get masked batches and sample nothing."""
    cdf_V = masking.compute_random_token_cdf(np.ones(cfg.tokenizer.vocab_size), uniform=False)
    draw = functools.partial(masking.sample_masks, num_slots=masking.count_slots(rate, cfg.pack.seq_len), cdf_V=cdf_V)
    return jax.device_get(jax.jit(draw)(key_B, batch.text.ids_BxL, hparams)[0])


@functools.lru_cache(maxsize=1)  # the trial of settings needs the same batches again
def make_masked_batches(cfg: config.Config) -> list[masking.MaskedBatch]:
    hparams = program.make_train_hparams(cfg)
    return [
        mask_batch(
            cfg, cfg.mask.max_rate, batch, update.make_example_keys(hparams.seed, number, batch.index_B), hparams
        )
        for number, batch in enumerate(make_batches(cfg))
    ]


def build_functions(cfg: config.Config, model: types.Model | None = None) -> tuple[Callable, Callable]:
    """What makes the first state and what makes a step, as new functions, which nothing has compiled yet.

    model: replaces the model; a peer may share everything else.
    """
    mlm_model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    parts = program.make_static_config(cfg), model or mlm_model, objective
    return functools.partial(update.init_state, *parts), functools.partial(update.train_step, *parts)


def build_timed_step(
    cfg: config.Config, model: types.Model | None = None, host_batches: Iterable[types.Batch] = ()
) -> TimedStep:
    """The training step on one device; host_batches: batches to use in turn, by default those of `make_batches`."""
    init_state, train_step = build_functions(cfg, model)
    partitioner, hparams = parallel.build_single_device(train_step), program.make_train_hparams(cfg)
    abstract_state = jax.eval_shape(init_state, hparams)
    zero_state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract_state)
    state = partitioner.put_state(zero_state._replace(params=fill_params(zero_state.params)))
    parameters = lm.count_parameters(state.params["model"])["parameters"]
    batches = [partitioner.put_batch(batch) for batch in host_batches or make_batches(cfg)]
    analysis = partitioner.train_step.lower(state, batches[0], hparams).compile().memory_analysis()
    return TimedStep(
        _make_update(partitioner.train_step, state, batches, hparams),
        parameters,
        analysis.temp_size_in_bytes if analysis else 0,
    )


def build_sharded_step(cfg: config.Config, devices: Sequence) -> tuple[Callable[[], None], cost.StepCost]:
    """The step of a run (config.parallel.mode) on all of these devices together, and its cost as compiled."""
    built = program.build_program(cfg, make_dataset_info(cfg), devices)
    partitioner, hparams = built.partitioner, program.make_train_hparams(cfg)
    state = partitioner.put_state(built.init_state(hparams))
    batches = [partitioner.put_batch(batch) for batch in make_batches(cfg)]
    step_cost = cost.read_cost(partitioner.train_step.lower(state, batches[0], hparams).compile())
    return _make_update(partitioner.train_step, state, batches, hparams), step_cost


def _make_update(train_step, state, batches: Iterable[types.Batch], hparams) -> Callable[[], None]:
    batch_cycle = itertools.cycle(batches)

    def update(count: int = 1):
        nonlocal state
        for _ in range(count):
            state, metrics = train_step(state, next(batch_cycle), hparams)
        jax.block_until_ready((state, metrics))

    return update


def count_tokens(cfg: config.Config) -> int:
    return cfg.train.batch_size * cfg.pack.seq_len


def count_flops(cfg: config.Config) -> float | None:
    """FLOPs of a step, as mlm/training/compilation/cost.py counts them; None if XLA does not count them."""
    return cost.count_step_flops(cfg, cfg.tokenizer.vocab_size)


def compute_loss(cfg: config.Config, params, batch: types.Batch) -> tuple[float, masking.MaskedBatch]:
    """The loss of params on a batch without dropout, and the masked batch."""
    hparams = program.make_eval_hparams(cfg)
    losses = jax.jit(
        functools.partial(update.eval_step, *program.build_model_and_objective(cfg, make_dataset_info(cfg)))
    )({"model": params, "objective": {}}, batch, hparams)
    masked_batch = mask_batch(cfg, cfg.eval.mask_rate, batch, update.make_eval_keys(hparams, batch.index_B), hparams)
    return float(losses.loss_B["mlm"].sum() / losses.weight_B["mlm"].sum()), masked_batch


def make_params(cfg: config.Config):
    """Parameters of the config's model as NumPy arrays."""
    return fill_params(
        cost.make_abstract_state(program.make_static_config(cfg), cfg.tokenizer.vocab_size).params["model"]
    )


def fill_params(abstract_params):
    """Random parameters of these shapes by NumPy, which compiles nothing. None is 0 or 1: a swapped bias shows."""
    rng = np.random.default_rng(0)

    def make_array(path, leaf):
        return rng.normal(path[-1].key == "scale", 0.02, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(make_array, abstract_params)
