"""Loads a model from a run's directory or a Hugging Face folder."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp

from mlm.base import config, errors, fields, phases, types
from mlm.data.tasks import tasks
from mlm.data.tokenizers import words
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.inference import batching
from mlm.inference.language_model import LanguageModel
from mlm.training.run import pretrained_folder as folders
from mlm.training.run import trained_run
from mlm.training.step import program

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # of a model on huggingface.co


def load_model(folder: str, step: int | None = None) -> LanguageModel:
    """Loads a checkpoint or milestone of a run, a Hugging Face folder, or hf:ORG/NAME, which is downloaded.

    step: of the run; None: its newest checkpoint. Raises ConfigError where there is none.
    """
    is_folder = folders.is_pretrained_folder(folder)
    errors.require(step is None or not is_folder, "step", step, f"none, since {folder} is no run")
    if not is_folder:
        try:
            return load_run(folder, step)
        except errors.ConfigError as error:
            if Path(folder).exists() or not HUB_NAME.fullmatch(folder):
                raise
            other = f"{folders.HUB_PREFIX}{folder} for a model of huggingface.co"
            raise errors.ConfigError(f"{str(error).removesuffix('?')}, or {other}") from None
    loaded = folders.read_folder(folders.find_folder(folder, "model"))
    arguments = loaded.cfg, loaded.tokenizer, loaded.params["model"], loaded.params["objective"], loaded.dataset_info
    return build_language_model(*arguments, has_lm_head=loaded.has_lm_head, source=loaded.source)


def build_language_model(
    cfg: config.Config,
    tokenizer: Tokenizer,
    params: types.Params,
    head: types.Params | None = None,
    dataset_info: types.DatasetInfo | None = None,
    **kwargs,
) -> LanguageModel:
    """A LanguageModel of a resolved config, a tokenizer and the model's parameters; head: those of its objective."""
    dataset_info = folders.make_dataset_info(cfg, tokenizer) if dataset_info is None else dataset_info
    key = program.clear_paths(program.make_static_config(cfg))
    # Rolled layers compile in half the time and run as fast.
    model, objective = _build_cached(fields.override(key, {"model.scan_unroll": 1}), dataset_info)
    params = jax.tree.map(jnp.asarray, {"model": params, "objective": head or {}})
    length = cfg.pack.seq_len
    batch_size = batching.choose_batch_size(length)
    return LanguageModel(cfg, tokenizer, model, objective, params, dataset_info, length, batch_size, **kwargs)


# The same objects for each load of a model, so that its programs stay compiled.
_build_cached = functools.lru_cache(maxsize=8)(program.build_model_and_objective)


def load_run(folder: str, step: int | None = None) -> LanguageModel:
    """The model of a run's directory, also while it trains: of the newest checkpoint, or of a step that was kept.

    Raises ConfigError if there is no run, or no such checkpoint.
    """
    run = trained_run.load_run(folder, {}, exclusive=False, step=step)
    params = run.program.partitioner.get_state(run.state).params
    tokenizer = (
        words.recognize_mask_token(run.tokenizer) if run.cfg.data.task in tasks.LANGUAGE_TASKS else run.tokenizer
    )
    cfg, objective_params = phases.select_model(run.cfg, run.step), params["objective"]
    return build_language_model(
        cfg, tokenizer, params["model"], objective_params, run.dataset_info, milestone=run.milestone
    )
