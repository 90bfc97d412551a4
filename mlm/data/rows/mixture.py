"""The packed examples of several sources as one dataset, without a copy of any, and how a run draws from them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from mlm.base import config, errors, phases
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.rows import loader
from mlm.data.rows.columns import LazyColumn, PackedDataset
from mlm.data.text import sources
from mlm.data.tokenizers.tokenizer import Tokenizer


def load_sources(
    cfg: config.Config, tokenizer: Tokenizer, load_source: Callable[[config.Config, Tokenizer], PackedDataset]
) -> PackedDataset:
    """The examples of all sources of config.data.sources, each packed by itself.

    Held out are the sources' own held-out splits; with eval.max_examples an equal share of it of each.

    Args:
        load_source: (config of a source, tokenizer) -> its examples.

    Raises:
        ConfigError: a source has no examples for a split; names the corpus file and the source.
    """
    if cfg.phases.shares:  # a phase by itself has none
        sources.check_phases(cfg)
    file, packs = sources.read_corpus_file(cfg.data.sources), dict[str, PackedDataset]()
    for name, data in sources.list_sources(cfg.data):
        logging.info("source %s, examples of %d tokens", name, cfg.pack.seq_len)
        with sources.name_source(cfg.data.sources, name):
            packs[name] = load_source(dataclasses.replace(cfg, data=data), tokenizer)
    parts = list(packs.values())
    most = cfg.eval.max_examples // len(parts)
    expected = f"0, or one for each of the {len(parts)} sources"
    errors.require_field(cfg, "eval.max_examples", bool(most) or not cfg.eval.max_examples, expected)
    held_out = [{name: column[:most] if most else column for name, column in part.validation.items()} for part in parts]
    tokens = np.array([part.manifest["train"]["tokens"] for part in parts], float)
    # Conneau et al. 2020, section 3.1, where sizes are sentences.
    weights = [own if isinstance(own, tuple) else (tokens / tokens.sum()) ** own for own in file.weights]
    shares = [loader.divide(own) for own in weights]
    mixed = tuple(
        loader.Source(source.name, len(part.train["ids"]), len(rows["ids"]), own, count_words(part), source.max_epochs)
        for source, part, rows, own in zip(file.sources, parts, held_out, zip(*shares, strict=True), strict=True)
    )
    counts_SxV = np.stack([np.frombuffer(part.dataset_info.unigram_counts, np.int64) for part in parts])
    first, identity = parts[0], {f"source {name}": part.manifest["inputs"] for name, part in packs.items()}
    if [*packs] != sorted(packs):  # rows go to sources in their order
        identity["sources"] = [*packs]
    shared = {name: first.manifest["inputs"][name] for name in ("kind", "tokenizer", "length")}
    manifest = {split: _merge_statistics(parts, split) for split in ("train", "validation")}
    return first._replace(
        train=_chain([part.train for part in parts]),
        validation=_chain(held_out),
        dataset_info=first.dataset_info._replace(unigram_counts=counts_SxV.sum(0).tobytes()),
        manifest={"inputs": {**identity, **shared, "weights": [list(own) for own in shares]}, **manifest},
        folders=tuple(folder for part in parts for folder in part.folders),
        sources=mixed,
    )


def _merge_statistics(parts, split) -> dict[str, Any]:
    found = [part.manifest[split] for part in parts]

    def mean(name, by):
        return sum(one[name] * one[by] for one in found) / max(1, sum(one[by] for one in found))

    counts = {name: sum(one[name] for one in found) for name in ("documents", "rows", "tokens")}
    return counts | {"unknown": mean("unknown", "words"), "padding": mean("padding", "rows")}


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
    return {name: chain_columns([split[name] for split in splits]) for name in splits[0]}


def chain_columns(parts: Sequence[np.ndarray]) -> LazyColumn:
    """A column of several parts, one after the other."""
    bounds, example_shape = np.cumsum([0, *map(len, parts)]), parts[0].shape[1:]

    def make_rows(rows_B):
        part_B = np.searchsorted(bounds, rows_B, side="right") - 1
        chosen = np.empty((len(rows_B), *example_shape), parts[0].dtype)
        for part in np.unique(part_B):
            is_own_B = part_B == part
            chosen[is_own_B] = parts[part][rows_B[is_own_B] - bounds[part]]
        return chosen

    return LazyColumn((int(bounds[-1]), *example_shape), parts[0].dtype.type, make_rows)


class Segment(NamedTuple):
    """A phase of a run with its examples."""

    phase: phases.Phase
    packed: PackedDataset
    sources: tuple[loader.Source, ...]  # one without a name where the data has no sources
    offset_S: np.ndarray  # rows that earlier phases have drawn of the same examples

    def count_rows(self, step: int) -> np.ndarray:
        """The rows that the phase draws from each source until a step of the run: count_S."""
        num_steps = max(0, min(step, self.phase.end_step) - self.phase.first_step)
        parts = tuple(source.parts[self.phase.number] for source in self.sources)
        return loader.count_rows(parts, num_steps * self.phase.cfg.train.batch_size)

    def count_batch_words(self) -> float:
        """The words of a batch of the phase, on average."""
        batch_size = self.phase.cfg.train.batch_size
        parts = [source.parts[self.phase.number] for source in self.sources]
        sizes = zip(parts, self.sources, strict=True)
        return sum(batch_size * part * one.num_words / one.num_train for part, one in sizes) / sum(parts)


def count_drawn(segments: Sequence[Segment], step: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows drawn from each source until a step, and its epochs over all packings: rows_S, epochs_S."""
    counts = [segment.count_rows(step) for segment in segments]
    sizes = [[source.num_train for source in segment.sources] for segment in segments]
    return np.sum(counts, 0), np.sum(np.divide(counts, sizes), 0)


def describe_sources(segments: Sequence[Segment], step: int) -> dict[str, dict[str, float]]:
    """By source its share of the rows, not tokens, drawn until a step, and its epochs; {} where there is one corpus."""
    rows_S, epochs_S = count_drawn(segments, step)
    return {
        source.name: {"share": float(rows / max(1, rows_S.sum())), "epochs": float(epochs)}
        for source, rows, epochs in zip(segments[-1].sources, rows_S, epochs_S, strict=True)
        if source.name
    }
