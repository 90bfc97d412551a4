"""The values that pass between packages.

The name of an array ends in its shape, one letter an axis: B examples of a batch, L tokens of an example, K masked
slots of an example (in the states and weights of all layers: the layers), D width, V vocabulary, N examples of a split.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, Protocol

from mlm.base import config
from mlm.base.estimates import Score

if TYPE_CHECKING:
    import jax  # which takes a second to import: what only reads text starts without it

Params = Any  # a tree of arrays
StaticConfig = NewType("StaticConfig", config.Config)  # what a program is compiled for (training/step/program.py)
Array = Any  # jax.Array in a program, numpy.ndarray on the host, jax.ShapeDtypeStruct where only shapes matter


class Tokens(NamedTuple):
    """Packed examples of tokens: all that a model may see of them. Arrays are int32; PAD fills where segments is 0."""

    ids_BxL: Array
    # The number of the document that a token is of: tokens of one number see each other; 0 on padding. Both texts of a
    # pair, BERT's segments A and B, have one number and differ in their types.
    segments_BxL: Array
    positions_BxL: Array  # of a token in its segment, from 0
    types_BxL: Array  # token type: 0, or 1 in the second segment of a pair


class Batch(NamedTuple):
    """Examples of a split, before an objective masks or corrupts them."""

    text: Tokens
    labels: dict[str, Array]  # by name; empty for text without labels
    # Seeds an example's random draws: its slot in the global batch in training, its index in the split in evaluation.
    index_B: Array
    # What a decoder reads beside the text: a token of the text sees the tokens of the source with its segment number.
    source: Tokens | None = None
    split_index_B: Array | None = None  # training: the example's index in the split; None: no static masks
    epoch_B: Array | None = None  # training: passes over the split before this one; None: no static masks


class DatasetInfo(NamedTuple):
    """What a compiled program must know of its data; hashable."""

    vocab_size: int
    seq_len: int  # tokens of an example
    label_names: tuple[str, ...]  # each ends in the letters of its shape, such as next_B
    unigram_counts: bytes  # int64: count of each vocabulary entry in the train split
    classes: tuple[str, ...] = ()  # names of the classes or tags, in the order of their ids
    # int64: count of each class among the labels of the train split, or of its questions with and without an answer
    class_counts: bytes = b""
    source_len: int = 0  # tokens of the source beside each example; 0: there is no source
    word_starts: bytes = b""  # uint8: 1: the entry begins a word, 2: it ends one; empty: no mask needs it
    language: config.Language | None = None  # the built-in one, if a teacher is its posterior,
    language_words: bytes = b""  # and int32: the number of each entry's word in it, -1 for none


FLOAT_LABELS = ("value_B",)  # labels that are float32, not int32


def abstract_batch(batch_size: int, dataset: DatasetInfo) -> Batch:
    """The shapes and types of a batch, without values."""
    import jax
    import jax.numpy as jnp

    def make_array(name: str, seq_len: int = dataset.seq_len) -> jax.ShapeDtypeStruct:
        size, dtype = {"B": batch_size, "L": seq_len}, jnp.float32 if name in FLOAT_LABELS else jnp.int32
        return jax.ShapeDtypeStruct([size[letter] for letter in name.rpartition("_")[2].split("x")], dtype)

    text = Tokens(*map(make_array, Tokens._fields))
    source = Tokens(*(make_array(name, dataset.source_len) for name in Tokens._fields)) if dataset.source_len else None
    return Batch(text, {name: make_array(name) for name in dataset.label_names}, make_array("index_B"), source)


class TracedHparams(NamedTuple):
    """Scalars of a run that are traced: changing one never recompiles."""

    seed: Array  # uint32
    learning_rate: Array
    weight_decay: Array
    objective: dict[str, Array]  # the objective's own, by its names


TEACHER = "teacher"  # the part of a state's parameters that a distillation reads


class TrainState(NamedTuple):
    """All that an update reads and writes besides its batch.

    params: {"model": ..., "objective": its head's}, and while a run with a teacher trains TEACHER, which no update
    changes and no checkpoint holds.
    """

    step: Array  # int32, updates made
    params: Params
    opt_state: Any


class Directionality(enum.StrEnum):
    """Which tokens of its example a model reads for a token's state: the values of config.model.directionality."""

    BIDIRECTIONAL = "bidirectional"  # all
    CAUSAL = "causal"  # the token and those before it
    TWO_STACK = "two_stack"  # one stack of layers those before it, one those after it
    MIXED = "mixed"  # BIDIRECTIONAL or CAUSAL, by example


class Direction(enum.StrEnum):
    """What one state of a token has seen of its example."""

    BIDIRECTIONAL = "bidirectional"
    LEFT = "left"
    RIGHT = "right"
    MIXED = "mixed"  # BIDIRECTIONAL or LEFT, by example


class Pooling(enum.StrEnum):
    """How the states of an example become one vector: the values of config.finetune.pooling."""

    FIRST = "first"
    LAST = "last"
    MEAN = "mean"


class EncodeFn(Protocol):
    """h_BxLxD for each of the model's directions.

    key_B: one random key per example; None: no dropout. shift_BxLxD: added to the embeddings after their norm, to
    differentiate with respect to it. left_B: the examples whose states see the left side only, for the direction MIXED;
    None: none.
    """

    def __call__(
        self,
        params: Params,
        text: Tokens,
        source: Tokens | None = None,
        *,
        key_B: Array | None = None,
        shift_BxLxD: Array | None = None,
        left_B: Array | None = None,
    ) -> tuple[Array, ...]: ...


class LogitsFn(Protocol):
    """The output layer of a model: logits_...xV, float32, of states h_...xD."""

    def __call__(self, params: Params, h: Array, /) -> Array: ...


class LMHeadFn(Protocol):
    """(h_...xD, table_VxD, bias_V) of states h_...xD, such that h @ table.T + bias are their logits."""

    def __call__(self, params: Params, h: Array, /) -> tuple[Array, Array, Array]: ...


class EncodeLayersFn(Protocol):
    """The states of all layers: h_KxBxLxD, K = 1 + model.num_layers (Devlin et al. 2019, table 7).

    They are the embeddings after their norm; the output of each layer without the norm of the next; and last the states
    of `encode`. Several directions are concatenated in D.
    """

    def __call__(
        self, params: Params, text: Tokens, source: Tokens | None = None, *, key_B: Array | None = None
    ) -> Array: ...


class AttentionFn(Protocol):
    """weights_KxBxHxLxL of K layers with H heads: of each token (last L) for each token (first L)."""

    def __call__(self, params: Params, text: Tokens, /) -> Array: ...


class EncodeProjectionsFn(Protocol):
    """(states of `encode`, (q, k, v) of a layer from 1; 0: the last): x_BxLxD of all heads, before any rotation."""

    def __call__(
        self, params: Params, text: Tokens, layer: int, key_B: Array | None = None
    ) -> tuple[tuple[Array, ...], ...]: ...


class InitCacheFn(Protocol):
    """The cache of decoding after the tokens of a text, with room for max_len tokens.

    Examples start at position 0 and may have different lengths, also 0. Every leaf has the batch on axis 1.
    """

    def __call__(self, params: Params, text: Tokens, source: Tokens | None, max_len: int, /) -> Any: ...


class DecodeStepFn(Protocol):
    """One step of decoding: (logits_BxV of the token after these, cache)."""

    def __call__(self, params: Params, cache: Any, ids_B: Array, /) -> tuple[Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Model:
    """An encoder or decoder with its output layer, as pure functions.

    Random draws use one key per example (key_B), so that they do not depend on how examples are spread over devices.
    """

    directions: tuple[Direction, ...]  # of each state: (BIDIRECTIONAL,), (LEFT,), (LEFT, RIGHT) or (MIXED,)
    width: int  # D
    init: Callable[[Array], Params]  # of a random key
    encode: EncodeFn
    logits: LogitsFn  # every model has an output layer
    # The factors of the logits, for a kernel that needs no logits; None: config.model.kernels names no such kernel.
    lm_head: LMHeadFn | None = None
    vocab_block: int = 0  # entries of the vocabulary whose logits a loss computes at a time; 0: all
    encode_layers: EncodeLayersFn | None = None  # None: the model gives its last states only
    attention: AttentionFn | None = None  # None: the model has no attention
    encode_projections: EncodeProjectionsFn | None = None  # None: as attention, or the model has two stacks
    init_cache: InitCacheFn | None = None  # as decode_step; None: the model cannot decode token by token
    decode_step: DecodeStepFn | None = None


class BuildModelFn(Protocol):
    """The model of a config over a vocabulary of this size."""

    def __call__(self, model: config.Model, vocab_size: int, /) -> Model: ...


CheckFn = Callable[[config.Config], None]  # raises ConfigError for a config that cannot be used


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """An entry of MODELS."""

    build: BuildModelFn
    check: CheckFn
    cells: tuple[str, ...] = ()
    conditional_fields: tuple[str, ...] = ()  # fields of config.model, without "model.", that not every family reads
    # Fields that only some cells read, with the cells.
    cell_fields: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    reads_source: bool = False  # beside the text


class LossSums(NamedTuple):
    """The loss of each example as sums, never as means: examples hold different numbers of predictions.

    The minimised loss is the sum over terms of (loss over the global batch) / (weight over the global batch), times the
    term's loss weight. Scores name the sums TERM_nats and TERM_weight, and the others as in `sums_B`.
    """

    loss_B: dict[str, jax.Array]  # term -> nats; in training with what optim.label_smoothing and optim.z_loss add
    weight_B: dict[str, jax.Array]  # term -> number of predictions; depends on no parameter
    sums_B: dict[str, jax.Array]  # other counts, such as correct predictions


class BatchSums(NamedTuple):
    """The fields of LossSums, each summed over the examples of a batch: scalars."""

    loss: dict[str, jax.Array]
    weight: dict[str, jax.Array]
    sums: dict[str, jax.Array]


class LossFn(Protocol):
    """The sums of a batch; mask_index: which of the `masks_per_example` masks of each example to use."""

    def __call__(
        self,
        params: Params,
        model: Model,
        batch: Batch,
        key_B: jax.Array,
        hparams: TracedHparams,
        *,
        train: bool,
        mask_index: int = 0,
    ) -> LossSums: ...


class TeacherFn(Protocol):
    """prob_BxKxV: a teacher's probabilities of the tokens at positions_BxK of masked examples."""

    def __call__(self, ids_BxL: jax.Array, positions_BxK: jax.Array, /) -> jax.Array: ...


class EvalMaskFn(Protocol):
    """eval_mask_BxL: the tokens that evaluation predicts."""

    def __call__(self, text: Tokens, key_B: jax.Array, hparams: TracedHparams) -> jax.Array: ...


def mask_nothing(text: Tokens, key_B: jax.Array, hparams: TracedHparams) -> jax.Array:
    """The EvalMaskFn of an objective that predicts no tokens, but labels."""
    return text.ids_BxL < 0


class HostMetricsFn(Protocol):
    """Columns by example, extended by what no compiled step can count.

    columns: what evaluation gave for each example, by name; rows: the split's own columns, by name; examples: the
    labelled examples that the split was packed from.
    """

    def __call__(self, columns: dict[str, Any], rows: Mapping[str, Any], examples: Any) -> dict[str, Any]: ...


class InitHeadFn(Protocol):
    """The random parameters of an objective's own head; {} where there is none."""

    def __call__(self, key: jax.Array, model: Model, /) -> Params: ...


class ScheduleHparamsFn(Protocol):
    """The hyperparameters of a step; progress: the share of the training that is done."""

    def __call__(self, hparams: TracedHparams, progress: Array, /) -> TracedHparams: ...


class CompareFn(Protocol):
    """The sums of a batch by its embeddings; gather: a tree of a device's examples -> that of all devices'."""

    def __call__(
        self,
        embedding_BxTxD: Array,
        batch: Batch,
        hparams: TracedHparams,
        gather: Callable[[Any], Any] = lambda tree: tree,
    ) -> LossSums: ...


class Coupling(NamedTuple):
    """The loss of an objective that compares the examples of a batch with each other, in two parts.

    In training `Objective.loss` is `compare` of what `embed` gives, of a batch that one device holds as a whole.
    """

    embed: Callable[..., Array]  # (params, model, batch, key_B) -> embedding_BxTxD, of each example alone
    compare: CompareFn


@dataclasses.dataclass(frozen=True)
class Objective:
    """A training objective, built for one config and data set."""

    loss: LossFn
    scores: tuple[Score, ...]  # of an evaluation; runs are compared by the first, whose last column counts predictions
    init: InitHeadFn = lambda key, model: {}
    eval_mask: EvalMaskFn = mask_nothing
    train_scores: tuple[Score, ...] = ()  # of the sums over training steps, for the log
    totals: tuple[str, ...] = ("tokens",)  # sums whose running totals the log keeps
    masks_per_example: int = 1  # passes through the model that a batch takes in a step
    schedule_hparams: ScheduleHparamsFn = lambda hparams, progress: hparams
    # The hyperparameters of a step -> the factor of each term that is not 1.
    loss_weights: Callable[[TracedHparams], dict[str, Array]] = lambda hparams: {}
    host_metrics: HostMetricsFn = lambda columns, rows, examples: columns
    # Parameters of which some move with others: (at the start) -> those that training starts from, and (an optimizer's
    # updates) -> those that are made. None: each moves by itself.
    link_params: Callable[[Params], Params] | None = None
    link_updates: Callable[[Params], Params] | None = None
    coupling: Coupling | None = None  # None: the loss of an example depends on no other
    predicts_special: bool = False  # whether it predicts all tokens but the first of a segment; else the words alone

    @property
    def predicts_tokens(self) -> bool:
        """Whether it uses the model's output layer."""
        return self.eval_mask is not mask_nothing


class Visibility(enum.StrEnum):
    """Which tokens of its example a model may see when evaluation predicts one of them."""

    UNMASKED = "unmasked"  # all tokens that are not masked
    CAUSAL = "causal"  # those before it
    TWO_STACK = "two_stack"  # those before it, and apart from them those after it
    UNMASKED_OR_LEFT = "unmasked_or_left"  # all that are not masked, and the masked ones before it
    BOUND = "bound"  # as UNMASKED; each loss is weighted by the number of tokens over that of masks
    CORRUPTED = "corrupted"  # all tokens of a corrupted example: each is classified, none is predicted
    FULL = "full"  # all tokens: labels are predicted, tokens are not


class PredictionRates(NamedTuple):
    """The predictions of a step, mean over the run, for each example of the batch and each of its tokens of a kind."""

    words: float = 0.0  # that a mask may cover
    following: float = 0.0  # that are not the first of their segment
    tokens: float = 0.0  # all
    examples: float = 0.0


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
    """An entry of OBJECTIVES."""

    # (static config, dataset) -> the objective; an auxiliary model or a teacher, where there is one, is the third
    # argument: of a teacher a TeacherFn, or a Model whose parameters are params[TEACHER]. The config hides the fields
    # that are traced: their values are in hparams.
    build: Callable[..., Objective]
    prediction_rates: Callable[[config.Config], PredictionRates]
    directionalities: tuple[Directionality, ...]  # that it can use; the default is the first
    visibility: Visibility  # of its first loss
    check: CheckFn = lambda cfg: None
    # The only value that it can use, by dotted name of a config field.
    required_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    train_hparams: Callable[[config.Config], dict[str, Array]] = lambda cfg: {}  # NumPy scalars of training
    eval_hparams: Callable[[config.Config], dict[str, Array]] = lambda cfg: {}  # NumPy scalars of evaluation
    conditional_fields: tuple[str, ...] = ()  # config fields, or prefixes of fields, that not every objective reads
    # Of its other losses, by the name of the score; "loss" overrides `visibility` where floors are concerned.
    loss_visibility: Mapping[str, Visibility] = dataclasses.field(default_factory=dict[str, Visibility])
    makes_source: bool = False  # whether it makes the source that a model reads beside each example
    # The config of a second model of the same family; None: there is none.
    auxiliary_model: Callable[[config.Config], config.Model | None] = lambda cfg: None
    shift_states: Callable[[Model], Model] = lambda model: model  # the same model, whose state at a token predicts it
    # The default of finetune.pooling where that makes the embeddings that it trains; None: it trains none.
    embedding_pooling: Pooling | None = None
