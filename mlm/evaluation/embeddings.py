"""Two evaluations of a model's states: semantic similarity of sentences (STS), and anisotropy.

Letters in array names: K layers, S distinct sentences, P pairs of them, R examples, W words in those examples, X the
occurrences of one word.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from mlm import models
from mlm.base import config, errors, fields, types
from mlm.base.estimates import compute_score
from mlm.base.special import CLS, NUM_SPECIAL, PAD, SEP
from mlm.data.rows import loader
from mlm.data.tasks import splits, task_file, tasks
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.inference import batching, masked_queries
from mlm.inference.similarity import compute_cosines, l2_normalize
from mlm.objectives import scores
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

STS_TASK = "stsb"  # the entry of TASKS with pairs of texts and their similarity
SPLITS = {"dev": "validation", "test": "test"}
MAX_TOKENS = 2**14  # of held-out text for anisotropy: as many examples as hold so many tokens
MIN_CONTEXTS = 5  # examples that must hold a word for self-similarity (Ethayarajh 2019, section 3.3)
SEED = 0  # of the random words
SIMILARITY_FORMAT, ANISOTROPY_FORMAT = 2, 1  # of the results: raise it when their meaning changes


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return f"config.model.family is {cfg.model.family}, which needs a source" if models.reads_source(cfg) else ""


def compute_layer_states(model: types.Model, params, tokens: types.Tokens) -> jnp.ndarray:
    """h_KxBxLxD, float32: the embeddings first, the last layer's states last. params: those of the model alone."""
    assert model.encode_layers is not None
    return model.encode_layers(params["model"], tokens).astype(jnp.float32)


def list_similarity_cases(field: str, path: str) -> list[EvaluationCase]:
    """A case for each split, dev and test, of STS_TASK in a folder, or of a task file with pairs and their similarity.

    Args:
        field: the setting that names the path, for errors.
        path: the folder, or the task file.

    Raises:
        ConfigError: there is neither; the file describes no pairs with a number; and as splits.open_task does.
    """
    name, settings = STS_TASK, {"data.task": STS_TASK, "data.task_path": path}
    if path.endswith(task_file.SUFFIX):
        name, settings, *_ = task_file.read_task_file(field, path, required=())
    else:
        is_folder = os.path.isdir(os.path.expanduser(path))
        errors.require(is_folder, field, path, f"the folder of {STS_TASK}'s files, or a task file (.toml)")
    cfg = tasks.resolve_task(settings)
    cfg = fields.override(cfg, {"data.labelled.train": ""})
    labelled = cfg.data.labelled
    for key, value, is_right, expected in (
        (
            "objective",
            cfg.objective,
            cfg.objective == "regression",
            "regression, since a pair's similarity is a number",
        ),
        ("text_pair_column", labelled.text_pair_column, bool(labelled.text_pair_column), "the column of a second text"),
        ("dev", labelled.dev, bool(labelled.dev or labelled.test), "a file of pairs, here or in test"),
    ):
        errors.require(is_right, f"{path}: {key}", value, expected)
    try:
        source = splits.open_task(cfg)
        pairs = {
            split_name: [[*example.texts, example.label] for example in source.splits[split]()]
            for split_name, split in SPLITS.items()
            if split in source.splits
        }
    except errors.ConfigError as error:
        raise errors.ConfigError(f"{field} = {path!r}: {error}") from None
    return [
        EvaluationCase("sts", f"{name}/{split_name}", {"pairs": split_pairs, "format": SIMILARITY_FORMAT})
        for split_name, split_pairs in pairs.items()
    ]


class SentenceEmbeddings(NamedTuple):
    """Three kinds of embeddings of sentences."""

    cls_SxKxD: np.ndarray  # the state of [CLS]
    mean_SxKxD: np.ndarray  # the mean of the states of all tokens but [CLS] and [SEP]
    static_SxD: np.ndarray  # the mean of these tokens' vectors in the embedding table
    truncated: int  # how many sentences were truncated


def evaluate_similarity(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Correlations of the cosine of two sentences' embeddings with human similarity scores (Cer et al. 2017).

    "spearman" and "pearson", each with its standard error over pairs ("_se"), of the "static" embeddings and, for each
    of "layers", of the "mean" and the "cls" embeddings (`SentenceEmbeddings`). They are None, and "undefined" says why,
    where embeddings are constant, as the embedding of [CLS] is below the first layer. A causal model has no "cls".
    "truncated" counts truncated sentences.
    """
    pairs = case.inputs["pairs"]
    texts = list(dict.fromkeys(text for *pair_texts, _ in pairs for text in pair_texts))
    index = {text: i for i, text in enumerate(texts)}
    first_P, second_P = (np.array([index[pair[side]] for pair in pairs]) for side in (0, 1))
    similarity_P = np.array([value for *_, value in pairs])
    sentence_embeddings = embed_sentences(run, texts, progress)

    def correlate(h_SxD):
        return compute_correlations(compute_cosines(h_SxD[first_P], h_SxD[second_P]), similarity_P)

    poolings = {"cls": sentence_embeddings.cls_SxKxD, "mean": sentence_embeddings.mean_SxKxD}
    if run.cfg.model.directionality in ("causal", "two_stack"):
        del poolings["cls"]  # [CLS] comes first, so that it has seen no other token
    return {
        "pairs": len(pairs),
        "sentences": len(texts),
        "truncated": sentence_embeddings.truncated,
        "static": correlate(sentence_embeddings.static_SxD),
        "layers": [
            {name: correlate(h_SxKxD[:, layer]) for name, h_SxKxD in poolings.items()}
            for layer in range(sentence_embeddings.mean_SxKxD.shape[1])
        ],
    }


def count_units(run: TrainedRun, case: EvaluationCase) -> int:
    """The number of batches."""
    texts = {text for *pair_texts, _ in case.inputs["pairs"] for text in pair_texts}
    return sum(1 for _ in _iterate_batches(run, batching.encode_texts(run.tokenizer, sorted(texts))))


def compute_correlations(x_P, y_P) -> dict:
    """Spearman's and Pearson's correlation of cosines x and similarities y over P pairs, with their standard errors.

    All are None, and "undefined" says why, where one of the two does not vary.
    """
    for name, value_P in (("cosines", x_P), ("similarities", y_P)):
        if np.ptp(value_P) == 0:
            names = ("spearman", "spearman_se", "pearson", "pearson_se")
            return {**dict.fromkeys(names), "undefined": f"all {name} are equal"}
    columns = scores.compute_correlation_columns(x_P, y_P) | {"weight": np.ones(len(x_P))}
    result = {}
    for score in (scores.build_spearman_score("weight"), scores.build_pearson_score("weight")):
        result[score.name], result[f"{score.name}_se"] = compute_score(score, columns)
    return result


def embed_sentences(
    run: TrainedRun, texts: Sequence[str], progress: ReportProgress = lambda: None
) -> SentenceEmbeddings:
    """The embeddings of texts, each as [CLS] text [SEP], truncated to config.pack.seq_len tokens."""
    partitioner, length = run.program.partitioner, run.cfg.pack.seq_len
    sequences = batching.encode_texts(run.tokenizer, texts)
    embed_batch = partitioner.jit_per_example(compute_sentence_embeddings, run.program.model)
    outputs_by_text: list = [None] * len(texts)
    for indices, ids_BxL in _iterate_batches(run, sequences):
        local_slice = parallel.process_slice(len(ids_BxL))
        outputs = embed_batch(run.state, partitioner.put_batch(ids_BxL[local_slice]), None)
        for i, index in enumerate(indices):
            outputs_by_text[index] = [output[i] for output in outputs]
        progress()
    cls_SxKxD, mean_SxKxD, static_SxD = map(np.stack, zip(*outputs_by_text, strict=True))
    return SentenceEmbeddings(cls_SxKxD, mean_SxKxD, static_SxD, sum(len(ids) > length for ids in sequences))


def compute_sentence_embeddings(model: types.Model, params, ids_BxL, hparams=None) -> tuple:
    """The arrays of `SentenceEmbeddings`. hparams: unused."""
    h_KxBxLxD = compute_layer_states(model, params, masked_queries.make_tokens(ids_BxL))
    is_text_BxL = ((ids_BxL != PAD) & (ids_BxL != CLS) & (ids_BxL != SEP)).astype(jnp.float32)
    weight_BxL = is_text_BxL / jnp.maximum(is_text_BxL.sum(-1, keepdims=True), 1)
    table_VxD = params["model"]["token"]["embedding"].astype(jnp.float32)
    return (
        h_KxBxLxD[:, :, 0].swapaxes(0, 1),
        jnp.einsum("kbld,bl->bkd", h_KxBxLxD, weight_BxL),
        jnp.einsum("bld,bl->bd", table_VxD[ids_BxL], weight_BxL),
    )


def _iterate_batches(run, sequences):
    """Truncated sequences in full batches, which the devices share evenly."""
    length = run.cfg.pack.seq_len
    return batching.iterate_batches(
        [batching.truncate_ids(ids, length) for ids in sequences], length, run.cfg.eval.batch_size, full_batches=True
    )


def make_anisotropy_case() -> EvaluationCase:
    """The case of anisotropy on held-out text."""
    return EvaluationCase(
        "anisotropy",
        "held-out",
        {"tokens": MAX_TOKENS, "contexts": MIN_CONTEXTS, "seed": SEED, "format": ANISOTROPY_FORMAT},
    )


def evaluate_anisotropy(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """How contextual a model's states of held-out text are, after Ethayarajh 2019 (EMNLP, arXiv:1909.00512).

    The contexts are the first examples of the validation split, nothing masked. A word's state is the mean of its
    pieces' states. Each of "layers" has "anisotropy" and, over the words that MIN_CONTEXTS examples or more hold, one
    occurrence each, "self_similarity" (the paper's definition 1), "explained" (definition 3) and the
    "explained_random" of as many random words. "self_similarity_adjusted" is less the anisotropy,
    "explained_adjusted" less "explained_random". "_se" is the standard error: of anisotropy over examples, of the
    others over words. Raises ConfigError where no word has enough contexts.
    """
    split, partitioner = run.load_data().validation, run.program.partitioner
    num_examples = min(len(split["ids"]), max(1, MAX_TOKENS // run.cfg.pack.seq_len))
    encode_batch = partitioner.jit_per_example(compute_states, run.program.model)
    keys, example_parts, state_parts = [], [], []
    batches = loader.iterate_eval_batches(
        split, batch_size=run.cfg.eval.batch_size, max_rows=num_examples, **parallel.get_process_position()
    )
    start = 0
    for batch in batches:
        h_BxKxLxD = encode_batch(run.state, partitioner.put_batch(batch), None)
        ids_BxL = np.asarray(split["ids"][start : min(start + len(h_BxKxLxD), num_examples)], np.int32)
        batch_keys, batch_example_W, batch_h_WxKxD = pool_words(
            run.tokenizer.find_word_starts(ids_BxL), ids_BxL, h_BxKxLxD[: len(ids_BxL)]
        )
        keys += batch_keys
        example_parts.append(batch_example_W + start)
        state_parts.append(batch_h_WxKxD)
        start += len(ids_BxL)
    progress()
    example_W, h_WxKxD = np.concatenate(example_parts), np.concatenate(state_parts)
    groups = group_contexts(keys, example_W)
    errors.require(
        bool(groups), f"words that {MIN_CONTEXTS} or more of {num_examples} held-out examples hold", 0, "some"
    )
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
    return compute_layer_states(model, params, batch.text).swapaxes(0, 1)


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
    """The numbers of `evaluate_anisotropy` for one layer.

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
