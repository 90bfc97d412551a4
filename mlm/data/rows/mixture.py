"""The packed examples of several sources as one dataset, without a copy of any, and how a run draws from them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from mlm.base import config, errors, phases
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.rows import draws
from mlm.data.rows.columns import PackedDataset
from mlm.data.text import sources
from mlm.data.tokenizers.tokenizer import Tokenizer


class ChainedColumn:
    """A column of several parts, one after the other: as an array that can be indexed along its first axis."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts, self.dtype, self.ndim = parts, parts[0].dtype, parts[0].ndim
        self.bounds = np.cumsum([0, *map(len, parts)])
        self.shape = (int(self.bounds[-1]), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Rows: a number, a slice or an array of numbers, alone or first in a tuple."""
        rows, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows_x = np.asarray(rows)
        rows_x = np.flatnonzero(rows_x) if rows_x.dtype == bool else rows_x
        rows_B = np.where(rows_x < 0, rows_x + len(self), rows_x).reshape(-1)
        chosen, part_B = np.empty((len(rows_B), *self.shape[1:]), self.dtype), self._find_parts(rows_B)
        for part in np.unique(part_B):
            is_own_B = part_B == part
            chosen[is_own_B] = self.parts[part][rows_B[is_own_B] - self.bounds[part]]
        return chosen.reshape(*rows_x.shape, *self.shape[1:])[(*[slice(None)] * rows_x.ndim, *rest)]

    def _find_parts(self, rows_B):
        if len(rows_B) and not (rows_B.min() >= 0 and rows_B.max() < len(self)):
            raise IndexError(f"rows {rows_B.min()} to {rows_B.max()} of {len(self)}")
        return np.searchsorted(self.bounds, rows_B, side="right") - 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


def load_dataset(
    cfg: config.Config, tokenizer: Tokenizer, load_source: Callable[[config.Config, Tokenizer], PackedDataset]
) -> PackedDataset:
    """The examples of all sources of config.data.sources, each packed by itself.

    Held out are the sources' own held-out splits; with eval.max_examples an equal share of it of each.

    Args:
        tokenizer: of all sources.
        load_source: (config of a source, tokenizer) -> its examples.

    Raises:
        ConfigError: a source has no examples for a split; names the corpus file and the source.
    """
    if cfg.phases.shares:  # a phase by itself has none
        sources.check_phases(cfg)
    file, packs = sources.read_corpus_file(cfg.data.sources), dict[str, PackedDataset]()
    for name, data in sources.list_sources(cfg.data):
        logging.info("source %s", name)
        with sources.name_source(file.path, name):
            packs[name] = load_source(dataclasses.replace(cfg, data=data), tokenizer)
    parts = list(packs.values())
    most = -(-cfg.eval.max_examples // len(parts)) or None
    held_out = [{name: column[:most] for name, column in part.validation.items()} for part in parts]
    tokens = [part.manifest["train"]["tokens"] for part in parts]
    shares = [_compute_parts(weights, tokens) for weights in file.weights]
    mixed = tuple(
        draws.Source(
            source.name, len(part.train["ids"]), len(rows["ids"]), tuple(own[i] for own in shares), source.max_epochs
        )
        for i, (source, part, rows) in enumerate(zip(file.sources, parts, held_out, strict=True))
    )
    unigram_V = sum(np.frombuffer(part.dataset_info.unigram_counts, np.int64) for part in parts)
    identity = {f"source {name}": part.manifest["inputs"] for name, part in packs.items()}
    shared = {name: parts[0].manifest["inputs"][name] for name in ("kind", "tokenizer", "length")}
    manifest = {"inputs": {**identity, **shared, "weights": [list(own) for own in shares]}}
    manifest |= {split: _merge_statistics(parts, split) for split in ("train", "validation")}
    return PackedDataset(
        _chain([part.train for part in parts]),
        _chain(held_out),
        tokenizer,
        parts[0].dataset_info._replace(unigram_counts=np.asarray(unigram_V).tobytes()),
        manifest,
        sources=mixed,
    )


def _compute_parts(weights: sources.Weights, tokens: Sequence[int]) -> tuple[int, ...]:
    """The parts of a phase: of weights, or of sizes in tokens to the power of alpha (Conneau et al. 2020, section 3.1,
    where they are sentences).
    """
    if weights.by_source:
        return draws.divide(weights.by_source)
    scaled = [count / sum(tokens) for count in tokens]
    return draws.divide([share**weights.alpha for share in scaled])


def _merge_statistics(parts, split) -> dict[str, Any]:
    found = [part.manifest[split] for part in parts]
    rows, tokens = sum(one["rows"] for one in found), sum(one["tokens"] for one in found)
    mean = lambda name, by: sum(one[name] * one[by] for one in found) / max(1, sum(one[by] for one in found))
    return {"rows": rows, "tokens": tokens, "unknown": mean("unknown", "tokens"), "padding": mean("padding", "rows")}


def count_words(packed: PackedDataset) -> int:
    """The words of the train split, as its tokenizer begins them: a mark of punctuation may be one of its own."""
    tokenizer = packed.tokenizer
    is_word_V = (tokenizer.starts_word_V if tokenizer.ends_word_V is None else tokenizer.ends_word_V).copy()
    is_word_V[:NUM_SPECIAL] = False
    is_word_V[UNK] = True
    return int(np.frombuffer(packed.dataset_info.unigram_counts, np.int64)[is_word_V].sum())


def _chain(splits) -> dict[str, Any]:
    if len(splits) == 1:
        return splits[0]
    return {name: ChainedColumn([split[name] for split in splits]) for name in splits[0]}


class Segment(NamedTuple):
    """A phase of a run with its examples."""

    phase: phases.Phase
    packed: PackedDataset
    sources: tuple[draws.Source, ...]  # one without a name where the data has no sources
    offset_S: np.ndarray  # rows that earlier phases have drawn of the same examples

    def count_rows(self, num_steps: int) -> np.ndarray:
        """The rows that the first steps of the phase draw from each source: count_S."""
        parts = tuple(source.parts[self.phase.number] for source in self.sources)
        return draws.count_rows(parts, num_steps * self.phase.cfg.train.batch_size)

    def count_batch_words(self) -> float:
        """The words of a batch of the phase, on average."""
        parts, batch_size = (
            [source.parts[self.phase.number] for source in self.sources],
            self.phase.cfg.train.batch_size,
        )
        words = (
            batch_size * part * (source.num_words if source.name else count_words(self.packed)) / source.num_train
            for part, source in zip(parts, self.sources, strict=True)
        )
        return sum(words) / sum(parts)

    def make_draw(self, seed: int) -> draws.Draw:
        """The draw of the phase's rows."""
        return draws.draw_from_sources(self.sources, self.phase.number, seed, self.offset_S)


def list_segments(
    cfg: config.Config, packed: PackedDataset, load_dataset: Callable[[config.Config], PackedDataset]
) -> list[Segment]:
    """The phases of a run with their examples, in order.

    Args:
        packed: the examples of the last phase.
        load_dataset: (config of a phase) -> its examples, of another length.

    Raises:
        ConfigError: the run repeats a source more often than its corpus file allows.
    """
    segments, by_length = [], {cfg.pack.seq_len: packed}
    drawn = dict[int, Any]()  # by length
    for phase in phases.list_phases(cfg):
        length = phase.cfg.pack.seq_len
        if length not in by_length:
            by_length[length] = load_dataset(phase.cfg)
        own = by_length[length]
        found = own.sources or (draws.Source("", len(own.train["ids"]), 0, (1,)),)
        # Weights are the same in all phases of a file that has none.
        found = tuple(
            source._replace(parts=source.parts * (phase.number + 1)) if len(source.parts) == 1 else source
            for source in found
        )
        segment = Segment(phase, own, found, drawn.get(length, np.zeros(len(found), np.int64)))
        segments.append(segment)
        drawn[length] = segment.offset_S + segment.count_rows(phase.end_step - phase.first_step)
    _check_epochs(cfg, segments)
    return segments


def count_epochs(segments: Sequence[Segment], step: int) -> np.ndarray:
    """How often each source has been repeated after a step: epochs_S, over the packings of all lengths."""
    total_S = np.zeros(len(segments[0].sources))
    for segment in segments:
        num_steps = max(0, min(step, segment.phase.end_step) - segment.phase.first_step)
        total_S += segment.count_rows(num_steps) / [source.num_train for source in segment.sources]
    return total_S


def describe_sources(segments: Sequence[Segment], step: int) -> dict[str, dict[str, float]]:
    """By source: its share of the rows drawn until a step, its epochs and its examples of the last phase; {}: none."""
    sources_, rows_S = segments[-1].sources, np.zeros(len(segments[0].sources), np.int64)
    for segment in segments:
        rows_S += segment.count_rows(max(0, min(step, segment.phase.end_step) - segment.phase.first_step))
    epochs_S = count_epochs(segments, step)
    return {
        source.name: {
            "share": float(rows_S[i] / max(1, rows_S.sum())),
            "epochs": float(epochs_S[i]),
            "examples": source.num_train,
        }
        for i, source in enumerate(sources_)
        if source.name
    }


def _check_epochs(cfg, segments):
    for i, source in enumerate(segments[-1].sources):
        if count_epochs(segments, cfg.train.steps)[i] <= source.max_epochs:
            continue
        low, high = 0, cfg.train.steps  # the last step within the cap lies in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if count_epochs(segments, middle)[i] <= source.max_epochs else (low, middle)
        raise errors.ConfigError(
            f"{cfg.data.sources}: source {source.name!r}: max_epochs = {source.max_epochs:g}: reached after step "
            f"{low:,} of config.train.steps = {cfg.train.steps:,}; expected fewer steps, a lower weight, or a higher "
            "max_epochs"
        )
