"""What a page asks of one of the models that stand side by side on it."""
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from mlm.inference.language_model import LanguageModel
    from mlm.inference.neighbors import Words

TEXT = 1000             # characters of a text
MASKS = 8               # [MASK] in it
TOKENS = 96             # of a text whose attention is shown
TOP = 8                 # answers of a kind
EXAMPLE = 6             # words that a model writes to begin with
APART = " | "           # of a pair's texts, where nobody can type a tab


class Column(NamedTuple):
    """A model, and the lines of --file as it sees them. cannot: why something cannot be asked of it, by what."""

    name: str
    model: "Opened"
    cannot: dict[str, str]
    lines: Mapping[int, str]  # by their numbers in the file, from 1
    unit_OxD: "np.ndarray | None" = None
    words: "Words | None" = None


class Question(NamedTuple):
    """run: the number of a column. what: a row of WHAT. word, which: as of neighbours.at."""

    run: int
    what: str
    text: str
    word: str = ""
    which: int = 1


def read(said, columns: int) -> Question:
    """A question of JSON. Raises ConfigError where it is none, or too large."""
    from mlm.base import errors
    from mlm.inference import batching

    errors.require(isinstance(said, dict), "question", said, "an object")
    for name, value in said.items():
        errors.require_one_of("question", name, Question._fields)
        kind = int if name in ("run", "which") else str
        errors.require(type(value) is kind, name, value, "a number" if kind is int else "a text")
    missing = [name for name in Question._fields if name not in said and name not in Question._field_defaults]
    errors.require(not missing, "question", list(said), f"{', '.join(missing)}, too")
    asked = Question(**said)
    errors.require_number("run", asked.run, 0, columns - 1)
    errors.require_one_of("what", asked.what, list(WHAT))
    for text in (asked.text, asked.word):
        errors.require(len(text) <= TEXT, "text", text, f"at most {TEXT} characters")
        errors.require(not any(0xd800 <= ord(letter) < 0xe000 for letter in text), "text", text, "whole characters")
    errors.require(bool(asked.text.strip()), "text", asked.text, "a text")
    errors.require(asked.text.count(batching.HIDDEN) <= MASKS, "text", asked.text, f"at most {MASKS} {batching.HIDDEN}")
    return asked


def answer(column: Column, asked: Question):
    """What a model says, for JSON. Raises ConfigError for what it cannot be asked."""
    from mlm.base import errors

    if asked.what in column.cannot:
        raise errors.ConfigError(f"{asked.what}: {column.cannot[asked.what]}")
    return WHAT[asked.what](column, asked)


def fill(column: Column, asked: Question) -> list:
    model = column.model
    return [[one._asdict() for one in best] for best in model.fill(asked.text, min(TOP, model.tokenizer.vocab_size))]


def predict(column: Column, asked: Question) -> list:
    model, text = column.model, asked.text
    if model.cfg.objective == "tag":
        words = text.split()
        return [{"text": word, **one._asdict()} for word, one in zip(words, model.predict(text), strict=False)]
    parts = text.replace(APART, "\t").split("\t") if 2 in model.texts else [text]
    found, = model.predict([parts[0] if len(parts) == 1 else tuple(parts)])
    return [{"text": APART.join(parts), **found._asdict()}]


def similar(column: Column, asked: Question) -> dict:
    """The lines most like the text, in which [MASK] is what the model itself fills in; and the words of the text."""
    import numpy as np

    from mlm.evaluation import embeddings
    from mlm.inference import neighbors

    model, text, lines = column.model, filled(column, asked.text), list(column.lines.items())
    cosine_O = column.unit_OxD @ embeddings.unit(model.embed(text))
    near = [{"line": lines[i][0], "cosine": float(cosine_O[i]), "text": lines[i][1]}
            for i in np.argsort(-cosine_O, kind="stable")[:TOP].tolist()]
    return {"text": text, "near": near, "words": [text[one.first:one.end] for one in neighbors.words(
        model.tokenizer, text, model.length - 2)]}


def word(column: Column, asked: Question) -> dict:
    """The words of the lines that are most like one of the text, each in its context: what is before it and behind."""
    from mlm.inference import neighbors

    model, text = column.model, filled(column, asked.text)
    one, numbers = neighbors.at(model, text, asked.word, asked.which), list(column.lines)
    near = neighbors.ranked(neighbors.state(model, text, one), column.words, list(column.lines.values()), TOP)
    return {"text": text, "near": [{"line": numbers[of.line], "cosine": of.cosine, "word": of.word,
                                    "before": of.text[:of.first], "after": of.text[of.first + len(of.word):]}
                                   for of in near]}


def attend(column: Column, asked: Question) -> str:
    """A page of its own."""
    from mlm.base import errors
    from mlm.inference import attention_maps, batching
    from mlm.report.pages import attention

    size = len(batching.encode(column.model.tokenizer, asked.text, hidden=True))
    errors.require(size <= TOKENS, "text", asked.text, f"at most {TOKENS} tokens, not {size}, to show what looks where")
    return attention.page(column.name, asked.text, *attention_maps.ask(column.model, asked.text))


WHAT: dict[str, Callable] = {"fill": fill, "predict": predict, "similar": similar, "word": word,
                             "attend": attend}


def filled(column: Column, text: str) -> str:
    """A text with the likeliest filling for each [MASK], from left to right."""
    from mlm.inference import batching

    for _ in range(text.count(batching.HIDDEN)):
        text = answer(column, Question(0, "fill", text))[0][0]["text"]
    return text


def prepared(name: str, folder: str, lines: Mapping[int, str]) -> Column:
    """A column of a run's or a Hugging Face folder, its programs compiled: it was asked all once, of two lengths."""
    import mlm
    from mlm.base import errors
    from mlm.evaluation import embeddings
    from mlm.inference import batching, neighbors

    model = mlm.open(folder)
    column = Column(name, model, {}, lines)
    if texts := list(lines.values()):
        column = column._replace(unit_OxD=embeddings.unit(model.embed(texts)), words=neighbors.gathered(model, texts))
    else:
        column.cannot.update(dict.fromkeys(("similar", "word"), "no texts to search: --file=TEXTS names some"))
    plain = next(filter(str.isalpha, map(batching.surface, model.tokenizer.pieces[5:])), "a")
    for what, size in ((what, size) for what in WHAT for size in (3, 16)):
        last = batching.HIDDEN if what == "fill" else plain
        text = " ".join([plain] * size) + (APART if model.texts == (2,) else " ") + last
        try:
            answer(column, Question(0, what, text, plain))
        except errors.ConfigError as error:
            said, _, expected = str(error).partition(": expected ")
            if said.startswith(f"{what} = "):  # and not of this text alone
                column.cannot[what] = f"asks for {expected}"
    return column


def about(model: "Opened") -> str:
    cfg = model.cfg
    made, kind = f"{cfg.model.family} {cfg.model.cell}".rstrip(), model.tokenizer.kind
    return (f"{made}, {cfg.model.num_layers} \u00d7 {cfg.model.width}; {cfg.objective}; vocabulary of "
            f"{model.tokenizer.vocab_size:,d}" + (f" ({kind})" if model.source is None else "")
            + (f"; a pair of texts stands apart by {APART.strip()}" if model.texts == (2,) else ""))


def example(shown: Sequence[Column]) -> str:
    """A text with [MASK] of words that the first model that fills in knows: a line of --file, or what it writes."""
    from mlm.inference import batching, neighbors

    column = next((one for one in shown if "fill" not in one.cannot), None)
    if column is None:
        return next(iter(shown[0].lines.values()), "")
    for line in column.lines.values():
        found = neighbors.words(column.model.tokenizer, line, column.model.length - 2)
        if 4 <= len(found) <= 12 and len(line) <= 90 and batching.HIDDEN not in line:
            hidden = max(found[1:], key=lambda one: one.end - one.first)
            return line[:hidden.first] + batching.HIDDEN + line[hidden.end:]
    return written(column)


def written(column: Column) -> str:
    """A text that a model writes from nothing, each place with the likeliest word that does not stand there yet."""
    from mlm.inference import batching

    text = " ".join([batching.HIDDEN] * EXAMPLE)
    for _ in range(EXAMPLE):
        best = answer(column, Question(0, "fill", text))[0]
        text = next((one["text"] for one in best if batching.surface(one["token"]) not in text.split()),
                    best[0]["text"])
    words = text.split()
    return " ".join([*words[:2], batching.HIDDEN, *words[3:]])
