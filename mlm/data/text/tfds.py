"""TensorFlow Datasets as documents, and one's own text prepared as such a data set, both without TensorFlow.

    python -m mlm.data.text.tfds --name=my_text --path='texts/*.txt' --dir=prepared

prepares text files as array_record; config.data.tfds_name=my_text and config.data.tfds_dir=prepared then read them.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from absl import app, flags

from mlm.base import config, errors, extras
from mlm.base.warnings_ import WarningCounter
from mlm.data.text import files

extras.import_extra("tensorflow_datasets", "tfds", "config.data.corpus, or config.data.labelled.format, = 'tfds'")
import tensorflow_datasets as tfds  # noqa: E402
import tensorflow_datasets.text  # noqa: E402  which registers glue, wiki40b and others

RANDOM_ACCESS_FORMATS = ("array_record", "parquet")  # file formats that are read without TensorFlow


def open_corpus_builder(data: config.Data) -> Any:
    """The tfds.core.DatasetBuilder of data.tfds_name. Raises errors.ConfigError for an unknown feature, too."""
    field, name = "config.data.tfds_name", data.tfds_name
    builder = open_builder(field, name, data.tfds_dir)
    errors.require("train" in builder.info.splits, field, name, f"a split train, not only {list(builder.info.splits)}")
    errors.require_one_of("config.data.tfds_field", data.tfds_field, list(builder.info.features))
    return builder


def open_builder(field: str, name: str, folder: str) -> Any:
    """The builder of a data set, its files prepared: downloaded and written as array_record where they are not.

    field: of the config, which has its name; folder: of the prepared data sets, empty for the library's default. Raises
    errors.ConfigError for an unknown name, for a format that needs TensorFlow, and where the preparation fails (some
    data sets need TensorFlow or Apache Beam for it).
    """
    try:
        builder: Any = tfds.builder(name, data_dir=os.path.expanduser(folder) or None)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        hint = errors.format_hint(name.partition("/")[0], known)
        expected = f"a TensorFlow data set, or one prepared in config.data.tfds_dir = {folder!r}{hint}"
        raise errors.ConfigError(f"{field} = {name!r}: expected {expected}") from None
    except Exception as error:  # a wrong configuration or version of the data set: TFDS has no one type for these
        raise errors.ConfigError(f"{field} = {name!r}: {_format_error(error)}") from None
    if not builder.is_prepared():
        try:
            builder.download_and_prepare(file_format="array_record")
        except Exception as error:  # whatever the data set's own code raises
            raise errors.ConfigError(
                f"{field} = {name!r}: could not be prepared in {builder.data_dir} "
                f"({_format_error(error)}); expected what preparing it needs, or a config.data.tfds_dir "
                "that holds it prepared as array_record"
            ) from None
    form, formats = builder.info.file_format.value, " or ".join(RANDOM_ACCESS_FORMATS)
    errors.require(form in RANDOM_ACCESS_FORMATS, field, name, f"one prepared as {formats}, not as {form}")
    return builder


def _format_error(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def read_documents(builder, split: str, feature: str) -> Iterator[str]:
    """The documents of a split, stripped; empty ones and bytes that are not UTF-8 are counted in a warning."""
    empty = WarningCounter("empty documents")
    undecodable = WarningCounter("documents with bytes that are not UTF-8, replaced by U+FFFD")
    for number, record in enumerate(builder.as_data_source(split=split)):
        raw, place = record[feature], f"{builder.info.full_name}, split {split}, record {number}"
        errors.require(isinstance(raw, bytes | str), "config.data.tfds_field", feature, f"text, not {type(raw)}")
        if isinstance(raw, bytes):
            try:
                raw = raw.decode()
            except UnicodeDecodeError as error:
                undecodable.add(f"{place} at byte {error.start}")
                raw = raw.decode(errors="replace")
        if document := raw.strip():
            yield document
        else:
            empty.add(f"{place} at byte 0")
    for kind in (undecodable, empty):
        kind.report()


def compute_split_digest(builder, split: str) -> bytes:
    """Digest of the split's files."""
    return hashlib.sha256(b"".join(files.file_digest(path) for path in builder.info.splits[split].filepaths)).digest()


class TextDataset(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """One's own text files as a data set with the feature "text" and a split for each list of paths."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, name: str, paths: dict[str, list[str]], boundary: files.Boundary, data_dir: str):
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]  # of a class that has it as its own
        self._paths, self._boundary = paths, boundary
        super().__init__(data_dir=data_dir)

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(paths) for split, paths in self._paths.items()}

    def _generate_examples(self, paths):
        for number, text in enumerate(files.read_documents(paths, self._boundary)):
            yield number, {"text": text}


def prepare_dataset(name: str, path: str, folder: str, *, validation_path: str = "", boundary: str = "file") -> None:
    """Prepares text files as the data set `name` in a folder, as array_record; what is there already stays.

    path, validation_path, boundary: as in config.Data. Raises errors.ConfigError for bad ones.
    """
    errors.require(re.fullmatch("[a-z][a-z0-9_]*", name) is not None, "--name", name, "small letters, digits and _")
    paths = {"train": files.find_files("--path", path)}
    if validation_path:
        paths["validation"] = files.find_files("--validation_path", validation_path)
    builder = TextDataset(name, paths, files.make_boundary("--boundary", boundary), folder)
    errors.require(not builder.is_prepared(), "--name", name, f"a new name: {builder.data_dir} exists")
    builder.download_and_prepare(file_format="array_record")


def main(_):
    """Writes the texts that the flags name as a TFDS data set, and prints how to train on it."""
    try:
        prepare_dataset(NAME.value, PATH.value, DIR.value, validation_path=VALIDATION.value, boundary=BOUNDARY.value)
    except errors.ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"now: --config.data.corpus=tfds --config.data.tfds_name={NAME.value} --config.data.tfds_dir={DIR.value}")


if __name__ == "__main__":
    NAME = flags.DEFINE_string("name", "my_text", "name of the data set")
    PATH = flags.DEFINE_string("path", None, "globs of .txt and .gz files, separated by commas", required=True)
    VALIDATION = flags.DEFINE_string("validation_path", "", "globs of the held-out files")
    BOUNDARY = flags.DEFINE_string("boundary", "file", "file, blank_line or a regular expression of first lines")
    DIR = flags.DEFINE_string("dir", None, "folder of the prepared data sets", required=True)
    app.run(main)
