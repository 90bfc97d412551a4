"""The teacher of a distillation: a trained masked language model whose parameters training reads and never changes."""

import dataclasses
from typing import Any, NamedTuple

from mlm import models, objectives
from mlm.base import config, errors, phases, types
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.objectives import distillation
from mlm.training.run import pretrained_folder, trained_run
from mlm.training.run.directory import RunDirectory

NAME = "config.distillation.teacher"


class Teacher(NamedTuple):
    """A trained model; params: numpy, of the model alone; digest: of the checkpoint or the folder."""

    model: config.Model
    params: types.Params
    digest: str

    def describe(self, cfg: config.Config) -> dict[str, Any]:
        """What stands in the provenance of the run of a config."""
        return {"teacher": {"path": cfg.distillation.teacher, "sha256": self.digest}}

    def join_state(self, state: types.TrainState) -> types.TrainState:
        """The state with the teacher's parameters beside its own."""
        return state._replace(params=state.params | {types.TEACHER: self.params})


def load_teacher(cfg: config.Config, tokenizer: Tokenizer) -> Teacher | None:
    """The teacher of a run whose data have this tokenizer; None: the run has none, or one that is no model.

    Raises ConfigError if it is gone or another one, predicts no masked tokens, reads another vocabulary or shorter
    examples, or has states of another width than config.distillation.hidden_weight needs.
    """
    if not distillation.has_model(cfg):
        return None
    path, has_lm_head = cfg.distillation.teacher, True
    if pretrained_folder.is_pretrained_folder(path):
        folder = pretrained_folder.find_folder(path, NAME)
        source, digest = pretrained_folder.read_folder(folder), pretrained_folder.compute_digest(folder)
        params, has_lm_head = source.params, source.has_lm_head
    else:
        is_run = RunDirectory(path).read_identity() is not None
        errors.require(is_run, NAME, path, "this run's teacher, which is there no more; set distillation.teacher=PATH")
        source = trained_run.load(path, {}, exclusive=not RunDirectory(path).result.exists())
        params, digest = source.program.partitioner.get_state(source.state).params, source.digest
    is_same = cfg.distillation.teacher_sha256 in ("", digest)
    errors.require_field(cfg, "distillation.teacher_sha256", is_same, f"what is in {path}, {digest}")
    is_masked = objectives.get_visibility(source.cfg) is types.Visibility.UNMASKED and has_lm_head
    errors.require(is_masked, NAME, path, f"a model of masked tokens with its output layer, not {source.cfg.objective}")
    expected = f"a model with the run's vocabulary; leave tokenizer.path out, or set it to {path}"
    errors.require(source.tokenizer.model == tokenizer.model, NAME, path, expected)
    model = dataclasses.replace(source.cfg.model, kernels=cfg.model.kernels)
    seq_len = max(phase.cfg.pack.seq_len for phase in phases.list_phases(cfg))
    is_long = not models.reads_field(source.cfg, "max_positions") or seq_len <= model.max_positions
    errors.require_field(cfg, "pack.seq_len", is_long, f"at most {model.max_positions}, as {path} reads")
    has_states = not cfg.distillation.hidden_weight or model.width == cfg.model.width
    expected = f"0, since states of {path} have {model.width} entries, not config.model.width = {cfg.model.width}"
    errors.require_field(cfg, "distillation.hidden_weight", has_states, expected)
    return Teacher(model, params["model"], digest)
