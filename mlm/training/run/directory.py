"""The directory of a run: no other module knows the names and the contents of its files.

config.json: the resolved config and the identity of the data; tokenizer/; provenance.json: a record of each start;
metrics.jsonl: the log; tensorboard/, wandb/ and mlruns/: the same, by tracker; trackers.json: the run's ids there;
profile/: traces of JAX's profiler; checkpoints/; milestones/: the parameters at config.train.milestones;
milestone_evaluations/: a file like evaluations.json for each of them; held_out.npz: the columns of the last evaluation,
by held-out example; result.json: written last; evaluations.json: the evaluations of the trained model;
predictions-dev.jsonl and -test: the predictions of a fine-tuned model; error.txt: how a point of a sweep failed;
tasks/: its fine-tunings. The results that a run had before it was extended are kept: held_out-1000.npz,
evaluations-1000.json, result-1000.json.

What is read is what was written, else files.DamagedFile is raised (base/files.py).
"""

import contextlib
import functools
import io
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from mlm.base import config, errors, fields, files
from mlm.base.storage import get_storage
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models import platform_kernels
from mlm.models.hub import hub
from mlm.training.run import extension, provenance
from mlm.training.step import parallel
from mlm.training.validation.split_scores import Columns

CHECKPOINT_SCHEMES = ("gs",)  # of the buckets on which orbax can keep checkpoints


def checkpoint_folder(workdir: Path | str) -> Path:
    """The folder of the checkpoints."""
    return files.make_path(workdir, "checkpoints")


def milestone_folder(workdir: Path | str) -> Path:
    """The folder of the parameters at milestones."""
    return files.make_path(workdir, "milestones")


def metrics_file(workdir: Path | str) -> Path:
    """The file of the logged metrics."""
    return files.make_path(workdir, "metrics.jsonl")


def tensorboard_folder(workdir: Path | str) -> Path:
    """The folder of the TensorBoard events."""
    return files.make_path(workdir, "tensorboard")


def profile_folder(workdir: Path | str) -> Path:
    """The folder of the traces of JAX's profiler."""
    return files.make_path(workdir, "profile")


def error_file(workdir: Path | str) -> Path:
    """The file that says how a point of a sweep failed."""
    return files.make_path(workdir, "error.txt")


def finetuning_folder(workdir: Path | str, name: str) -> Path:
    """The directory of one of a run's fine-tunings."""
    return files.make_path(workdir, "tasks", name)


def read_identity(workdir: Path | str) -> dict | None:
    """The identity (base/fields.py) of a run, or None if there is no run.

    If the run was extended, it also has its "original" values (extension.py). Raises ConfigError for a run of an
    earlier version.
    """
    try:
        return _check_format(workdir, files.read_json_with_digest(files.make_path(workdir, "config.json")))
    except files.DamagedFile:
        is_run = not hub.is_hub_folder(workdir)
        errors.require(is_run, "run", str(workdir), "a run's directory; init.hub takes a Hugging Face folder")
        raise


def require_identity(workdir: str) -> dict:
    """The identity of the run in a directory. Raises ConfigError, with the nearest run's name, if there is none."""
    saved = read_identity(workdir)
    if saved is None:
        hint = errors.format_hint(str(files.make_path(workdir)), list_sibling_runs(workdir))
        raise errors.ConfigError(f"run {workdir!r}: expected the directory of a run{hint}")
    return saved


def _check_format(workdir, saved):
    if saved is not None:
        fields.check_format(saved, str(workdir))
    return saved


def list_sibling_runs(workdir: Path | str) -> list[str]:
    """The runs in the parent folder of a directory."""
    return [str(path.parent) for path in files.make_path(workdir).parent.glob("*/config.json")]


def result_file(workdir: Path | str) -> Path:
    """The file of the result: a run that has it is done."""
    return files.make_path(workdir, "result.json")


def read_result(workdir: Path | str) -> dict | None:
    """The result of a run that is done, or None. Raises ConfigError for a run of an earlier version."""
    return _check_format(workdir, files.read_json_with_digest(result_file(workdir)))


def read_evaluations(workdir: Path | str, milestone: int | None = None) -> dict:
    """The evaluations of a run's model, with its "fingerprint" and "step" at that time; {} if there are none.

    milestone: of the model at this step; None: of the newest checkpoint's.
    """
    return files.read_json_with_digest(_evaluations_file(workdir, milestone)) or {}


def _evaluations_file(workdir, milestone):
    if milestone is None:
        return files.make_path(workdir, "evaluations.json")
    return files.make_path(workdir, "milestone_evaluations", f"{milestone}.json")


def read_milestone_evaluations(workdir: Path | str, result: dict) -> dict[int, dict]:
    """The evaluations of a finished run at its milestones, by step in order: "evaluations" and "summary"."""
    folder, by_step = files.make_path(workdir, "milestone_evaluations"), {}
    steps = [int(name[:-5]) for name in get_storage(workdir).list(folder) if re.fullmatch(r"[0-9]+\.json", name)]
    for step in sorted(steps):
        contents = read_evaluations(workdir, step)
        if contents.get("fingerprint") == result["fingerprint"]:
            by_step[step] = {name: contents[name] for name in ("evaluations", "summary")}
    return by_step


def read_trackers(workdir: Path | str) -> dict:
    """By tracker, the run's id there, and the last step of each metric when the run was last started."""
    return files.read_json_with_digest(files.make_path(workdir, "trackers.json")) or {}


def read_provenance(workdir: Path | str) -> list[dict]:
    """The records of a run's starts."""
    return (files.read_json_with_digest(files.make_path(workdir, "provenance.json")) or {"starts": []})["starts"]


def read_held_out(workdir: Path | str, result: dict) -> Columns:
    """The columns of a result's evaluation."""
    path = files.make_path(workdir, "held_out.npz")
    files.check_sha256(path, result["held_out"])
    with np.load(io.BytesIO(files.read_bytes(path))) as file:
        return dict(file)


def read_history(workdir: Path | str, result: dict) -> list[dict]:
    """The logged metrics of a finished run."""
    path = metrics_file(workdir)
    if "history" in result:  # not of an earlier version
        files.check_sha256(path, result["history"])
    return files.read_records(path)


def tokenizer_folder(workdir: Path | str) -> Path:
    """The folder of a run's tokenizer."""
    return files.make_path(workdir, "tokenizer")


def load_tokenizer(workdir: Path | str, saved: dict) -> Tokenizer:
    """The tokenizer of a run with this identity."""
    folder = tokenizer_folder(workdir)
    names = [name for name in get_storage(workdir).list(folder) if not name.startswith(".")]  # a kill may leave others
    path = folder / names[0] if names else folder
    files.check_sha256(path, saved["data"]["tokenizer"])
    return kinds.load_tokenizer(path)


def read_finished_run(workdir: Path | str) -> dict | None:
    """A finished run as reports read it, or None: its result, with the directory that it is in now.

    It also has "evaluations" and "summary": its evaluations at that step; "milestones": the same by
    step, of each milestone; "history": the records of metrics.jsonl;
    "held_out": columns; "provenance": the records of its starts, the last with the time when the run "ended".
    """
    result = read_result(workdir)
    if result is None:
        return None
    evaluations = read_evaluations(workdir)
    is_current = (evaluations.get("fingerprint"), evaluations.get("step")) == (result["fingerprint"], result["steps"])
    return result | {
        "config": result["config"] | {"workdir": str(workdir)},
        "provenance": read_provenance(workdir),
        "evaluations": evaluations["evaluations"] if is_current else {},
        "summary": evaluations["summary"] if is_current else {},
        "milestones": read_milestone_evaluations(workdir, result),
        "history": read_history(workdir, result),
        "held_out": read_held_out(workdir, result),
    }


def check_workdir(cfg: config.Config) -> None:
    """Raises ConfigError if the directory holds a run of another config, of which cfg's is no extension.

    Reads no data: `recover_finished` checks the rest when the data are there, which may take minutes.
    """
    with recover_damaged():
        saved = read_identity(cfg.workdir)
        if saved is not None:
            lengths = {name: saved["config"][name] for name in extension.EXTENDABLE_FIELDS}
            fields.check_config(fields.override(cfg, lengths), saved, cfg.workdir)


def pin_kernels(cfg: config.Config) -> config.Config:
    """The config with the kernels by name: those that its run began with, else those of this platform."""
    saved = None
    with contextlib.suppress(files.DamagedFile):
        saved = read_identity(cfg.workdir)
    kernels = cfg.model.kernels
    if kernels == "auto" and saved is not None:
        kernels = saved["config"]["model.kernels"]
    return fields.override(cfg, {"model.kernels": platform_kernels.resolve_kernels(kernels)})


def recover_finished(cfg: config.Config, data: dict, tokenizer: Tokenizer) -> dict | None:
    """The result of a run that is done and undamaged, or None. Raises ConfigError if the directory is another run's.

    A warning names each damaged file. The identity and the tokenizer are written again here. All other files are
    written again from the newest checkpoint when the run is continued.
    """
    saved = result = None
    with recover_damaged():
        saved = read_identity(cfg.workdir)
        if saved is not None:
            fields.check_identity(cfg, data, saved, cfg.workdir)
    with recover_damaged():
        result = None if find_superseded(cfg, saved) else read_result(cfg.workdir)
        if result is not None:
            fields.check_identity(cfg, data, result, cfg.workdir)
    with recover_damaged():
        if result is not None:
            read_held_out(cfg.workdir, result)
            read_history(cfg.workdir, result)
            read_provenance(cfg.workdir)
            if parallel.is_primary():
                write_identity(cfg, data, tokenizer)
        return result
    return None


@contextlib.contextmanager
def recover_damaged():
    """Warns of a damaged file, which then counts as missing. A file without a digest stays and is an error."""
    try:
        yield
    except files.MissingDigest:
        raise
    except files.DamagedFile as damaged:
        warn_once(f"{damaged}; it is made again")


@functools.cache  # a run checks its directory before and after it locks it
def warn_once(text: str) -> None:
    """Logs a warning, once per process."""
    logging.warning(text)


def find_superseded(cfg: config.Config, saved: dict | None) -> int | None:
    """The number of steps of a result from before the run was extended to the steps of cfg; None if there is none."""
    if "original" in (saved or {}):
        with contextlib.suppress(files.DamagedFile):
            result = read_result(cfg.workdir)
            if result is not None and result["steps"] != cfg.train.steps:
                return result["steps"]
    return None


def archive_results(cfg: config.Config, steps: int) -> None:
    """Adds the number of steps to the names of the results from before the run was extended; result.json goes last."""
    for name in ("held_out.npz", "evaluations.json", "result.json"):
        files.rename_with_suffix(files.make_path(cfg.workdir, name), str(steps))


def write_extended_identity(cfg: config.Config, data: dict, saved: dict) -> None:
    """Extends the run with the identity `saved` to cfg, in one atomic write."""
    identity = fields.build_identity(cfg, data) | {"original": extension.get_original_values(saved)}
    files.write_json_with_digest(files.make_path(cfg.workdir, "config.json"), identity)


def acquire_run(cfg: config.Config):
    """Makes the directory and holds it until the returned lease is closed.

    Raises lease.FolderInUse if another process holds it.
    """
    message = f"config.workdir = {cfg.workdir!r}: another process is training in it now"
    return get_storage(cfg.workdir).lock(files.make_path(cfg.workdir), message)


def is_held(cfg: config.Config) -> bool:
    """Whether a process holds the directory."""
    return get_storage(cfg.workdir).is_locked(files.make_path(cfg.workdir))


def write_result(workdir: Path, result: dict, columns: Columns) -> None:
    """Writes the columns of the held-out examples, the time at which the run ended, and last the result."""
    with files.atomic_write(workdir / "held_out.npz") as aside:
        arrays: dict[str, Any] = dict(columns)
        np.savez(aside, **arrays)
        digests = {"held_out": files.compute_sha256(aside), "history": files.compute_sha256(metrics_file(workdir))}
    with recover_damaged():
        if starts := read_provenance(workdir):
            starts[-1]["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            files.write_json_with_digest(workdir / "provenance.json", {"starts": starts})
    files.write_json_with_digest(result_file(workdir), {**result, **digests})


def write_evaluations(workdir: Path | str, evaluations: dict, milestone: int | None = None) -> None:
    """Writes the evaluations of the trained model, or of the model at a milestone."""
    files.write_json_with_digest(_evaluations_file(workdir, milestone), evaluations)


def write_trackers(workdir: Path | str, trackers: dict) -> None:
    """Writes the run's ids in its trackers."""
    files.write_json_with_digest(files.make_path(workdir, "trackers.json"), trackers)


def write_predictions(workdir: Path | str, split: str, records: Iterable[dict]) -> None:
    """Writes a fine-tuned model's predictions for a split, one record per example."""
    files.write_text(
        _predictions_file(workdir, split), "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    )


def read_predictions(workdir: Path | str, split: str) -> list[dict]:
    """The predictions that `write_predictions` wrote."""
    return [json.loads(line) for line in files.read_bytes(_predictions_file(workdir, split)).split(b"\n")[:-1]]


def _predictions_file(workdir, split):
    return files.make_path(workdir, f"predictions-{split}.jsonl")


def write_error(workdir: Path | str, error: str) -> None:
    """Writes how a point of a sweep failed."""
    files.write_text(error_file(workdir), error + "\n")


def write_identity(cfg: config.Config, data: dict, tokenizer: Tokenizer) -> None:
    """Writes the run's identity and its tokenizer, unless the files have them already."""
    folder, saved = tokenizer_folder(cfg.workdir), None
    try:
        saved = read_identity(cfg.workdir)
        load_tokenizer(cfg.workdir, saved or {"data": data})
    except files.DamagedFile as damaged:
        if folder.exists():
            warn_once(f"{damaged}; it is made again")
        tokenizer.save(folder)
    original = {name: value for name, value in (saved or {}).items() if name == "original"}
    identity = fields.build_identity(cfg, data) | original
    if saved is None or files.json_sha256(saved) != files.json_sha256(identity):
        files.write_json_with_digest(files.make_path(cfg.workdir, "config.json"), identity)


def record_start(cfg: config.Config, data: dict, tokenizer: Tokenizer, step: int) -> None:
    """Writes the identity, and adds this start at `step` to the provenance."""
    write_identity(cfg, data, tokenizer)
    starts = []
    with recover_damaged():
        starts = read_provenance(cfg.workdir)
    files.write_json_with_digest(
        files.make_path(cfg.workdir, "provenance.json"), {"starts": [*starts, provenance.make_record(step)]}
    )
