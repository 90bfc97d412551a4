"""A folder opened as a model, a run's or Hugging Face's, and a model written as one of theirs."""
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp

from mlm import objectives
from mlm.base import config, errors, fields, files, types
from mlm.data.tokenizers import exported
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.inference import batching, language_model, model_card
from mlm.inference.language_model import LanguageModel
from mlm.models.hub import heads, hub
from mlm.train.run import pretrained_folder as folders
from mlm.train.step import program

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # of a model on huggingface.co
KEPT = ("objective", "pack.seq_len")
TOLD = (
    "finetune.pooling",
    "finetune.layer_features",
    "finetune.head",
    "finetune.head_dim",
    "finetune.max_layer",
    "data.labelled.scores",
    "data.labelled.choice_columns",
)   # of a model that was fine-tuned, beside those


def load(folder: str) -> LanguageModel:
    """The model of a run's newest checkpoint, of a Hugging Face folder, or of hf:ORG/NAME, which is fetched.

    Raises ConfigError where there is none.
    """
    if not folders.is_one(folder):
        try:
            return language_model.load(folder)
        except errors.ConfigError as error:
            if Path(folder).exists() or not NAME.fullmatch(folder):
                raise
            raise errors.ConfigError(f"{error}, or {folders.NAMED}{folder} for a model of huggingface.co") from None
    found = folders.read(folders.local(folder))
    return joined(found.cfg, found.tokenizer, found.params["model"], found.params["objective"], found.about,
                  output=found.output, source=found.source)


def joined(cfg: config.Config, tokenizer: Tokenizer, params: types.Params, head: types.Params | None = None,
           about: types.DatasetInfo | None = None, **more) -> LanguageModel:
    """A model of a resolved config, a vocabulary and the model's parameters as something to use; head: those of its
    objective."""
    about = folders.about_of(cfg, tokenizer) if about is None else about
    model, objective = program.parts(cfg, about)
    params = {"model": jax.tree.map(jnp.asarray, params), "objective": jax.tree.map(jnp.asarray, head or {})}
    length = cfg.pack.seq_len
    return LanguageModel(cfg, tokenizer, model, objective, params, about, length, batching.fast(length), **more)


def write(model: LanguageModel, folder: str) -> dict:
    """Writes a model as a Hugging Face folder, and returns what it is there: {"written", "model_type", "note"}.

    One that none of their classes can be is written with its own config, which `load` reads; the note says why.
    Raises ConfigError for a folder that holds something.
    """
    cfg = model.cfg
    files.check_empty("export", folder)
    params, note = jax.device_get(model.params), ""
    if model.source is not None:
        said, found = _again(model, params)
    else:
        try:
            said, found = _theirs(model, params)
        except errors.ConfigError as error:
            said, found = _ours(model, params)
            note = str(error)
    words = exported.files(model.tokenizer, model.length, cfg.model.type_vocab_size)
    if cfg.objective == "tag" and model.source is None:
        words[vocabulary.FILE] = _spaced(words[vocabulary.FILE])
    with files.atomic_folder(folder) as place:
        for name, text in words.items():
            files.write_text(place / name, text)
        files.write_text(place / "README.md", model_card.text(model, said))
        hub.write(place, said, found)
    return {"written": str(folder), "model_type": said["model_type"], "note": note}


def _spaced(made: str) -> str:
    """A tokenizer.json that has each word, where words are given, as behind a space, which is how tags are learnt."""
    found = json.loads(made)
    step = found.get("pre_tokenizer") or {}
    for one in (step, *step.get("pretokenizers", ())):
        if one.get("type") == "ByteLevel":
            one["add_prefix_space"] = True
    return json.dumps(found, ensure_ascii=False)


def _again(model, params):
    """What was read from such a folder, and its tensors to the bit."""
    source = model.source
    said = {key: value for key, value in source.settings.items() if key != "torch_dtype"}  # older for dtype
    said["dtype"] = "float32"
    order_V = vocabulary.order(model.tokenizer)
    said |= hub.grown(said, order_V)
    return said, hub.tensors_of(params["model"], said, order_V, source.rest, output=model.output)


def _theirs(model, params):
    """config.json and tensors of one of their classes. Raises ConfigError, saying why, where none is this model."""
    cfg, order_V = model.cfg, vocabulary.order(model.tokenizer)
    labels = objectives.seen(cfg) == "row"
    said = hub.said_of(cfg.model, order_V, output=not labels)
    if labels:
        said |= heads.of(cfg, model.about.classes, said)
    found = hub.tensors_of(params["model"], said, order_V, output=not labels)
    return said, found | (heads.tensors_of(cfg.objective, params["objective"], said) if labels else {})


def _ours(model, params):
    """config.json with a config of our own, and the tensors by our names."""
    flat, labels = fields.flatten(model.cfg), objectives.seen(model.cfg) == "row"
    kept = {name: flat[name] for name in flat
            if name.startswith("model.") or name in KEPT or (labels and name in TOLD)}
    if objectives.seen(model.cfg) == "rest":
        kept["objective"] = "mlm"
    said = hub.settings.own(kept, model.tokenizer.vocab_size, model.about.classes if labels else ())
    return said, hub.own_tensors(params)
