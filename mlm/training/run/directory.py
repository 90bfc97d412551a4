"""The directory of a run: no other module knows the names and the contents of its files.

config.json: the resolved config and the identity of the data; tokenizer/; provenance.json: a record of each start;
metrics.jsonl: the log; tensorboard/, wandb/ and mlruns/: the same, by tracker; trackers.json: the run's ids there;
profile/: traces of JAX's profiler; checkpoints/; milestones/: the parameters at config.train.milestones;
milestone_evaluations/: a file like evaluations.json for each of them; held_out.npz: the columns of the last evaluation,
by held-out example; result.json: written last; evaluations.json: the evaluations of the trained model;
predictions-dev.jsonl and -test: the predictions of a fine-tuned model; error.txt: how a point of a sweep failed;
tasks/: its fine-tunings; held_out-1000.npz, evaluations-1000.json, result-1000.json: from before it was extended.

What is read is what was written, else files.DamagedFile is raised (base/files.py).
"""

import contextlib
import io
import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, errors, fields, files, warnings_
from mlm.base.storage import get_storage
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models import platform_kernels
from mlm.models.hub import hub
from mlm.training.run import extension, provenance
from mlm.training.step import parallel
from mlm.training.validation.split_scores import Columns

CHECKPOINT_SCHEMES = ("gs",)  # of the buckets on which orbax can keep checkpoints


class RunDirectory:
    """A run's directory, which need not exist yet: the paths of its files, and what they hold."""

    def __init__(self, workdir: Path | str):
        self.path = files.make_path(workdir)
        self.checkpoints, self.milestones = self.path / "checkpoints", self.path / "milestones"
        self.tokenizer, self.tasks = self.path / "tokenizer", self.path / "tasks"
        self.metrics, self.tensorboard = self.path / "metrics.jsonl", self.path / "tensorboard"
        self.profile, self.error = self.path / "profile", self.path / "error.txt"
        self.trackers = self.path / "trackers.json"
        self.result = self.path / "result.json"  # a run that has it is done

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the directory, which the run's primary process then holds; raises FolderInUse if another run does."""
        message = f"config.workdir = {str(self.path)!r}: another process is training in it now"
        return get_storage(self.path).lock(self.path, message) if parallel.is_primary() else contextlib.nullcontext()

    def is_locked(self) -> bool:
        """Whether a process holds the directory."""
        return get_storage(self.path).is_locked(self.path)

    def list_siblings(self) -> list[str]:
        """The runs in the parent folder."""
        return [str(path.parent) for path in self.path.parent.glob("*/config.json")]

    def _read(self, name: str, *, check: bool = False) -> dict[str, Any] | None:
        saved = files.read_json_with_digest(self.path / name)
        if check and saved is not None:
            fields.check_format(saved, str(self.path))
        return saved

    def _write(self, name: str, value: dict[str, Any]) -> None:
        files.write_json_with_digest(self.path / name, value)

    def read_identity(self) -> dict | None:
        """The identity of the run, with "original" values if it was extended; None: no run. Raises ConfigError."""
        try:
            return self._read("config.json", check=True)
        except files.DamagedFile:
            is_run = not hub.is_hub_folder(self.path)
            errors.require(is_run, "run", str(self.path), "a run's directory; init.hub takes a Hugging Face folder")
            raise

    def require_identity(self) -> dict:
        """The identity of the run. Raises ConfigError, with the nearest run's name, if there is none."""
        saved = self.read_identity()
        if saved is None:
            hint = errors.format_hint(str(self.path), self.list_siblings())
            raise errors.ConfigError(f"run {str(self.path)!r}: expected the directory of a run{hint}")
        return saved

    def check(self, cfg: config.Config) -> None:
        """Raises ConfigError if there is a run of a config that cfg's does not extend; reads no data."""
        with files.recover_damaged():
            saved = self.read_identity()
            if saved is not None:
                lengths = {name: saved["config"][name] for name in extension.EXTENDABLE_FIELDS}
                fields.check_config(fields.override(cfg, lengths), saved, cfg.workdir)

    def write_identity(self, cfg: config.Config, data: dict, tokenizer: Tokenizer) -> None:
        """Writes the run's identity and its tokenizer, unless the files have them already."""
        saved = None
        try:
            saved = self.read_identity()
            self.load_tokenizer(saved or {"data": data})
        except files.DamagedFile as damaged:
            if self.tokenizer.exists():
                warnings_.warn_once(f"{damaged}; it is made again")
            tokenizer.save(self.tokenizer)
        original = {name: value for name, value in (saved or {}).items() if name == "original"}
        identity = fields.build_identity(cfg, data) | original
        if saved is None or files.json_sha256(saved) != files.json_sha256(identity):
            self._write("config.json", identity)

    def write_extended_identity(self, cfg: config.Config, data: dict, saved: dict) -> None:
        """Extends the run with the identity `saved` to cfg, in one atomic write."""
        identity = fields.build_identity(cfg, data) | {"original": extension.get_original_values(saved)}
        self._write("config.json", identity)

    def load_tokenizer(self, saved: dict) -> Tokenizer:
        """The tokenizer of the run, whose identity is `saved`."""
        names = get_storage(self.path).list(self.tokenizer)
        names = [name for name in names if not name.startswith(".")]  # a kill may leave others
        path = self.tokenizer / names[0] if names else self.tokenizer
        files.check_sha256(path, saved["data"]["tokenizer"])
        return kinds.load_tokenizer(path)

    def read_provenance(self) -> list[dict]:
        """The records of the run's starts."""
        return (self._read("provenance.json") or {"starts": []})["starts"]

    def record_start(self, cfg: config.Config, data: dict, tokenizer: Tokenizer, step: int, sources: dict) -> None:
        """Writes the identity, and adds this start at `step` to the provenance; sources: what it starts from."""
        self.write_identity(cfg, data, tokenizer)
        starts = []
        with files.recover_damaged():
            starts = self.read_provenance()
        self._write("provenance.json", {"starts": [*starts, provenance.make_record(step) | sources]})

    def read_result(self) -> dict | None:
        """The result of a run that is done, or None. Raises ConfigError for a run of an earlier version."""
        return self._read("result.json", check=True)

    def write_result(self, result: dict, columns: Columns) -> None:
        """Writes the columns of the held-out examples, the time at which the run ended, and last the result."""
        with files.atomic_write(self.path / "held_out.npz") as aside:
            arrays: dict[str, Any] = dict(columns)
            np.savez(aside, **arrays)
            digests = {"held_out": files.compute_sha256(aside), "history": files.compute_sha256(self.metrics)}
        with files.recover_damaged():
            if starts := self.read_provenance():
                starts[-1]["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self._write("provenance.json", {"starts": starts})
        self._write("result.json", {**result, **digests})

    def read_held_out(self, result: dict) -> Columns:
        """The columns of the evaluation of the run's result."""
        path = self.path / "held_out.npz"
        files.check_sha256(path, result["held_out"])
        with np.load(io.BytesIO(files.read_bytes(path))) as file:
            return dict(file)

    def read_history(self, result: dict) -> list[dict]:
        """The logged metrics of the finished run."""
        if "history" in result:  # not of an earlier version
            files.check_sha256(self.metrics, result["history"])
        return files.read_records(self.metrics)

    def recover(self, cfg: config.Config, data: dict, tokenizer: Tokenizer) -> tuple[config.Config, dict | None]:
        """The config with its kernels by name, and the result of the run if it is done and undamaged, else None.

        A warning names each damaged file, which is written again, here or when the run continues from its checkpoint.
        Raises ConfigError if there is another run.
        """
        saved = None
        with files.recover_damaged():
            saved = self.read_identity()
        cfg = pin_kernels(cfg, saved)
        if saved is not None:
            fields.check_identity(cfg, data, saved, cfg.workdir)
        with files.recover_damaged():
            result = self.read_result()
            if result is None:
                return cfg, None
            fields.check_identity(cfg, data, result, cfg.workdir)
            self.read_held_out(result)
            self.read_history(result)
            self.read_provenance()
            if parallel.is_primary():
                self.write_identity(cfg, data, tokenizer)
            return cfg, result
        return cfg, None

    def archive_results(self, steps: int) -> None:
        """Adds the number of steps to the names of the results from before the run was extended to so many."""
        with contextlib.suppress(files.DamagedFile):
            if (result := self.read_result()) is not None and result["steps"] != steps:
                for name in ("held_out.npz", "evaluations.json", "result.json"):  # the last says that the run is done
                    files.rename_with_suffix(self.path / name, str(result["steps"]))

    def read_evaluations(self, milestone: int | None = None) -> dict:
        """The evaluations of the newest model or of a milestone's, with its "fingerprint" and "step"; {}: none."""
        return self._read(_name_evaluations(milestone)) or {}

    def write_evaluations(self, evaluations: dict, milestone: int | None = None) -> None:
        """Writes the evaluations of the trained model, or of the model at a milestone."""
        self._write(_name_evaluations(milestone), evaluations)

    def read_milestone_evaluations(self, result: dict) -> dict[int, dict]:
        """The evaluations of the finished run at its milestones, by step in order: "evaluations" and "summary"."""
        names, by_step = get_storage(self.path).list(self.path / "milestone_evaluations"), {}
        for step in sorted(int(name[:-5]) for name in names if re.fullmatch(r"[0-9]+\.json", name)):
            contents = self.read_evaluations(step)
            if contents.get("fingerprint") == result["fingerprint"]:
                by_step[step] = {name: contents[name] for name in ("evaluations", "summary")}
        return by_step

    def read_finished(self) -> dict | None:
        """A finished run as reports read it, or None: its result, with the directory that it is in now.

        It also has "evaluations" and their "summary", "milestones" with both by step, "history" (metrics.jsonl),
        "held_out" (columns) and "provenance", the records of its starts, the last with the time when it "ended".
        """
        result = self.read_result()
        if result is None:
            return None
        stored = self.read_evaluations()
        is_current = (stored.get("fingerprint"), stored.get("step")) == (result["fingerprint"], result["steps"])
        return result | {
            "config": result["config"] | {"workdir": str(self.path)},
            "provenance": self.read_provenance(),
            "evaluations": stored["evaluations"] if is_current else {},
            "summary": stored["summary"] if is_current else {},
            "milestones": self.read_milestone_evaluations(result),
            "history": self.read_history(result),
            "held_out": self.read_held_out(result),
        }

    def write_predictions(self, split: str, records: Iterable[dict]) -> None:
        """Writes a fine-tuned model's predictions for a split, one record per example."""
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        files.write_text(self.path / f"predictions-{split}.jsonl", "".join(lines))

    def read_predictions(self, split: str) -> list[dict]:
        """The predictions that `write_predictions` wrote."""
        return [json.loads(line) for line in files.read_bytes(self.path / f"predictions-{split}.jsonl").splitlines()]


def pin_kernels(cfg: config.Config, saved: Mapping[str, Any] | None) -> config.Config:
    """The config with the kernels by name: those of the run with the identity `saved`, else those of this platform."""
    kernels = cfg.model.kernels
    if kernels == "auto" and saved is not None:
        kernels = saved["config"]["model.kernels"]
    return fields.override(cfg, {"model.kernels": platform_kernels.resolve_kernels(kernels)})


def _name_evaluations(milestone):
    return "evaluations.json" if milestone is None else f"milestone_evaluations/{milestone}.json"
