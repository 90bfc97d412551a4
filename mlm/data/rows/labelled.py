"""A task's examples with their labels, and the records that scores and predictions need."""

import functools
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, types, warnings_
from mlm.base.labelled_objectives import LabelKind, has_kind
from mlm.data.rows import columns, loader
from mlm.data.rows.columns import PackedDataset
from mlm.data.rows.preprocessors import PREPROCESSORS
from mlm.data.tasks import splits, tasks
from mlm.data.tokenizers import hub_model, kinds, words

QUESTION_KINDS = ("answer", "no answer")  # what "counts" counts of questions
TOKENIZE_BATCH = 1024  # examples that are tokenized at once


def load_task(cfg: config.Config, *, processes: int = 1, verify: bool = False) -> PackedDataset:
    """The examples of all splits of config.data.task; the validation split is the task's dev split.

    The cache depends on the content of the task's files, on how they are read, on the tokenizer and on the length. The
    manifest has the classes, "counts" (of each class in the train split, or of QUESTION_KINDS) and for each split the
    number of examples and of truncated ones. Raises ConfigError as splits.open_task does.
    """
    tokenizer = kinds.load_tokenizer_folder("config.tokenizer.path", cfg.tokenizer.path)
    if cfg.data.task in tasks.LANGUAGE_TASKS:
        tokenizer = words.recognize_mask_token(tokenizer)
    source = splits.open_task(cfg)
    inputs: dict[str, Any] = {"format": PREPROCESSORS[cfg.objective].format, "corpus": splits.hash_content(cfg.data)}
    inputs["objective"] = cfg.objective
    if tasks.takes_pairs(cfg.data):  # else, and at their defaults, the inputs stay those of older caches
        num_separators, num_types = hub_model.count_pair_separators(tokenizer), cfg.model.type_vocab_size
        if num_separators > 1:
            inputs["between"] = num_separators
        if num_types == 1 or (num_types > 1 and num_separators > 1):  # both texts have the first type
            inputs["types"] = 1
    label_counts: Counter = Counter()
    get_classes = functools.cache(lambda: splits.list_classes(cfg))

    def count_labels(examples):
        for example in examples:
            if get_classes():
                label_counts.update([example.label] if isinstance(example.label, str) else example.label)
            elif isinstance(example.label, tuple):
                label_counts[QUESTION_KINDS[not example.label]] += 1
            yield example

    def write(split, writer, folder):
        examples = source[split]()
        examples = count_labels(examples) if split == "train" else examples
        return _write_split(writer, cfg, examples, tokenizer, get_classes(), folder, split)

    def make(folder):
        manifest = columns.write_splits(folder, layout, write)
        counts = {name: label_counts[name] for name in _list_counted(cfg.objective, get_classes())}
        return manifest | {"classes": list(get_classes()), "counts": counts}

    def describe(unigram_V, manifest):
        counts_C = [manifest["counts"][name] for name in _list_counted(cfg.objective, manifest["classes"])]
        dataset_info = build_dataset_info(cfg, tokenizer.vocab_size, unigram_V, manifest["classes"])
        return dataset_info._replace(class_counts=np.array(counts_C, np.int64).tobytes())

    inputs = columns.make_inputs(inputs, tokenizer, cfg.pack.seq_len)
    seq_len, vocab_size = cfg.pack.seq_len * tasks.count_sequences(cfg), tokenizer.vocab_size
    has_types = tasks.takes_pairs(cfg.data) and cfg.model.type_vocab_size != 1  # a model with one type ignores them
    specs = columns.make_text_columns(vocab_size) | (columns.TYPE_COLUMNS if has_types else {})
    layout = columns.Layout(specs | PREPROCESSORS[cfg.objective].columns, tuple(source), vocab_size, seq_len)
    packed = columns.get_or_pack_dataset(cfg.data.cache_dir, tokenizer, inputs, layout, make, describe, verify=verify)
    _report_truncation(cfg, packed, source)
    for arrays in map(packed.get_split, source):
        segments_NxExL = arrays["segments"].reshape(len(arrays["ids"]), tasks.count_sequences(cfg), -1)
        arrays[loader.NUM_TOKENS] = np.count_nonzero(segments_NxExL, axis=-1)
    return packed


def read_examples(packed: PackedDataset, split: str) -> list[dict[str, Any]]:
    """The records of the examples of a split ("train", "validation", "test") in order.

    A record has the fields of an Example by name ("heads" only if there are any), "row" (the index of its first packed
    row) and "rows" (how many it has); the record of a passage has "spans", where each token begins and ends.
    """
    with open(_make_examples_path(packed.folders[0], split), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _make_examples_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.examples.jsonl"


def build_dataset_info(
    cfg: config.Config, vocab_size: int, unigram_V: np.ndarray, classes: Sequence[str] | None = None
) -> types.DatasetInfo:
    """What a program must know of a task; all classes, by default those of its config or its files, have one count."""
    classes = splits.list_classes(cfg) if classes is None else classes
    names = (f"{name}_{column.dims.replace('N', 'B')}" for name, column in PREPROCESSORS[cfg.objective].columns.items())
    seq_len, ones = cfg.pack.seq_len * tasks.count_sequences(cfg), np.ones(len(classes), np.int64)
    return types.DatasetInfo(vocab_size, seq_len, tuple(names), unigram_V.tobytes(), tuple(classes), ones.tobytes())


def _list_counted(objective, classes):
    return QUESTION_KINDS if has_kind(objective, LabelKind.ANSWERS) else classes


def _write_split(writer, cfg, examples, tokenizer, classes, folder, split) -> dict[str, int]:
    """Writes the packed examples of a split and their records. Returns how many there are and how many truncated."""
    count = truncated = num_lost = row = 0
    encode = PREPROCESSORS[cfg.objective].encode
    with open(_make_examples_path(folder, split), "w", encoding="utf-8") as file:
        for batch in iter(lambda: list(itertools.islice(examples, TOKENIZE_BATCH)), []):
            sequences = []
            for example, encoded_rows in zip(batch, encode(batch, tokenizer, cfg, classes), strict=True):
                sequences += [(encoded, count) for encoded in encoded_rows]
                num_truncated = max(encoded.num_truncated for encoded in encoded_rows)
                count, truncated, num_lost = count + 1, truncated + (num_truncated > 0), num_lost + num_truncated
                record = {name: value for name, value in example._asdict().items() if value or name != "heads"}
                record |= {"row": row, "rows": len(encoded_rows), **encoded_rows[0].metadata}
                file.write(json.dumps(record) + "\n")
                row += len(encoded_rows)
            arrays = writer.make_examples(len(sequences))
            for index, (encoded, number) in enumerate(sequences):
                _fill_example(arrays, index, encoded, number, cfg.pack.seq_len)
            writer.write_examples(arrays)
    return {"examples": count, "truncated": truncated, "lost": num_lost}


def _fill_example(arrays, index, encoded, example_index, seq_len):
    for number, sequence in enumerate((encoded, *encoded.other_sequences)):
        start = number * seq_len
        end = columns.write_text(arrays, index, sequence.ids, start, number + 1)
        if "types" in arrays:
            arrays["types"][index, start + sequence.second_start : end] = 1
    if "example" in arrays:
        arrays["example"][index] = example_index
    for name, value in encoded.labels.items():
        arrays[name][index, ...] = value


def _report_truncation(cfg, packed, split_names):
    """Logs how much was truncated, and how much of the text is unknown to the tokenizer."""
    message = PREPROCESSORS[cfg.objective].truncation
    for split in split_names:
        counts = packed.manifest[split]
        if counts["truncated"]:
            fraction = counts["truncated"] / counts["examples"]
            log = warnings_.warn_once if fraction > columns.WARN_FRACTION else warnings_.log_once
            lost = message.format(seq_len=cfg.pack.seq_len, lost=counts["lost"])
            log(f"{split}: {counts['truncated']} of {counts['examples']} examples ({fraction:.1%}) {lost}")
        columns.report_unknown(split, counts, packed.tokenizer.kind)
