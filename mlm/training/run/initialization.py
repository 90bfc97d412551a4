"""What a run reads of trained models: its initial parameters, of a run or a Hugging Face folder, and its teacher."""

import functools
from typing import Any

import jax
import numpy as np
from absl import logging

from mlm import models, objectives
from mlm.base import config, errors, fields, phases, types
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models import layers
from mlm.objectives import distillation
from mlm.training.run import pretrained_folder, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.step import trainable
from mlm.training.step.sharding import is_stacked

TEACHER = "distillation.teacher"
NEW_ENTRY_VARIANCE = 1e-5  # of the covariance of all entries
PART_OF_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # as which a piece is decoded that holds a part of a character


def init_from_source(
    cfg: config.Config, state: types.TrainState, tokenizer: Tokenizer
) -> tuple[types.TrainState, dict[str, Any]]:
    """A state at step 0 (numpy) with the model of config.init.run or config.init.hub, and what provenance says of it.

    Without one, the state itself, and nothing. tokenizer: of the training data. Raises ConfigError if the source is not
    as config.init.run_sha256 or config.init.hub_sha256 says, or has another model or vocabulary.
    """
    field, path = ("hub", cfg.init.hub) if cfg.init.hub else ("run", cfg.init.run)
    if not path:
        return state, {}
    source = read_source(path, f"config.init.{field}")
    is_same = getattr(cfg.init, f"{field}_sha256") in ("", source.digest)
    place = "what is in" if cfg.init.hub else "the state of the newest checkpoint of"
    errors.require_field(cfg, f"init.{field}_sha256", is_same, f"{place} {path}, {source.digest}")
    model, changes = adapt_params(cfg, source.params["model"], source.tokenizer, tokenizer)
    if not source.has_lm_head:
        own = state.params["model"]
        model = model | {name: own[name] for name in trainable.LM_HEAD_PARAMS if name in own}
    changes += filter(None, [_check_model(cfg, source, model, state.params["model"], tokenizer)])
    if changes:
        logging.info("config.init.%s = %r: %s", field, path, "; ".join(changes))
    state = state._replace(params=state.params | {"model": model})
    if cfg.init.hub:
        state = _take_heads(cfg, state, source)
    return state, {"source": {"path": path, "sha256": source.digest, "changes": changes}}


def read_source(path: str, field: str) -> pretrained_folder.PretrainedModel:
    """The model of a run's newest checkpoint, or of a Hugging Face folder; field: that of the path."""
    if field == "config.init.hub" or pretrained_folder.is_pretrained_folder(path):
        return pretrained_folder.open_folder(path, field)
    run = trained_run.load_run(path, {}, exclusive=not RunDirectory(path).result.exists())
    params = run.program.partitioner.get_state(run.state).params
    return pretrained_folder.PretrainedModel(run.cfg, run.tokenizer, run.dataset_info, params, digest=run.digest)


def _take_heads(cfg, state, source):
    """The state with what else a Hugging Face folder has of the objective's head."""
    parts, head = ["its encoder"], state.params["objective"]
    if objectives.get_visibility(cfg) != types.Visibility.FULL:
        parts.append("its output layer" if source.has_lm_head else "a new output layer")
    if cfg.finetune.pooling == "first" and cfg.finetune.pooler == "bert" and "pool" in head:
        pooler = source.read_pooler()
        has_pooler = pooler is not None and pooler["kernel"].shape == head["pool"]["kernel"].shape
        head = head | ({"pool": pooler} if has_pooler else {})
        parts.append("its pooler" if has_pooler else "a new pooler")
    if cfg.finetune.pooler == "modernbert" and "pool_norm" in head and source.has_lm_head:
        model = state.params["model"]
        pool = {"pool": model["transform"], "pool_norm": model["transform_norm"]}
        if jax.tree.map(np.shape, pool) == jax.tree.map(np.shape, {name: head[name] for name in pool}):
            head = head | pool
            parts.append("its output layer's first part as pooler")
    if objectives.get_visibility(cfg) is types.Visibility.CORRUPTED and (
        discriminator_head := source.read_discriminator_head()
    ):
        head = head | discriminator_head
        parts.append("its discriminator's head")
    logging.info("initial parameters: %s: %s", cfg.init.hub, ", ".join(parts))
    return state._replace(params=state.params | {"objective": head})


def adapt_params(
    cfg: config.Config, params: types.Params, source_tokenizer: Tokenizer, tokenizer: Tokenizer
) -> tuple[types.Params, list[str]]:
    """A model's parameters (numpy) with the positions, vocabulary and layers of config.init; what changed, in words."""
    changes = []
    table_PxD = params.get("position", {}).get("embedding", ())
    if cfg.init.positions and len(table_PxD) not in (0, cfg.model.max_positions):
        resized = resize_positions(table_PxD, cfg.model.max_positions, interpolates=cfg.init.positions == "interpolate")
        changes.append(f"{len(table_PxD)} positions became {len(resized)} ({cfg.init.positions})")
        params = params | {"position": {"embedding": resized}}
    if cfg.init.new_vocabulary and source_tokenizer.model != tokenizer.model:
        pieces = find_pieces(source_tokenizer, tokenizer)
        rng = np.random.default_rng(cfg.seed) if cfg.init.new_entries == "normal" else None
        names = [name for name in trainable.VOCABULARY_PARAMS if name in params]
        num_single, others = sum(len(ids) == 1 for ids in pieces), "drawn" if rng else "means of some"
        changes.append(
            f"of {len(pieces)} entries of the vocabulary {num_single} are one of the source's, the others {others}"
        )
        params = params | {name: make_entries(params[name], pieces, rng) for name in names}
    if cfg.init.layers:
        params = select_layers(params, layers.count_unique_layers(cfg.model), spreads=cfg.init.layers == "spread")
    return params, changes


def select_layers(params: types.Params, num_layers: int, *, spreads: bool) -> types.Params:
    """The parameters of a model with fewer layers: the first so many, or evenly spaced ones from the first on.

    The latter takes one layer out of two for half as many (Sanh et al. 2019, arXiv 1910.01108, section 3).
    """

    def select(path, leaf):
        step = len(leaf) if spreads else num_layers  # in layers / num_layers
        return leaf[np.arange(num_layers) * step // num_layers] if is_stacked(path) else leaf

    return jax.tree_util.tree_map_with_path(select, params)


def resize_positions(table_PxD: np.ndarray, num_positions: int, *, interpolates: bool) -> np.ndarray:
    """A table of positions of another length: read in between, or from its start again where it ends.

    The first is what Chen et al. 2023 (arXiv 2306.15595) do to rotary positions, the second what Longformer does to
    RoBERTa's table (Beltagy et al. 2020, section 5).
    """
    if not interpolates:
        return table_PxD[np.arange(num_positions) % len(table_PxD)]
    place_P = np.linspace(0, len(table_PxD) - 1, num_positions)
    below_P = np.minimum(place_P.astype(int), max(len(table_PxD) - 2, 0))
    share_Px1 = (place_P - below_P)[:, None].astype(table_PxD.dtype)
    return (1 - share_Px1) * table_PxD[below_P] + share_Px1 * table_PxD[np.minimum(below_P + 1, len(table_PxD) - 1)]


def find_pieces(source: Tokenizer, tokenizer: Tokenizer) -> list[list[int]]:
    """The source's entries that each entry is made of: the same one, its text's tokens, or all where it knows none."""
    source_texts, texts = list_texts(source), list_texts(tokenizer)
    number = {text: [i] for i, text in reversed([*enumerate(source_texts)])}
    is_same = [i < NUM_SPECIAL or [text] == source_texts[i : i + 1] for i, text in enumerate(texts)]
    known = [[i] if is_same[i] else number.get(text, []) for i, text in enumerate(texts)]
    unknown = [text.strip() for text, ids in zip(texts, known, strict=True) if not ids]
    encoded = iter(source.encode_batch(["" if text.startswith(PART_OF_CHARACTER) else text for text in unknown]))
    everything = [*range(source.vocab_size)]
    return [ids or [i for i in next(encoded) if i != UNK] or everything for ids in known]


def list_texts(tokenizer: Tokenizer) -> list[str]:
    """What each entry adds to the text of the entry before it; where it begins a word, a space first.

    Bytes that are no character alone are told by the entry, after PART_OF_CHARACTER.
    """
    candidates = np.flatnonzero(tokenizer.starts_word_V[NUM_SPECIAL:]) + NUM_SPECIAL
    before = next(int(i) for i in candidates if tokenizer.decode([int(i)]).strip().isalnum())
    start = len(tokenizer.decode([before]))
    texts = [tokenizer.decode([before, i])[start:] for i in range(tokenizer.vocab_size)]
    return [
        PART_OF_CHARACTER + piece if PART_OF_CHARACTER in text else text
        for text, piece in zip(texts, tokenizer.pieces, strict=True)
    ]


def make_entries(param: types.Params, pieces: list[list[int]], rng: np.random.Generator | None = None) -> types.Params:
    """A table or a bias with the mean over each entry's pieces.

    With an rng, entries of several pieces are drawn from a normal distribution with the mean of all entries of the
    source and NEW_ENTRY_VARIANCE of their covariance (Hewitt 2021, Initializing new word embeddings for pretrained
    language models).
    """
    if isinstance(param, dict):
        return {name: make_entries(leaf, pieces, rng) for name, leaf in param.items()}
    made = np.stack([param[ids].mean(0) for ids in pieces]).astype(param.dtype)
    if rng is not None:
        flat, is_new = param.reshape(len(param), -1), np.array([len(ids) > 1 for ids in pieces])
        covariance = NEW_ENTRY_VARIANCE * np.atleast_2d(np.cov(flat, rowvar=False))
        made[is_new] = rng.multivariate_normal(flat.mean(0), covariance, is_new.sum()).reshape(-1, *param.shape[1:])
    return made


def _check_model(cfg, source, model_params, own_params, tokenizer) -> str:
    """What differs in a source's model, in words. Raises ConfigError unless its parameters and its vocabulary fit."""
    field = f"config.init.{'run' if cfg.init.run else 'hub'} = {cfg.init.run or cfg.init.hub!r}"
    source_shapes, shapes = (
        jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (model_params, own_params)
    )
    flat, there = fields.flatten(cfg), fields.flatten(source.cfg)
    differences = ", ".join(
        f"config.{name} is {there[name]!r} there and {value!r} here"
        for name, value in flat.items()
        if name.startswith("model.") and not name.endswith((".size", "kernels", "dropout")) and there[name] != value
    )
    if source_shapes != shapes:
        reason = differences or "its vocabulary has another size, which needs init.new_vocabulary=true"
        raise errors.ConfigError(f"{field}: expected a run of the same model; {reason}")
    if not (cfg.init.new_vocabulary or source.tokenizer.model == tokenizer.model):
        raise errors.ConfigError(
            f"{field}: expected the vocabulary of the training data; leave config.tokenizer.path out to use its own, "
            "or set init.new_vocabulary=true"
        )
    directionality, default = cfg.model.directionality, objectives.list_directionalities(cfg)[0]
    if objectives.is_one_sided(directionality) and not objectives.is_one_sided(default):
        logging.warning(
            "config.model.directionality = %r, as %s has it, though config.objective = %r is %s by itself: a state "
            "sees one side of its token alone; a Transformer takes another if it is set",
            *(directionality, source.cfg.workdir, cfg.objective, default),
        )
    return differences


def load_teacher(cfg: config.Config, tokenizer: Tokenizer) -> pretrained_folder.PretrainedModel | None:
    """The teacher of a run whose data have this tokenizer; None: the run has none, or one that is no model.

    Raises ConfigError if it is gone or another one, predicts no masked tokens, reads another vocabulary or shorter
    examples, has states of another width than config.distillation.hidden_weight needs, or lacks the relations.
    """
    if not distillation.has_model(cfg.distillation):
        return None
    path = cfg.distillation.teacher
    require = functools.partial(errors.require_field, cfg)
    is_there = pretrained_folder.is_pretrained_folder(path) or RunDirectory(path).read_identity() is not None
    require(TEACHER, is_there, "this run's teacher, which is there no more; set distillation.teacher=PATH")
    source = read_source(path, f"config.{TEACHER}")
    is_same = cfg.distillation.teacher_sha256 in ("", source.digest)
    require("distillation.teacher_sha256", is_same, f"what is in {path}, {source.digest}")
    is_masked = objectives.get_visibility(source.cfg) is types.Visibility.UNMASKED and source.has_lm_head
    require(TEACHER, is_masked, f"a model of masked tokens with its output layer, not {source.cfg.objective}")
    expected = f"a model with the run's vocabulary; leave tokenizer.path out, or set it to {path}"
    require(TEACHER, source.tokenizer.model == tokenizer.model, expected)
    model = source.cfg.model
    seq_len = max(phase.cfg.pack.seq_len for phase in phases.list_phases(cfg))
    is_long = not models.reads_field(source.cfg, "max_positions") or seq_len <= model.max_positions
    require("pack.seq_len", is_long, f"at most {model.max_positions}, as {path} reads")
    has_states = not cfg.distillation.hidden_weight or model.width == cfg.model.width
    expected = f"0, since states of {path} have {model.width} entries, not config.model.width = {cfg.model.width}"
    require("distillation.hidden_weight", has_states, expected)
    if num_heads := cfg.distillation.relation_heads:
        has_attention = models.reads_field(source.cfg, "num_heads")
        require("distillation.relation_heads", has_attention, f"0, since {path} is a model without attention")
        divides, expected = model.width % num_heads == 0, f"a divisor of {model.width}, the width of {path}"
        require("distillation.relation_heads", divides, expected)
        expected = f"at most {model.num_layers}, the layers of {path}"
        require("distillation.relation_layer", cfg.distillation.relation_layer <= model.num_layers, expected)
    return source._replace(cfg=fields.override(source.cfg, {"model.kernels": cfg.model.kernels}))
