"""A trained run as a model to use: its newest checkpoint, its tokenizer and its config."""
import difflib
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from mlm.base import config, errors, fields, types
from mlm.data.rows import pack
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, masking
from mlm.train.run import checkpoint, directory
from mlm.train.step import parallel, program, update


class Trained(NamedTuple):
    cfg: config.Config
    step: int
    words: Tokenizer
    model: types.Model
    run: parallel.Parallel
    state: types.TrainState     # on the devices, without the optimizer's


def load(workdir: str, settings: Mapping[str, Any]) -> Trained:
    """The run in a directory. settings: fields, by dotted name, that cannot change a result, to take instead of its.

    Raises ConfigError where there is no run or no checkpoint, where a process is training there, and where the
    tokenizer is not the one that the run was trained with.
    """
    path = Path(workdir, "config.json")
    if not path.exists():
        runs = [str(found.parent) for found in Path(workdir).parent.glob("*/config.json")]
        near = difflib.get_close_matches(str(Path(workdir)), runs, n=1)
        raise errors.ConfigError(f"run {workdir!r}: expected the directory of a run, with its config.json"
                                 + (f"; did you mean {near[0]!r}?" if near else ""))
    saved = json.loads(path.read_text())
    fixed = fields.flatten(config.Config(), results_only=True)
    for name, value in settings.items():
        errors.expect(name not in fixed, f"config.{name}", value, "what the run was trained with; leave it out")
    kept = {name: tuple(value) if isinstance(value, list) else value for name, value in saved["config"].items()}
    cfg = fields.override(config.Config(), kept | dict(settings) | {"workdir": workdir})
    parallel.check_evaluation(cfg)
    words = pack.vocabulary(cfg, saved["data"]["corpus"])
    errors.expect(hashlib.sha256(words.model).hexdigest() == saved["data"]["tokenizer"], "config.data.cache",
                  cfg.data.cache, f"the folder that holds the tokenizer that {workdir} was trained with")
    model = MODELS[cfg.model.family](cfg.model, words.vocab_size)
    counts_V = np.ones(words.vocab_size)  # of the baseline; no parameter depends on them
    objective = OBJECTIVES[cfg.objective](cfg.mask, masking.slots(cfg.mask.max_rate, cfg.pack.length), counts_V)
    like = jax.eval_shape(functools.partial(update.init_state, cfg, model, objective), program.frozen_knobs(cfg))
    with directory.claim(cfg):  # to open the checkpoints sweeps unfinished ones away, which a trainer may be writing
        checkpoints = checkpoint.manager(Path(workdir))
        try:
            state = checkpoint.restore(checkpoints, cfg, saved["data"], like)
        finally:
            checkpoints.close()
    if state is None:
        raise errors.ConfigError(f"run {workdir!r}: expected a run with a checkpoint; it has none yet")
    run = parallel.MODES[cfg.parallel.mode](functools.partial(update.train_step, cfg, model, objective))
    return Trained(cfg, int(state.step), words, model, run, run.put_state(state._replace(opt_state=())))
