"""What a source's parameters become where a run continues with more positions or with another vocabulary."""

import jax
import numpy as np

from mlm.base import config, types
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models import layers
from mlm.training.step import trainable
from mlm.training.step.sharding import is_stacked

NEW_ENTRY_VARIANCE = 1e-5  # of the covariance of all entries
PART_OF_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # as which a piece is decoded that holds a part of a character


def adapt_params(
    cfg: config.Config, params: types.Params, source_tokenizer: Tokenizer, tokenizer: Tokenizer
) -> tuple[types.Params, list[str]]:
    """A model's parameters (numpy) as config.init asks for them, and what changed, in words."""
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
        step = len(leaf) / num_layers if spreads else 1
        return leaf[(np.arange(num_layers) * step).astype(int)] if is_stacked(path) else leaf

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
    """For each entry of a vocabulary the source's entries that it is made of: the same one, the tokens of its text, or
    all of them where the source knows none.
    """
    number = {text: i for i, text in reversed([*enumerate(list_texts(source))])}
    texts = list_texts(tokenizer)
    known = [[i] if i < NUM_SPECIAL else [number[text]] if text in number else [] for i, text in enumerate(texts)]
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
