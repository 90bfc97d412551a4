"""Packs documents once into examples of a fixed length, which are memory-mapped from then on."""

import bisect
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from mlm.base import buckets, config, errors, files, phases, types
from mlm.base.fields import DerivedField
from mlm.data.language import grammar, translation
from mlm.data.rows import labelled, loader, mixture, parallel_text, text_rows
from mlm.data.rows.columns import PackedDataset
from mlm.data.tasks import tasks
from mlm.data.text import corpus, sources
from mlm.data.text import parallel_text as pairs
from mlm.data.text.files import forget_digests
from mlm.data.tokenizers.tokenizer import Tokenizer


def _is_generated(data: config.Data) -> bool:
    return data.corpus == "language" or pairs.is_generated(data)


def _learns_vocabulary(cfg: config.Config) -> bool:
    return cfg.data.corpus != "task" and not cfg.tokenizer.path


DERIVED_FIELDS = (
    DerivedField(
        "data.language.max_words",
        ("data.corpus", "data.parallel_path", "pack.seq_len"),
        # [CLS] and [SEP] need two tokens.
        lambda cfg: translation.MAX_WORDS if cfg.data.corpus == "parallel" else cfg.pack.seq_len - 2,
        lambda cfg: _is_generated(cfg.data),
    ),
    DerivedField(
        "tokenizer.kind",
        ("data.corpus", "data.parallel_path", "tokenizer.path"),
        lambda cfg: "words" if _is_generated(cfg.data) else "unigram",
        _learns_vocabulary,
    ),
    DerivedField(
        "tokenizer.vocab_size",
        ("tokenizer.kind", "tokenizer.path", "data.corpus", "data.parallel_path"),
        lambda cfg: 0 if _is_generated(cfg.data) or cfg.tokenizer.kind == "characters" else 8192,
        _learns_vocabulary,
    ),
    DerivedField(
        "pack.source_len",
        ("pack.seq_len", "data.corpus"),
        lambda cfg: cfg.pack.seq_len,
        lambda cfg: cfg.data.corpus == "parallel",
    ),
    DerivedField(
        "pack.mode",
        ("data.corpus",),
        lambda cfg: "doc_sentences" if cfg.data.corpus == "language" else "full_sentences",
        lambda cfg: cfg.data.corpus not in ("task", "parallel"),
    ),
)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a vocabulary that cannot be learned or examples that cannot be packed."""
    files.check_folder("config.data.cache_dir", cfg.data.cache_dir, writable=False, schemes=tuple(buckets.LIBRARIES))
    CORPUS_KINDS[cfg.data.corpus].check(cfg)


def _check_documents(cfg):
    reason = f"another, since {cfg.data.corpus} is no running text"
    errors.require_field(cfg, "pack.mode", cfg.pack.mode != "stream", reason)


def _check_language(cfg):
    _check_documents(cfg)
    _check_generated(cfg, {"pack.mode": "doc_sentences"})
    grammar.check(cfg.data.language)
    errors.require_number("config.data.language.max_words", cfg.data.language.max_words, 8, cfg.pack.seq_len - 2)


def _check_parallel(cfg):
    for num_beams in cfg.eval.beams:
        is_whole = num_beams == int(num_beams)
        errors.require(is_whole, "config.eval.beams", num_beams, f"an integer from 1 to {config.MAX_BEAMS}")
    if pairs.is_generated(cfg.data):
        _check_generated(cfg, {})
        translation.check(cfg.data.language, min(cfg.pack.seq_len, cfg.pack.source_len))


def _check_generated(cfg, allowed):
    reason = f"since config.data.corpus = {cfg.data.corpus} is text of the built-in language; leave the field out"
    allowed = {"tokenizer.path": "", "tokenizer.kind": "words", "tokenizer.vocab_size": 0, **allowed}
    for field, value in allowed.items():
        actual = operator.attrgetter(field)(cfg)
        errors.require(actual == value, f"config.{field}", actual, f"{value or 'none'}, {reason}")


class CorpusKind(NamedTuple):
    """What a kind of corpus needs to become examples."""

    check: Callable[[config.Config], None]
    load: Callable[..., PackedDataset]  # (cfg, processes=1, verify=False)
    build_dataset_info: Callable[[config.Config, int, np.ndarray], types.DatasetInfo]
    read_examples: Callable[[PackedDataset, str], list[dict[str, Any]]] = lambda packed, split: []


def _load_text_or_sources(cfg, **options):
    if not cfg.data.sources:
        return text_rows.load_text(cfg, **options)
    return mixture.load_sources(cfg, load_tokenizer(cfg), functools.partial(text_rows.load_text, **options))


_DOCUMENTS = CorpusKind(_check_documents, text_rows.load_text, text_rows.build_dataset_info)
CORPUS_KINDS = {  # config.data.corpus -> its kind
    "text": CorpusKind(lambda cfg: None, _load_text_or_sources, text_rows.build_dataset_info),
    "tfds": _DOCUMENTS,
    "docstrings": _DOCUMENTS,
    "language": _DOCUMENTS._replace(check=_check_language),
    "parallel": CorpusKind(
        _check_parallel, parallel_text.load_pairs, parallel_text.build_dataset_info, parallel_text.read_examples
    ),
    "task": CorpusKind(tasks.check, labelled.load_task, labelled.build_dataset_info, labelled.read_examples),
}


def load_dataset(cfg: config.Config, *, processes: int = 1, verify: bool = False) -> PackedDataset:
    """The examples of both splits, packed first if cfg.data.cache_dir does not have them.

    The cache depends on the content of the corpus, on the tokenizer and on config.pack. A file that has another size or
    time than before is hashed, and where it changed the examples are packed again. Raises ConfigError as
    corpus.read_documents and kinds.train_tokenizer do.

    Args:
        cfg: a resolved config.
        processes: how many pack at once, where the corpus is divided into shards.
        verify: whether all files are hashed, of the corpus and of the cache.
    """
    if verify:
        forget_digests(cfg.data.cache_dir)
    return CORPUS_KINDS[cfg.data.corpus].load(cfg, processes=processes, verify=verify)


def list_segments(cfg: config.Config, packed: PackedDataset, **options: Any) -> list[mixture.Segment]:
    """The phases of a run with their examples, in order.

    packed: the examples of the last phase; options: of `load_dataset`, for phases of another length. Raises ConfigError
    if the run repeats a source more often than its corpus file allows.
    """
    segments, by_length, drawn = list[mixture.Segment](), {cfg.pack.seq_len: packed}, dict[int, Any]()
    for phase in phases.list_phases(cfg):
        length = phase.cfg.pack.seq_len
        own = by_length.get(length) or load_dataset(phase.cfg, **options)
        by_length[length] = own
        found = own.sources or (loader.Source("", len(own.train["ids"]), 0, (1,), mixture.count_words(own)),)
        if len(found[0].parts) == 1:  # the same in all phases
            found = tuple(source._replace(parts=source.parts * (phase.number + 1)) for source in found)
        segment = mixture.Segment(phase, own, found, drawn.get(length, np.zeros(len(found), np.int64)))
        segments.append(segment)
        drawn[length] = segment.offset_S + segment.count_rows(phase.end_step)
    for i, source in enumerate(segments[-1].sources):
        count = lambda step, i=i: mixture.count_drawn(segments, step)[1][i]
        last = bisect.bisect_right(range(cfg.train.steps + 1), source.max_epochs, key=count) - 1
        if last < cfg.train.steps:
            raise errors.ConfigError(
                f"{cfg.data.sources}: source {source.name!r}: max_epochs = {source.max_epochs:g}: reached after step "
                f"{last:,} of config.train.steps = {cfg.train.steps:,}; expected fewer steps, a lower weight, or a "
                "higher max_epochs"
            )
    return segments


def load_tokenizer(cfg: config.Config) -> Tokenizer:
    """The tokenizer of a corpus of text, trained if the cache does not have it."""
    return text_rows.make_packer(cfg)[1]


def make_packers(cfg: config.Config) -> list[text_rows.Packer]:
    """What packs the shards of a corpus, or of its sources, in each length that the run's phases have.

    Raises ConfigError where all is packed as a whole.
    """
    by_length = {phase.cfg.pack.seq_len: phase.cfg for phase in phases.list_phases(cfg)}
    divided, tokenizer = list_divided(cfg), load_tokenizer(cfg)
    configs = (dataclasses.replace(own, data=data) for own in by_length.values() for data in divided)
    return [text_rows.make_packer(one, tokenizer)[0] for one in configs]


def list_divided(cfg: config.Config) -> list[config.Data]:
    """The corpus, or its sources, that are packed in shards. Raises ConfigError where all is packed as a whole."""
    divided = [data for data in _list_parts(cfg) if text_rows.find_shard_mb(data, cfg.pack)]
    expected = "MB of a shard of files, less than they all have; this corpus is packed as a whole"
    errors.require(bool(divided), "config.pack.shard_mb", cfg.pack.shard_mb, expected)
    return divided


def warn_of_few_shards(cfg: config.Config, flag: str, count: int) -> None:
    """Warns where there are fewer shards than processes or tasks, with the field that makes more of them.

    flag: of the command, that says how many processes or tasks there are.
    """
    parts = _list_parts(cfg)
    sizes = {data: int(text_rows.find_shard_mb(data, cfg.pack) * corpus.MEGABYTE) for data in parts}
    most = max(len(corpus.plan_shards(data, size)) if size else 1 for data, size in sizes.items())
    remedy = "only files are divided into more, and not with config.pack.mode=stream"
    if cfg.pack.mode != "stream" and (num_bytes := max(map(corpus.count_bytes, parts))):
        size = num_bytes / corpus.MEGABYTE / count / 2
        remedy = f"config.pack.shard_mb={size:.3g}, here and for mlm train, makes more of what can be divided"
    if most < count:
        logging.warning(f"{flag}={count}: {most} can work, one a shard; {remedy}")


def _list_parts(cfg):
    if not cfg.data.sources:
        return [cfg.data]
    corpus.open_sources(cfg.data)  # raises for a file that is missing
    return [data for _, data in sources.list_sources(cfg.data)]


def read_examples(cfg: config.Config, packed: PackedDataset, split: str) -> list[dict[str, Any]]:
    """The records of a split's examples, with fields by name.

    Only tasks have them, and held-out splits of parallel text; for others the list is empty.
    """
    return CORPUS_KINDS[cfg.data.corpus].read_examples(packed, split)


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of a config's dataset; unigram_V: counts of the tokens, all equal where None.

    Classes of a task that the config does not list are read from the task's files.
    """
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return CORPUS_KINDS[cfg.data.corpus].build_dataset_info(cfg, vocab_size, unigram_V)
