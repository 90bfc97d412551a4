"""Documents of a corpus, one at a time, divided once and for all into a train and a validation split.

The split goes by document, by a hash of its text: it depends on no order and no seed, and equal documents stay
together.
"""
import ast
import functools
import hashlib
import itertools
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, errors
from mlm.base.conditional_fields import FieldCondition
from mlm.data.language import grammar as drawn
from mlm.data.language import translation
from mlm.data.tasks import splits, tasks
from mlm.data.text import aligned as two_sided
from mlm.data.text import files, warnings_

SPLITS = ("train", "validation")
READ = (*tasks.READ, *two_sided.READ, FieldCondition(("data.path", "data.validation_path", "data.document_boundary"),
                                                     "data.corpus", ("text",)), FieldCondition(("data.tfds_name",
                                                                                                "data.tfds_field"),
                                                                                               "data.corpus",
                                                                                               ("tfds",)),
        FieldCondition(("data.tfds_dir",), "data.corpus", ("tfds", "task")),
        FieldCondition(("data.validation_fraction",), "data.corpus", ("text", "tfds", "docstrings")),
        FieldCondition(("data.validation_fraction",), "data.validation_path", ("",)), FieldCondition(("data.language",),
                                                                                                     "data.corpus",
                                                                                                     ("language",
                                                                                                      "task",
                                                                                                      "aligned")),
        FieldCondition(("data.language.modifier_continue_prob", "data.language.attractor_prob"),
                       "data.language.modifier_prob", unless=(0.0,)), FieldCondition(("data.language.recall_prob",),
                                                                                     "data.language.protagonist_prob",
                                                                                     unless=(0.0,)))
MAX_SENTENCE = 10_000   # characters: what is tokenized at once stays bounded
HELD_OUT = 2 ** 32      # number of the language's first held-out document
# A full stop ends a sentence where white space follows; its East Asian forms need none.
SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
# Where none of these is, the same is had faster.
UNUSUAL_SPACE, EAST_ASIAN = re.compile(r"[.!?][^\S \n]"), re.compile("[\u3002\uff01\uff1f]")
# Not documentation, or not part of the library itself.
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "_bundled"}


class Corpus(NamedTuple):
    """Where the documents come from: functions, so that each pass over the corpus starts anew."""

    train: Callable[[], Iterator[str]]
    validation: Callable[[], Iterator[str]] | None  # None: a share of train's documents is held out
    content: Callable[[], bytes]                    # digest of all that the documents follow from
    lexicon: Callable[[], Iterable[str]] | None = None  # every word there can be, where that is known


def check(data: config.Data) -> None:
    """Raises ConfigError for a corpus that is named without what it asks for."""
    errors.require_one_of("config.data.corpus", data.corpus, [*CORPORA, "task"])
    if data.corpus == "text":
        errors.require(bool(data.path), "config.data.path", "", "globs of text files, since config.data.corpus is text")
        files.boundary("config.data.document_boundary", data.document_boundary)
    if data.corpus == "aligned":
        two_sided.check(data)
    if data.corpus == "tfds":
        errors.require(bool(data.tfds_name), "config.data.tfds_name", "", "a name, since config.data.corpus is tfds")
    errors.require_number("config.data.validation_fraction", data.validation_fraction, 0, 1, low_open=True,
                          high_open=True)


def documents(data: config.Data, split: str) -> Iterator[str]:
    """The documents of one split ("train" or "validation"), stripped, never empty, streamed in a fixed order.

    Raises errors.ConfigError for a corpus that is missing, unreadable, or has no document in the split. Bytes that are
    not UTF-8, empty documents, and training documents left out because they are held out are counted in a warning.
    """
    errors.require_one_of("split", split, SPLITS)
    corpus = _open(data)
    return _some(_divide(corpus, data.validation_fraction, split), data, split)


def sentences(text: str, long: warnings_.Trouble | None = None) -> Iterable[str]:
    """The sentences of a text: cut at line ends and after full stops, exclamation and question marks.

    One longer than MAX_SENTENCE is cut into pieces, at a space where there is one; `long` counts them, else it is told.
    """
    if not UNUSUAL_SPACE.search(text) and (text.isascii() or not EAST_ASIAN.search(text)):
        parts = text.replace(". ", ".\n").replace("! ", "!\n").replace("? ", "?\n").split("\n")
        if max(map(len, parts)) <= MAX_SENTENCE:
            return filter(None, map(str.strip, parts))
    return _sentences(text, long)


def _sentences(text, long):
    start = 0
    for end in itertools.chain(SENTENCE_END.finditer(text), [None]):
        last, after = end.span() if end else (len(text), len(text))
        if last - start > MAX_SENTENCE and text[start:last].strip():
            said = long or too_long()
            said.add(f"that which begins {text[start:start + 40]!r}")
            if not long:
                said.report()
        while last - start > MAX_SENTENCE:
            cut = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
            cut = cut if cut > 0 else start + MAX_SENTENCE
            if piece := text[start:cut].strip():
                yield piece
            start = cut
        if sentence := text[start:last].strip():
            yield sentence
        start = after


def to_learn(data: config.Data) -> Iterator[str]:
    """What a vocabulary is learnt from: the training split's sentences, or every word once where the corpus knows them.

    Raises errors.ConfigError as `documents` does, for either split, before the first sentence.
    """
    corpus = _open(data)
    if corpus.lexicon is not None:
        yield from corpus.lexicon()
        return
    next(documents(data, "validation"))  # an empty split is told before the long work
    long = too_long()
    for text in documents(data, "train"):
        yield from sentences(text, long)
    long.report()


def too_long() -> warnings_.Trouble:
    """Counts the sentences that are cut."""
    return warnings_.Trouble(f"sentences longer than {MAX_SENTENCE} characters, cut into pieces")


def fingerprint(data: config.Data) -> str:
    """SHA-256 (hexadecimal) of the corpus's content and of how it is divided; where it lies does not enter."""
    if data.corpus == "task":
        return splits.content(data)
    corpus = _open(data)
    share = data.validation_fraction if corpus.validation is None else None
    return hashlib.sha256(corpus.content() + repr((data.corpus, share)).encode()).hexdigest()


def _open(data):
    errors.require_one_of("config.data.corpus", data.corpus, list(CORPORA))
    return CORPORA[data.corpus](data)


def _digest(text):
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _divide(corpus, fraction, split):
    if corpus.validation is None:
        bound = fraction * 2.0 ** 64
        for text in corpus.train():
            held_out = int.from_bytes(_digest(text)[:8], "big") < bound
            if held_out == (split == "validation"):
                yield text
    elif split == "validation":
        yield from corpus.validation()
    else:
        held_out, dropped = {_digest(text) for text in corpus.validation()}, 0  # grows with the held-out split only
        for text in corpus.train():
            if _digest(text) in held_out:
                dropped += 1
            else:
                yield text
        if dropped:
            warnings_.warn(f"{dropped} training documents also stand in the validation split: left out of training")


def _some(texts, data, split):
    count = 0
    for text in texts:
        count += 1
        yield text
    if not count:
        name = {"text": "path", "tfds": "tfds_name"}.get(data.corpus, "corpus")
        name = "validation_path" if split == "validation" and data.validation_path else name
        raise errors.ConfigError(f"config.data.{name} = {getattr(data, name)!r}: no document in the {split} split; "
                                 f"expected enough documents for both splits{_ways(data)}")


def _ways(data):
    """What gives both splits documents, said to whom one of them has none."""
    if data.corpus not in ("text", "docstrings") or data.validation_path:
        return ""
    share = f" of which config.data.validation_fraction = {data.validation_fraction:g} are held out by chance"
    if data.corpus != "text":
        return f",{share}: raise it"
    more = {"file": "; config.data.document_boundary=blank_line or line makes more of a file", "blank_line":
            "; config.data.document_boundary=line makes more of a file"}.get(data.document_boundary, "")
    return f",{share}{more}; or name a config.data.validation_path"


def text(data: config.Data) -> Corpus:
    """Documents in .gz and plain UTF-8 files; data.document_boundary says where one ends."""
    boundary = files.boundary("config.data.document_boundary", data.document_boundary)
    train = files.find("config.data.path", data.path)
    validation = files.find("config.data.validation_path", data.validation_path) if data.validation_path else []

    def content():
        parts = [hashlib.sha256(data.document_boundary.encode()).digest(), len(train).to_bytes(8, "big")]
        return b"".join([*parts, *map(files.sha256, [*train, *validation])])

    def read(paths):
        if not (yield from files.read(paths, boundary)) and data.document_boundary != "file":
            warnings_.warn(f"config.data.document_boundary = {data.document_boundary!r}: no line of {len(paths)} files matches it; " "each file is one document")

    return Corpus(train=lambda: read(train), validation=(lambda: read(validation)) if validation else None,
                  content=content)


def tfds(data: config.Data) -> Corpus:
    """A data set of TensorFlow Datasets, without TensorFlow where it is prepared as array_record.

    Its split "validation" is held out, or a share of "train" where it has none; its other splits are not read.
    """
    from mlm.data.text import tfds  # an extra
    builder = tfds.prepared(data)
    held_out = "validation" if "validation" in builder.info.splits else None
    splits = ["train", held_out] if held_out else ["train"]

    def content():
        return b"".join([data.tfds_field.encode(), *(tfds.sha256(builder, split) for split in splits)])

    return Corpus(train=lambda: tfds.read(builder, "train", data.tfds_field),
                  validation=held_out and (lambda: tfds.read(builder, held_out, data.tfds_field)), content=content)


def docstrings(data: config.Data) -> Corpus:
    """The English documentation in this Python's standard library: a document holds all docstrings of a module.

    About 1.7 MB that every machine has. What it holds follows the Python version.
    """
    texts = _library()
    return Corpus(train=lambda: iter(texts), validation=None,
                  content=lambda: hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest())


@functools.cache  # parsing the library takes seconds, and its size does not grow with anything
def _library() -> tuple[str, ...]:
    root = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(root.rglob("*.py")):
        if NOT_LIBRARY.intersection(path.relative_to(root).parts):
            continue
        try:
            with warnings.catch_warnings():  # old escapes in the library's strings are not our concern
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # templates that are not Python
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        if module := "\n\n".join(filter(None, found)).strip():
            texts.append(module)
    errors.require(bool(texts), "config.data.corpus", "docstrings",
                   "a Python whose standard library has its .py files; " "set config.data.path to text of your own")
    return tuple(texts)


def language(data: config.Data) -> Corpus:
    """Documents of the built-in language, drawn anew on every pass: their least loss is known (language/floor.py).

    The held-out ones have numbers of their own: they are the same however many are drawn for training.
    """
    def drawn_from(start, count):
        return lambda: itertools.islice(drawn.documents(data.language, start), count)

    def content():  # the knobs, and documents: they show a change of the grammar or of how it is drawn
        first = list(itertools.islice(drawn.documents(data.language), drawn.BLOCK))
        return hashlib.sha256(repr((data.language, lexicon(), first)).encode()).digest()

    def lexicon():
        return drawn.build(data.language).words

    return Corpus(drawn_from(0, data.language.train_documents),
                  drawn_from(HELD_OUT, data.language.validation_documents), content, lexicon)


def aligned(data: config.Data) -> Corpus:
    """The lines of both sides of aligned text, of which rows/aligned.py makes rows of its own."""
    def lines(split):
        return lambda: two_sided.lines(data, split)

    def lexicon():
        return translation.lexicon(data.language)

    return Corpus(lines("train"), lines("validation"), two_sided.pairs(data).content,
                  lexicon=lexicon if two_sided.drawn(data) else lines("train"))


CORPORA = {"text": text, "tfds": tfds, "docstrings": docstrings, "language": language,
           "aligned": aligned}
