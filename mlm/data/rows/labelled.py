"""A task's examples with their labels, and the records that scores and predictions need."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from mlm.base import config, types, warnings_
from mlm.base.labelled_objectives import LabelKind, has_kind
from mlm.base.special import PAD
from mlm.data.rows import columns, loader, store
from mlm.data.rows.columns import PackedDataset
from mlm.data.rows.preprocessors import PREPROCESSORS
from mlm.data.tasks import splits, tasks
from mlm.data.tasks.examples import list_choice_columns
from mlm.data.tokenizers import hub, kinds, words

QUESTION_KINDS = ("answer", "no answer")  # what "counts" counts of questions
TOKENIZE_BATCH = 1024  # examples that are tokenized at once
WARN_FRACTION = 0.01  # fraction of truncated examples, or of unknown words, that causes a warning


def load_dataset(cfg: config.Config) -> PackedDataset:
    """The examples of all splits of config.data.task, packed first if cfg.data.cache_dir does not have them.

    The validation split is the task's dev split. The cache depends on the content of the task's files, on how they are
    read, on the tokenizer and on the length. The manifest has the classes, "counts" (of each class in the train split,
    or of QUESTION_KINDS) and for each split what SplitWriter.compute_statistics returns, the number of examples and of
    truncated ones.

    Raises:
        ConfigError: as splits.open_task does.
    """
    tokenizer = kinds.load_tokenizer_folder("config.tokenizer.path", cfg.tokenizer.path)
    if cfg.data.task in tasks.LANGUAGE_TASKS:
        tokenizer = words.recognize_mask_token(tokenizer)
    source = splits.open_task(cfg)
    inputs = {
        "format": PREPROCESSORS[cfg.objective].format,
        "corpus": source.hash_content(),
        "objective": cfg.objective,
        "kind": tokenizer.kind,
        "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(),
        "length": cfg.pack.seq_len,
    }
    if (
        tasks.takes_pairs(cfg.data) and hub.count_pair_separators(tokenizer) > 1
    ):  # else the inputs stay those of older caches
        inputs["between"] = hub.count_pair_separators(tokenizer)
    if tasks.takes_pairs(cfg.data) and cfg.model.type_vocab_size == 1:
        inputs["types"] = 1
    specs = _list_columns(cfg, tokenizer.vocab_size)

    def make(folder):
        classes = source.get_classes()
        manifest: dict[str, Any] = {"classes": list(classes)}
        for split, read in source.splits.items():
            label_counts: Counter = Counter()
            examples = _count_labels(read(), classes, label_counts)
            with columns.SplitWriter(folder, split, specs, _compute_seq_len(cfg), tokenizer.vocab_size) as writer:
                counts = _write_split(writer, cfg, examples, tokenizer, classes, folder, split)
            manifest[split] = writer.compute_statistics() | counts
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
                manifest["counts"] = {name: label_counts[name] for name in _list_counted(cfg, classes)}
            logging.info("packed %s: %d examples as %d rows", split, counts["examples"], manifest[split]["rows"])
        return manifest

    folder, manifest = store.get_or_make_folder(cfg.data.cache_dir, "rows", inputs, make)
    _report_truncation(cfg, manifest, list(source.splits))
    arrays = {
        split: columns.open_columns(folder, split, specs, manifest[split]["rows"], _compute_seq_len(cfg))
        for split in source.splits
    }
    for split_columns in arrays.values():
        split_columns[loader.NUM_TOKENS] = np.count_nonzero(
            split_columns["segments"].reshape(len(split_columns["ids"]), _count_choices(cfg), -1), axis=-1
        )
    counts_C = np.array([manifest["counts"][name] for name in _list_counted(cfg, manifest["classes"])], np.int64)
    unigram_V = np.fromfile(folder / "unigram.bin", np.int64)
    dataset_info = describe_classes(cfg, tokenizer.vocab_size, unigram_V, manifest["classes"])
    dataset_info = dataset_info._replace(class_counts=counts_C.tobytes())
    train, validation = arrays.pop("train"), arrays.pop("validation")
    return PackedDataset(train, validation, tokenizer, dataset_info, manifest, arrays, folder)


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of the task. Reads the classes from the files if the config does not list them."""
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return describe_classes(cfg, vocab_size, unigram_V, splits.open_task(cfg).get_classes())


def read_examples(packed: PackedDataset, split: str) -> list[dict[str, Any]]:
    """The records of the examples of a split ("train", "validation", "test") in order.

    A record has the fields of an Example by name, "row" (the index of its first packed row) and "rows" (how many it
    has); the record of a passage has "spans", where each token begins and ends.
    """
    with open(_make_examples_path(packed.folder, split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _make_examples_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.examples.jsonl"


def _compute_seq_len(cfg):
    """The number of tokens of all choices of an example."""
    return cfg.pack.seq_len * _count_choices(cfg)


def _count_choices(cfg):
    return max(1, len(list_choice_columns(cfg.data.labelled)))


def describe_classes(
    cfg: config.Config, vocab_size: int, unigram_V: np.ndarray, classes: Sequence[str]
) -> types.DatasetInfo:
    """What a program must know of examples with labels of these classes; all classes have the same count."""
    names = (f"{name}_{column.dims.replace('N', 'B')}" for name, column in PREPROCESSORS[cfg.objective].columns.items())
    ones = np.ones(len(classes), np.int64)
    return types.DatasetInfo(
        vocab_size, _compute_seq_len(cfg), tuple(names), unigram_V.tobytes(), tuple(classes), ones.tobytes()
    )


def _list_columns(cfg, vocab_size):
    has_types = (
        tasks.takes_pairs(cfg.data) and cfg.model.type_vocab_size != 1
    )  # a model with one type ignores the column
    return (
        columns.make_text_columns(vocab_size)
        | (columns.TYPE_COLUMNS if has_types else {})
        | PREPROCESSORS[cfg.objective].columns
    )


def _list_counted(cfg, classes):
    return QUESTION_KINDS if has_kind(cfg.objective, LabelKind.ANSWERS) else classes


def _count_labels(examples, classes, label_counts):
    """Yields the examples, and counts their labels if these are classes, or QUESTION_KINDS if they are answers."""
    for example in examples:
        if classes:
            label_counts.update([example.label] if isinstance(example.label, str) else example.label)
        elif isinstance(example.label, tuple):
            label_counts[QUESTION_KINDS[not example.label]] += 1
        yield example


def _write_split(writer, cfg, examples, tokenizer, classes, folder, split) -> dict[str, int]:
    """Writes the packed examples of a split and their records. Returns how many there are and how many truncated."""
    count = truncated = num_lost = row = 0
    encode = PREPROCESSORS[cfg.objective].encode
    with open(_make_examples_path(folder, split), "w", encoding="utf-8") as file:
        for batch in iter(lambda: list(itertools.islice(examples, TOKENIZE_BATCH)), []):
            for example, encoded_rows in zip(batch, encode(batch, tokenizer, cfg, classes), strict=True):
                for encoded in encoded_rows:
                    _write_encoded(writer, encoded, count, cfg.pack.seq_len)
                num_truncated = max(encoded.num_truncated for encoded in encoded_rows)
                count, truncated, num_lost = count + 1, truncated + (num_truncated > 0), num_lost + num_truncated
                record = {**example._asdict(), "row": row, "rows": len(encoded_rows), **encoded_rows[0].metadata}
                file.write(json.dumps(record) + "\n")
                row += len(encoded_rows)
    return {"examples": count, "truncated": truncated, "lost": num_lost}


def _write_encoded(writer, encoded, example_index, seq_len):
    block, index = writer.add_example()
    for choice_index, choice in enumerate((encoded, *encoded.other_choices)):
        start = choice_index * seq_len
        end = start + len(choice.ids)
        block["ids"][index, start:end] = choice.ids
        block["segments"][index, start:end] = choice_index + 1  # the texts of a choice see each other
        block["positions"][index, start:end] = np.arange(len(choice.ids))
        if "types" in block:
            block["types"][index, start + choice.second_start : end] = 1
    if "example" in block:
        block["example"][index] = example_index
    for name, value in encoded.labels.items():
        block[name][index, ...] = value


def _report_truncation(cfg, manifest, split_names):
    """Logs how much was truncated, and how much of the text is unknown to the tokenizer."""
    for split in split_names:
        counts = manifest[split]
        if counts["truncated"]:
            fraction = counts["truncated"] / counts["examples"]
            message = PREPROCESSORS[cfg.objective].truncation_message.format(
                seq_len=cfg.pack.seq_len, lost=counts["lost"]
            )
            log = warnings_.warn_once if fraction > WARN_FRACTION else warnings_.log_once
            log(f"{split}: {counts['truncated']} of {counts['examples']} examples ({fraction:.1%}) {message}")
        log = warnings_.warn_once if counts["unknown"] > WARN_FRACTION else warnings_.log_once
        log(f"{split}: {counts['unknown']:.2%} of the words and pieces are unknown to the tokenizer")
