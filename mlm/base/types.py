"""The values that pass between the rooms. Arrays carry their shape in their name, one letter an axis:

B rows of a batch, L tokens of a row, K masked slots of a row, D width, V vocabulary, N rows of a split.
"""
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base.estimates import Score

Params = Any  # a tree of arrays


class Tokens(NamedTuple):
    """Rows of tokens as they were packed, all that a model may see of them. int32; PAD fills where segments is 0."""

    ids_BxL: jax.Array
    segments_BxL: jax.Array   # tokens see each other where this is equal; 0 on padding
    positions_BxL: jax.Array  # of a token in its segment, from 0
    types_BxL: jax.Array      # sentence kind: 0, or 1 in the second segment of a pair


class Batch(NamedTuple):
    """Rows of a split, before an objective makes its question of them."""

    text: Tokens
    labels: dict[str, jax.Array]        # by the names that the rows were made with; none for text alone
    index_B: jax.Array        # names the row in random draws: its slot in the global batch; in evaluation, in the split
    source: Tokens | None = None          # what a decoder reads beside it: a token of the text sees those of the source
                                        # whose segment has its own number
    row_B: jax.Array | None = None      # in training: its number in the split,
    epoch_B: jax.Array | None = None    # and how often all rows came before it; None: it has no static mask


class DatasetInfo(NamedTuple):
    """What a compiled program must know of its rows; hashable."""

    vocab_size: int
    length: int               # tokens of a row
    labels: tuple[str, ...]   # names that end in their shape's letters, such as next_B
    unigram: bytes            # int64: how often each entry of the vocabulary stands in the train split
    classes: tuple[str, ...] = ()  # names of the labels or tags, in the order of their numbers
    counts: bytes = b""       # int64: how often each of them is a label in the train split
    source_length: int = 0    # tokens of the source beside each row; 0: there is none
    starts: bytes = b""       # bool: which entries of the vocabulary begin a word; none where no mask asks for it


NUMBERS = ("value_B",)        # labels that are float32, not int32


def abstract(rows: int, about: DatasetInfo) -> Batch:
    """The shapes of a batch of `rows` rows, without their values."""
    def array(name, length=about.length):
        size, kind = {"B": rows, "L": length}, jnp.float32 if name.startswith("value") else jnp.int32
        return jax.ShapeDtypeStruct([size[letter] for letter in name.rpartition("_")[2].split("x")], kind)

    source = Tokens(*(array(name, about.source_length) for name in Tokens._fields)) if about.source_length else None
    return Batch(Tokens(*map(array, Tokens._fields)), {name: array(name) for name in about.labels}, array("index_B"),
                 source)


class TracedHparams(NamedTuple):
    """Scalars of a run that are traced: changing one never recompiles."""

    seed: jax.Array           # uint32
    learning_rate: jax.Array
    weight_decay: jax.Array
    objective: dict[str, jax.Array]  # the objective's own, by its names


class TrainState(NamedTuple):
    step: jax.Array           # int32, updates made
    params: Params
    opt_state: Any


class Model(NamedTuple):
    """An encoder and its output layer as pure functions.

    Random draws take one key a row (key_B), so that they do not depend on how rows are spread over devices.
    """

    directions: tuple[str, ...]     # what each of the states of a token has seen of its row: ("both",), ("left",),
                              # ("left", "right") or ("row",), as each row says
    width: int                # D
    init: Callable            # (key) -> params
    encode: Callable          # (params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None) -> tuple of
                              # h_BxLxD, one for each of `ways`; key_B None: evaluation, no dropout; shift: what is
                              # added to the embeddings, behind their norm, to take gradients by them; left_B: of a
                              # model whose way is "row", rows whose states see the left alone, None: no row's
    logits: Callable          # (params, h_...xD) -> logits_...xV, float32
    head: Callable | None = None  # (params, h_...xD) -> h_...xD, table_VxD, bias_V, of which h @ table.T + bias are the
                                  # logits; None: a loss cannot, or should not, take its own way through them
    encode_layers: Callable | None = (
        None  # (params, text, source=None, *, key_B=None) -> h_KxBxLxD, K = 1 + model.num_layers, as
    )
    # features are read (Devlin et al. 2019, table 7): first the embeddings, with their
                                  # norm; then what stands after each layer, between layers without the norms that the
                                  # next begins with; the last is `hidden`, behind the final norm where there is one.
                                  # States of several ways stand side by side in D. None: a stand-in's alone
    attention: Callable | None = None  # (params, text) -> weights_KxBxHxLxL, K layers of H heads: how much each token
                                  # (the first L) takes of each other one. None: a model without attention
    init_cache: Callable | None = (
        None  # (params, text, source, room) -> cache: what the next token needs of rows that were
    )
    # read from the left (each from its first place on, of its own length, which may be
                                  # 0), with room for `room` tokens in all. Every leaf has the rows on its axis 1.
                                  # None: a model of which no token can be read alone
    decode_step: Callable | None = None  # (params, cache, ids_B) -> (logits_BxV of the token after these, cache)


class ModelSpec(NamedTuple):
    """A row of MODELS."""

    build: Callable           # (config.Model, vocab_size) -> Model
    check: Callable           # (config.Config) -> None; raises ConfigError for what the family cannot be
    cells: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # fields of config.model that not every family reads
    of_cells: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # those that some cells alone read, with the cells
    source: bool = False      # whether it reads a source beside each row; else it is given none


class LossSums(NamedTuple):
    """What is minimised is the sum over terms of (sum of loss over the global batch) / (sum of weight over it), each
    times the objective's factor of that term.
    """

    loss_B: dict[str, jax.Array]    # term -> nats
    weight_B: dict[str, jax.Array]  # term -> predictions made; depends on no parameter
    sums_B: dict[str, jax.Array]    # what else is worth counting: correct predictions, ...


class Objective(NamedTuple):
    """A loss as sums over each row, never as means: rows hold different numbers of predictions.

    Sums are known by names: TERM_nats and TERM_weight for each term of the loss, and the names of `sums_B`.
    """

    init: Callable            # (key, model) -> parameters of the objective's own head, {} where it has none
    loss: Callable            # (params, model, batch, key_B, knobs, *, train, view=0) -> Losses
    asked: Callable           # (text, key_B, knobs) -> asked_BxL, the tokens that evaluation asks for
    scores: tuple[Score, ...] # of an evaluation; curves, claims and tables judge by the first, whose last column is
                              # the weight of what is predicted
    training: tuple[Score, ...] = ()       # of the sums over training steps, for the log
    counts: tuple[str, ...] = ("tokens",)  # sums of which the run keeps totals
    views: int = 1            # passes through the model that a batch takes in a step
    words: bool = True        # whether it asks for tokens, through the model's output layer
    now: Callable = lambda knobs, done: knobs  # (knobs, share of training done) -> knobs of the moment
    factors: Callable = lambda knobs: {}   # (knobs of the moment) -> by what a term is multiplied in what is minimised,
                              # where that is not 1
    tally: Callable = lambda columns, rows, examples: columns  # what no compiled step can count, on the host: (what
                              # evaluation gave by row, the split's columns by name, its examples) -> columns by row


class ObjectiveSpec(NamedTuple):
    """A row of OBJECTIVES."""

    build: Callable           # (config.Config, About) -> Objective; with a Model beside them where it asks for one
    check: Callable           # (config.Config) -> None; raises ConfigError for what the objective cannot use
    predicted: Callable       # (config.Config) -> share of a row's words that a step predicts, on average over the run
    sees: tuple[str, ...]     # values of config.model.context that it can use, its own choice first
    seen: str                 # of an asked token's row, in evaluation: the "rest", all but the asked, or its "left";
                              # "filled", the rest, and of the asked those to its left; the whole "row" where labels
                              # are asked for, and no tokens; "all" where each token is shown, and told to be true
                              # or not
    knobs: Callable = lambda cfg: {}   # (config.Config) -> numpy scalars of training
    frozen: Callable = lambda cfg: {}  # the same of evaluation
    traced: tuple[str, ...] = ()       # config fields that reach the compiled step as these knobs alone
    reads: tuple[str, ...] = ()        # fields, or all below one, that not every objective reads
    losses: Mapping[str, str] = MappingProxyType({})   # as `seen`, of further losses among its scores; of "loss"
                              # where it is a "bound": the rest, and weighed by how many words of the row are asked for
    source: bool = False               # whether it makes of each row the source that a model reads beside it
    further: Callable = lambda cfg: None    # (config.Config) -> config.Model of a further model, in the family of the
                              # run's, that `build` is handed as a third argument; None: there is none
    telling: Callable = lambda model: model  # (Model) -> the same, whose state at a hidden token's place tells it
