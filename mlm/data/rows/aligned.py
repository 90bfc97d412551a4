"""Rows of aligned text: several pairs side by side, the targets in the row and their sources in the one beside it.

A batch of so many rows is then one of so many tokens on each side, of one shape, and little of it is padding. A target
token sees its own target's tokens and its own source's, whose segments have the same number.
"""
import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base import config, types
from mlm.base.special import CLS, PAD, SEP
from mlm.data.rows import columns, store
from mlm.data.rows.columns import Column, Packed
from mlm.data.text import aligned, warnings_
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 1            # of the files: a change of what they hold must change this number
BATCH = 1024          # pairs tokenized at a time
OPEN = 64             # rows that a pair may be put into
MANY = 0.01           # share of unknown words, above which a warning says so


class Encoded(NamedTuple):
    """A pair as it stands in a row."""

    target: list[int]     # [CLS] its tokens [SEP]
    source: list[int]     # its tokens [SEP]
    cut: bool             # whether it was too long for a row


def load(cfg: config.Config, tokenizer: Tokenizer) -> Packed:
    """The rows of all splits, made where they are not yet under cfg.data.cache.

    Made once for pairs (by content), a tokenizer and both lengths. The manifest has of each split what a Writer counts,
    the share of padding in the sources, its pairs and how many of them were cut. Raises ConfigError as aligned.pairs.
    """
    found, size = aligned.pairs(cfg.data), _source_length(cfg)
    inputs = {"format": FORMAT, "corpus": found.content().hex(), "kind": tokenizer.kind,
              "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(), "length": cfg.pack.seq_len,
              "source_length": size}
    files_of = _columns(tokenizer.vocab_size)

    def make(folder):
        said = {}
        aligned.told_twice(found)
        for split, read in found.splits.items():
            with columns.Writer(folder, split, files_of, cfg.pack.seq_len, tokenizer.vocab_size, size) as writer:
                kept = _write(writer, read(), tokenizer, split != "train" and _path(folder, split))
            empty = 1 - kept["source_tokens"] / (writer.rows * size)
            said[split] = writer.counts() | kept | {"source_padding": empty}
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
        return said

    folder, manifest = store.made(cfg.data.cache, "rows", inputs, make)
    _tell(cfg, manifest, list(found.splits))
    there = {split: columns.opened(folder, split, files_of, manifest[split]["rows"], cfg.pack.seq_len, size)
             for split in found.splits}
    about = shape(cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64))
    return Packed(there.pop("train"), there.pop("validation"), tokenizer, about, manifest, there, folder)


def shape(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of the rows; unigram_V: of the targets' tokens, where they are at hand."""
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return types.DatasetInfo(vocab_size, cfg.pack.seq_len, (), unigram_V.tobytes(), source_length=_source_length(cfg))


def examples(packed: Packed, split: str) -> list[dict[str, str]]:
    """The pairs of a held-out split in order, "source" and "target" as they stand in the files."""
    with open(_path(packed.folder, split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def encoded(tokenizer: Tokenizer, pairs: Sequence[aligned.Pair], length: int, source_length: int) -> list[Encoded]:
    """Pairs as they stand in rows of these lengths: what is too long is cut at its end, before the [SEP]."""
    targets = tokenizer.encode_batch([pair.target for pair in pairs])
    sources = tokenizer.encode_batch([pair.source for pair in pairs])
    room, source_room = length - 2, source_length - 1
    return [Encoded([CLS, *target[:room], SEP], [*source[:source_room], SEP],
                    len(target) > room or len(source) > source_room)
            for target, source in zip(targets, sources, strict=True)]


def sources(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> tuple[dict[str, np.ndarray], int]:
    """Columns of rows with one source each, as they stand beside rows of pairs, and how many were cut to the length."""
    block = {f"source_{name}": np.zeros((len(texts), length), np.int32) for name in ("ids", "segments", "positions")}
    cut = 0
    for at, pair in enumerate(encoded(tokenizer, [aligned.Pair(text, "") for text in texts], length, length)):
        _put(block, at, "source_", pair.source, 0, 1)
        cut += pair.cut
    return block, cut


def fill(pairs: Iterable[Encoded], length: int, source_length: int) -> Iterator[list[Encoded]]:
    """The pairs of each row: each goes into the first open row with room for both its sides.

    Where OPEN rows are open and none has room, the fullest is closed, of equally full ones the first.
    """
    rows: list[list[Encoded]] = []
    used: list[tuple[int, int]] = []  # tokens of both sides of each
    for pair in pairs:
        tokens, source = len(pair.target), len(pair.source)
        fits = (at for at, (there, beside) in enumerate(used)
                if there + tokens <= length and beside + source <= source_length)
        at = next(fits, len(rows))
        if at == OPEN:
            fullest = max(range(OPEN), key=lambda at: max(used[at][0] / length, used[at][1] / source_length))
            used.pop(fullest)
            yield rows.pop(fullest)
            at -= 1
        if at == len(rows):
            rows.append([])
            used.append((0, 0))
        rows[at].append(pair)
        used[at] = used[at][0] + tokens, used[at][1] + source
    yield from rows


def _source_length(cfg):
    return cfg.pack.source_len or cfg.pack.seq_len


def _path(folder: Path, split: str) -> Path:
    return folder / f"{split}.pairs.jsonl"


def _columns(vocab_size) -> dict[str, Column]:
    target = columns.text(vocab_size)
    return target | {f"source_{name}": column._replace(letters="NxS") for name, column in target.items()}


def _write(writer, read, tokenizer, path) -> dict[str, int]:
    """Writes a split's rows, and a held-out one's pairs beside them; returns what it counted."""
    count = {"pairs": 0, "cut": 0, "source_tokens": 0}
    length, source_length = writer.length, writer.source_length

    def coming():
        while batch := list(itertools.islice(read, BATCH)):
            if path:
                file.writelines(f"{json.dumps(pair._asdict())}\n" for pair in batch)
            for pair in encoded(tokenizer, batch, length, source_length):
                count["pairs"] += 1
                count["cut"] += pair.cut
                count["source_tokens"] += len(pair.source)
                yield pair

    with open(path, "w", encoding="utf-8") if path else contextlib.nullcontext() as file:
        for row in fill(coming(), length, source_length):
            block, at = writer.place()
            end = source_end = 0
            for segment, pair in enumerate(row, 1):
                end = _put(block, at, "", pair.target, end, segment)
                source_end = _put(block, at, "source_", pair.source, source_end, segment)
    return count


def _put(block, at, side, ids, start, segment) -> int:
    """Writes a text into a row of one side; returns where it ends there."""
    end = start + len(ids)
    block[f"{side}ids"][at, start:end] = ids
    block[f"{side}segments"][at, start:end] = segment
    block[f"{side}positions"][at, start:end] = np.arange(len(ids))
    return end


def _tell(cfg, manifest, splits):
    """Says what is padding, what was cut, and how much of the text the vocabulary does not know."""
    for split in splits:
        found = manifest[split]
        warnings_.tell(f"{split}: {found['pairs']} pairs in {found['rows']} rows; {found['padding']:.1%} of the rows is " f"padding, of the sources {found['source_padding']:.1%}")
        if found["cut"]:
            warnings_.warn(f"{split}: {found['cut']} of {found['pairs']} pairs do not fit config.pack.seq_len = "
                         f"{cfg.pack.seq_len}, or the source's length {_source_length(cfg)}, and were cut at the end")
        say = warnings_.warn if found["unknown"] > MANY else warnings_.tell
        say(f"{split}: {found['unknown']:.2%} of the words and pieces are unknown to the tokenizer")
