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
from mlm.data.rows.columns import ColumnSpec, PackedDataset
from mlm.data.text import parallel_text, warnings_
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 1  # of the files: a change of what they hold must change this number
TOKENIZE_BATCH = 1024  # pairs tokenized at a time
MAX_OPEN = 64  # rows that a pair may be put into
WARN_SHARE = 0.01  # share of unknown words, above which a warning says so


class EncodedPair(NamedTuple):
    """A pair as it stands in a row."""

    target: list[int]  # [CLS] its tokens [SEP]
    source: list[int]  # its tokens [SEP]
    cut: bool  # whether it was too long for a row


def load(cfg: config.Config, tokenizer: Tokenizer) -> PackedDataset:
    """The rows of all splits, made where they are not yet under cfg.data.cache.

    Made once for pairs (by content), a tokenizer and both lengths. The manifest has of each split what a Writer counts,
    the share of padding in the sources, its pairs and how many of them were cut. Raises ConfigError as aligned.pairs.
    """
    found, size = parallel_text.open_pairs(cfg.data), _get_source_len(cfg)
    inputs = {
        "format": FORMAT,
        "corpus": found.compute_digest().hex(),
        "kind": tokenizer.kind,
        "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(),
        "length": cfg.pack.seq_len,
        "source_length": size,
    }
    files_of = _list_columns(tokenizer.vocab_size)

    def make(folder):
        said = {}
        parallel_text.warn_of_duplicates(found)
        for split, read in found.splits.items():
            with columns.SplitWriter(folder, split, files_of, cfg.pack.seq_len, tokenizer.vocab_size, size) as writer:
                kept = _write_split(writer, read(), tokenizer, split != "train" and _make_pairs_path(folder, split))
            empty = 1 - kept["source_tokens"] / (writer.rows * size)
            said[split] = writer.counts() | kept | {"source_padding": empty}
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
        return said

    folder, manifest = store.get_or_make_folder(cfg.data.cache, "rows", inputs, make)
    _report_statistics(cfg, manifest, list(found.splits))
    there = {
        split: columns.open_columns(folder, split, files_of, manifest[split]["rows"], cfg.pack.seq_len, size)
        for split in found.splits
    }
    about = build_dataset_info(cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64))
    return PackedDataset(there.pop("train"), there.pop("validation"), tokenizer, about, manifest, there, folder)


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of the rows; unigram_V: of the targets' tokens, where they are at hand."""
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return types.DatasetInfo(vocab_size, cfg.pack.seq_len, (), unigram_V.tobytes(), source_len=_get_source_len(cfg))


def read_examples(packed: PackedDataset, split: str) -> list[dict[str, str]]:
    """The pairs of a held-out split in order, "source" and "target" as they stand in the files."""
    with open(_make_pairs_path(packed.folder, split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def encode_pairs(
    tokenizer: Tokenizer, pairs: Sequence[parallel_text.Pair], length: int, source_length: int
) -> list[EncodedPair]:
    """Pairs as they stand in rows of these lengths: what is too long is cut at its end, before the [SEP]."""
    targets = tokenizer.encode_batch([pair.target for pair in pairs])
    sources = tokenizer.encode_batch([pair.source for pair in pairs])
    room, source_room = length - 2, source_length - 1
    return [
        EncodedPair(
            [CLS, *target[:room], SEP], [*source[:source_room], SEP], len(target) > room or len(source) > source_room
        )
        for target, source in zip(targets, sources, strict=True)
    ]


def encode_sources(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> tuple[dict[str, np.ndarray], int]:
    """Columns of rows with one source each, as they stand beside rows of pairs, and how many were cut to the length."""
    block = {f"source_{name}": np.zeros((len(texts), length), np.int32) for name in ("ids", "segments", "positions")}
    cut = 0
    for at, pair in enumerate(
        encode_pairs(tokenizer, [parallel_text.Pair(text, "") for text in texts], length, length)
    ):
        _put_text(block, at, "source_", pair.source, 0, 1)
        cut += pair.cut
    return block, cut


def pack_pairs(pairs: Iterable[EncodedPair], length: int, source_length: int) -> Iterator[list[EncodedPair]]:
    """The pairs of each row: each goes into the first open row with room for both its sides.

    Where OPEN rows are open and none has room, the fullest is closed, of equally full ones the first.
    """
    rows: list[list[EncodedPair]] = []
    used: list[tuple[int, int]] = []  # tokens of both sides of each
    for pair in pairs:
        tokens, source = len(pair.target), len(pair.source)
        fits = (
            at
            for at, (there, beside) in enumerate(used)
            if there + tokens <= length and beside + source <= source_length
        )
        at = next(fits, len(rows))
        if at == MAX_OPEN:
            fullest = max(range(MAX_OPEN), key=lambda at: max(used[at][0] / length, used[at][1] / source_length))
            used.pop(fullest)
            yield rows.pop(fullest)
            at -= 1
        if at == len(rows):
            rows.append([])
            used.append((0, 0))
        rows[at].append(pair)
        used[at] = used[at][0] + tokens, used[at][1] + source
    yield from rows


def _get_source_len(cfg):
    return cfg.pack.source_len or cfg.pack.seq_len


def _make_pairs_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.pairs.jsonl"


def _list_columns(vocab_size) -> dict[str, ColumnSpec]:
    target = columns.text_columns(vocab_size)
    return target | {f"source_{name}": column._replace(letters="NxS") for name, column in target.items()}


def _write_split(writer, read, tokenizer, path) -> dict[str, int]:
    """Writes a split's rows, and a held-out one's pairs beside them; returns what it counted."""
    count = {"pairs": 0, "cut": 0, "source_tokens": 0}
    length, source_length = writer.length, writer.source_length

    def coming():
        while batch := list(itertools.islice(read, TOKENIZE_BATCH)):
            if file is not None:
                file.writelines(f"{json.dumps(pair._asdict())}\n" for pair in batch)
            for pair in encode_pairs(tokenizer, batch, length, source_length):
                count["pairs"] += 1
                count["cut"] += pair.cut
                count["source_tokens"] += len(pair.source)
                yield pair

    with open(path, "w", encoding="utf-8") if path else contextlib.nullcontext() as file:
        for row in pack_pairs(coming(), length, source_length):
            block, at = writer.place()
            end = source_end = 0
            for segment, pair in enumerate(row, 1):
                end = _put_text(block, at, "", pair.target, end, segment)
                source_end = _put_text(block, at, "source_", pair.source, source_end, segment)
    return count


def _put_text(block, at, side, ids, start, segment) -> int:
    """Writes a text into a row of one side; returns where it ends there."""
    end = start + len(ids)
    block[f"{side}ids"][at, start:end] = ids
    block[f"{side}segments"][at, start:end] = segment
    block[f"{side}positions"][at, start:end] = np.arange(len(ids))
    return end


def _report_statistics(cfg, manifest, splits):
    """Says what is padding, what was cut, and how much of the text the vocabulary does not know."""
    for split in splits:
        found = manifest[split]
        warnings_.log_once(
            f"{split}: {found['pairs']} pairs in {found['rows']} rows; {found['padding']:.1%} of the rows is "
            f"padding, of the sources {found['source_padding']:.1%}"
        )
        if found["cut"]:
            warnings_.warn_once(
                f"{split}: {found['cut']} of {found['pairs']} pairs do not fit config.pack.seq_len = "
                f"{cfg.pack.seq_len}, or the source's length {_get_source_len(cfg)}, and were cut at the end"
            )
        say = warnings_.warn_once if found["unknown"] > WARN_SHARE else warnings_.log_once
        say(f"{split}: {found['unknown']:.2%} of the words and pieces are unknown to the tokenizer")
