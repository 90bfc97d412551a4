"""Files as a corpus has them: compressed or not, and text or records (JSON, csv, tsv, Parquet, Arrow), told by content.

A row of records is a document. Memory holds a batch of rows, whatever the file.
"""

import bz2
import contextlib
import csv
import functools
import gzip
import io
import itertools
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mlm.base import errors, extras, text_files, warnings_

DEFAULT_COLUMN = "text"
MAX_ROW_BYTES = 2**26  # of a line of JSON or of a field of csv
MAX_ARRAY_BYTES = 2**30  # of a JSON array, which is read as a whole
BATCH_ROWS = 256
# What the first bytes of a compressed file are, and the ending of its name.
GZIP, BZIP2, XZ, ZSTANDARD = "gzip", "bzip2", "xz", "zstandard"
MAGIC = {
    rb"\x1f\x8b": GZIP,
    rb"BZh[1-9]1AY&SY": BZIP2,
    rb"\xfd7zXZ\0": XZ,
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": ZSTANDARD,  # a frame of data, or one to skip, as pzstd begins with
}
COMPRESSED_ENDING = re.compile(r"\.(gz|bz2|xz|zstd?)\Z", re.IGNORECASE)
TEXT, JSON, PARQUET, ARROW = "text", "JSON", "Parquet", "Arrow"
DELIMITERS = {"csv": ",", "tsv": "\t"}
KIND_BY_ENDING = {"jsonl": JSON, "ndjson": JSON, "json": JSON, "csv": "csv", "tsv": "tsv"}
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)
FAULTS = (*DAMAGE, ValueError, NotImplementedError)  # the last: of pyarrow
ENDINGS = ("txt", "text", *KIND_BY_ENDING, "parquet", "arrow")  # of the files that a folder is read for
DESCRIPTIONS = ("dataset_infos.json", "dataset_info.json")  # of a data set on huggingface.co, beside its files
# What mlm itself writes into data.cache_dir, which may lie in the folder of a corpus.
CACHED = re.compile(
    r"\b((floor|ngrams|optimum|parts|rows|shard|task|tokenizer)-[\da-f]{16}/|sources-[\da-f]{16}\.json|compiled_steps/)"
)
CARRIAGE_RETURN = re.compile(r"(?<=\r)")  # where it alone ends lines, as in old files of spreadsheets
ColumnSelector = Callable[[Mapping[str, str]], list[str]]  # what columns hold: TEXT, or the name of another type


def find_compression(path: str) -> str:
    """How a file is compressed, by its first bytes; "": it is not. Raises OSError."""
    with open(path, "rb") as file:
        start = file.read(10)
    return next((name for magic, name in MAGIC.items() if re.match(magic, start)), "")


def open_file(path: str) -> BinaryIO:
    """The bytes of a file, unpacked. Raises OSError, and ConfigError where an extra is missing."""
    compression = find_compression(path)
    if compression == ZSTANDARD:
        pyarrow = import_pyarrow(path)
        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(path), "zstd"))
    file: Any = {GZIP: gzip.open, BZIP2: bz2.open, XZ: lzma.open, "": open}[compression](path, "rb")
    return file


def import_pyarrow(path: str, module: str = "pyarrow") -> Any:
    """pyarrow, or a module of it. Raises ConfigError, which names the extra, where it is not installed."""
    return extras.import_extra(module, "data", f"config.data.path = {path!r}")


def detect_kind(path: str) -> str:
    """What a file holds: its content decides, and its name where that may be anything. Raises as `open_file` does."""
    with open_file(path) as file:
        try:
            start = file.read(text_files.START_BYTES)
        except DAMAGE:
            return TEXT  # whoever reads on names the byte that cannot be read
    for kind in (PARQUET, ARROW):
        if re.match(text_files.START_BY_FORMAT[kind], start, re.DOTALL):
            return kind
    if text_files.is_json(start.decode("utf-8", "replace").removeprefix("\ufeff")):
        return JSON
    return KIND_BY_ENDING.get(_find_ending(path), TEXT)


def is_divisible(path: str) -> bool:
    """Whether a part of a file can be read alone: of text, of JSON lines, or of Parquet, not compressed again."""
    kind = detect_kind(path)
    return not find_compression(path) and (kind in (TEXT, PARQUET) or (kind == JSON and not _is_array(path)))


def list_folder(field: str, folder: Path) -> list[Path]:
    """The files of a folder and those below it, by their endings; of one that `datasets` saved, those it names.

    Hidden ones are left out, as by globs: copies of editors, what macOS puts beside files; so are those of a cache.

    Raises ConfigError for a folder of several splits that `datasets` saved.
    """
    state = folder / "state.json"
    if state.is_file():
        saved = text_files.parse_json(state.read_text(errors="replace"), state)
        expected = "the files of its folder, as datasets saves them"
        with errors.explain(str(state), expected, KeyError, TypeError):
            paths = [folder / entry["filename"] for entry in saved["_data_files"]]
        errors.require(bool(paths) and all(map(Path.is_file, paths)), str(state), saved, expected)
        return paths
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        raise errors.ConfigError(f"{field} = {str(folder)!r}: expected one split of it: {', '.join(splits)}")
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if has_known_ending(path.name))
    visible = [name for name in names if not re.search(r"(^|/)\.", name) and (folder / name).is_file()]
    found = [folder / name for name in visible if not CACHED.search(name)]
    if num_cached := len(visible) - len(found):
        warnings_.log_once(f"{field} = {str(folder)!r}: files of a cache of mlm left out: {num_cached}")
    return found


def has_known_ending(path: str) -> bool:
    """Whether the name of a file is that of text or records, and not of the description of a data set."""
    return _find_ending(path) in ENDINGS and Path(path).name not in DESCRIPTIONS


def _find_ending(path: str) -> str:
    """The ending of a path below that of a compression, without its dot, in lower case; "": it has none."""
    return Path(COMPRESSED_ENDING.sub("", path)).suffix[1:].lower()


def check_file(field: str, path: str, column: str = "") -> None:
    """Raises ConfigError for a file that is neither text nor, with a column, records that have it."""
    kind = detect_kind(path) if column else TEXT
    if kind != TEXT:
        next(read_rows(path, kind, column), None)
        return
    start, endings = b"", ENDINGS if column else ()
    with contextlib.suppress(*DAMAGE), open_file(path) as file:
        start = file.read(text_files.START_BYTES)  # whoever reads on names the byte that cannot be read
    text_files.check_plain_text(field, path, start, accepted=(*endings, "zst", "zstd", "bz2", "xz"))


def read_lines(path: Path, max_line_bytes: int = text_files.MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """The lines of a text file, compressed or not, as `text_files.iterate_lines` has them.

    Raises ConfigError as that does, and for a file that cannot be read to its end or is empty.
    """
    number = 0
    is_special = path.exists() and not path.is_file()
    errors.require(not is_special, "a text file", str(path), "a file; this is a folder, a pipe or a device")
    with errors.explain(str(path), "a file that can be read", *DAMAGE), open_file(str(path)) as file:
        for number, line in text_files.iterate_lines(file, path, max_line_bytes):
            yield number, line
    errors.require(number > 0, f"{path}, line 1", "", "an example; the file is empty")


def read_rows(
    path: str, kind: str, column: str, id_column: str = "", start: int = 0, end: int | None = None
) -> Iterator[tuple[str, str | None, str]]:
    """Triples (where, text, id) of the rows of a file of records, as they stand; None where a row has no text.

    id: what id_column says, which `where` names too; "" where it says nothing. start, end: as of `read_records`.

    Raises ConfigError as `read_records`, and for a column that is not there or holds no texts.
    """
    chosen = ""

    def select(column_types):
        nonlocal chosen
        chosen = choose_column("config.data.text_column", path, column, column_types)
        if id_column:
            errors.require_one_of("config.data.id_column", id_column, list(column_types))
        return list(dict.fromkeys(filter(None, [chosen, id_column])))

    for where, record in read_records(path, kind, select, start, end):
        text, name = record.get(chosen), record.get(id_column) if id_column else None  # an index has no name
        errors.require(name is None or isinstance(name, str | int), f"{where}: {id_column}", name, "a text or integer")
        where += f" ({id_column} {name})" if name is not None else ""
        errors.require(text is None or isinstance(text, str), f"{where}: {chosen}", text, "a text")
        yield where, text, "" if name is None else str(name)


def read_records(
    path: str, kind: str, select: ColumnSelector = list, start: int = 0, end: int | None = None, **layout: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs (where, row) of a file of records; a row is values by column.

    select: the columns to read of those that there are, given what each holds. start, end: bytes of a part of a file
    that `is_divisible`, whose rows have numbers of their own; None: all. layout: as of `_read_delimited`.

    Raises ConfigError, which names file and line or row, for a file that is damaged, and for a missing extra.
    """
    number, part = 0, {} if end is None else {"start": start, "end": end}
    try:
        for found in READERS[kind](path, select, **part, **layout):
            number += 1
            yield found
    except errors.ConfigError:
        raise
    except FAULTS as error:
        fault = f"{_name_part(path, start)}, row {number + 1}: {errors.first_line(error)}"
        raise errors.ConfigError(f"{fault}; expected a complete {kind} file") from None


def _name_part(path: str, start: int) -> str:
    return f"{path} from byte {start}" if start else path


def parse_text(value: Any, where: str) -> str:
    """A cell as text without white space around it; "" where it is empty. Raises ConfigError for half a character."""
    text = "" if value is None else str(value).strip()
    text_files.require_encodable(text, where)
    return text


def choose_column(field: str, path: str, wanted: str, column_types: Mapping[str, str]) -> str:
    """The column of the texts: the one wanted; where that is the default and not there, the only one of texts.

    column_types: what a column holds, by its name. Raises ConfigError, which names the field.
    """
    texts = [name for name, kind in column_types.items() if kind == TEXT and name]  # an index has no name
    if wanted not in column_types and wanted == DEFAULT_COLUMN and len(texts) == 1:
        return texts[0]
    listed = f"{', '.join(texts) or 'none'}{errors.format_hint(wanted, texts)}"
    listed += f"; this one has the type {column_types[wanted]}" if wanted in column_types else ""
    errors.require(wanted in texts, field, wanted, f"a column of texts in {path}, which has {listed}")
    return wanted


def _read_json(
    path: str, select: ColumnSelector, start: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[str, dict[str, Any]]]:
    first = itertools.islice(_read_json_values(path), 1) if start else ()  # by which all parts select their columns
    for number, (where, value) in enumerate(itertools.chain(first, _read_json_values(path, start, end))):
        errors.require(isinstance(value, dict), where, value, "a JSON object")
        if not number:
            select({name: TEXT if x is None or isinstance(x, str) else type(x).__name__ for name, x in value.items()})
        if number or not start:
            yield where, value


def _is_array(path: str) -> bool:
    with open_file(path) as file:
        return file.read(text_files.START_BYTES).removeprefix(text_files.BOM).lstrip().startswith(b"[")


def _read_json_values(path: str, start: int = 0, end: int = sys.maxsize) -> Iterator[tuple[str, Any]]:
    is_array, name = _is_array(path), _name_part(path, start)
    with open_file(path) as file:
        if is_array:
            raw = file.read(MAX_ARRAY_BYTES + 1)
            expected = f"an array of at most {MAX_ARRAY_BYTES:,} bytes, or a JSON object a line"
            errors.require(len(raw) <= MAX_ARRAY_BYTES, path, f"{len(raw):,} bytes or more", expected)
            values = text_files.parse_json(raw.removeprefix(text_files.BOM).decode(), Path(path))
            yield from _number_rows(path, values)
            return
        for number, line in text_files.iterate_lines(file, name, MAX_ROW_BYTES, start, end):
            if line.strip():
                yield f"{name}, line {number}", text_files.parse_json(line, Path(name), number)


def _number_rows(path: str, rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _read_delimited(
    path: str, select: ColumnSelector, delimiter: str, quoted: bool = True, has_header: bool = True
) -> Iterator[tuple[str, dict[str, str]]]:
    """quoted: whether "..." holds delimiters and line ends; has_header: else a column's name is its number from 0."""
    with open_file(path) as file:
        lines = text_files.iterate_lines(file, path, MAX_ROW_BYTES)
        unquoted = ((number, line.split(delimiter)) for number, line in lines if line.strip(" "))
        rows = _split_quoted(path, lines, delimiter) if quoted else unquoted
        for line, names in itertools.islice(rows, 1) if has_header else ():
            where = f"{path}, line {line}"
            is_other = len(names) == 1 and delimiter not in names[0] and not {*names[0]}.isdisjoint(",;|\t")
            errors.require(not is_other, where, names[0], f"the names of columns with {delimiter!r} between them")
            _require_unique(where, names, select(dict.fromkeys(names, TEXT)))
            header = names
        for number, cells in rows:
            where = f"{path}, line {number}"
            names = header if has_header else [*map(str, range(len(cells)))]
            expected = f"{len(names)}, as the header has"
            errors.require(len(cells) == len(names), f"{where}: columns", len(cells), expected)
            yield where, dict(zip(names, cells, strict=True))


def _split_quoted(path: str, lines: Iterable[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line that they begin at."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    parts = itertools.chain.from_iterable(CARRIAGE_RETURN.split(f"{text}\n") for _, text in lines)
    reader = csv.reader(parts, delimiter=delimiter, strict=True)
    first_line = 1
    try:
        for row in reader:
            if row:
                yield first_line, row
            first_line = reader.line_num + 1
    except csv.Error as error:
        expected = 'fields quoted as "...", a quote in them doubled (a task may set config.data.labelled.quoting = off)'
        raise errors.ConfigError(f"{path}, line {first_line}: {error}; expected {expected}") from None


def _read_parquet(
    path: str, select: ColumnSelector, start: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[str, dict[str, Any]]]:
    _require_uncompressed(path, PARQUET)
    parquet = import_pyarrow(path, "pyarrow.parquet")
    with parquet.ParquetFile(path) as file:
        columns = _select_columns(path, file.schema_arrow, select)
        groups = [number for number, place in enumerate(locate_row_groups(path)) if start <= place < end]
        rows = itertools.chain.from_iterable(_read_row_group(file, number, columns) for number in groups)
        yield from _number_rows(_name_part(path, start), rows)


def _read_row_group(file: Any, number: int, columns: list[str]) -> Iterator[dict[str, Any]]:
    try:
        for batch in file.iter_batches(BATCH_ROWS, [number], columns):
            yield from batch.to_pylist()
    except FAULTS as error:
        raise ValueError(f"row group {number + 1} of {file.num_row_groups}: {errors.first_line(error)}") from None


def locate_row_groups(path: str) -> list[int]:
    """The byte at which each row group of a Parquet file begins."""
    metadata = import_pyarrow(path, "pyarrow.parquet").read_metadata(path)
    columns = (metadata.row_group(number).column(0) for number in range(metadata.num_row_groups))
    return [column.dictionary_page_offset or column.data_page_offset for column in columns]


def _read_arrow(path: str, select: ColumnSelector) -> Iterator[tuple[str, dict[str, Any]]]:
    ipc = import_pyarrow(path, "pyarrow.ipc")
    with open_file(path) as file:
        if file.read(6) == b"ARROW1":
            _require_uncompressed(path, ARROW)
            reader = ipc.open_file(path)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            file.seek(0)
            reader = batches = ipc.open_stream(file)
        columns = _select_columns(path, reader.schema, select)
        rows = (batch.select(columns).to_pylist() for batch in batches)
        yield from _number_rows(path, itertools.chain.from_iterable(rows))


def _require_uncompressed(path: str, kind: str) -> None:
    """Raises ConfigError for a compressed file of a format that is not read from its beginning to its end."""
    compression = find_compression(path)
    errors.require(not compression, path, compression, f"{kind} that is not compressed again")


def _select_columns(path: str, schema: Any, select: ColumnSelector) -> list[str]:
    types = import_pyarrow(path, "pyarrow.types")
    has_text = lambda kind: types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    values = {field.name: field.type.value_type if types.is_dictionary(field.type) else field.type for field in schema}
    column_types = {name: TEXT if has_text(kind) else str(kind) for name, kind in values.items()}
    return _require_unique(path, schema.names, select(column_types))


def _require_unique(where: str, names: Sequence[str], columns: list[str]) -> list[str]:
    """The columns to read; raises ConfigError for one of a name that others have, too."""
    for name in columns:
        errors.require(names.count(name) == 1, f"{where}: column", name, "a name that one column alone has")
    return columns


READERS: Mapping[str, Callable[..., Iterator[tuple[str, dict[str, Any]]]]] = {
    JSON: _read_json,
    PARQUET: _read_parquet,
    ARROW: _read_arrow,
    **{name: functools.partial(_read_delimited, delimiter=delimiter) for name, delimiter in DELIMITERS.items()},
}
