"""Documents of a corpus, one at a time, divided once and for all into a train and a validation split.

The split goes by document, by a hash of its text, or of the id that data.id_column gives it: it depends on no order and
no seed, and equal documents, or those of one id, stay together.
"""

import ast
import dataclasses
import functools
import hashlib
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import config, errors, warnings_
from mlm.base.fields import DerivedField
from mlm.data.language import grammar, translation
from mlm.data.tasks import splits
from mlm.data.text import files, records, sources
from mlm.data.text import parallel_text as two_sided
from mlm.data.tokenizers.tokenizer import UNUSUAL_SENTENCE_END

SPLITS = ("train", "validation")
MEGABYTE = 10**6
# Where data.corpus is auto.
CORPUS_BY_FIELD = {"task": "task", "parallel_path": "parallel", "sources": "text", "path": "text"}

DERIVED_FIELDS = (
    DerivedField(
        "data.corpus",
        ("data.task", "data.parallel_path", "data.sources", "data.path"),
        lambda cfg: next((corpus for name, corpus in CORPUS_BY_FIELD.items() if getattr(cfg.data, name)), "language"),
    ),
)
MAX_SENTENCE_LENGTH = 10_000  # characters: what is tokenized at once stays bounded
LONG_SENTENCES = f"sentences longer than {MAX_SENTENCE_LENGTH} characters, cut into pieces"
FIRST_VALIDATION_NUMBER = 2**32  # number of the language's first held-out document
# A full stop ends a sentence where white space follows; its East Asian forms need none.
SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
UNUSUAL_END = re.compile(UNUSUAL_SENTENCE_END)  # where there is none, the same is had faster
# Not documentation, or not part of the library itself.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "_bundled"}


class Shard(NamedTuple):
    """A part of the files of data.path, whose documents are packed on their own."""

    parts: tuple[files.FilePart, ...]
    is_first: bool  # with which the documents of data.validation_path are packed


class Corpus(NamedTuple):
    """Where the documents come from: functions, so that each pass over the corpus starts anew."""

    train: Callable[[], Iterator[files.Document]]
    validation: Callable[[], Iterator[files.Document]] | None  # None: a share of train's documents is held out
    compute_digest: Callable[[], bytes]  # digest of all that the documents follow from
    read_lexicon: Callable[[], Iterable[str]] | None = None  # every word there can be, where that is known


def check(data: config.Data) -> None:
    """Raises ConfigError for a corpus whose other fields are missing."""
    if data.corpus == "text":
        expected = "globs of text files, since config.data.corpus is text"
        errors.require(bool(data.path or data.sources), "config.data.path", "", expected)
        files.make_boundary("config.data.document_boundary", data.document_boundary)
        is_character = len(data.word_separator) <= 1
        errors.require(is_character, "config.data.word_separator", data.word_separator, "one character, or none")
    if data.corpus == "parallel":
        two_sided.check(data)
    if data.corpus == "tfds":
        errors.require(bool(data.tfds_name), "config.data.tfds_name", "", "a name, since config.data.corpus is tfds")


def read_documents(data: config.Data, split: str, shard: Shard | None = None) -> Iterator[str]:
    """The documents of one split ("train" or "validation"), stripped, never empty, streamed in a fixed order.

    shard: those of a shard alone, of which there may be none.

    Raises errors.ConfigError for a corpus that is missing, unreadable, or has no document in the split. Bytes that are
    not UTF-8, empty documents, and training documents left out because they are held out are counted in a warning.
    """
    errors.require_one_of("split", split, SPLITS)
    return (document.text for _, document in _read_splits(data, (split,), shard))


def read_splits(data: config.Data, shard: Shard | None = None) -> Iterator[tuple[str, str]]:
    """Pairs (split, document) of both splits, of which each has the order of `read_documents`; raises as that does."""
    return ((split, document.text) for split, document in _read_splits(data, SPLITS, shard))


def _read_splits(data, splits, shard=None) -> Iterator[tuple[str, files.Document]]:
    if shard is None:
        return _require_documents(_select_splits(CORPORA[data.corpus](data), data, splits), data, splits)
    is_elsewhere = data.validation_path and not data.search_fraction and not shard.is_first
    splits = [split for split in splits if split == "train" or not is_elsewhere]
    return _select_splits(open_text(data, shard.parts), data, splits)


def count_bytes(data: config.Data) -> int:
    """Bytes of the files of data.path, compressed or not; 0 where the corpus is not of files."""
    if data.corpus != "text" or data.sources:
        return 0
    return sum(map(os.path.getsize, files.find_files("config.data.path", data.path, data.text_column)))


def plan_shards(data: config.Data, num_bytes: int) -> list[Shard]:
    """Shards of about so many bytes, in the order of the text: runs of files, or parts of those that can be divided."""
    boundary = files.make_boundary("config.data.document_boundary", data.document_boundary)
    runs, size = [[]], 0
    for path in files.find_files("config.data.path", data.path, data.text_column):
        for part in files.divide_file(path, None if data.document_boundary == "file" else boundary, num_bytes):
            if size >= num_bytes:
                runs.append([])
                size = 0
            runs[-1].append(part)
            size += part.num_bytes
    return [Shard(tuple(run), number == 0) for number, run in enumerate(runs)]


def identify_shards(data: config.Data, shard_mb: float) -> dict[str, Any]:
    """What tells the cached files of a divided corpus from others, by name; {} where it is packed as a whole."""
    if not shard_mb:
        return {}
    paths = files.find_files("config.data.path", data.path, data.text_column)
    large = (path for path in paths if os.path.getsize(path) > int(shard_mb * MEGABYTE))
    divides_rows = any(records.detect_kind(path) != records.TEXT and records.is_divisible(path) for path in large)
    return {"shard_mb": shard_mb} | ({"divides": "rows"} if divides_rows else {})


def check_running_text(data: config.Data) -> None:
    """Raises ConfigError for a source that is no running text, and for files to train on that are held out, too."""
    if data.sources:
        for name, source in sources.list_sources(data):
            with sources.name_source(data.sources, name):
                expected = "text, since config.pack.mode is stream"
                errors.require(source.corpus == "text", "config.data.corpus", source.corpus, expected)
                check_running_text(source)
    elif data.validation_path:
        paths, held_out = (files.find_files(f"config.data.{name}", getattr(data, name)) for name in sources.PATH_KEYS)
        digests = files.hash_files(held_out, data.cache_dir)
        for path, digest in zip(paths, files.hash_files(paths, data.cache_dir), strict=True):
            expected = f"no file of config.data.validation_path, as {path} is: pack.mode=stream leaves no text out"
            is_apart = digest not in digests or not os.path.getsize(path)
            errors.require(is_apart, "config.data.path", data.path, expected)


def read_running_text(data: config.Data, split: str) -> Iterator[str]:
    """The text of one split in parts of at most a line, of which no character is lost.

    Held out are the files of config.data.validation_path, or the last config.data.validation_fraction of the
    characters; with config.data.search_fraction that share of the rest, at its end. Raises ConfigError for a file that
    is missing or unreadable, and for a split without text.
    """
    errors.require_one_of("split", split, SPLITS)
    if data.sources:
        for _, source in sources.list_sources(data):
            yield from read_running_text(source, split)
        return
    field = "validation_path" if split == "validation" and data.validation_path and not data.search_fraction else "path"
    paths, found = files.find_files(f"config.data.{field}", getattr(data, field)), False
    is_whole = data.validation_path and not data.search_fraction
    for part in files.read_lines(paths) if is_whole else _read_part(paths, data, split):
        found = True
        yield part.replace(data.word_separator, " ") if data.word_separator else part
    errors.require(found, f"config.data.{field}", getattr(data, field), f"files with text for the {split} split")


def _read_part(paths, data, split):
    end = sum(map(len, files.read_lines(paths)))
    bound = end if data.validation_path else int(end * (1 - data.validation_fraction))
    if data.search_fraction:
        end, bound = bound, int(bound * (1 - data.search_fraction))
    first, end = (bound, end) if split == "validation" else (0, bound)
    at = 0
    for line in files.read_lines(paths):
        if part := line[max(0, first - at) : max(0, end - at)]:
            yield part
        at += len(line)


def split_sentences(text: str, faults: warnings_.WarningCounter | None = None) -> Iterable[str]:
    """The sentences of a text: cut at line ends and after full stops, exclamation and question marks.

    One longer than MAX_SENTENCE_LENGTH is cut, at a space if there is one; `faults` counts it, else a warning names it.
    """
    if not UNUSUAL_END.search(text):
        return filter(None, map(str.strip, split_usual_sentences(text, faults)))
    return (text[start:end] for start, end in locate_sentences(text, faults))


def split_usual_sentences(text: str, faults: warnings_.WarningCounter | None = None) -> list[str]:
    """The sentences of a text without UNUSUAL_END, not stripped, with empty ones between line ends."""
    parts = text.replace(". ", ".\n").replace("! ", "!\n").replace("? ", "?\n").split("\n")
    if max(map(len, parts)) <= MAX_SENTENCE_LENGTH:
        return parts
    pieces = (map(str.strip, split_text(part, faults)) if len(part) > MAX_SENTENCE_LENGTH else [part] for part in parts)
    return list(itertools.chain.from_iterable(pieces))


def locate_sentences(text: str, faults: warnings_.WarningCounter | None = None) -> Iterator[tuple[int, int]]:
    """Where each sentence of `split_sentences` starts and ends in the text."""
    start = 0
    for end in itertools.chain(SENTENCE_END.finditer(text), [None]):
        last, after = end.span() if end else (len(text), len(text))
        if last - start > MAX_SENTENCE_LENGTH and text[start:last].strip():
            counter = faults or warnings_.WarningCounter()
            counter.add(LONG_SENTENCES, f"that which begins {text[start : start + 40]!r}")
            if not faults:
                counter.report()
        while start < last:
            cut = last
            if last - start > MAX_SENTENCE_LENGTH:
                cut = text.rfind(" ", start + MAX_SENTENCE_LENGTH // 2, start + MAX_SENTENCE_LENGTH)
                cut = cut if cut > 0 else start + MAX_SENTENCE_LENGTH
            if sentence := text[start:cut].strip():
                first = text.index(sentence[0], start)
                yield first, first + len(sentence)
            start = cut
        start = after


def split_text(text: str, faults: warnings_.WarningCounter | None = None) -> Iterator[str]:
    """The sentences of `split_sentences`, each with the white space before it."""
    last = 0
    for _, end in locate_sentences(text, faults):
        yield text[last:end]
        last = end


def read_vocabulary_texts(
    data: config.Data, shards: Sequence[Shard | None] = (None,), keep_space: bool = False
) -> Iterator[str]:
    """What a vocabulary is learnt from: the training split's sentences, or every word once where the corpus knows them.

    shards: those that are read; None: the whole corpus. keep_space: with the white space between sentences.

    Raises errors.ConfigError as `read_documents` does, for either split, before the first sentence.
    """
    corpus = CORPORA[data.corpus](data)
    if corpus.read_lexicon is not None:
        yield from corpus.read_lexicon()
        return
    if None in shards:
        next(read_documents(data, "validation"))  # an empty split is an error before the long work
    faults, split = warnings_.WarningCounter(), split_text if keep_space else split_sentences
    for text in itertools.chain.from_iterable(read_documents(data, "train", shard) for shard in shards):
        yield from split(text, faults)
    faults.report()


def compute_fingerprint(data: config.Data) -> str:
    """SHA-256 (hexadecimal) of the corpus's content and of how it is divided; where it lies does not enter."""
    if data.corpus == "task":
        return splits.hash_content(data)
    corpus = CORPORA[data.corpus](data)
    share = data.validation_fraction if corpus.validation is None else None
    division = (data.corpus, share, *filter(None, (data.search_fraction, data.word_separator)))
    return hashlib.sha256(corpus.compute_digest() + repr(division).encode()).hexdigest()


def _hash_text(text):
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _select_splits(corpus, data, splits):
    """Pairs (split, document); with data.search_fraction both splits are parts of the train split."""
    if not data.search_fraction:
        return _select_real_splits(corpus, data.validation_fraction, splits)
    train = (document for _, document in _select_real_splits(corpus, data.validation_fraction, ["train"]))
    return _divide(train, slice(8, 16), data.search_fraction, splits)  # the other half decides the real split


def _divide(documents, half, fraction, splits):
    """Pairs (split, document); half: the bytes of the hash that hold out this fraction."""
    bound = fraction * 2.0**64
    for document in documents:
        number = int.from_bytes(_hash_text(document.id or document.text)[half], "big")
        split = "validation" if number < bound else "train"
        if split in splits:
            yield split, document


def _select_real_splits(corpus, fraction, splits):
    if corpus.validation is None:
        yield from _divide(corpus.train(), slice(0, 8), fraction, splits)
        return
    held_out, dropped = set(), 0  # grows with that split only
    for document in corpus.validation():
        held_out.add(_hash_text(document.text))
        if "validation" in splits:
            yield "validation", document
    for document in corpus.train() if "train" in splits else ():
        if _hash_text(document.text) in held_out:
            dropped += 1
        else:
            yield "train", document
    if dropped:
        message = "training documents also stand in the validation split: left out of training"
        warnings_.warn_once(f"{dropped} {message}")


def _require_documents(documents, data, splits):
    missing = dict.fromkeys(splits)
    for split, document in documents:
        missing.pop(split, None)
        yield split, document
    for split in missing:
        name = {"text": "path", "tfds": "tfds_name"}.get(data.corpus, "corpus")
        name = "validation_path" if split == "validation" and data.validation_path else name
        remedy = ""
        if data.corpus in ("text", "docstrings") and not data.validation_path:
            remedy = f", of which config.data.validation_fraction = {data.validation_fraction:g} are held out by chance"
        if remedy and data.corpus == "text":
            remedy += "; config.data.document_boundary=line makes more of a file, or name a config.data.validation_path"
        raise errors.ConfigError(
            f"config.data.{name} = {getattr(data, name)!r}: no document in the {split} split; "
            f"expected enough documents for both splits{remedy}"
        )


def open_text(data: config.Data, parts: Sequence[files.FilePart] = ()) -> Corpus:
    """Documents in text files, where data.document_boundary says where one ends, and rows of files of records.

    parts: those of data.path to read; none: all of its files.
    """
    if data.sources:
        return open_sources(data)
    boundary = files.make_boundary("config.data.document_boundary", data.document_boundary)
    find = functools.partial(files.find_files, text_column=data.text_column)
    train = parts or find("config.data.path", data.path)
    validation = find("config.data.validation_path", data.validation_path) if data.validation_path else []

    def content():
        paths = [*train, *validation]
        head = [hashlib.sha256(data.document_boundary.encode()).digest(), len(train).to_bytes(8, "big")]
        has_records = any(records.detect_kind(path) != records.TEXT for path in paths)
        errors.require(has_records or not data.id_column, "config.data.id_column", data.id_column, "a file of rows")
        column = "\0".join(filter(None, (data.text_column, data.id_column))) if has_records else ""
        return b"".join([*head, column.encode(), *files.hash_files(paths, data.cache_dir)])

    def read(paths):
        columns = data.text_column, data.id_column
        has_match = yield from files.read_documents(paths, boundary, data.word_separator, *columns)
        if not has_match and not parts and data.document_boundary != "file":
            reason = f"no line of {len(paths)} files matches; each file is one document"
            warnings_.warn_once(f"config.data.document_boundary = {data.document_boundary!r}: {reason}")

    return Corpus(lambda: read(train), (lambda: read(validation)) if validation else None, content)


def open_sources(data: config.Data) -> Corpus:
    """The documents of all sources of a corpus file, one source after the other, each with its own held-out split."""
    opened = dict[str, config.Data]()
    for name, source in sources.list_sources(dataclasses.replace(data, search_fraction=0.0)):
        with sources.name_source(data.sources, name):
            check(source)
            CORPORA[source.corpus](source)  # raises for a file that is missing
        opened[name] = source

    def read(split):
        for name, source in opened.items():
            with sources.name_source(data.sources, name):
                yield from (document for _, document in _read_splits(source, (split,)))

    def content():
        return "".join(map(compute_fingerprint, opened.values())).encode()

    return Corpus(functools.partial(read, "train"), functools.partial(read, "validation"), content)


def open_tfds(data: config.Data) -> Corpus:
    """A data set of TensorFlow Datasets, without TensorFlow where it is prepared as array_record.

    Its split "validation" is held out, or a share of "train" where it has none; its other splits are not read.
    """
    from mlm.data.text import tfds  # an extra

    builder = tfds.open_corpus_builder(data)
    splits = [split for split in SPLITS if split in builder.info.splits]

    def content():
        return b"".join([data.tfds_field.encode(), *(tfds.compute_split_digest(builder, split) for split in splits)])

    train, *held_out = (functools.partial(tfds.read_documents, builder, split, data.tfds_field) for split in splits)
    return Corpus(train, held_out[0] if held_out else None, content)


def open_docstrings(data: config.Data) -> Corpus:
    """The English documentation in this Python's standard library: a document holds all docstrings of a module.

    About 1.7 MB that every machine has. What it holds follows the Python version.
    """
    texts = _read_library_docstrings()
    content = "\0".join(texts).encode("utf-8", "surrogatepass")
    return Corpus(lambda: map(files.Document, texts), None, lambda: hashlib.sha256(content).digest())


@functools.cache  # parsing the library takes seconds, and its size does not grow with anything
def _read_library_docstrings() -> tuple[str, ...]:
    root = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
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
    expected = "a Python whose standard library has its .py files; set config.data.path to text of your own"
    errors.require(bool(texts), "config.data.corpus", "docstrings", expected)
    return tuple(texts)


def open_language(data: config.Data) -> Corpus:
    """Documents of the built-in language, sampled again on every pass: their floor is known (language/floor.py).

    The held-out ones have numbers of their own: they are the same however many training has.
    """
    language = data.language

    def sample(start, count):
        return map(files.Document, itertools.islice(grammar.iterate_documents(language, start), count))

    def lexicon():
        return grammar.build_grammar(language).words

    def content():  # the fields, and documents: they show a change of the grammar or of its sampling
        first = [document.text for document in sample(0, grammar.DOCUMENT_BATCH)]
        parts = language, lexicon(), first, *grammar.list_ingredients(language).items()
        return hashlib.sha256(repr(parts).encode()).digest()

    train = functools.partial(sample, 0, language.train_documents)
    validation = functools.partial(sample, FIRST_VALIDATION_NUMBER, language.validation_documents)
    return Corpus(train, validation, content, lexicon)


def open_parallel(data: config.Data) -> Corpus:
    """The lines of both sides of aligned text, of which rows/parallel_text.py makes rows of its own."""
    pairs = two_sided.open_pairs(data)
    read = lambda split: itertools.chain.from_iterable(pairs.splits[split]())
    train, validation = (lambda split=split: map(files.Document, read(split)) for split in SPLITS)
    is_generated = two_sided.is_generated(data)
    lexicon = functools.partial(translation.list_words, data.language) if is_generated else lambda: read("train")
    return Corpus(train, validation, pairs.compute_digest, lexicon)


CORPORA = {
    "text": open_text,
    "tfds": open_tfds,
    "docstrings": open_docstrings,
    "language": open_language,
    "parallel": open_parallel,
}
