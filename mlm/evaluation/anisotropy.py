"""Anisotropy: how much a model's states of words depend on their context (Ethayarajh 2019, arXiv:1909.00512).

Letters in array names: K layers, R examples, W words in those examples, X the occurrences of one word.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import EvaluationMetric, EvaluationScore, normal_interval
from mlm.base.special import NUM_SPECIAL
from mlm.evaluation import sentence_similarity
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.inference.forward_passes import l2_normalize
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

MAX_TOKENS = 2**14  # of held-out text: as many examples as hold so many tokens
MIN_CONTEXTS = 5  # examples that must hold a word for self-similarity (Ethayarajh 2019, section 3.3)
SEED = 0  # of the random words
FORMAT = 1  # of the results: raise it when their meaning changes
get_unsupported_reason = sentence_similarity.get_unsupported_reason
TITLES = {  # of the scores that tables of several runs show
    "anisotropy": "cosine of two words' states",
    "self_similarity_adjusted": "cosine of one word in two examples, minus that of two words",
    "explained_adjusted": "variance explained by a static vector, minus random",
}
COLUMNS = (
    Column("anisotropy", "cosine of two words' states", ".3f"),
    Column("self_similarity", "cosine of one word in two examples", ".3f"),
    Column("self_similarity_adjusted", "minus that of two words", ".3f"),
    Column("explained", "variance explained by a static vector", ".3f"),
    Column("explained_random", "of random states", ".3f"),
    Column("explained_adjusted", "minus that of random states", ".3f"),
)


def list_cases(run: TrainedRun | None = None) -> list[EvaluationCase]:
    """The case of held-out text, which is the same for every run."""
    inputs = {"tokens": MAX_TOKENS, "contexts": MIN_CONTEXTS, "seed": SEED, "format": FORMAT}
    return [EvaluationCase("anisotropy", "held-out", inputs)]


def read_flags(args: argparse.Namespace):
    """The function from a run to its case."""
    return list_cases


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The case, where config.eval.anisotropy is set."""
    return list_cases() if cfg.eval.anisotropy else []


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """How contextual a model's states of held-out text are, after Ethayarajh 2019 (EMNLP, arXiv:1909.00512).

    The contexts are the first examples of the validation split, nothing masked. A word's state is the mean of its
    pieces' states. Each of "layers" has "anisotropy" and, over the words that MIN_CONTEXTS examples or more hold, one
    occurrence each, "self_similarity" (the paper's definition 1), "explained" (definition 3) and the
    "explained_random" of as many random words. "self_similarity_adjusted" is less the anisotropy,
    "explained_adjusted" less "explained_random". "_se" is the standard error: of anisotropy over examples, of the
    others over words. Raises ConfigError where no word has enough contexts.
    """
    split = run.load_data().validation
    num_examples = min(len(split["ids"]), max(1, MAX_TOKENS // run.cfg.pack.seq_len))
    h_RxKxLxD = run.map_examples(compute_states, split=split, max_examples=num_examples)
    ids_RxL = np.asarray(split["ids"][:num_examples], np.int32)
    keys, example_W, h_WxKxD = pool_words(run.tokenizer.find_word_starts(ids_RxL), ids_RxL, h_RxKxLxD)
    groups = group_contexts(keys, example_W)
    field = f"words that {MIN_CONTEXTS} or more of {num_examples} held-out examples hold"
    errors.require(bool(groups), field, 0, "some")
    random_groups = sample_random_words(example_W, [len(word_X) for word_X in groups])
    return {
        "examples": num_examples,
        "tokens": int((split["ids"][:num_examples] >= NUM_SPECIAL).sum()),
        "words": len(groups),
        "occurrences": sum(map(len, groups)),
        "layers": [
            measure_geometry(h_WxKxD[:, layer], example_W, groups, random_groups) for layer in range(h_WxKxD.shape[1])
        ],
    }


def compute_states(model: types.Model, params, batch: types.Batch, hparams=None) -> jnp.ndarray:
    """h_BxKxLxD of a batch, unmasked. hparams: unused."""
    assert model.encode_layers is not None
    return model.encode_layers(params["model"], batch.text).astype(jnp.float32).swapaxes(0, 1)


def pool_words(starts_word_BxL, ids_BxL, h_BxKxLxD) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """The words of examples: their pieces as bytes, example_W, and h_WxKxD, the means of their pieces' states.

    Leaves out words that began in an earlier example, and words that start with an unknown piece.
    """
    ids_T = ids_BxL.reshape(-1)
    is_text_T = ids_T >= NUM_SPECIAL
    starts_BxL = starts_word_BxL | (ids_BxL < NUM_SPECIAL)
    starts_BxL[:, 0] = True
    (start_W,) = np.nonzero(starts_BxL.reshape(-1))
    end_W = np.append(start_W[1:], len(ids_T))
    h_TxKxD = h_BxKxLxD.swapaxes(1, 2).reshape(len(ids_T), h_BxKxLxD.shape[1], -1)
    h_WxKxD = np.add.reduceat(h_TxKxD, start_W) / (end_W - start_W)[:, None, None]
    valid_W = is_text_T[start_W] & starts_word_BxL.reshape(-1)[start_W]
    start_W, end_W = start_W[valid_W], end_W[valid_W]
    keys = [ids_T[start:end].tobytes() for start, end in zip(start_W, end_W, strict=True)]
    return keys, start_W // ids_BxL.shape[1], h_WxKxD[valid_W]


def group_contexts(keys: Sequence[bytes], example_W) -> list[np.ndarray]:
    """For each word of MIN_CONTEXTS examples or more, the index of its first occurrence in each of them."""
    occurrences: dict[bytes, dict[int, int]] = {}
    for index, (key, example) in enumerate(zip(keys, example_W.tolist(), strict=True)):
        occurrences.setdefault(key, {}).setdefault(example, index)
    return [
        np.array(list(index_by_example.values()))
        for index_by_example in occurrences.values()
        if len(index_by_example) >= MIN_CONTEXTS
    ]


def measure_geometry(h_WxD, example_W, groups: Sequence[np.ndarray], random_groups: Sequence[np.ndarray]) -> dict:
    """The numbers of `evaluate` for one layer.

    groups: the occurrences of each word. random_groups: as many random words for each of them.
    """
    anisotropy, error = compute_anisotropy(h_WxD, example_W)
    self_similarity = np.array([compute_self_similarity(h_WxD[word_X]) for word_X in groups])
    explained_variance, random_variance = (
        np.array([compute_explained_variance(h_WxD[word_X]) for word_X in word_groups])
        for word_groups in (groups, random_groups)
    )
    result = {"anisotropy": anisotropy, "anisotropy_se": error}
    for name, values in (
        ("self_similarity", self_similarity),
        ("self_similarity_adjusted", self_similarity - anisotropy),
        ("explained", explained_variance),
        ("explained_random", random_variance),
        ("explained_adjusted", explained_variance - random_variance),
    ):
        result[name] = float(values.mean())
        result[f"{name}_se"] = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return result


def compute_anisotropy(h_WxD, example_W) -> tuple[float, float]:
    """The mean cosine over all pairs of words of different examples, and its standard error.

    Ethayarajh 2019, section 3.4, estimates it from random pairs. The exact mean is as cheap: a sum of cosines is the
    product of sums of unit vectors. The error is that of a U-statistic over examples (Hoeffding 1948). Raises
    ConfigError where all words are in one example.
    """
    unit_WxD = l2_normalize(h_WxD)
    _, example_W = np.unique(example_W, return_inverse=True)
    count_R = np.bincount(example_W)
    errors.require(len(count_R) > 1, "held-out examples", len(count_R), "two or more with a word in them")
    sum_RxD = np.zeros((len(count_R), unit_WxD.shape[1]))
    np.add.at(sum_RxD, example_W, unit_WxD)
    others_RxD, others_R = sum_RxD.sum(0) - sum_RxD, count_R.sum() - count_R
    cosine_R, pairs_R = (sum_RxD * others_RxD).sum(-1), (count_R * others_R).astype(np.float64)
    mean = cosine_R.sum() / pairs_R.sum()
    squares = ((cosine_R - mean * pairs_R) ** 2).sum() * len(count_R) / (len(count_R) - 1)
    return float(mean), float(2 * np.sqrt(squares) / pairs_R.sum())


def compute_self_similarity(h_XxD) -> float:
    """The mean cosine of all pairs of one word's states."""
    count = len(h_XxD)
    return float(((l2_normalize(h_XxD).sum(0) ** 2).sum() - count) / (count * (count - 1)))


def compute_explained_variance(h_XxD) -> float:
    """The largest share of the states' sum of squares that multiples of one static vector can explain.

    It is the first singular value's square over the sum of all squares (Ethayarajh 2019, definition 3). The states are
    not centred, as in that definition; the paper's code centres them.
    """
    square_N = np.linalg.svd(np.asarray(h_XxD, np.float64), compute_uv=False) ** 2
    return float(square_N[0] / square_N.sum()) if square_N[0] > 0 else 1.0


def sample_random_words(example_W, counts: Sequence[int]) -> list[np.ndarray]:
    """For each count, the indices of so many random words, each of another example. example_W: sorted."""
    rng = np.random.default_rng(SEED)
    _, first_R, words_R = np.unique(example_W, return_index=True, return_counts=True)
    examples = (rng.permutation(len(first_R))[:count] for count in counts)
    return [first_R[example_X] + rng.integers(words_R[example_X]) for example_X in examples]


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """The geometry of the last layer's states."""
    for result in get_results(contents, "anisotropy").values():
        last, note = result["layers"][-1], f"{result['words']:,} words in {result['examples']:,} held-out examples"
        for name, title in TITLES.items():
            metric = EvaluationMetric(name, title, result["sha256"], better=0)
            yield EvaluationScore(metric, last[name], last[f"{name}_se"], note)


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """A table with a row for each layer."""
    rows = [
        {"layer": layer} | {column.name: normal_interval(values, column.name) for column in COLUMNS}
        for result in get_results(contents, "anisotropy").values()
        for layer, values in sentence_similarity.name_layers(result["layers"]).items()
    ]
    return [EvaluationTable(rows, [Column("layer", "layer"), *COLUMNS])]
