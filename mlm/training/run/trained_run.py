"""A trained run, loaded: its newest checkpoint, its tokenizer and its config."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from mlm.base import config, errors, fields, files, phases, types
from mlm.data.rows import loader, pack
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.training.run import checkpoint, pretrained_folder, resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.step import parallel, program


class TrainedRun(NamedTuple):
    """A run with its newest checkpoint, or with a milestone's parameters, on the devices."""

    cfg: config.Config
    step: int
    tokenizer: Tokenizer
    program: program.Program  # with the model of the step's phase
    state: types.TrainState  # on the devices, without the optimizer state
    digest: str  # of the full state, as its checkpoint has it
    dataset_info: types.DatasetInfo  # the dataset that it was built for
    cached_data: pack.PackedDataset | None = None
    milestone: int | None = None  # the step, if it was loaded by its step; None: the newest checkpoint
    has_data: bool = True  # False: a Hugging Face folder's model

    def load_data(self) -> pack.PackedDataset:
        """The data of the run, prepared again unless cached. Raises ConfigError if it changed since the training."""
        expected = "a run, since a Hugging Face folder has no held-out text"
        errors.require(self.has_data, "evaluation", self.cfg.init.hub, expected)
        if self.cached_data is not None:
            return self.cached_data
        packed = pack.load_dataset(self.cfg)
        saved = RunDirectory(self.cfg.workdir).require_identity()
        fields.check_identity(self.cfg, packed.manifest["inputs"], saved, self.cfg.workdir)
        return packed

    def map_examples(
        self,
        function: Callable,
        *static_args: Any,
        split: loader.Columns | None = None,
        max_examples: int = 0,
        model: types.Model | None = None,
        state: types.TrainState | None = None,
        gather_params: bool = False,
    ) -> Any:
        """The outputs for the first examples of a split, on all devices of all processes.

        function: (model, *static_args, params, batch, hparams) -> a tree of arrays, whose first axis is the batch.
        split: None: the run's validation split. max_examples: 0: all. model, state: None: the run's. gather_params: as
        for `Partitioner.jit_per_example`.
        """
        split, partitioner = self.load_data().validation if split is None else split, self.program.partitioner
        batches = loader.iterate_eval_batches(
            split, batch_size=self.cfg.eval.batch_size, max_rows=max_examples, **parallel.get_process_position()
        )
        model, hparams = model or self.program.model, program.make_eval_hparams(self.cfg)
        run_batch = partitioner.jit_per_example(function, model, *static_args, gather_params=gather_params)
        state = self.state if state is None else state
        outputs = [run_batch(state, partitioner.put_batch(batch), hparams) for batch in batches]
        count = loader.count_eval_examples(split, max_examples)
        return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *outputs)


def load(path: str, settings: Mapping[str, Any], *, step: int | None = None) -> TrainedRun:
    """Loads a run (see `load_run`), or the model of a Hugging Face folder as a run of no steps. Raises ConfigError."""
    result_fields = fields.flatten(config.Config(), results_only=True)
    for name, value in settings.items():
        expected = "what the run was trained with; leave it out"
        errors.require(name not in result_fields, f"config.{name}", value, expected)
    if pretrained_folder.is_pretrained_folder(path):
        return _load_folder(path, settings)
    return load_run(path, settings, step=step)


def load_run(
    workdir: str,
    settings: Mapping[str, Any],
    packed: pack.PackedDataset | None = None,
    *,
    exclusive: bool = True,
    step: int | None = None,
) -> TrainedRun:
    """Loads the run in a directory. Raises ConfigError.

    Args:
        settings: fields, by dotted name, that override the run's. Only fields that cannot change a result.
        packed: the run's data, if it is loaded already. The program is then the same as in training. Without it, the
            objective has no scores of the majority class, whose counts are in the data; the run's result has them.
        exclusive: False if other processes may read or train the run meanwhile.
        step: of a milestone, or of a checkpoint that is still there; None: the newest checkpoint.
    """
    directory = RunDirectory(workdir)
    saved = directory.require_identity()
    unknown_fields = saved["config"].keys() - fields.DEFAULT.keys() - fields.REMOVED_FIELDS
    if unknown_fields:
        raise errors.ConfigError(
            f"run {workdir!r}: made by another version, whose config has {', '.join(sorted(unknown_fields))}"
        )
    values = {name: value for name, value in saved["config"].items() if name in fields.DEFAULT}
    if values.get("tokenizer.path") and not files.make_path(values["tokenizer.path"]).is_dir():
        values["tokenizer.path"] = str(directory.tokenizer)  # a copy of the same tokenizer
    cfg = fields.override(config.Config(), values | dict(settings) | {"workdir": workdir})
    resolution.check(cfg)
    parallel.check_evaluation(cfg)
    tokenizer = directory.load_tokenizer(saved)
    dataset_info = packed.dataset_info if packed else pack.build_dataset_info(cfg, tokenizer.vocab_size)
    run_program = program.build_program(cfg, dataset_info)
    # Opening checkpoints removes unfinished ones, which may be a trainer's.
    with directory.lock() if exclusive else contextlib.nullcontext():
        snapshot = checkpoint.load(directory, step, cfg, saved["data"], run_program, exclusive=exclusive)
    run_program = program.build_program(phases.select_model(cfg, int(snapshot.state.step)), dataset_info)
    state = run_program.partitioner.put_state(snapshot.state._replace(opt_state=()))
    return TrainedRun(
        cfg, int(snapshot.state.step), tokenizer, run_program, state, snapshot.digest, dataset_info, packed, step
    )


def _load_folder(path, settings) -> TrainedRun:
    """The results of a folder go to runs/NAME, or to the workdir of the settings: nothing is written into it."""
    source = pretrained_folder.open_folder(path)
    workdir = settings.get("workdir") or str(pretrained_folder.choose_workdir(path))
    is_free = RunDirectory(workdir).read_identity() is None
    expected = f"a directory without a run, for the results of {path}; set workdir=DIR"
    errors.require(is_free, "config.workdir", workdir, expected)
    files.check_folder("config.workdir", workdir)
    values = {"workdir": workdir, "init.hub": path, "init.hub_sha256": source.digest}
    cfg = fields.override(source.cfg, dict(settings) | values)
    parallel.check_evaluation(cfg)
    run_program = program.build_program(cfg, source.dataset_info)
    if not source.has_lm_head:
        expected = "a folder whose tensors have an output layer; this is an encoder alone"
        refuse = lambda *_: errors.require(False, "model", path, expected)
        model = dataclasses.replace(run_program.model, logits=refuse)
        run_program = run_program._replace(model=model)
    state = run_program.partitioner.put_state(types.TrainState(np.zeros((), np.int32), source.params, ()))
    return TrainedRun(cfg, 0, source.tokenizer, run_program, state, source.digest, source.dataset_info, has_data=False)
