"""Rows of a task: an example each, with its label, and what is needed to judge and to write predictions."""
import bisect
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from mlm.base import config, types
from mlm.base.special import CLS, PAD, SEP, UNK
from mlm.data.rows import columns, store
from mlm.data.rows.columns import Column, Packed
from mlm.data.tasks import splits, tasks
from mlm.data.tasks.examples import Example, endings
from mlm.data.tasks.tasks import QUESTION
from mlm.data.text import trouble
from mlm.data.tokenizers import kinds, words
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 1            # of the files: a change of what they hold must change this number
BATCH = 1024          # examples tokenized at a time
MANY = 0.01           # share of examples cut for their length, or of unknown words, above which a warning says so


EDGE = {"edge": Column(np.int32, "NxL", -1)} | {name: Column(np.int32, "NxL") for name in (
    "from", "to", "other_from", "other_to")}


class Row(NamedTuple):
    ids: list[int]        # without padding
    second: int           # where the second text begins, or the end of the row
    labels: dict[str, Any]
    cut: int = 0          # tokens, or words of tags, that did not fit
    kept: Mapping[str, Any] = MappingProxyType({})  # beside the example
    further: tuple["Row", ...] = ()                 # stretches that see nothing of each other, side by side with this


class Maker(NamedTuple):
    """How the examples of an objective become rows."""

    columns: dict[str, Column]                       # beside those of text
    rows: Callable[..., Iterator[list[Row]]]         # (examples, tokenizer, cfg, classes) -> the rows of each
    cut: str = "are longer than config.pack.length = {length} tokens and were cut, {lost} tokens in all"


def whole(examples: list[Example], tokenizer: Tokenizer, cfg: config.Config, label: Callable) -> Iterator[list[Row]]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP]: a row an example, of a pair the longer text is cut first."""
    texts = iter(tokenizer.encode_batch([text for one in examples for text in one.texts]))
    for one in examples:
        yield [_joined([next(texts) for _ in one.texts], cfg.pack.length)._replace(labels=label(one))]


def _joined(texts, length):
    """A row without labels, of one text or two."""
    a, b = texts[0], texts[1] if len(texts) == 2 else []
    room = length - 1 - len(texts)
    keep_b = min(len(b), max(room - len(a), room // 2))
    keep_a = min(len(a), room - keep_b)
    ids = [CLS, *a[:keep_a], SEP, *([*b[:keep_b], SEP] if len(texts) == 2 else ())]
    return Row(ids, keep_a + 2, {}, len(a) + len(b) - keep_a - keep_b)


def classify(examples, tokenizer, cfg, classes):
    number = {name: at for at, name in enumerate(classes)}
    return whole(examples, tokenizer, cfg, lambda one: {"label": number[one.label]})


def regress(examples, tokenizer, cfg, classes):
    return whole(examples, tokenizer, cfg, lambda one: {"value": one.label})


def choice(examples, tokenizer, cfg, classes):
    """[CLS] context [SEP] ending [SEP] for each ending, a stretch of config.pack.length tokens, in their order."""
    number = {name: at for at, name in enumerate(classes)}
    texts = iter(tokenizer.encode_batch([text for one in examples for text in one.texts]))
    for one in examples:
        context = next(texts)
        first, *further = (_joined((context, next(texts)), cfg.pack.length) for _ in one.texts[1:])
        cut = sum(each.cut for each in (first, *further))
        yield [first._replace(labels={"label": number[one.label]}, cut=cut, further=tuple(further))]


def tag(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: the first piece of each word has its tag, what is not asked has -1."""
    number = {name: at for at, name in enumerate(classes)}
    pieces = iter(tokenizer.encode_batch([word for one in examples for word in one.words]))
    room = cfg.pack.length - 2
    for one in examples:
        ids, tags, cut = [], [], 0
        for name in one.label:
            word = next(pieces) or [UNK]  # of what the tokenizer has nothing for
            if len(ids) < room:
                ids += word
                tags += [number[name] if name else -1, *[-1] * (len(word) - 1)]
            else:
                cut += 1
        del ids[room:], tags[room:]
        row = [CLS, *ids, SEP]
        yield [Row(row, len(row), {"tag": [-1, *tags] + [-1] * (cfg.pack.length - 1 - len(tags))}, cut)]


def edge(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: for each word, by its number, its class, and the first and last token of it and of the word
    that its label relates it to, which is itself where that is of none. A word is asked where the row holds both.
    """
    number = {name: at for at, name in enumerate(classes)}
    pieces = iter(tokenizer.encode_batch([word for one in examples for word in one.words]))
    room = cfg.pack.length - 2
    for one in examples:
        ids, spans = [], []
        for _ in one.label:
            word = next(pieces) or [UNK]  # of what the tokenizer has nothing for
            spans.append((len(ids) + 1, len(ids) + len(word)))
            ids += word
        edge_5xL = np.zeros((len(EDGE), cfg.pack.length), np.int32)
        edge_5xL[0], cut = -1, 0
        heads = getattr(one, "heads", ()) or range(1, len(spans) + 1)
        for at, (name, head) in enumerate(zip(one.label, heads, strict=True)):
            if name and max(spans[at][1], spans[head - 1][1]) <= room:
                edge_5xL[:, at] = number[name], *spans[at], *spans[head - 1]
            else:
                cut += bool(name)
        row = [CLS, *ids[:room], SEP]
        yield [Row(row, len(row), dict(zip(EDGE, edge_5xL, strict=True)), cut)]


def span(examples, tokenizer, cfg, classes):
    """[CLS] question [SEP] window [SEP] for windows of the passage that overlap (Devlin et al. 2019, section 4.2).

    start and end: places in the row of the first answer's tokens, 0 where the window does not hold all of them.
    """
    located = functools.lru_cache(1)(tokenizer.locate)  # of a passage several questions are asked in turn
    for one in examples:
        question, passage = one.texts
        asked = tokenizer.encode(question)
        cut, asked = len(asked[QUESTION:]), asked[:QUESTION]
        ids, spans = located(passage)
        at, to = _tokens(spans, *one.label[0]) if one.label else (0, -1)
        place = len(asked) + 2  # of the passage in the row
        room, found, rows = cfg.pack.length - place - 1, False, []
        for first in range(0, max(1, len(ids) - room + cfg.data.labelled.stride), cfg.data.labelled.stride):
            window = ids[first:first + room]
            holds = first <= at <= to < first + len(window)
            found |= holds
            start, end = (place + at - first, place + to - first) if holds else (0, 0)
            rows.append(Row([CLS, *asked, SEP, *window, SEP], place, {
                "start": start, "end": end, "passage": place, "first": first}, cut))
        lost = 0 if found or not one.label else max(1, to - at + 1)
        rows[0] = rows[0]._replace(cut=cut + lost, kept={"spans": spans})
        yield rows


def _tokens(spans, text, start):
    """The first and the last token of an answer, the last before the first where there is none."""
    first = bisect.bisect_right(spans, start, key=lambda span: span[1])
    return first, bisect.bisect_left(spans, start + len(text), key=lambda span: span[0]) - 1


MAKERS = {"classify": Maker({"label": Column(np.int32, "N")}, classify),
          "regress": Maker({"value": Column(np.float32, "N")}, regress),
          "choice": Maker({"label": Column(np.int32, "N")}, choice, "have an ending that is, with its context, longer "
                          "than config.pack.length = {length} tokens and was cut, {lost} tokens in all"),
          "tag": Maker({"tag": Column(np.int32, "NxL", -1)}, tag,
                       "are longer than config.pack.length = {length} tokens and were cut, {lost} words in all"),
          "edge": Maker(EDGE, edge, "are longer than config.pack.length = {length} tokens and were cut, {lost} labels "
                        "in all"),
          "span": Maker({name: Column(np.int32, "N") for name in ("start", "end", "example", "passage", "first")},
                        span, f"have a question of more than {QUESTION} tokens, which was cut, or an answer that no "
                        "window of config.pack.length = {length} holds, {lost} tokens in all")}


def load(cfg: config.Config) -> Packed:
    """The rows of all splits of config.data.task, made where they are not yet under cfg.data.cache.

    Validation is the task's dev split. Made once for files (by content), how they are read, a tokenizer and a length.
    The manifest has the classes, how often each stands in the train split (counts), and of each split what a Writer
    counts, its examples and how many of them were cut. Raises ConfigError as splits.source does.
    """
    tokenizer = kinds.given("config.tokenizer.path", cfg.tokenizer.path)
    if cfg.data.task in tasks.DRAWN:
        tokenizer = words.showing_mask(tokenizer)
    source = splits.source(cfg)
    inputs = {"format": FORMAT, "corpus": source.content(), "objective": cfg.objective, "kind": tokenizer.kind,
              "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(), "length": cfg.pack.length}
    files_of = _columns(cfg, tokenizer.vocab_size)

    def make(folder):
        classes = source.classes()
        said: dict[str, Any] = {"classes": list(classes)}
        for split, read in source.splits.items():
            labels: Counter = Counter()
            with columns.Writer(folder, split, files_of, _length(cfg), tokenizer.vocab_size) as writer:
                kept = _write(writer, cfg, _counted(read(), classes, labels), tokenizer, classes, folder, split)
            said[split] = writer.counts() | kept
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
                said["counts"] = {name: labels[name] for name in classes}
            logging.info("packed %s: %d rows of %d examples", split, said[split]["rows"], said[split]["examples"])
        return said

    folder, manifest = store.made(cfg.data.cache, "rows", inputs, make)
    _tell(cfg, manifest, list(source.splits))
    there = {split: columns.opened(folder, split, files_of, manifest[split]["rows"], _length(cfg))
             for split in source.splits}
    counts_C = np.array([manifest["counts"][name] for name in manifest["classes"]], np.int64)
    about = _about(cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64), manifest["classes"])
    about = about._replace(counts=counts_C.tobytes())
    return Packed(there.pop("train"), there.pop("validation"), tokenizer, about, manifest, there, folder)


def shape(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.About:
    """What a program must know of a task's rows; its classes are read from the files where the config has none."""
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return _about(cfg, vocab_size, unigram_V, splits.source(cfg).classes())


def examples(packed: Packed, split: str) -> list[dict[str, Any]]:
    """The examples of a split ("train", "validation", "test") in order: the fields of an Example by name; "row", the
    number of its first row, and "rows", how many are its; of passages "spans", where each token begins and ends.
    """
    with open(_path(packed.folder, split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _path(folder: Path, split: str) -> Path:
    return folder / f"{split}.examples.jsonl"


def _length(cfg):
    """Tokens of a row."""
    return cfg.pack.length * max(1, len(endings(cfg.data.labelled)))


def _about(cfg, vocab_size, unigram_V, classes):
    names = (f"{name}_{column.letters.replace('N', 'B')}" for name, column in MAKERS[cfg.objective].columns.items())
    ones = np.ones(len(classes), np.int64)
    return types.About(vocab_size, _length(cfg), tuple(names), unigram_V.tobytes(), tuple(classes), ones.tobytes())


def _columns(cfg, vocab_size):
    return columns.text(vocab_size) | (columns.TYPES if tasks.pairs(cfg.data) else {}) | MAKERS[cfg.objective].columns


def _counted(read, classes, labels):
    for one in read:
        if classes:
            labels.update([one.label] if isinstance(one.label, str) else one.label)
        yield one


def _write(writer, cfg, read, tokenizer, classes, folder, split) -> dict[str, int]:
    """Writes a split's rows, and its examples beside them; returns how many examples there are and were cut."""
    count = truncated = lost = row_number = 0
    make = MAKERS[cfg.objective].rows
    with open(_path(folder, split), "w", encoding="utf-8") as file:
        for batch in iter(lambda: list(itertools.islice(read, BATCH)), []):
            for one, rows in zip(batch, make(batch, tokenizer, cfg, classes), strict=True):
                for row in rows:
                    block, at = writer.place()
                    for number, one_of in enumerate((row, *row.further)):
                        first, used = number * cfg.pack.length, len(one_of.ids)
                        there = slice(first, first + used)
                        block["ids"][at, there] = one_of.ids
                        block["segments"][at, there] = number + 1  # a stretch's texts see each other
                        block["positions"][at, there] = np.arange(used)
                        if "types" in block:
                            block["types"][at, first + one_of.second:first + used] = 1
                    if "example" in block:
                        block["example"][at] = count
                    for name, value in row.labels.items():
                        block[name][at, ...] = value
                cut = max(row.cut for row in rows)
                count, truncated, lost = count + 1, truncated + (cut > 0), lost + cut
                file.write(json.dumps({**one._asdict(), "row": row_number, "rows": len(rows), **rows[0].kept}) + "\n")
                row_number += len(rows)
    return {"examples": count, "truncated": truncated, "lost": lost}


def _tell(cfg, manifest, names):
    """Says what was cut, and how much of the text the vocabulary does not know."""
    for split in names:
        found = manifest[split]
        if found["truncated"]:
            share = found["truncated"] / found["examples"]
            what = MAKERS[cfg.objective].cut.format(length=cfg.pack.length, lost=found["lost"])
            say = trouble.warn if share > MANY else trouble.tell
            say(f"{split}: {found['truncated']} of {found['examples']} examples ({share:.1%}) {what}")
        say = trouble.warn if found["unknown"] > MANY else trouble.tell
        say(f"{split}: {found['unknown']:.2%} of the words and pieces are unknown to the tokenizer")
