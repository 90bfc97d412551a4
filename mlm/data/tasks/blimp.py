"""BLiMP: minimal pairs of an acceptable and an unacceptable English sentence (Warstadt et al. 2020), and other suites
of its form.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import text_files, warnings_
from mlm.base.errors import require, require_one_of
from mlm.data.tasks.examples import require_column
from mlm.data.text import records

BENCHMARK, NUM_PARADIGMS, NUM_PAIRS = "blimp", 67, 1000  # of the benchmark
SAMPLE_PARADIGMS = {"adjunct_island", "npi_present_1", "wh_island"}  # of its paradigms
# Accuracy over all of it, in percent (Warstadt et al. 2020): by the likelihood of the whole sentence, and for RoBERTa
# by its pseudo-log-likelihood.
PAPER_ACCURACY = {"5-gram": 61.2, "LSTM": 69.8, "Transformer-XL": 69.6, "GPT-2": 83.0}
PAPER_ACCURACY |= {"RoBERTa-large": 86.5, "human": 88.6}
# The files have a term of their own for two paradigms that the paper counts to argument structure.
PHENOMENON_BY_TERM = {"s-selection": "argument_structure"}
TERM_COLUMNS = ["UID", "linguistics_term"]  # of paradigms.tsv


class Paradigm(NamedTuple):
    """A paradigm of minimal pairs."""

    name: str
    phenomenon: str
    sentences: list[str]  # good, bad, good, bad, ...


class Suite(NamedTuple):
    """A benchmark's name, the selected paradigms, and the SHA-256 of all its sentences."""

    name: str
    sha256: str
    paradigms: list[Paradigm]


def read_suite(folder: Path | str, names: Sequence[str] = (), max_pairs: int = 0, suite_name: str = "") -> Suite:
    """The suite in a folder of BLiMP's NAME.jsonl files: the paradigms named, or all, sorted by name.

    A line is an object with sentence_good, sentence_bad and linguistics_term; this last may stand in a table
    paradigms.tsv (columns UID, linguistics_term) beside the files instead, which then also says which files are read;
    where it stands nowhere, each file is a phenomenon of its own.
    max_pairs: the first so many of each; 0 for all. suite_name: if empty, that of the folder, or "blimp" for all of
    BLiMP. Raises ConfigError for a folder, name or line that is wrong, selected or not.
    """
    folder = Path(folder)
    require(folder.is_dir(), "blimp", str(folder), "a folder of BLiMP's .jsonl files")
    is_name = not suite_name or suite_name == _make_suite_name(suite_name)
    require(is_name, "--suite", suite_name, "a name of letters, digits, '.', '_' and '-'")
    terms = _read_terms(folder / "paradigms.tsv")
    existing = {path.stem for path in folder.glob("*.jsonl")}
    available = sorted(existing & terms.keys() or terms or existing)
    require(bool(available), "blimp", str(folder), "a folder of BLiMP's .jsonl files; this one has none")
    if missing := sorted(terms.keys() - existing):
        lacks = f"{folder} lacks {len(missing)} of its {len(terms)} paradigms: {', '.join(missing)}"
        warnings_.warn_once(lacks)  # two suites may read it
    for name in names:
        require_one_of("paradigm", name, available)
    paradigms = [_read_paradigm(folder / f"{name}.jsonl", terms) for name in available]
    sizes = [len(one.sentences) for one in paradigms]
    is_benchmark = set(available) >= SAMPLE_PARADIGMS and sizes == NUM_PARADIGMS * [2 * NUM_PAIRS]
    name = suite_name or (BENCHMARK if is_benchmark else _make_suite_name(folder.resolve().name) or "pairs")
    digest = hashlib.sha256(json.dumps([(one.name, one.sentences) for one in paradigms]).encode()).hexdigest()
    chosen = [one for one in paradigms if not names or one.name in names]
    return Suite(name, digest, [one._replace(sentences=one.sentences[: 2 * max_pairs or None]) for one in chosen])


def _make_suite_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")


def _read_terms(path) -> dict[str, str]:
    def select(names):
        for key in TERM_COLUMNS:
            require_column(key, list(names), str(path))
        return TERM_COLUMNS

    rows = records.read_records(str(path), "tsv", select, quoted=False) if path.exists() else ()
    return {row["UID"]: row["linguistics_term"] for _, row in rows}


def _read_paradigm(path, terms):
    sentences, term = [], terms.get(path.stem)
    for where, pair in records.read_records(str(path), records.JSON):
        sentences += [_get_text(pair, key, where) for key in ("sentence_good", "sentence_bad")]
        if "linguistics_term" in pair:
            term = term or _get_text(pair, "linguistics_term", where)
    term = term or path.stem
    require(bool(sentences), "blimp", str(path), "a file of minimal pairs; this one is empty")
    return Paradigm(path.stem, PHENOMENON_BY_TERM.get(term, term), sentences)


def _get_text(pair: Mapping, key: str, where: str) -> str:
    require_column(key, list(pair), where, "key")
    require(isinstance(pair[key], str) and bool(pair[key].strip()), f"{where}: {key}", pair[key], "a text")
    text_files.require_encodable(pair[key], f"{where}: {key}")
    return pair[key]
