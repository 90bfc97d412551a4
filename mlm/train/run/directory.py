"""A run's directory, the one place that knows what its files are called and what they hold.

config.json, the resolved config and the rows' identity; tokenizer/; provenance.json, a record of each start;
metrics.jsonl, what the run logged; tensorboard/, the same; checkpoints/; held_out.npz, what each held-out row gave;
result.json, written last; judged.json, what the trained model was asked since; predictions-dev.jsonl and -test, what
a fine-tuned one predicts of each example; error.txt, how a sweep's point failed; tasks/, its fine-tunings.
What a run gave that was made longer since stands beside them: held_out-1000.npz, judged-1000.json, result-1000.json.

Each carries a digest, or another file has it: what is read is what was written, or files.Damaged is raised.
"""
import contextlib
import functools
import hashlib
import io
import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from absl import logging

from mlm.base import config, fields, files, lease
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.train.run import extension, provenance
from mlm.train.step import parallel
from mlm.train.step.evaluation import Columns

SCHEMES = ("gs",)  # of the buckets that orbax keeps checkpoints on


def checkpoints(workdir: Path | str) -> Path:
    return files.path(workdir, "checkpoints")


def metrics(workdir: Path | str) -> Path:
    return files.path(workdir, "metrics.jsonl")


def events(workdir: Path | str) -> Path:
    """The folder of TensorBoard's events."""
    return files.path(workdir, "tensorboard")


def failure(workdir: Path | str) -> Path:
    return files.path(workdir, "error.txt")


def fine_tuning(workdir: Path | str, name: str) -> Path:
    """The directory of a fine-tuning that a run was asked for."""
    return files.path(workdir, "tasks", name)


def read_identity(workdir: Path | str) -> dict | None:
    """The identity (base/fields.py) of a run, or None where there is none.

    Where the run was made longer, beside it as "begun" what it was first begun with (longer.py).
    """
    return files.read_sealed(files.path(workdir, "config.json"))


def beside(workdir: Path | str) -> list[str]:
    """The runs in the folder that holds a directory."""
    return [str(found.parent) for found in files.path(workdir).parent.glob("*/config.json")]


def end(workdir: Path | str) -> Path:
    """The file that says that a run is done."""
    return files.path(workdir, "result.json")


def read_result(workdir: Path | str) -> dict | None:
    """The result of a run that is done, or None."""
    return files.read_sealed(end(workdir))


def read_evaluations(workdir: Path | str) -> dict:
    """What a run's model was asked, with the "fingerprint" and "step" that it had then; {} where it was not."""
    return files.read_sealed(files.path(workdir, "judged.json")) or {}


def read_provenance(workdir: Path | str) -> list[dict]:
    """A record of each start of a run."""
    return (files.read_sealed(files.path(workdir, "provenance.json")) or {"starts": []})["starts"]


def read_held_out(workdir: Path | str, found: dict) -> Columns:
    """The columns of the evaluation that a result is of."""
    path = files.path(workdir, "held_out.npz")
    content = _content(path, found["held_out"])
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def read_history(workdir: Path | str, found: dict) -> list[dict]:
    """What the run of a result logged."""
    path = metrics(workdir)
    records = files.read_lines(path)
    last = records[-1]["step"] if records else 0
    if last != found["steps"] or not any(name.startswith("eval_") for name in records[-1]):
        raise files.Damaged(f"{path} is damaged: it ends at step {last:,} of {found['steps']:,}, or before what was "
                            "evaluated there")
    return records


def tokenizer_folder(workdir: Path | str) -> Path:
    """The folder of a run's tokenizer."""
    return files.path(workdir, "tokenizer")


def tokenizer(workdir: Path | str, saved: dict) -> Tokenizer:
    """The tokenizer of a run of this identity."""
    found = sorted(tokenizer_folder(workdir).glob("*.*"))
    path = found[0] if found else tokenizer_folder(workdir)
    _content(path, saved["data"]["tokenizer"])
    return kinds.load(path)


def _content(path: Path, sha256: str) -> bytes:
    try:
        content = files.content(path)
    except OSError as error:
        raise files.Damaged(f"{path} is damaged: {files.brief(error)}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise files.Damaged(f"{path} is damaged: it is not what the run wrote")
    return content


def reported(workdir: Path | str) -> dict | None:
    """A finished run as reports read it, or None: its result, with the directory that it is in now, and beside that

    "answers", "summary": what it was asked at that step; "history": the records of metrics.jsonl; "held_out": columns;
    "provenance": a record of each start, the last with the time when the run "ended".
    """
    found = read_result(workdir)
    if found is None:
        return None
    kept = read_evaluations(workdir)
    asked = (kept.get("fingerprint"), kept.get("step")) == (found["fingerprint"], found["steps"])
    return found | {"config": found["config"] | {"workdir": str(workdir)}, "provenance": read_provenance(workdir),
                    "answers": kept["answers"] if asked else {}, "summary": kept["summary"] if asked else {},
                    "history": read_history(workdir, found), "held_out": read_held_out(workdir, found)}


def finished(cfg: config.Config, data: dict, vocabulary: Tokenizer) -> dict | None:
    """The result of a run that is done and whole, or None. Raises ConfigError where it is another's.

    What of it is damaged is named in a warning. Its identity and tokenizer are written again here, all else follows
    from the newest checkpoint once the run is taken up again.
    """
    kept = {}
    for read in (read_identity, read_result):
        with mended():
            kept[read] = None if read is read_result and outgrown(cfg, kept.get(read_identity)) else read(cfg.workdir)
            if kept[read] is not None:
                fields.check_same(cfg, data, kept[read], cfg.workdir)
    found = kept.get(read_result)
    with mended():
        if found is not None:
            read_held_out(cfg.workdir, found)
            read_history(cfg.workdir, found)
            read_provenance(cfg.workdir)
            if parallel.is_primary():
                keep(cfg, data, vocabulary)
        return found
    return None


@contextlib.contextmanager
def mended():
    """Names what is damaged, which is then as if it were not there; what an older version wrote stays as it is."""
    try:
        yield
    except files.OutdatedFormat:
        raise
    except files.Damaged as damaged:
        tell(f"{damaged}; it is made again")


@functools.cache  # a run looks before and after it has its directory to itself
def tell(text: str) -> None:
    logging.warning(text)


def outgrown(cfg: config.Config, saved: dict | None) -> int | None:
    """The steps of a result that is there from before the run of an identity was made as long as cfg; else None."""
    if "begun" in (saved or {}):
        with contextlib.suppress(files.Damaged):
            found = read_result(cfg.workdir)
            if found is not None and found["steps"] != cfg.train.steps:
                return found["steps"]
    return None


def set_aside(cfg: config.Config, steps: int) -> None:
    """Gives what a run said when it had so many steps names with their number; the result goes last."""
    for name in ("held_out.npz", "judged.json", "result.json"):
        files.set_aside(files.path(cfg.workdir, name), str(steps))


def lengthen(cfg: config.Config, data: dict, saved: dict) -> None:
    """Makes the run of an identity that of cfg, which is longer: in one write, before which it is wholly the old."""
    made = fields.identity(cfg, data) | {"begun": extension.begun(saved)}
    files.write_sealed(files.path(cfg.workdir, "config.json"), made)


def claim(cfg: config.Config):
    """Makes the directory and holds it until what is returned is closed.

    Raises lease.Taken where another process is at work in it.
    """
    told = f"config.workdir = {cfg.workdir!r}: another process is training there now"
    return lease.hold(files.path(cfg.workdir), told)


def held(cfg: config.Config) -> bool:
    """Whether some process has claimed the directory."""
    return lease.held(files.path(cfg.workdir))


def finish(workdir: Path, found: dict, columns: Columns) -> None:
    """Writes what each held-out row gave, when the run ended, and at last the result."""
    with files.atomic_write(workdir / "held_out.npz") as aside:
        np.savez(aside, **columns)
        digest = hashlib.sha256(aside.read_bytes()).hexdigest()
    with mended():
        if starts := read_provenance(workdir):
            starts[-1]["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            files.write_sealed(workdir / "provenance.json", {"starts": starts})
    files.write_sealed(end(workdir), {**found, "held_out": digest})


def keep_judged(workdir: Path | str, found: dict) -> None:
    files.write_sealed(files.path(workdir, "judged.json"), found)


def write_predictions(workdir: Path | str, split: str, records: Iterable[dict]) -> None:
    """Writes what a fine-tuned model predicts of a split, a record an example."""
    files.write_text(_predictions(workdir, split),
                     "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def predictions(workdir: Path | str, split: str) -> list[dict]:
    return [json.loads(line) for line in files.content(_predictions(workdir, split)).split(b"\n")[:-1]]


def _predictions(workdir, split):
    return files.path(workdir, f"predictions-{split}.jsonl")


def fail(workdir: Path | str, error: str) -> None:
    """Keeps how a point of a sweep failed."""
    files.make_folder(files.path(workdir))
    files.write_text(failure(workdir), error + "\n")


def keep(cfg: config.Config, data: dict, vocabulary: Tokenizer) -> None:
    """Writes what a run is known by, and its tokenizer, where they are not there as they are to be."""
    folder, saved = tokenizer_folder(cfg.workdir), None
    try:
        saved = read_identity(cfg.workdir)
        tokenizer(cfg.workdir, saved or {"data": data})
    except files.Damaged as damaged:
        if folder.exists():
            tell(f"{damaged}; it is made again")
        files.make_folder(folder)
        vocabulary.save(folder)
    wanted = fields.identity(cfg, data) | {name: saved[name] for name in ("begun",) if name in (saved or {})}
    if saved is None or files.sha256(saved) != files.sha256(wanted):
        files.write_sealed(files.path(cfg.workdir, "config.json"), wanted)


def describe(cfg: config.Config, data: dict, vocabulary: Tokenizer, step: int) -> None:
    """Keeps the identity, and adds this start at `step` to the provenance."""
    keep(cfg, data, vocabulary)
    starts = []
    with mended():
        starts = read_provenance(cfg.workdir)
    files.write_sealed(files.path(cfg.workdir, "provenance.json"), {"starts": [*starts, provenance.record(step)]})
