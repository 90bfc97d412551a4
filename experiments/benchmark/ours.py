"""The project's side: its own step at a config, and batches and masks for both sides."""
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.benchmark import apart
from mlm.base import config, fields, types
from mlm.base.special import CLS, NUM_SPECIAL, SEP
from mlm.data.rows import pack
from mlm.models import cpu_kernels, lm
from mlm.objectives import masking
from mlm.train import resolution
from mlm.train.step import cost, parallel, program, update

BATCHES = 4  # distinct ones, taken in turn


class Ours(NamedTuple):
    """A training step that is ready to be timed."""

    step: Callable[..., None]  # makes one update, or as many as it is told, and waits for the last
    parameters: int
    memory: int                # bytes that the compiled step holds beside its inputs; 0 where XLA does not say


def checked(changes: Mapping[str, Any]) -> config.Config:
    """A checked config: BERT's vocabulary and place of the layer norm, and what `changes`, by dotted name, change.

    Its corpus is never read: `batches` draws the rows.
    """
    changes = {"data.corpus": "docstrings", "tokenizer.vocab_size": 30_522} | dict(changes)
    if changes.get("model.family", "transformer") == "transformer":
        changes = {"model.norm_placement": "post"} | changes
    cfg = resolution.resolve(fields.override(config.Config(), changes))
    resolution.check(cfg)
    return cfg


def about(cfg: config.Config) -> types.DatasetInfo:
    """Rows of the config's shape, whose tokens are all equally frequent."""
    return pack.shape(cfg, cfg.tokenizer.vocab_size)


def sides(processes: apart.Processes, cfg: config.Config, *, plain: bool) -> dict[str, Callable[[], None]]:
    """Our step as a side; plain: beside the same by the plain formulas, where the device has a hand-written path."""
    found = {"ours": processes.side("ours", step, cfg)}
    if plain and jax.default_backend() in cpu_kernels.PATHS:
        name = "our plain formulas"
        found[name] = processes.side(name, step, fields.override(cfg, {"model.fused_kernels": False}))
    return found


def step(cfg: config.Config) -> Callable[[], None]:
    return build(cfg).step


def batches(cfg: config.Config) -> list[types.Batch]:
    """Rows full of random tokens between [CLS] and [SEP]: what padding would spare, neither side spares."""
    rng, shape = np.random.default_rng(0), (cfg.train.batch_size, cfg.pack.seq_len)
    made = []
    for _ in range(BATCHES):
        ids_BxL = rng.integers(NUM_SPECIAL, cfg.tokenizer.vocab_size, shape, np.int32)
        ids_BxL[:, 0], ids_BxL[:, -1] = CLS, SEP
        positions_BxL = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
        text = types.Tokens(ids_BxL, np.ones(shape, np.int32), positions_BxL, np.zeros(shape, np.int32))
        made.append(types.Batch(text, {}, np.arange(shape[0], dtype=np.int32)))
    return made


def masked(cfg: config.Config, rate: float, batch: types.Batch, key_B, knobs: types.TracedHparams) -> masking.Masked:
    """The rows as the project masks them, as numpy arrays: peers get them ready made and draw nothing themselves."""
    cdf_V = masking.cumulative(np.ones(cfg.tokenizer.vocab_size), uniform=False)
    draw = functools.partial(masking.draw, slots=masking.slots(rate, cfg.pack.seq_len), cdf_V=cdf_V)
    return jax.device_get(jax.jit(draw)(key_B, batch.text.ids_BxL, knobs)[0])


@functools.lru_cache(maxsize=1)  # a trial of settings asks for the same ones again
def masked_batches(cfg: config.Config) -> list[masking.Masked]:
    knobs = program.knobs(cfg)
    return [masked(cfg, cfg.mask.max_rate, batch, update.row_keys(knobs.seed, number, batch.index_B), knobs)
            for number, batch in enumerate(batches(cfg))]


def functions(cfg: config.Config, model: types.Model | None = None) -> tuple[Callable, Callable]:
    """What makes the first state and what makes a step, as new functions, which nothing has compiled yet.

    model: a peer that wants all but the encoder to be the project's own.
    """
    own, objective = program.parts(cfg, about(cfg))
    parts = program.blank(cfg), model or own, objective
    return functools.partial(update.init_state, *parts), functools.partial(update.train_step, *parts)


def build(cfg: config.Config, model: types.Model | None = None, rows: Iterable[types.Batch] = ()) -> Ours:
    """The step of `functions` on one device; rows: batches to be taken in turn, where not those of `batches`."""
    initial, train_step = functions(cfg, model)
    run, knobs = parallel.one_device(train_step), program.knobs(cfg)
    abstract = jax.eval_shape(initial, knobs)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)
    state = run.put_state(zeros._replace(params=filled(zeros.params)))
    parameters = lm.count(state.params["model"])["parameters"]
    placed = [run.put_batch(batch) for batch in rows or batches(cfg)]
    analysis = run.train_step.lower(state, placed[0], knobs).compile().memory_analysis()
    return Ours(_repeated(run.train_step, state, placed, knobs), parameters,
                analysis.temp_size_in_bytes if analysis else 0)


def _repeated(train_step, state, placed: Iterable[types.Batch], knobs) -> Callable[[], None]:
    turn = itertools.cycle(placed)

    def update(count: int = 1):
        nonlocal state
        for _ in range(count):
            state, metrics = train_step(state, next(turn), knobs)
        jax.block_until_ready((state, metrics))

    return update


def tokens(cfg: config.Config) -> int:
    return cfg.train.batch_size * cfg.pack.seq_len


def operations(cfg: config.Config) -> float | None:
    """FLOPs of a step, as mlm/train/step/cost.py counts them; None where XLA gives none."""
    return cost.per_step(cfg, cfg.tokenizer.vocab_size)


def forward(cfg: config.Config, params, batch: types.Batch) -> tuple[float, masking.Masked]:
    """The loss of params on a batch without dropout, and the masked rows that it was taken on."""
    knobs = program.frozen(cfg)
    losses = jax.jit(functools.partial(update.eval_step, *program.parts(cfg, about(cfg))))(
        {"model": params, "objective": {}}, batch, knobs)
    rows = masked(cfg, cfg.eval.mask_rate, batch, update.eval_keys(knobs, batch.index_B), knobs)
    return float(losses.loss_B["mlm"].sum() / losses.weight_B["mlm"].sum()), rows


def parameters(cfg: config.Config):
    """Parameters of the config's model as numpy arrays, by `filled`."""
    return filled(cost.abstract(program.blank(cfg), cfg.tokenizer.vocab_size).params["model"])


def filled(abstract):
    """Parameters of these shapes, drawn by numpy, as nothing need be compiled for it; none of them is 0 or 1, where a
    swapped bias would not show."""
    rng = np.random.default_rng(0)

    def values(path, leaf):
        return rng.normal(path[-1].key == "scale", 0.02, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(values, abstract)
