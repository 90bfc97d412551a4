"""A trained run as a model to use: its newest checkpoint, its tokenizer and its config."""
import contextlib
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlm.base import config, errors, fields, files, types
from mlm.data.rows import pack
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.train import resolution
from mlm.train.run import checkpoint, directory
from mlm.train.step import parallel, program


class Trained(NamedTuple):
    """An opened run."""

    cfg: config.Config
    step: int
    tokenizer: Tokenizer
    program: program.Program
    state: types.TrainState     # on the devices, without the optimizer's
    digest: str                 # of the whole state, as its checkpoint carries it
    about: types.DatasetInfo          # what it was made for
    at_hand: pack.Packed | None = None

    def packed(self) -> pack.Packed:
        """What the run was trained on, made again where it is not at hand. Raises ConfigError where that changed."""
        if self.at_hand is not None:
            return self.at_hand
        packed = pack.load(self.cfg)
        fields.check_same(self.cfg, packed.manifest["inputs"], directory.read_identity(self.cfg.workdir),
                          self.cfg.workdir)
        return packed


def origin(workdir: str) -> dict:
    """The identity of the run in a directory. Raises ConfigError, with the nearest one's name, where there is none."""
    saved = directory.read_identity(workdir)
    if saved is None:
        near = difflib.get_close_matches(str(files.path(workdir)), directory.beside(workdir), n=1)
        raise errors.ConfigError(f"run {workdir!r}: expected the directory of a run"
                                 + (f"; did you mean {near[0]!r}?" if near else ""))
    return saved


def load(workdir: str, settings: Mapping[str, Any], packed: pack.Packed | None = None, *, alone: bool = True
         ) -> Trained:
    """The run in a directory. settings: fields, by dotted name, that cannot change a result, to take instead of its.

    packed: what it was trained on, where that is at hand; its program is then the trainer's own. alone: False where
    others may read it meanwhile, or train it. Raises ConfigError where there is no run or no checkpoint, where
    a process is training there, and Damaged where a file of the run is.
    """
    saved = origin(workdir)
    fixed = fields.flatten(config.Config(), results_only=True)
    for name, value in settings.items():
        errors.require(name not in fixed, f"config.{name}", value, "what the run was trained with; leave it out")
    unknown = saved["config"].keys() - fields.DEFAULT.keys()
    if unknown:
        raise errors.ConfigError(f"run {workdir!r}: made by another version, whose config has "
                                 f"{', '.join(sorted(unknown))}")
    kept = {name: tuple(value) if isinstance(value, list) else value for name, value in saved["config"].items()}
    if kept.get("tokenizer.path") and not files.path(kept["tokenizer.path"]).is_dir():
        kept["tokenizer.path"] = str(directory.tokenizer_folder(workdir))  # the same, wherever it was taken from
    cfg = fields.override(config.Config(), kept | dict(settings) | {"workdir": workdir})
    resolution.check(cfg)
    parallel.check_evaluation(cfg)
    tokenizer = directory.tokenizer(workdir, saved)
    about = packed.about if packed else pack.shape(cfg, tokenizer.vocab_size)
    made = program.build(cfg, about)
    with contextlib.ExitStack() as stack:
        if (
            alone and parallel.is_primary()
        ):  # to open checkpoints sweeps unfinished ones away, which a trainer may write
            stack.enter_context(directory.claim(cfg))
        checkpoints = stack.enter_context(contextlib.closing(checkpoint.manager(workdir, alone=alone)))
        found = checkpoint.newest(checkpoints, cfg, saved["data"], made, program.knobs(cfg))
        digest = checkpoint.newest_digest(workdir)
    if found is None:
        raise errors.ConfigError(f"run {workdir!r}: expected a run with a checkpoint; it has none yet")
    return Trained(cfg, int(found.state.step), tokenizer, made,
                   made.run.put_state(found.state._replace(opt_state=())), digest, about, packed)
