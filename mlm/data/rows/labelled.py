"""Rows of a task: an example each, with its label, and what is needed to judge and to write predictions."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from mlm.base import config, types
from mlm.base.special import PAD
from mlm.data.rows import columns, loader, store
from mlm.data.rows.columns import PackedDataset
from mlm.data.rows.preprocessors import PREPROCESSORS
from mlm.data.tasks import splits, tasks
from mlm.data.tasks.examples import endings
from mlm.data.text import warnings_
from mlm.data.tokenizers import hub, kinds, words

FORMAT = 1  # of the files: a change of what they hold must change this number
TOKENIZE_BATCH = 1024  # examples tokenized at a time
WARN_SHARE = 0.01  # share of examples cut for their length, or of unknown words, above which a warning says so


def load(cfg: config.Config) -> PackedDataset:
    """The rows of all splits of config.data.task, made where they are not yet under cfg.data.cache.

    Validation is the task's dev split. Made once for files (by content), how they are read, a tokenizer and a length.
    The manifest has the classes, how often each stands in the train split (counts), and of each split what a Writer
    counts, its examples and how many of them were cut. Raises ConfigError as splits.source does.
    """
    tokenizer = kinds.given("config.tokenizer.path", cfg.tokenizer.path)
    if cfg.data.task in tasks.DRAWN:
        tokenizer = words.showing_mask(tokenizer)
    source = splits.source(cfg)
    inputs = {
        "format": FORMAT,
        "corpus": source.content(),
        "objective": cfg.objective,
        "kind": tokenizer.kind,
        "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(),
        "length": cfg.pack.seq_len,
    }
    if tasks.pairs(cfg.data) and hub.between(tokenizer) > 1:  # all others are known by what they were
        inputs["between"] = hub.between(tokenizer)
    if tasks.pairs(cfg.data) and cfg.model.type_vocab_size == 1:
        inputs["types"] = 1
    files_of = _list_columns(cfg, tokenizer.vocab_size)

    def make(folder):
        classes = source.classes()
        said: dict[str, Any] = {"classes": list(classes)}
        for split, read in source.splits.items():
            labels: Counter = Counter()
            with columns.SplitWriter(folder, split, files_of, _compute_seq_len(cfg), tokenizer.vocab_size) as writer:
                kept = _write_split(
                    writer, cfg, _count_labels(read(), classes, labels), tokenizer, classes, folder, split
                )
            said[split] = writer.counts() | kept
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
                said["counts"] = {name: labels[name] for name in classes}
            logging.info("packed %s: %d rows of %d examples", split, said[split]["rows"], said[split]["examples"])
        return said

    folder, manifest = store.get_or_make_folder(cfg.data.cache, "rows", inputs, make)
    _report_truncation(cfg, manifest, list(source.splits))
    there = {
        split: columns.open_columns(folder, split, files_of, manifest[split]["rows"], _compute_seq_len(cfg))
        for split in source.splits
    }
    for rows in there.values():
        rows[loader.NUM_TOKENS] = np.count_nonzero(
            rows["segments"].reshape(len(rows["ids"]), _count_choices(cfg), -1), axis=-1
        )
    counts_C = np.array([manifest["counts"][name] for name in manifest["classes"]], np.int64)
    known = describe_classes(
        cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64), manifest["classes"]
    )
    known = known._replace(class_counts=counts_C.tobytes())
    return PackedDataset(there.pop("train"), there.pop("validation"), tokenizer, known, manifest, there, folder)


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of a task's rows; its classes are read from the files where the config has none."""
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return describe_classes(cfg, vocab_size, unigram_V, splits.source(cfg).classes())


def read_examples(packed: PackedDataset, split: str) -> list[dict[str, Any]]:
    """The examples of a split ("train", "validation", "test") in order: the fields of an Example by name; "row", the
    number of its first row, and "rows", how many are its; of passages "spans", where each token begins and ends.
    """
    with open(_make_examples_path(packed.folder, split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _make_examples_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.examples.jsonl"


def _compute_seq_len(cfg):
    """Tokens of a row."""
    return cfg.pack.seq_len * _count_choices(cfg)


def _count_choices(cfg):
    return max(1, len(endings(cfg.data.labelled)))


def describe_classes(
    cfg: config.Config, vocab_size: int, unigram_V: np.ndarray, classes: Sequence[str]
) -> types.DatasetInfo:
    """What a program must know of rows with labels of these classes, each as frequent as the other."""
    names = (
        f"{name}_{column.letters.replace('N', 'B')}" for name, column in PREPROCESSORS[cfg.objective].columns.items()
    )
    ones = np.ones(len(classes), np.int64)
    return types.DatasetInfo(
        vocab_size, _compute_seq_len(cfg), tuple(names), unigram_V.tobytes(), tuple(classes), ones.tobytes()
    )


def _list_columns(cfg, vocab_size):
    pairs = tasks.pairs(cfg.data) and cfg.model.type_vocab_size != 1  # a model of one type tells no text from the other
    return (
        columns.text_columns(vocab_size)
        | (columns.TYPE_COLUMNS if pairs else {})
        | PREPROCESSORS[cfg.objective].columns
    )


def _count_labels(read, classes, labels):
    for one in read:
        if classes:
            labels.update([one.label] if isinstance(one.label, str) else one.label)
        yield one


def _write_split(writer, cfg, read, tokenizer, classes, folder, split) -> dict[str, int]:
    """Writes a split's rows, and its examples beside them; returns how many examples there are and were cut."""
    count = truncated = lost = row_number = 0
    make = PREPROCESSORS[cfg.objective].rows
    with open(_make_examples_path(folder, split), "w", encoding="utf-8") as file:
        for batch in iter(lambda: list(itertools.islice(read, TOKENIZE_BATCH)), []):
            for one, rows in zip(batch, make(batch, tokenizer, cfg, classes), strict=True):
                for row in rows:
                    block, at = writer.place()
                    for number, one_of in enumerate((row, *row.further)):
                        first, used = number * cfg.pack.seq_len, len(one_of.ids)
                        there = slice(first, first + used)
                        block["ids"][at, there] = one_of.ids
                        block["segments"][at, there] = number + 1  # a stretch's texts see each other
                        block["positions"][at, there] = np.arange(used)
                        if "types" in block:
                            block["types"][at, first + one_of.second : first + used] = 1
                    if "example" in block:
                        block["example"][at] = count
                    for name, value in row.labels.items():
                        block[name][at, ...] = value
                cut = max(row.cut for row in rows)
                count, truncated, lost = count + 1, truncated + (cut > 0), lost + cut
                file.write(json.dumps({**one._asdict(), "row": row_number, "rows": len(rows), **rows[0].kept}) + "\n")
                row_number += len(rows)
    return {"examples": count, "truncated": truncated, "lost": lost}


def _report_truncation(cfg, manifest, names):
    """Says what was cut, and how much of the text the vocabulary does not know."""
    for split in names:
        found = manifest[split]
        if found["truncated"]:
            share = found["truncated"] / found["examples"]
            what = PREPROCESSORS[cfg.objective].cut.format(length=cfg.pack.seq_len, lost=found["lost"])
            say = warnings_.warn_once if share > WARN_SHARE else warnings_.log_once
            say(f"{split}: {found['truncated']} of {found['examples']} examples ({share:.1%}) {what}")
        say = warnings_.warn_once if found["unknown"] > WARN_SHARE else warnings_.log_once
        say(f"{split}: {found['unknown']:.2%} of the words and pieces are unknown to the tokenizer")
