"""Static against contextual: what a model's states tell of sentences, and how much of them is the word alone.

Letters in array names: K layers, S different sentences, P pairs of them, R rows, W words as they stand in rows, X the
places of one word.
"""
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from mlm import models
from mlm.base import config, errors, fields, types
from mlm.base.estimates import measure
from mlm.base.special import CLS, NUM_SPECIAL, PAD, SEP
from mlm.data.rows import loader
from mlm.data.tasks import splits, tasks
from mlm.evaluation.evaluations import EvaluationCase
from mlm.inference import batching, masked_queries
from mlm.objectives import scores
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel

TASK = "stsb"                 # the row of TASKS that has two texts and how alike they are
SPLITS = {"dev": "validation", "test": "test"}
TOKENS = 2 ** 14              # of held-out text, whose states are compared: as many rows as hold so many
CONTEXTS = 5                  # rows that a word must stand in to be compared with itself (Ethayarajh 2019, section 3.3)
SEED = 0                      # of the random states
FORMAT = 1                    # of the answers: a change of what they mean must change this number


def can(cfg: config.Config) -> str:
    return f"config.model.family is {cfg.model.family}, which reads no text alone" if models.source(cfg) else ""


def layers(model: types.Model, params, text: types.Tokens) -> jnp.ndarray:
    """h_KxBxLxD, float32: the states that are asked about, of the embeddings first, of the last layer at the end."""
    return model.encode_layers(params["model"], text).astype(jnp.float32)


def similarities(field: str, folder: str) -> list[EvaluationCase]:
    """What TASK in a folder asks: the similarity of two texts, a part a split.

    field: what named the folder. Raises ConfigError for a folder that is none, and as splits.source does.
    """
    errors.require(Path(folder).expanduser().is_dir(), field, folder, f"the folder of {TASK}'s files")
    cfg = tasks.resolve(fields.override(config.Config(), {
        "data.corpus": "task", "data.task": TASK, "data.task_path": folder}))
    cfg = fields.override(cfg, {"data.labelled.train": ""})
    try:
        source = splits.source(cfg)
        return [EvaluationCase("sts", f"{TASK}/{name}", {"pairs": [[*one.texts,
                                                                    one.label] for one in source.splits[split]()],
                                                         "format": FORMAT}) for name, split in SPLITS.items()]
    except errors.ConfigError as error:
        raise errors.ConfigError(f"{field} = {folder!r}: {error}") from None


class Sentences(NamedTuple):
    """Embeddings of sentences, one by the first token, one by all of them, one without any context."""

    cls_SxKxD: np.ndarray      # the state of [CLS]
    mean_SxKxD: np.ndarray     # the mean of the states of all tokens but [CLS] and [SEP]
    static_SxD: np.ndarray     # the mean of their rows of the embedding table
    cut: int                   # sentences longer than a row


def ask_similarities(run: Trained, part: EvaluationCase, told: Callable) -> dict:
    """How the cosine of two sentences' embeddings goes with the similarity that people see (Cer et al. 2017).

    "spearman" and "pearson", each with its standard error over pairs ("_se"): of the "static" embedding, and for each
    of "layers" of the "mean" and, where states see both sides, of "cls" (`Sentences`). Beside them "pairs", and how
    many sentences were "cut".
    """
    pairs = part.asked["pairs"]
    texts = list(dict.fromkeys(text for *two, _ in pairs for text in two))
    number = {text: place for place, text in enumerate(texts)}
    one_P, other_P = (np.array([number[pair[side]] for pair in pairs]) for side in (0, 1))
    value_P = np.array([value for *_, value in pairs])
    found = sentences(run, texts, told)

    def said(h_SxD):
        return correlated(cosines(h_SxD[one_P], h_SxD[other_P]), value_P)

    reads = {"cls": found.cls_SxKxD, "mean": found.mean_SxKxD}
    if run.cfg.model.context in ("left", "apart"):
        del reads["cls"]  # from the left, where it stands first, it has seen nothing
    return {"pairs": len(pairs), "sentences": len(texts), "cut": found.cut, "static": said(found.static_SxD),
            "layers": [{name: said(h_SxKxD[:, layer]) for name, h_SxKxD in reads.items()}
                       for layer in range(found.mean_SxKxD.shape[1])]}


def work(run: Trained, part: EvaluationCase) -> int:
    """Batches that a part's sentences take."""
    texts = {text for *two, _ in part.asked["pairs"] for text in two}
    return sum(1 for _ in _batches(run, batching.whole(run.tokenizer, sorted(texts))))


def cosines(h_PxD, g_PxD) -> np.ndarray:
    """cosine_P, float64; 0 where one is all zeros. Rounded, so that those of equal texts are equal and share a rank."""
    return (unit(h_PxD) * unit(g_PxD)).sum(-1).round(9)


def unit(h_PxD) -> np.ndarray:
    h_PxD = np.asarray(h_PxD, np.float64)
    return h_PxD / np.maximum(np.linalg.norm(h_PxD, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def correlated(x_P, y_P) -> dict:
    columns = scores.correlations(x_P, y_P) | {"weight": np.ones(len(x_P))}
    result = {}
    for score in (scores.spearman("weight"), scores.pearson("weight")):
        result[score.name], result[f"{score.name}_se"] = measure(score, columns)
    return result


def sentences(run: Trained, texts: Sequence[str], told: Callable = lambda: None) -> Sentences:
    """The embeddings of some texts, each [CLS] text [SEP] in a row of its own; a longer one is cut."""
    rows = batching.whole(run.tokenizer, texts)
    answer = run.program.run.per_row(embedded, run.program.model)
    found: list = [None] * len(texts)
    for numbers, ids_BxL in _batches(run, rows):
        of_B = answer(run.state, run.program.run.put_batch(ids_BxL[parallel.is_local(len(ids_BxL))]), None)
        for place, number in enumerate(numbers):
            found[number] = [of[place] for of in of_B]
        told()
    return Sentences(*map(np.stack, zip(*found, strict=True)), sum(len(row) > run.cfg.pack.seq_len for row in rows))


def embedded(model: types.Model, params, ids_BxL, knobs=None) -> tuple:
    """The arrays of `Sentences`, by row. params: "model", as a run keeps them. knobs: unused."""
    h_KxBxLxD = layers(model, params, masked_queries.text(ids_BxL))
    own_BxL = ((ids_BxL != PAD) & (ids_BxL != CLS) & (ids_BxL != SEP)).astype(jnp.float32)
    share_BxL = own_BxL / jnp.maximum(own_BxL.sum(-1, keepdims=True), 1)
    table_VxD = params["model"]["token"]["embedding"].astype(jnp.float32)
    return (h_KxBxLxD[:, :, 0].swapaxes(0, 1), jnp.einsum("kbld,bl->bkd", h_KxBxLxD, share_BxL),
            jnp.einsum("bld,bl->bd", table_VxD[ids_BxL], share_BxL))


def _batches(run, rows):
    """Rows, cut where they are too long, in full batches alone, which divide among the devices."""
    length = run.cfg.pack.seq_len
    return batching.batched([batching.fitted(row, length) for row in rows], length, run.cfg.eval.batch_size, whole=True)


def held_out(cfg: config.Config) -> EvaluationCase:
    """What is asked of the states of held-out text."""
    return EvaluationCase("embeddings", "held-out", {"tokens": TOKENS, "contexts": CONTEXTS, "seed": SEED,
                                                     "format": FORMAT})


def ask_held_out(run: Trained, part: EvaluationCase, told: Callable) -> dict:
    """How far the states of held-out text are their words' own, after Ethayarajh 2019 (EMNLP, arXiv:1909.00512).

    Its contexts are the first rows of the validation split, nothing masked; a word is the pieces that make it, its
    state their mean. For each of "layers": "anisotropy" (`anisotropy`); over words that stand in CONTEXTS rows or more,
    once a row, "self_similarity" (his definition 1) and "explained" (his definition 3), and as many random states'
    "explained_random". "_adjusted" is less the anisotropy, and less the random states'; "_se" the standard error, of
    anisotropy over rows, of the others over words. Raises ConfigError where no word stands in so many rows.
    """
    held, length = run.packed().validation, run.cfg.pack.seq_len
    rows = min(len(held["ids"]), max(1, TOKENS // length))
    answer = run.program.run.per_row(states, run.program.model)
    keys, row_W, h_WxKxD = [], [], []
    parts = loader.eval_batches(held, batch_size=run.cfg.eval.batch_size, max_rows=rows, **parallel.process_slice())
    first = 0
    for batch in parts:
        h_BxKxLxD = answer(run.state, run.program.run.put_batch(batch), None)
        ids_BxL = np.asarray(held["ids"][first:min(first + len(h_BxKxLxD), rows)], np.int32)
        of_keys, of_row, of_h = words(run.tokenizer.starts_word_V, ids_BxL, h_BxKxLxD[:len(ids_BxL)])
        keys += of_keys
        row_W.append(of_row + first)
        h_WxKxD.append(of_h)
        first += len(ids_BxL)
    told()
    row_W, h_WxKxD = np.concatenate(row_W), np.concatenate(h_WxKxD)
    groups = contexts(keys, row_W)
    errors.require(bool(groups), f"words of {rows} held-out rows that stand in {CONTEXTS} of them or more", 0, "some")
    beside = drawn(row_W, [len(place_X) for place_X in groups])
    return {"rows": rows, "tokens": int((held["ids"][:rows] >= NUM_SPECIAL).sum()), "words": len(groups),
            "places": sum(map(len, groups)),
            "layers": [geometry(h_WxKxD[:, layer], row_W, groups, beside) for layer in range(h_WxKxD.shape[1])]}


def states(model: types.Model, params, batch: types.Batch, knobs=None) -> jnp.ndarray:
    """h_BxKxLxD of a batch's text as it is. knobs: unused."""
    return layers(model, params, batch.text).swapaxes(0, 1)


def words(starts_word_V, ids_BxL, h_BxKxLxD) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """The words of rows: the pieces of each, as bytes; row_W; and h_WxKxD, the mean of their states.

    A word that a row's first token continues, and one with an unknown piece at its beginning, is none.
    """
    ids_T = ids_BxL.reshape(-1)
    whole_T = ids_T >= NUM_SPECIAL
    starts_BxL = starts_word_V[ids_BxL] | (ids_BxL < NUM_SPECIAL)
    starts_BxL[:, 0] = True
    (first_W,) = np.nonzero(starts_BxL.reshape(-1))
    end_W = np.append(first_W[1:], len(ids_T))
    h_TxKxD = h_BxKxLxD.swapaxes(1, 2).reshape(len(ids_T), h_BxKxLxD.shape[1], -1)
    h_WxKxD = np.add.reduceat(h_TxKxD, first_W) / (end_W - first_W)[:, None, None]
    kept_W = whole_T[first_W] & starts_word_V[ids_T[first_W]]
    first_W, end_W = first_W[kept_W], end_W[kept_W]
    keys = [ids_T[first:end].tobytes() for first, end in zip(first_W, end_W, strict=True)]
    return keys, first_W // ids_BxL.shape[1], h_WxKxD[kept_W]


def contexts(keys: Sequence[bytes], row_W) -> list[np.ndarray]:
    """Of each word that stands in CONTEXTS rows or more, its first place in each of them."""
    places: dict[bytes, dict[int, int]] = {}
    for place, (key, row) in enumerate(zip(keys, row_W.tolist(), strict=True)):
        places.setdefault(key, {}).setdefault(row, place)
    return [np.array(list(of_row.values())) for of_row in places.values() if len(of_row) >= CONTEXTS]


def geometry(h_WxD, row_W, groups: Sequence[np.ndarray], beside: Sequence[np.ndarray]) -> dict:
    """The numbers of `ask_held_out` of one layer.

    groups: the places of each word that is compared with itself; beside: as many random places for each of them.
    """
    mean, error = anisotropy(h_WxD, row_W)
    own = np.array([self_similarity(h_WxD[place_X]) for place_X in groups])
    explained, chance = (np.array([explained_variance(h_WxD[place_X]) for place_X in of]) for of in (groups, beside))
    result = {"anisotropy": mean, "anisotropy_se": error}
    for name, values in (("self_similarity", own), ("self_similarity_adjusted", own - mean), ("explained", explained),
                         ("explained_random", chance), ("explained_adjusted", explained - chance)):
        result[name] = float(values.mean())
        result[f"{name}_se"] = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return result


def anisotropy(h_WxD, row_W) -> tuple[float, float]:
    """The mean cosine of two words' states, over all pairs that stand in different rows, and its standard error.

    It is what the mean over random pairs estimates (Ethayarajh 2019, section 3.4), without their chance: a sum of
    cosines is the product of sums of unit vectors. The error is that of the pairs' projection on single rows (Hoeffding
    1948). Raises ConfigError where all words stand in one row.
    """
    u_WxD = unit(h_WxD)
    _, row_W = np.unique(row_W, return_inverse=True)
    count_R = np.bincount(row_W)
    errors.require(len(count_R) > 1, "held-out rows", len(count_R), "two or more with a word in them")
    sum_RxD = np.zeros((len(count_R), u_WxD.shape[1]))
    np.add.at(sum_RxD, row_W, u_WxD)
    others_RxD, others_R = sum_RxD.sum(0) - sum_RxD, count_R.sum() - count_R
    cosine_R, pairs_R = (sum_RxD * others_RxD).sum(-1), (count_R * others_R).astype(np.float64)
    mean = cosine_R.sum() / pairs_R.sum()
    spread = ((cosine_R - mean * pairs_R) ** 2).sum() * len(count_R) / (len(count_R) - 1)
    return float(mean), float(2 * np.sqrt(spread) / pairs_R.sum())


def self_similarity(h_XxD) -> float:
    """The mean cosine of all pairs of one word's states."""
    count = len(h_XxD)
    return float(((unit(h_XxD).sum(0) ** 2).sum() - count) / (count * (count - 1)))


def explained_variance(h_XxD) -> float:
    """The largest share of the sum of squares of some states that multiples of one static vector make up.

    That is the first singular value's square over the sum of all (Ethayarajh 2019, definition 3). States are taken as
    they are, as defined there; the code beside the paper takes their mean off first.
    """
    square_N = np.linalg.svd(np.asarray(h_XxD, np.float64), compute_uv=False) ** 2
    return float(square_N[0] / square_N.sum()) if square_N[0] > 0 else 1.0


def drawn(row_W, counts: Sequence[int]) -> list[np.ndarray]:
    """For each of some counts the places of so many random words, each of another row. row_W: in order."""
    draws = np.random.default_rng(SEED)
    _, first_R, words_R = np.unique(row_W, return_index=True, return_counts=True)
    rows = (draws.permutation(len(first_R))[:count] for count in counts)
    return [first_R[row_X] + draws.integers(words_R[row_X]) for row_X in rows]
