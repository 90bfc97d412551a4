"""Trackers: where a run's metrics go besides metrics.jsonl. A run writes to them and never reads them.

A run that continues makes the steps after its checkpoint again. TensorBoard drops those that it has of them. Weights &
Biases and MLflow can neither drop nor replace a value. So each metric continues after its last step there, and their
values stay those of the first time, also where a run was extended; metrics.jsonl has those of the last time. What a
killed process had not passed on is missing there: the last seconds of W&B's offline files, and at most one record of
MLflow.
"""

import contextlib
import enum
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, cast

from absl import logging

from mlm.base import config, errors, extras, fields, files, warnings_
from mlm.base.storage import get_storage
from mlm.base.text_files import split_names

DEFAULT_PROJECT = "mlm"  # of Weights & Biases, and experiment of MLflow
# A server that does not answer is named within seconds; MLflow's own defaults wait for minutes.
MLFLOW_TIMEOUTS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
MLFLOW_BATCH = 100  # parameters in a request to an MLflow server at most


class RunStatus(enum.Enum):
    """How a run ended in this process, as an exit code for W&B and as MLflow names it; a later one may continue it."""

    FINISHED = 0, "FINISHED"
    STOPPED = 143, "KILLED"  # by a signal, and saved
    FAILED = 1, "FAILED"  # by an error, a divergence among them


class TensorboardTracker:
    """Writes TensorBoard's events to a folder.

    It does not use tensorboardX's SummaryWriter: when the disk is full, that one's thread ends, and training waits for
    it forever. TensorBoard no longer shows the earlier events of the steps after start_step.
    """

    run_id = None

    def __init__(self, cfg: config.Config, start_step: int, events_folder: Path, run_id: str | None):
        torch = sys.modules.setdefault("torch", cast(Any, None))  # tensorboardX would import it, for seconds
        try:
            from tensorboardX import summary
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            if torch is None:
                del sys.modules["torch"]
        events_folder.mkdir(parents=True, exist_ok=True)
        self.file = EventsWriter(str(events_folder / "events"))
        self.make_event, self.make_summary = Event, summary.scalar
        self.add_event(start_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add_event(self, step: int, **content) -> None:
        """Queues an event with the present time; content: fields of TensorBoard's Event."""
        self.file.write_event(self.make_event(wall_time=time.time(), step=step, **content))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes each metric as a scalar and flushes the file."""
        for name, value in metrics.items():
            self.add_event(step, summary=self.make_summary(name, value))
        self.file.flush()

    def close(self, status: RunStatus) -> None:
        """Closes the events file; TensorBoard knows no status."""
        self.file.close()


class WandbTracker:
    """Logs to Weights & Biases, which reads its environment variables: WANDB_MODE, WANDB_PROJECT and others.

    Its files are in the folder wandb of the run's directory, or in the user's cache if that is on a bucket.
    """

    def __init__(self, cfg: config.Config, start_step: int, events_folder: Path, run_id: str | None):
        wandb = _import("wandb")
        folder = files.local_folder(files.make_path(cfg.workdir))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.run = wandb.init(
                dir=str(folder),
                project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
                name=PurePath(cfg.workdir).name,
                id=run_id,
                resume="allow",
                reinit="create_new",  # vmapped runs are open at the same time
                config=fields.flatten(cfg),
                settings=wandb.Settings(console="off", quiet=True),
            )
        except wandb.Error as error:
            raise errors.ConfigError(f"config.train.trackers = 'wandb': {errors.first_line(error)}") from None
        self.run_id = self.run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics at the step, or at W&B's own step where that is later: W&B accepts no earlier one."""
        # A run continued online starts at its next step, where an evaluation of its last one has to go.
        self.run.log(dict(metrics), step=max(step, self.run.step))

    def close(self, status: RunStatus) -> None:
        """Sets the run's status by an exit code, after W&B has written what still waits."""
        self.run.finish(exit_code=status.value[0])


class MlflowTracker:
    """Logs to the store of MLFLOW_TRACKING_URI, else to mlruns in the run's directory; one that fails is left."""

    def __init__(self, cfg: config.Config, start_step: int, events_folder: Path, run_id: str | None):
        mlflow = _import("mlflow")
        from mlflow.exceptions import MlflowException

        uri, self.failed, self.error = None, False, MlflowException
        for name, value in MLFLOW_TIMEOUTS.items():
            os.environ.setdefault(name, value)
        if not mlflow.is_tracking_uri_set():
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no other store on a disk
            uri = Path(cfg.workdir, "mlruns").absolute().as_uri()
        try:
            self.client = mlflow.MlflowClient(uri)
            self.run_id = self._resume(run_id) or self._create(cfg)
        except MlflowException as error:
            raise errors.ConfigError(f"config.train.trackers = 'mlflow': {errors.first_line(error)}") from None

    def _resume(self, run_id: str | None) -> str | None:
        """The id of the run if the store still has it."""
        if run_id is None:
            return None
        try:
            self.client.update_run(run_id, status="RUNNING")
        except self.error as error:
            logging.warning("MLflow: %s; a new run is made", errors.first_line(error))
            return None
        return run_id

    def _create(self, cfg: config.Config) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        try:
            experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(name)
        except self.error:
            experiment = self.client.get_experiment_by_name(name)
            if experiment is None:  # it was not refused because it exists
                raise
            experiment_id = experiment.experiment_id
        run_id = self.client.create_run(experiment_id, run_name=PurePath(cfg.workdir).name).info.run_id
        params = [Param(name, str(value)) for name, value in fields.flatten(cfg).items()]
        for first in range(0, len(params), MLFLOW_BATCH):
            self.client.log_batch(run_id, params=params[first : first + MLFLOW_BATCH])
        return run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the metrics of a step in one request; a failure is a warning and stops all later requests."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(name, float(value), now, step) for name, value in metrics.items()]
        self._try(lambda: self.client.log_batch(self.run_id, metrics=values))

    def _try(self, call: Callable[[], object]) -> None:
        try:
            if not self.failed:
                call()
        except self.error as error:
            self.failed = True
            logging.warning("MLflow: %s; the run continues without it", errors.first_line(error))

    def close(self, status: RunStatus) -> None:
        """Sets the run's status; does nothing after a failed request."""
        self._try(lambda: self.client.set_terminated(self.run_id, status.value[1]))


TRACKERS = {"tensorboard": TensorboardTracker, "wandb": WandbTracker, "mlflow": MlflowTracker}


def _import(name):
    field = f"config.train.trackers = {name!r}"
    if name == "wandb":
        return extras.import_extra("wandb", "wandb", field)
    return extras.import_extra("mlflow", "mlflow", field)


def is_usable(name: str) -> bool:
    """Whether a tracker can be used: without the package tensorboardX TensorBoard has no events."""
    if name != "tensorboard" or extras.is_installed("tensorboardX"):
        return True
    if extras.is_installed("tensorboard"):  # else nobody looks at them
        warnings_.warn_once(f"no TensorBoard: it needs {extras.format_hint('tensorboardX', 'tensorboard')}")
    return False


def check(names: str) -> None:
    """Raises ConfigError for an unknown tracker among config.train.trackers; imports no tracker's package."""
    for name in split_names(names):
        errors.require_one_of("config.train.trackers", name, TRACKERS)


def check_installed(cfg: config.Config) -> None:
    """Raises ConfigError if a package but TensorBoard's is missing, or a tracker cannot use the directory."""
    packages = {name: _import(name) for name in split_names(cfg.train.trackers) if name != "tensorboard"}
    if "mlflow" in packages:
        has_store = packages["mlflow"].is_tracking_uri_set() or not get_storage(cfg.workdir).is_remote
        expected = "a store in the environment variable MLFLOW_TRACKING_URI, since config.workdir is on a bucket"
        errors.require(has_store, "config.train.trackers", "mlflow", expected)


class Trackers:
    """The trackers of a run that continues from start_step. Raises ConfigError if one cannot be opened.

    path: of a file that has, by tracker, the run's id there and the last step of each metric when the run was last
    started; folder: on a disk, for TensorBoard's events; records: all of metrics.jsonl, also those after start_step.
    """

    def __init__(self, path: Path, cfg: config.Config, start_step: int, folder: Path, records: Iterable[Mapping]):
        states = {}
        with files.recover_damaged():
            states = files.read_json_with_digest(path) or {}
        recorded_steps: dict[str, int] = {}  # the last step of each metric in metrics.jsonl
        for record in records:
            recorded_steps |= {name: max(recorded_steps.get(name, 0), record["step"]) for name in record}
        self.opened, new_states = [], dict(states)
        with contextlib.ExitStack() as stack:  # if one cannot be opened
            stack.callback(self.close, RunStatus.FAILED)
            for name in filter(is_usable, dict.fromkeys(split_names(cfg.train.trackers))):
                state = states.get(name, {"run_id": None, "last_steps": {}})
                tracker = TRACKERS[name](cfg, start_step, folder, state["run_id"])
                last_steps = {}
                if tracker.run_id is not None and tracker.run_id == state["run_id"]:
                    last_steps = recorded_steps | state["last_steps"]
                    last_steps |= {name: max(step, last_steps[name]) for name, step in recorded_steps.items()}
                self.opened.append((tracker, last_steps))
                if tracker.run_id is not None:
                    new_states[name] = {"run_id": tracker.run_id, "last_steps": last_steps}
            stack.pop_all()
        if new_states != states:
            files.write_json_with_digest(path, new_states)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Passes on to each tracker the metrics whose step is after the last one that it has of them."""
        for tracker, last_steps in self.opened:
            if new_metrics := {name: value for name, value in metrics.items() if step > last_steps.get(name, -1)}:
                tracker.log(step, new_metrics)

    def close(self, status: RunStatus) -> None:
        """Ends the record of this process with what became of the run; a later one continues it."""
        with contextlib.ExitStack() as stack:  # each is closed even if another fails
            for tracker, _ in self.opened:
                stack.callback(tracker.close, status)
