"""Copies on this machine of files on a bucket or on huggingface.co; they are fetched again when they change there."""

import functools
import os
from pathlib import Path

from mlm.base import buckets, errors, extras, files, text_files
from mlm.base.storage import BUCKET, get_storage
from mlm.data.text import records

HUB_PREFIX = "hf:datasets/"
REMOTE_PREFIXES = (HUB_PREFIX, *(f"{scheme}://" for scheme in buckets.LIBRARIES))


def names_file(word: str) -> bool:
    """Whether a word of a command line names a file: one that is there, or remote, or by its ending."""
    is_name = word.startswith(REMOTE_PREFIXES) or records.has_known_ending(word)
    return os.path.isfile(word) or (is_name and " " not in word)


@functools.cache  # a start asks several times
def fetch_files(field: str, pattern: str) -> list[str]:
    """The paths on this machine of what a path or glob names; a path that is not remote is itself.

    pattern: gs://BUCKET/PATH, s3://BUCKET/PATH or hf:datasets/ORG/NAME[@REVISION][/PATH]. Raises ConfigError where
    nothing is found, a library is missing or the download fails.
    """
    if pattern.startswith(HUB_PREFIX):
        return [_fetch_from_hub(field, pattern)]
    return _fetch_from_bucket(field, pattern) if get_storage(pattern).is_remote else [pattern]


def fetch_file(field: str, path: str, expected: str) -> str:
    """The path on this machine of one file that may be remote; raises ConfigError as `fetch_files`, and for no file."""
    fetched = fetch_files(field, path)
    if fetched == [path] and not os.path.exists(path):
        expected += f"; there is no such file{text_files.suggest_path(path)}"
    errors.require(len(fetched) == 1 and os.path.isfile(fetched[0]), field, path, expected)
    return fetched[0]


def fetch_folder(field: str, path: str) -> Path:
    """The folder on this machine with the files of a folder that may be remote; raises ConfigError as `fetch_files`."""
    fetched = fetch_files(field, path)
    return files.local_folder(files.make_path(path)) if get_storage(path).is_remote else Path(fetched[0]).expanduser()


def _fetch_from_hub(field, pattern):
    owner, _, rest = pattern.removeprefix(HUB_PREFIX).partition("/")
    name, _, path = rest.partition("/")
    is_name = bool(owner and name.partition("@")[0])
    errors.require(is_name, field, pattern, f"{HUB_PREFIX}ORG/NAME, of a data set on huggingface.co")
    wanted = [path, f"{path}/**"] if path else [f"*.{ending}*" for ending in records.ENDINGS]
    folder = extras.download_from_hub(f"{field} = {pattern!r}", f"{owner}/{name}", wanted, "dataset")
    return str(Path(folder, path))


def _fetch_from_bucket(field, pattern):
    buckets.check_access(field, pattern.split("*")[0], tuple(buckets.LIBRARIES), writable=False)
    scheme, fetched = pattern.partition("://")[0], []
    with buckets.connect(pattern) as bucket:
        for found in bucket.glob(pattern):
            for name in bucket.find(found):
                if name == found or records.has_known_ending(name):
                    path = files.make_path(f"{scheme}://{name.lstrip('/')}")
                    fetched.append(str(_fetch_file(path, bucket.ukey(name))))
    errors.require(bool(fetched), field, pattern, "files on the bucket")
    return fetched


def _fetch_file(path, version) -> Path:
    """The copy of a file of this version."""
    copy = files.local_folder(path.parent) / path.name
    note = copy.with_name(f".{copy.name}.version")
    if not (copy.exists() and note.exists() and note.read_text() == version):
        with files.atomic_write(copy) as temporary:
            BUCKET.download(path, temporary)
        files.write_text(note, version)
    return copy
