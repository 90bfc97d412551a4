"""What each knob of a run may be, alone and beside the others: checked before anything compiles."""
import dataclasses
import math
from collections.abc import Mapping

from mlm.base.config import Config
from mlm.base.errors import expect, one_of
from mlm.base.fields import flatten
from mlm.data.language.grammar import NAMES, TOPICS
from mlm.data.rows.fill import MODES
from mlm.data.text.corpus import CORPORA
from mlm.objectives import OBJECTIVES


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
        one_of(f"config.{name}", flat[name], list(names))

    choice("data.corpus", *CORPORA)
    choice("objective", *OBJECTIVES)
    choice("tokenizer.kind", "unigram", "wordpiece", "words")
    choice("pack.mode", *MODES)
    choice("mask.schedule", "constant", "linear", "cosine")
    choice("mask.random_from", "unigram", "uniform")
    choice("model.norm", "pre", "post")
    choice("model.positions", "learned", "sinusoidal", "rotary")
    choice("model.dtype", "float32", "bfloat16")
    choice("optim.schedule", "linear", "cosine", "wsd", "constant")
    choice("parallel.mode", "jit", "pmap")
    if config.data.corpus == "text":
        expect(bool(config.data.path), "config.data.path", "", "globs of text files, since config.data.corpus is text")
    if config.data.corpus == "tfds":
        expect(bool(config.data.tfds_name), "config.data.tfds_name", "", "a name, since config.data.corpus is tfds")
    number("data.validation_fraction", 0, 1, low_open=True, high_open=True)
    at_least(8, "pack.length")
    if config.data.corpus == "language":
        because = ", since config.data.corpus is language"
        for name, value in (("tokenizer.kind", "words"), ("tokenizer.vocab_size", 0), ("pack.mode", "doc_sentences")):
            expect(flat[name] == value, f"config.{name}", flat[name], f"{value}{because}; leave it out to have that")
        number("data.language.words", 8, config.pack.length - 2)
    else:
        at_least(6, "tokenizer.vocab_size")
    at_least(1, "data.language.train_documents", "data.language.validation_documents")
    at_least(0, "data.language.zipf", "data.language.topic")
    number("data.language.topics", 1, len(TOPICS))
    number("data.language.names", 1, len(NAMES.split()))
    for name in ("order", "agreement", "attractors", "recall"):
        number(f"data.language.{name}", 0, 1)
    for name in ("modifiers", "continues", "protagonist"):
        number(f"data.language.{name}", 0, 1, high_open=True)
    for name in ("mask.rate", "mask.max_rate", "eval.rate"):
        number(name, 0, 1, low_open=True, high_open=True)
    number("mask.final_rate", 0, 1, high_open=True)
    for rate in config.eval.rates:
        expect(isinstance(rate, float) and 0 < rate < 1, "config.eval.rates", config.eval.rates, "each 0 < rate < 1")
    for name in ("mask.rate", "mask.final_rate"):
        expect(flat[name] <= config.mask.max_rate, f"config.{name}", flat[name],
               f"at most config.mask.max_rate = {config.mask.max_rate}, which sizes the compiled step")
    if config.mask.schedule == "constant":
        expect(config.mask.final_rate == 0, "config.mask.final_rate", config.mask.final_rate,
               "0, since config.mask.schedule is constant; linear and cosine lead there")
    else:
        expect(config.mask.final_rate > 0, "config.mask.final_rate", config.mask.final_rate,
               f"a rate to end at, since config.mask.schedule is {config.mask.schedule}")
    number("mask.predict", 0, 1)
    at_least(1, "mask.views")
    at_least(0, "mask.copies")
    rates = (config.mask.rate, config.mask.final_rate or config.mask.rate)
    expect(config.mask.predict <= config.mask.views * min(rates) + 1e-6, "config.mask.predict", config.mask.predict,
           f"at most config.mask.views = {config.mask.views} times what is corrupted, {min(rates)}")
    expect(config.mask.views * max(rates) <= 1 + 1e-6, "config.mask.views", config.mask.views,
           f"at most 1 / {max(rates)}, the share that each of a row's disjoint masks takes")
    for name in ("mask.mask_share", "mask.random_share", "optim.final_fraction", "optim.warmup_fraction",
                 "optim.decay_fraction"):
        number(name, 0, 1)
    share = config.mask.mask_share + config.mask.random_share
    expect(share <= 1 + 1e-6, "config.mask.mask_share + config.mask.random_share", share, "at most 1")
    for name in ("model.dropout", "model.attention_dropout", "optim.b1", "optim.b2"):
        number(name, 0, 1, high_open=True)
    at_least(1, "model.layers", "model.width", "model.hidden", "model.max_positions")
    at_least(1, "model.time_unroll")
    expect(config.model.timescale == 0 or config.model.timescale > 2, "config.model.timescale", config.model.timescale,
           "0, or at least 3 tokens")
    at_least(0, "model.segment_types", "model.unroll", "model.init_std", "optim.weight_decay", "optim.clip",
             "train.eval_every", "eval.max_rows")
    for name in ("seed", "eval.seed", "data.language.seed"):
        number(name, 0, 2**32 - 1)
    if config.optim.schedule == "wsd":
        parts = config.optim.warmup_fraction + config.optim.decay_fraction
        expect(parts <= 1, "config.optim.warmup_fraction + config.optim.decay_fraction", parts, "at most 1")
    at_least(1, "train.steps", "train.batch_size", "train.accumulate", "train.checkpoint_every", "train.log_every",
             "eval.batch_size")
    for name in ("optim.learning_rate", "optim.eps"):
        expect(flat[name] > 0, f"config.{name}", flat[name], "more than 0")
    if config.model.family == "transformer":
        at_least(1, "model.heads")
        expect(config.model.width % config.model.heads == 0, "config.model.heads", config.model.heads,
               f"a divisor of config.model.width = {config.model.width}")
        if config.model.positions == "rotary":
            expect(config.model.width // config.model.heads % 2 == 0, "config.model.heads", config.model.heads,
                   "heads of an even width, since config.model.positions is rotary")
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


def resolve(config: Config, sizes: Mapping[str, Mapping[str, Mapping[str, int]]], cells: Mapping[str, tuple]) -> Config:
    """Fills what follows from other fields: the corpus kind and what it is read with, the family's first cell, and the
    zeros of its size. What is set is never changed.

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
    data, tokenizer, pack = config.data, config.tokenizer, config.pack
    if data.corpus == "auto":
        data = dataclasses.replace(data, corpus="text" if data.path else "language")
    drawn = data.corpus == "language"
    if drawn:
        room = pack.length - 2  # beside [CLS] and [SEP]
        data = dataclasses.replace(data, language=dataclasses.replace(data.language, words=data.language.words or room))
    tokenizer = dataclasses.replace(tokenizer, kind=tokenizer.kind or ("words" if drawn else "unigram"),
                                    vocab_size=tokenizer.vocab_size or (0 if drawn else 8192))
    pack = dataclasses.replace(pack, mode=pack.mode or ("doc_sentences" if drawn else "full_sentences"))
    mask = config.mask
    lowest = min(mask.rate, mask.final_rate or mask.rate)
    mask = dataclasses.replace(mask, max_rate=mask.max_rate or max(mask.rate, mask.final_rate),
                               views=mask.views or max(1, math.ceil(mask.predict / (lowest or 1) - 1e-6)))
    return dataclasses.replace(config, data=data, tokenizer=tokenizer, pack=pack, model=model, mask=mask)
