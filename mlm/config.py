"""Every knob of a run: typed fields with unit and default, and the checks made before anything compiles."""
import dataclasses
import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """A bad value in a config; its message is one line naming field, value, what was expected and the nearest name."""


def setting(default, **kwargs):
    """A field that says where or how a run works and cannot change its result: left out of the fingerprint."""
    return dataclasses.field(default=default, metadata={"affects_result": False}, **kwargs)


@dataclasses.dataclass(unsafe_hash=True)
class Data:
    corpus: str = "auto"                # auto (text where path is set, else docstrings) | text | tfds | docstrings
    path: str = ""                      # text: globs of .txt and .gz files, separated by commas
    validation_path: str = ""           # text: globs of the held-out files; empty: a share of path's documents
    boundary: str = "file"              # text: a document is a "file", ends at a "blank_line", or starts at a line
                                        #       that fully matches this regular expression, such as " = [^=]+ = "
                                        #       for WikiText: " = Title = " does, " = = Section = = " does not
    tfds_name: str = ""                 # tfds: name of the data set, such as "lm1b" or "wiki40b/en"
    tfds_dir: str = ""                  # tfds: folder of the prepared data sets; empty: the library's default
    tfds_field: str = "text"            # tfds: the feature that holds a document
    validation_fraction: float = 0.05   # share of the documents held out where the corpus brings no held-out split
    cache: str = setting("runs/cache")  # folder of tokenizers and packed rows, shared by runs


@dataclasses.dataclass(unsafe_hash=True)
class Tokenizer:
    kind: str = "unigram"               # unigram (SentencePiece) | wordpiece | words
    vocab_size: int = 8192              # entries, the five special ones included


@dataclasses.dataclass(unsafe_hash=True)
class Pack:
    mode: str = "full_sentences"        # full_sentences | doc_sentences | segment_pair
    length: int = 128                   # tokens in a row
    isolate: bool = True                # nothing is seen across documents that share a row (attention, state, window)


@dataclasses.dataclass(unsafe_hash=True)
class Mask:
    rate: float = 0.15                  # share of a row's eligible tokens that are corrupted and predicted
    max_rate: float = 0.0               # largest rate the compiled step must hold; 0: rate
    mask_share: float = 0.8             # of the chosen: replaced by [MASK]
    random_share: float = 0.1           # of the chosen: replaced by a random token; the rest stay as they are
    random_from: str = "unigram"        # distribution of the random tokens: unigram | uniform


@dataclasses.dataclass(unsafe_hash=True)
class Model:
    family: str = "transformer"         # feedforward | rnn | transformer
    cell: str = ""                      # rnn: elman | gru | lstm; feedforward: window | bag; empty: the family's first
    size: str = "tiny"                  # row of configs/sizes.py that fills the zeros below
    layers: int = 0
    width: int = 0                      # of the embeddings and of the stream between layers
    hidden: int = 0                     # inside a layer: MLP units, or recurrent units of one direction
    heads: int = 0                      # transformer
    window: int = 0                     # feedforward: neighbours on each side
    bidirectional: bool = True          # rnn
    norm: str = "pre"                   # transformer: layer norm before (pre) or after (post) each sub-layer
    positions: str = "learned"          # transformer: learned | sinusoidal
    max_positions: int = 512            # transformer: longest row
    segment_types: int = 2              # sentence kinds told apart by an embedding; 0: no such embedding
    dropout: float = 0.1                # of embeddings and of each sub-layer's output
    attention_dropout: float = 0.1      # transformer: of the attention weights
    init_std: float = 0.02              # of the weights' truncated normal; 0: 1/sqrt(inputs) of each matrix
    dtype: str = "float32"              # of the computation: float32 | bfloat16; parameters stay float32
    unroll: int = 0                     # layers per iteration of the scan; 0: all (fast on CPU), 1: quick to compile
    time_unroll: int = 1                # rnn: tokens per iteration of the scan along a row


@dataclasses.dataclass(unsafe_hash=True)
class Optim:
    learning_rate: float = 1e-3         # peak
    schedule: str = "linear"            # linear | cosine | wsd | constant, all after a linear warm-up
    warmup_fraction: float = 0.06       # of the steps
    decay_fraction: float = 0.1         # wsd (warmup-stable-decay): of the steps, at the end
    final_fraction: float = 0.0         # of the peak, reached at the last step
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.01          # not applied to biases and layer norms
    clip: float = 1.0                   # largest global gradient norm; 0: no clipping


@dataclasses.dataclass(unsafe_hash=True)
class Train:
    steps: int = 1000                   # updates
    batch_size: int = 32                # rows an update, over all devices
    accumulate: int = 1                 # parts the batch is computed in, one after the other
    eval_every: int = setting(0)        # steps; 0: at the end only
    checkpoint_every: int = setting(500)  # steps
    log_every: int = setting(50)        # steps


@dataclasses.dataclass(unsafe_hash=True)
class Eval:
    rate: float = 0.15                  # share of tokens replaced by [MASK], the same for every model
    seed: int = 1234                    # of the frozen masks
    batch_size: int = setting(64)       # rows
    max_rows: int = 0                   # 0: the whole held-out split


@dataclasses.dataclass(unsafe_hash=True)
class Parallel:
    mode: str = setting("jit")          # jit (over a mesh) | pmap


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    seed: int = 0                       # of initialisation, data order, masks and dropout
    workdir: str = setting("runs/base")
    objective: str = "mlm"              # mlm | nsp (masked tokens and next sentence)
    data: Data = dataclasses.field(default_factory=Data)
    tokenizer: Tokenizer = dataclasses.field(default_factory=Tokenizer)
    pack: Pack = dataclasses.field(default_factory=Pack)
    mask: Mask = dataclasses.field(default_factory=Mask)
    model: Model = dataclasses.field(default_factory=Model)
    optim: Optim = dataclasses.field(default_factory=Optim)
    train: Train = dataclasses.field(default_factory=Train)
    eval: Eval = dataclasses.field(default_factory=Eval)
    parallel: Parallel = dataclasses.field(default_factory=Parallel)


def expect(condition: bool, field: str, value: Any, expected: str) -> None:
    """Raises ConfigError naming the field, its value and what was expected, unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field} = {value!r}: expected {expected}")


def one_of(field: str, value: str, names) -> None:
    """Raises ConfigError unless value is one of names; says which name is nearest."""
    if value not in names:
        near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{field} = {value!r}: expected one of {', '.join(names)}{hint}")


def flatten(config, prefix: str = "", *, results_only: bool = False) -> dict[str, Any]:
    """All leaves by dotted name, in the order of their definition; results_only leaves out the settings."""
    flat = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.", results_only=results_only)
        elif not results_only or field.metadata.get("affects_result", True):
            flat[prefix + field.name] = value
    return flat


def check_name(name: str) -> None:
    """Raises ConfigError with the nearest right name unless name is a field, dotted, of Config."""
    names = list(flatten(Config()))
    if name not in names:
        leaf = name.rpartition(".")[2]
        near = (difflib.get_close_matches(name, names, n=1, cutoff=0.6)
                or [full for full in names if full.rpartition(".")[2] == leaf][:1])
        raise ConfigError(f"config.{name}: no such field" + (f"; did you mean config.{near[0]}?" if near else ""))


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of config with the leaves of `changes`, keyed by dotted name, replaced.

    Raises ConfigError for an unknown name and for a value that is not of the field's type.
    """
    for name, value in changes.items():
        check_name(name)
        parents, leaf = name.split(".")[:-1], name.split(".")[-1]
        owner = config
        for parent in parents:
            owner = getattr(owner, parent)
        kind = type(getattr(owner, leaf))
        if kind is float and type(value) is int:
            value = float(value)
        expect(type(value) is kind, f"config.{name}", value, f"a value of type {kind.__name__}")
        replaced = dataclasses.replace(owner, **{leaf: value})
        config = dataclasses.replace(config, **{parents[0]: replaced}) if parents else replaced
    return config


def from_flat(flat: Mapping[str, Any]) -> Config:
    """The config whose leaves `flatten` gave."""
    return override(Config(), flat)


def resolve(config: Config, sizes: Mapping[str, Mapping[str, Mapping[str, int]]], cells: Mapping[str, tuple]) -> Config:
    """Fills what follows from other fields: the corpus kind, the family's first cell, and the zeros of its size.

    sizes: cell (or family, where it has no cells) -> size name -> fields of Model. cells: family -> names of its cells.
    """
    model = config.model
    one_of("config.model.family", model.family, list(cells))
    if cells[model.family]:
        model = dataclasses.replace(model, cell=model.cell or cells[model.family][0])
        one_of("config.model.cell", model.cell, cells[model.family])
    else:
        expect(not model.cell, "config.model.cell", model.cell, f"nothing: {model.family} has no cells")
    table = sizes[model.cell or model.family]
    one_of("config.model.size", model.size, list(table))
    model = dataclasses.replace(model, **{k: getattr(model, k) or v for k, v in table[model.size].items()})
    data = config.data
    if data.corpus == "auto":
        data = dataclasses.replace(data, corpus="text" if data.path else "docstrings")
    mask = dataclasses.replace(config.mask, max_rate=config.mask.max_rate or config.mask.rate)
    return dataclasses.replace(config, data=data, model=model, mask=mask)


def validate(config: Config) -> None:
    """Raises ConfigError for the first value of a resolved config that no run could use."""
    flat = flatten(config)

    def number(name, low, high, low_open=False, high_open=False):
        value = flat[name]
        ok = (low < value if low_open else low <= value) and (value < high if high_open else value <= high)
        bounds = f"{low} {'<' if low_open else '<='} value {'<' if high_open else '<='} {high}"
        expect(ok, f"config.{name}", value, bounds)

    def at_least(low, *names):
        for name in names:
            expect(flat[name] >= low, f"config.{name}", flat[name], f"at least {low}")

    def choice(name, *names):
        one_of(f"config.{name}", flat[name], names)

    choice("tokenizer.kind", "unigram", "wordpiece", "words")
    choice("pack.mode", "full_sentences", "doc_sentences", "segment_pair")
    choice("mask.random_from", "unigram", "uniform")
    choice("model.norm", "pre", "post")
    choice("model.positions", "learned", "sinusoidal")
    choice("model.dtype", "float32", "bfloat16")
    choice("optim.schedule", "linear", "cosine", "wsd", "constant")
    choice("parallel.mode", "jit", "pmap")
    if config.data.corpus == "text":
        expect(bool(config.data.path), "config.data.path", "", "globs of text files, since config.data.corpus is text")
    if config.data.corpus == "tfds":
        expect(bool(config.data.tfds_name), "config.data.tfds_name", "", "a name, since config.data.corpus is tfds")
    number("data.validation_fraction", 0, 1, low_open=True, high_open=True)
    at_least(6, "tokenizer.vocab_size")
    at_least(8, "pack.length")
    for name in ("mask.rate", "mask.max_rate", "eval.rate"):
        number(name, 0, 1, low_open=True, high_open=True)
    expect(config.mask.rate <= config.mask.max_rate, "config.mask.rate", config.mask.rate,
           f"at most config.mask.max_rate = {config.mask.max_rate}, which sizes the compiled step")
    for name in ("mask.mask_share", "mask.random_share", "optim.final_fraction", "optim.warmup_fraction",
                 "optim.decay_fraction"):
        number(name, 0, 1)
    share = config.mask.mask_share + config.mask.random_share
    expect(share <= 1 + 1e-6, "config.mask.mask_share + config.mask.random_share", share, "at most 1")
    for name in ("model.dropout", "model.attention_dropout", "optim.b1", "optim.b2"):
        number(name, 0, 1, high_open=True)
    at_least(1, "model.layers", "model.width", "model.hidden", "model.max_positions")
    at_least(1, "model.time_unroll")
    at_least(0, "model.segment_types", "model.unroll", "model.init_std", "optim.weight_decay", "optim.clip",
             "train.eval_every", "eval.max_rows", "seed", "eval.seed")
    at_least(1, "train.steps", "train.batch_size", "train.accumulate", "train.checkpoint_every", "train.log_every",
             "eval.batch_size")
    for name in ("optim.learning_rate", "optim.eps"):
        expect(flat[name] > 0, f"config.{name}", flat[name], "more than 0")
    if config.model.family == "transformer":
        at_least(1, "model.heads")
        expect(config.model.width % config.model.heads == 0, "config.model.heads", config.model.heads,
               f"a divisor of config.model.width = {config.model.width}")
        expect(config.pack.length <= config.model.max_positions, "config.pack.length", config.pack.length,
               f"at most config.model.max_positions = {config.model.max_positions}")
    if config.model.family == "feedforward":
        at_least(1, "model.window")
    expect(config.train.batch_size % config.train.accumulate == 0, "config.train.accumulate", config.train.accumulate,
           f"a divisor of config.train.batch_size = {config.train.batch_size}")
    if config.objective == "nsp":
        expect(config.pack.mode == "segment_pair", "config.pack.mode", config.pack.mode,
               "segment_pair, since config.objective is nsp")
    if config.pack.mode == "segment_pair":
        expect(config.model.segment_types != 1, "config.model.segment_types", 1, "2 (or 0), since rows hold pairs")


def fingerprint(config: Config) -> str:
    """Twelve hexadecimal digits that name a resolved config by the fields that can change its result."""
    flat = flatten(config, results_only=True)
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()[:12]


def check_same(cfg: Config, saved: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError, naming the fields that differ, unless `saved` (flattened) would give the same result."""
    want, have = flatten(cfg, results_only=True), dict(saved)
    differing = [f"config.{name} = {value!r}, there {have.get(name)!r}"
                 for name, value in want.items() if have.get(name) != value]
    if differing:
        raise ConfigError(f"{where} belongs to another config: {'; '.join(differing)}; choose another config.workdir")
