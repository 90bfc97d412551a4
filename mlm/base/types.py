"""The values that pass between packages.

The name of an array ends in its shape, one letter an axis:

B examples of a batch, L tokens of an example, K masked slots of an example, D width, V vocabulary, N examples of a
split.
"""

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from mlm.base.estimates import Score

Params = Any  # a tree of arrays
Array = Any  # jax.Array in a program, numpy.ndarray on the host, jax.ShapeDtypeStruct where only shapes matter


class Tokens(NamedTuple):
    """Packed examples of tokens: all that a model may see of them. Arrays are int32; PAD fills where segments is 0."""

    ids_BxL: Array
    segments_BxL: Array  # tokens of one segment see each other; 0 on padding
    positions_BxL: Array  # of a token in its segment, from 0
    types_BxL: Array  # token type: 0, or 1 in the second segment of a pair


class Batch(NamedTuple):
    """Examples of a split, before an objective masks or corrupts them."""

    text: Tokens
    labels: dict[str, Array]  # by name; empty for text without labels
    index_B: Array  # seeds an example's random draws: its slot in the global batch in training, its
    # index in the split in evaluation
    source: Tokens | None = None  # what a decoder reads beside the text: a token of the text sees the tokens of
    # the source that have its segment number
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
    word_starts: bytes = b""  # bool: which vocabulary entries begin a word; empty where no mask needs it


FLOAT_LABELS = ("value_B",)  # labels that are float32, not int32


def abstract_batch(batch_size: int, dataset: DatasetInfo) -> Batch:
    """The shapes and types of a batch, without values."""

    def make_array(name, seq_len=dataset.seq_len):
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


class TrainState(NamedTuple):
    """All that an update reads and writes besides its batch."""

    step: Array  # int32, updates made
    params: Params
    opt_state: Any


class Model(NamedTuple):
    """An encoder or decoder with its output layer, as pure functions.

    Random draws use one key per example (key_B), so that they do not depend on how examples are spread over devices.
    """

    directions: tuple[str, ...]  # what each state of a token has seen of its example: ("bidirectional",), ("left",),
    # ("left", "right"), or ("mixed",), which left_B decides for each example
    width: int  # D
    init: Callable  # (key) -> params
    # (params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None) -> tuple of h_BxLxD, one for each of
    # `directions`. key_B None: no dropout. shift: added to the embeddings after their norm, to differentiate with
    # respect to it. left_B: the examples whose states see the left side only, for the direction "mixed"; None: none
    encode: Callable
    logits: Callable  # (params, h_...xD) -> logits_...xV, float32
    # (params, h_...xD) -> (h_...xD, table_VxD, bias_V), such that h @ table.T + bias are the logits; None: losses use
    # `logits`
    lm_head: Callable | None = None
    # (params, text, source=None, *, key_B=None) -> h_KxBxLxD, K = 1 + model.num_layers (Devlin et al. 2019, table 7):
    # the embeddings after their norm; the output of each layer without the norm of the next; and last the states of
    # `encode`. Several directions are concatenated in D
    encode_layers: Callable | None = None
    # (params, text) -> weights_KxBxHxLxL of K layers with H heads: the weight of each token (last L) for each token
    # (first L); None: the model has no attention
    attention: Callable | None = None
    # (params, text, source, max_len) -> cache after the tokens of `text`, with room for max_len tokens. Examples start
    # at position 0 and may have different lengths, also 0. Every leaf has the batch on axis 1. None: the model cannot
    # decode token by token
    init_cache: Callable | None = None
    decode_step: Callable | None = None  # (params, cache, ids_B) -> (logits_BxV of the token after these, cache)


class ModelSpec(NamedTuple):
    """An entry of MODELS."""

    build: Callable  # (config.Model, vocab_size) -> Model
    check: Callable  # (config.Config) -> None; raises ConfigError for a config that the family cannot use
    cells: tuple[str, ...] = ()
    conditional_fields: tuple[str, ...] = ()  # fields of config.model that not every family reads
    cell_fields: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {}
    )  # fields that only some cells read, with the cells
    reads_source: bool = False  # whether the model reads a source text


class LossSums(NamedTuple):
    """The loss of each example as sums, never as means: examples hold different numbers of predictions.

    The minimised loss is the sum over terms of (loss over the global batch) / (weight over the global batch), times the
    term's loss weight. Scores name the sums TERM_nats and TERM_weight, and the others as in `sums_B`.
    """

    loss_B: dict[str, jax.Array]  # term -> nats
    weight_B: dict[str, jax.Array]  # term -> number of predictions; depends on no parameter
    sums_B: dict[str, jax.Array]  # other counts, such as correct predictions


class LossFn(Protocol):
    """The loss of an objective."""

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
    ) -> LossSums:
        """The sums of a batch; mask_index: which of the `masks_per_example` masks of each example to use."""
        ...


class EvalMaskFn(Protocol):
    """The choice of the tokens that evaluation predicts."""

    def __call__(self, text: Tokens, key_B: jax.Array, hparams: TracedHparams) -> jax.Array:
        """eval_mask_BxL: the tokens that evaluation predicts."""
        ...


class HostMetricsFn(Protocol):
    """An objective's metrics that are computed on the host."""

    def __call__(self, columns: dict, rows: Mapping, examples: Any) -> dict:
        """Columns by example, extended by what no compiled step can count.

        Args:
            columns: what evaluation gave for each example, by name.
            rows: the split's own columns, by name.
            examples: the labelled examples that the split was packed from.
        """
        ...


class Objective(NamedTuple):
    """A training objective, compiled for one config and data set."""

    init: Callable  # (key, model) -> parameters of the objective's own head; {} where it has none
    loss: LossFn
    eval_mask: EvalMaskFn
    scores: tuple[Score, ...]  # of an evaluation; figures and tables compare by the first, whose last column
    # is the number of predictions
    train_scores: tuple[Score, ...] = ()  # of the sums over training steps, for the log
    totals: tuple[str, ...] = ("tokens",)  # sums whose running totals the log keeps
    masks_per_example: int = 1  # passes through the model that a batch takes in a step
    predicts_tokens: bool = True  # whether it uses the model's output layer
    schedule_hparams: Callable = lambda hparams, progress: hparams  # (TracedHparams, share of training done) -> those
    # of this step
    loss_weights: Callable = lambda hparams: {}  # (TracedHparams of this step) -> factor of each term that is not 1
    host_metrics: HostMetricsFn = lambda columns, rows, examples: columns


class Visibility(enum.StrEnum):
    """Which tokens of its example a model may see when evaluation predicts one of them."""

    UNMASKED = "unmasked"  # all tokens that are not masked
    CAUSAL = "causal"  # those before it
    TWO_STACK = "two_stack"  # those before it, and apart from them those after it
    UNMASKED_OR_LEFT = "unmasked_or_left"  # all that are not masked, and the masked ones before it
    BOUND = "bound"  # as UNMASKED; each loss is weighted by the number of tokens over that of masks
    CORRUPTED = "corrupted"  # all tokens of a corrupted example: each is classified, none is predicted
    FULL = "full"  # all tokens: labels are predicted, tokens are not


class ObjectiveSpec(NamedTuple):
    """An entry of OBJECTIVES."""

    build: Callable  # (Config, DatasetInfo[, auxiliary Model]) -> Objective
    check: Callable  # (Config) -> None; raises ConfigError for what the objective cannot use
    predictions_per_token: Callable  # (Config) -> predictions of a step per token of the batch, mean over the run
    contexts: tuple[str, ...]  # values of config.model.context that it can use; the default is the first
    visibility: Visibility  # of its first loss
    train_hparams: Callable = lambda cfg: {}  # (Config) -> NumPy scalars of training
    eval_hparams: Callable = lambda cfg: {}  # (Config) -> NumPy scalars of evaluation
    traced_fields: tuple[str, ...] = ()  # config fields that reach the compiled step through these scalars only
    conditional_fields: tuple[str, ...] = ()  # config fields, or prefixes of fields, that not every objective reads
    loss_visibility: Mapping[str, Visibility] = MappingProxyType({})  # of its other losses, by the name of the score;
    # an entry "loss" overrides `visibility` where floors are concerned
    makes_source: bool = False  # whether it makes the source that a model reads beside each example
    auxiliary_model: Callable = lambda cfg: None  # (Config) -> config.Model of a second model of the same family,
    # which `build` takes as its third argument; None: there is none
    shift_states: Callable = lambda model: model  # (Model) -> the same model, whose state at a token predicts it
