"""A folder opened as a model, a run's or Hugging Face's, and a model written as one of theirs."""
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, fields, files, types
from mlm.data.tokenizers import exported
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.judge import card, opened
from mlm.judge.opened import Opened
from mlm.models.hub import hub
from mlm.train.step import program

KEPT = ("objective", "pack.length")


def load(folder: str) -> Opened:
    """The model of a run's newest checkpoint, or of a Hugging Face folder. Raises ConfigError where there is neither.
    """
    if not hub.is_one(folder):
        return opened.load(folder)
    tokenizer = vocabulary.read(folder)
    order_V = vocabulary.order(tokenizer)
    if (kept := hub.own(folder)) is not None:
        return _own(folder, kept, tokenizer)
    read = hub.read(folder, order_V)
    cfg = config.Config(workdir=str(folder), model=read.model)
    cfg = objectives.resolve(fields.override(cfg, {"pack.length": read.model.max_positions}))
    return joined(cfg, tokenizer, read.params, output=read.output, source=read._replace(params=None))


def _own(folder, kept, tokenizer) -> Opened:
    """A folder that `write` wrote for what no class of theirs can be."""
    cfg = fields.override(config.Config(), kept | {"workdir": str(folder)})
    fields.check_values(cfg)
    cfg = objectives.resolve(models.resolve(cfg))
    models.check(cfg)
    made, _ = program.parts(cfg, _about(cfg, tokenizer))
    return joined(cfg, tokenizer, hub.read_own(folder, jax.eval_shape(made.init, jax.random.key(0))))


def joined(cfg: config.Config, tokenizer: Tokenizer, params: types.Params, **more) -> Opened:
    """A model of a resolved config, a vocabulary and the model's parameters as something to use."""
    about = _about(cfg, tokenizer)
    model, objective = program.parts(cfg, about)
    return Opened(cfg, tokenizer, model, objective, {"model": jax.tree.map(jnp.asarray, params), "objective": {}},
                  about, cfg.pack.length, **more)


def _about(cfg, tokenizer) -> types.About:
    return types.About(tokenizer.vocab_size, cfg.pack.length, (), np.ones(tokenizer.vocab_size, np.int64).tobytes())


def write(model: Opened, folder: str) -> dict:
    """Writes a model as a Hugging Face folder, and returns what it is there: {"written", "model_type", "note"}.

    One that none of their classes can be is written with its own config, which `load` reads; the note says why.
    Raises ConfigError for a folder that holds something, and for a model that was fine-tuned to tell labels.
    """
    cfg, place = model.cfg, Path(folder)
    seen = objectives.seen(cfg)
    errors.expect(seen != "row", "export", cfg.objective, "a run that was trained on text, not fine-tuned on labels")
    files.check_folder("export", folder)
    errors.expect(not place.exists() or not any(place.iterdir()), "export", folder, "an empty folder, or none yet")
    params, note = jax.device_get(model.params["model"]), ""
    if model.source is not None:
        order_V = vocabulary.order(model.tokenizer)
        said = {key: value for key, value in model.source.settings.items() if key != "torch_dtype"}  # older for dtype
        said["dtype"] = "float32"
        found = hub.tensors_of(params, said, order_V, model.source.rest, output=model.output)
    else:
        try:
            said = hub.settings.of(cfg.model, model.tokenizer.vocab_size)
            found = hub.tensors_of(params, said, np.arange(model.tokenizer.vocab_size))
        except errors.ConfigError as error:
            note = str(error)
            flat = fields.flatten(cfg)
            kept = {name: flat[name] for name in flat if name.startswith("model.") or name in KEPT}
            said = hub.settings.own(kept | ({"objective": "mlm"} if seen == "rest" else {}), model.tokenizer.vocab_size)
            found = hub.own_tensors(params)
    place.mkdir(parents=True, exist_ok=True)
    for name, text in exported.files(model.tokenizer, model.length, cfg.model.segment_types).items():
        files.write_text(place / name, text)
    files.write_text(place / "README.md", card.text(model, said))
    hub.write(place, said, found)
    return {"written": str(folder), "model_type": said["model_type"], "note": note}
