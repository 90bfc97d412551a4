"""Packs parallel text: an example holds several target sentences side by side, and their sources in other columns.

A batch of examples then has one shape and about the same number of tokens on each side, with little padding. A target
token sees the tokens of its own target and its own source, which have the same segment.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base import config, types, warnings_
from mlm.base.special import CLS, SEP
from mlm.data.rows import columns, loader, vocabulary
from mlm.data.rows.columns import PackedDataset
from mlm.data.text import corpus, parallel_text
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 1  # of the cached files; a change of their content must raise it
TOKENIZE_BATCH = 1024  # pairs that are tokenized at once
WRITE_BATCH = 1024  # examples that are written at once
MAX_OPEN_EXAMPLES = 64  # incomplete examples to which a pair may be added


class EncodedPair(NamedTuple):
    """A pair as token ids."""

    target: list[int]  # [CLS] its tokens [SEP]
    source: list[int]  # its tokens [SEP]
    is_truncated: bool  # whether it was too long


def load_pairs(cfg: config.Config, *, processes: int = 1, verify: bool = False) -> PackedDataset:
    """The examples of all splits; the manifest has for each the numbers of pairs, truncated ones and source tokens.

    Raises ConfigError as parallel_text.open_pairs does.
    """
    pair_source, source_len = parallel_text.open_pairs(cfg.data), cfg.pack.source_len
    tokenizer = vocabulary.get_or_train_tokenizer(cfg, corpus.compute_fingerprint(cfg.data))
    inputs = {"format": FORMAT, "corpus": pair_source.compute_digest().hex(), "source_length": source_len}

    def write(split, writer, folder):
        if split == "train":
            parallel_text.warn_of_duplicates(pair_source)
        pairs_path = _make_pairs_path(folder, split) if split != "train" else None
        return _write_split(writer, pair_source.splits[split](), tokenizer, pairs_path)

    specs, vocab_size = columns.make_text_columns(tokenizer.vocab_size), tokenizer.vocab_size
    specs |= {f"source_{name}": spec._replace(dims="NxS") for name, spec in specs.items()}
    layout = columns.Layout(specs, tuple(pair_source.splits), vocab_size, cfg.pack.seq_len, source_len)
    packed = columns.get_or_pack_dataset(
        cfg.data.cache_dir,
        tokenizer,
        columns.make_inputs(inputs, tokenizer, cfg.pack.seq_len),
        layout,
        lambda folder: columns.write_splits(folder, layout, write),
        lambda unigram_V, manifest: build_dataset_info(cfg, vocab_size, unigram_V),
        verify=verify,
    )
    _report_statistics(cfg, packed, pair_source.splits)
    return packed


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray) -> types.DatasetInfo:
    """What a program must know of the dataset; unigram_V: counts of the targets' tokens."""
    return types.DatasetInfo(vocab_size, cfg.pack.seq_len, (), unigram_V.tobytes(), source_len=cfg.pack.source_len)


def read_examples(packed: PackedDataset, split: str) -> list[dict[str, str]]:
    """The pairs of a held-out split in order, with the texts "source" and "target"; none of the train split."""
    if split == "train":
        return []
    with open(_make_pairs_path(packed.folders[0], split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def encode_pairs(
    tokenizer: Tokenizer, pairs: Sequence[parallel_text.Pair], seq_len: int, source_len: int
) -> list[EncodedPair]:
    """Encodes pairs for examples of these lengths; truncates long texts before the final [SEP]."""
    targets = tokenizer.encode_batch([pair.target for pair in pairs])
    sources = tokenizer.encode_batch([pair.source for pair in pairs])
    max_target, max_source = seq_len - 2, source_len - 1
    return [
        EncodedPair(
            [CLS, *target[:max_target], SEP],
            [*source[:max_source], SEP],
            len(target) > max_target or len(source) > max_source,
        )
        for target, source in zip(targets, sources, strict=True)
    ]


def encode_sources(tokenizer: Tokenizer, texts: Sequence[str], source_len: int) -> tuple[dict[str, np.ndarray], int]:
    """The source columns of examples with one source each, and how many sources were truncated."""
    names = ("ids", "segments", "positions")
    arrays = {f"source_{name}": np.zeros((len(texts), source_len), np.int32) for name in names}
    num_truncated = 0
    pairs = [parallel_text.Pair(text, "") for text in texts]
    for index, pair in enumerate(encode_pairs(tokenizer, pairs, source_len, source_len)):
        columns.write_text(arrays, index, pair.source, 0, 1, loader.SOURCE_PREFIX)
        num_truncated += pair.is_truncated
    return arrays, num_truncated


def pack_pairs(pairs: Iterable[EncodedPair], seq_len: int, source_len: int) -> Iterator[list[EncodedPair]]:
    """The pairs of each example: a pair is added to the first open example with space for both its sides.

    If MAX_OPEN_EXAMPLES are open and none has space, the fullest is closed; of equally full ones the first.
    """
    open_examples: list[list[EncodedPair]] = []
    sizes: list[tuple[int, int]] = []  # tokens of the targets and of the sources of each
    for pair in pairs:
        target_size, source_size = len(pair.target), len(pair.source)
        fitting = (
            index
            for index, (used, source_used) in enumerate(sizes)
            if used + target_size <= seq_len and source_used + source_size <= source_len
        )
        index = next(fitting, len(open_examples))
        if index == MAX_OPEN_EXAMPLES:
            fullest = max(range(MAX_OPEN_EXAMPLES), key=lambda i: max(sizes[i][0] / seq_len, sizes[i][1] / source_len))
            sizes.pop(fullest)
            yield open_examples.pop(fullest)
            index -= 1
        if index == len(open_examples):
            open_examples.append([])
            sizes.append((0, 0))
        open_examples[index].append(pair)
        sizes[index] = sizes[index][0] + target_size, sizes[index][1] + source_size
    yield from open_examples


def _make_pairs_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.pairs.jsonl"


def _write_split(writer, pairs, tokenizer, pairs_path) -> dict[str, int]:
    """Writes a split's examples, and its pairs if pairs_path is not None; returns counts for the manifest."""
    counts = {"pairs": 0, "cut": 0, "source_tokens": 0}

    def encode_all():
        while batch := list(itertools.islice(pairs, TOKENIZE_BATCH)):
            if file is not None:
                file.writelines(f"{json.dumps(pair._asdict())}\n" for pair in batch)
            for encoded in encode_pairs(tokenizer, batch, writer.seq_len, writer.source_len):
                counts["pairs"] += 1
                counts["cut"] += encoded.is_truncated
                counts["source_tokens"] += len(encoded.source)
                yield encoded

    with open(pairs_path, "w", encoding="utf-8") if pairs_path else contextlib.nullcontext() as file:
        examples = pack_pairs(encode_all(), writer.seq_len, writer.source_len)
        while batch := list(itertools.islice(examples, WRITE_BATCH)):
            arrays = writer.make_examples(len(batch))
            for index, example in enumerate(batch):
                end = source_end = 0
                for segment, pair in enumerate(example, 1):
                    end = columns.write_text(arrays, index, pair.target, end, segment)
                    place = source_end, segment, loader.SOURCE_PREFIX
                    source_end = columns.write_text(arrays, index, pair.source, *place)
            writer.write_examples(arrays)
    return counts


def _report_statistics(cfg, packed, split_names):
    """Logs how much is padding, was truncated, and is unknown to the tokenizer."""
    source_len = cfg.pack.source_len
    for split in split_names:
        counts = packed.manifest[split]
        source_padding = 1 - counts["source_tokens"] / (counts["rows"] * source_len)
        warnings_.log_once(
            f"{split}: {counts['pairs']} pairs in {counts['rows']} examples; padding: {counts['padding']:.1%} of the "
            f"targets, {source_padding:.1%} of the sources"
        )
        if counts["cut"]:
            warnings_.warn_once(
                f"{split}: {counts['cut']} of {counts['pairs']} pairs do not fit config.pack.seq_len = "
                f"{cfg.pack.seq_len}, or the source length {source_len}, and were truncated"
            )
        columns.report_unknown(split, counts, packed.tokenizer.kind)
