"""Semantic similarity of sentences (STS): how well the cosine of two sentences' embeddings predicts it.

Letters in array names: K layers, S distinct sentences, P pairs of them.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, fields, types
from mlm.base.estimates import EvaluationMetric, EvaluationScore, compute_score, normal_interval
from mlm.base.labelled_objectives import LabelKind, has_kind
from mlm.base.special import CLS, PAD, SEP
from mlm.data.tasks import splits, task_file, tasks
from mlm.evaluation import evaluations
from mlm.evaluation.evaluations import SPLITS, EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.inference import batching, forward_passes
from mlm.inference.forward_passes import compute_cosines
from mlm.objectives import heads, scores
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

TRAINED = "trained"  # the embeddings that a contrastive objective trained
STS_TASK = "stsb"  # the entry of TASKS with pairs of texts and their similarity
FORMAT = 2  # of the results: raise it when their meaning changes
POOLINGS = {"static": "static vectors", "cls": "[CLS]", "mean": "mean states", "trained": "trained embeddings"}


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return f"config.model.family is {cfg.model.family}, which needs a source" if models.reads_source(cfg) else ""


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The cases of config.eval.sts."""
    return list_cases("config.eval.sts", cfg.eval.sts) if cfg.eval.sts else []


def read_flags(args: argparse.Namespace):
    """Reads the pairs; returns the function from a run to its cases."""
    cases = list_cases("--sts", args.sts)
    return lambda run: cases


def list_cases(field: str, path: str) -> list[EvaluationCase]:
    """A case for each split, dev and test, of STS_TASK in a folder, or of a task file with pairs and their similarity.

    Raises ConfigError where there is neither or the file has no pairs with a number, and as splits.open_task does.
    """
    name, settings = STS_TASK, {"data.task": STS_TASK, "data.task_path": path}
    if path.endswith(task_file.SUFFIX):
        name, settings, *_ = task_file.read_task_file(field, path, required=())
    else:
        is_folder = os.path.isdir(os.path.expanduser(path))
        errors.require(is_folder, field, path, f"the folder of {STS_TASK}'s files, or a task file (.toml)")
    cfg = tasks.resolve_task(settings)
    cfg = fields.override(cfg, {"data.labelled.train": ""})
    labelled, expected = cfg.data.labelled, "regression, since a pair's similarity is a number"
    errors.require(has_kind(cfg.objective, LabelKind.NUMBER), f"{path}: objective", cfg.objective, expected)
    second = labelled.text_pair_column
    errors.require(bool(second), f"{path}: text_pair_column", second, "the column of a second text")
    has_pairs = bool(labelled.dev or labelled.test)
    errors.require(has_pairs, f"{path}: dev", labelled.dev, "a file of pairs, here or in test")
    with errors.name_place(f"{field} = {path!r}"):
        source = splits.open_task(cfg)
        pairs = {
            split_name: [[*example.texts, example.label] for example in source[split]()]
            for split_name, split in SPLITS.items()
            if split in source
        }
    return [
        EvaluationCase("sts", f"{name}/{split_name}", {"pairs": split_pairs, "format": FORMAT})
        for split_name, split_pairs in pairs.items()
    ]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Correlations of the cosine of two sentences' embeddings with human similarity scores (Cer et al. 2017).

    "spearman" and "pearson", each with its standard error over pairs ("_se"), of the "static" embeddings and, for each
    of "layers", of the others that there are (`embed_sentences`). They are None, and "undefined" says why,
    where embeddings are constant, as the embedding of [CLS] is below the first layer. A causal model has no "cls".
    "truncated" counts truncated sentences.
    """
    pairs = case.inputs["pairs"]
    texts = list(dict.fromkeys(text for *pair_texts, _ in pairs for text in pair_texts))
    index = {text: i for i, text in enumerate(texts)}
    first_P, second_P = (np.array([index[pair[side]] for pair in pairs]) for side in (0, 1))
    similarity_P = np.array([value for *_, value in pairs])
    embeddings, truncated = embed_sentences(run, texts, progress)
    correlate = lambda h_SxD: compute_correlations(compute_cosines(h_SxD[first_P], h_SxD[second_P]), similarity_P)
    # [CLS] comes first, so that in these models it has seen no other token.
    poolings = ["mean"] if run.cfg.model.directionality in ("causal", "two_stack") else ["cls", "mean"]
    poolings += embeddings.keys() & {TRAINED}
    return {
        "pairs": len(pairs),
        "sentences": len(texts),
        "truncated": truncated,
        "static": correlate(embeddings["static"]),
        "layers": [
            {name: correlate(embeddings[name][:, layer]) for name in poolings}
            for layer in range(embeddings["mean"].shape[1])
        ],
    }


def compute_correlations(x_P, y_P, nouns: Sequence[str] = ("cosines", "similarities")) -> dict:
    """Spearman's and Pearson's correlation of x and y, which `nouns` name, over P pairs, with their standard errors.

    All are None, and "undefined" says why, where one of the two does not vary.
    """
    for name, value_P in zip(nouns, (x_P, y_P), strict=True):
        if len(value_P) == 0 or np.ptp(value_P) == 0:
            names = ("spearman", "spearman_se", "pearson", "pearson_se")
            return {**dict.fromkeys(names), "undefined": f"all {name} are equal"}
    columns = scores.compute_correlation_columns(x_P, y_P) | {"weight": np.ones(len(x_P))}
    result = {}
    for score in (scores.build_score("spearman", "weight"), scores.build_score("pearson", "weight")):
        result[score.name], result[f"{score.name}_se"] = compute_score(score, columns)
    return result


def embed_sentences(
    run: TrainedRun, texts: Sequence[str], progress: ReportProgress = lambda share: None
) -> tuple[dict[str, np.ndarray], int]:
    """The embeddings of S texts, each as [CLS] text [SEP], and how many are truncated to config.pack.seq_len tokens.

    "cls", SxKxD: the state of [CLS]. "mean", SxKxD: the mean of the states of all tokens but [CLS] and [SEP]. "static",
    SxD: the mean of these tokens' vectors in the embedding table. TRAINED, SxKxD: pooled as the run's embeddings were
    trained (objective contrastive), where they were.
    """
    sequences, length = batching.encode_texts(run.tokenizer, texts), run.cfg.pack.seq_len
    truncated = [batching.truncate_ids(ids, length) for ids in sequences]
    pooling = objectives.get_embedding_pooling(run.cfg)
    outputs = evaluations.map_sequences(run, truncated, compute_sentence_embeddings, progress, pooling)
    arrays = map(np.stack, zip(*outputs, strict=True))
    embeddings = dict(zip(("cls", "mean", "static", *[TRAINED] * bool(pooling)), arrays, strict=True))
    return embeddings, sum(len(ids) > length for ids in sequences)


def compute_sentence_embeddings(model: types.Model, pooling: str, params, ids_BxL, hparams=None) -> tuple:
    """The "cls", "mean", "static" and, by a pooling, TRAINED embeddings of `embed_sentences`. hparams: unused."""
    tokens = forward_passes.make_tokens(ids_BxL)
    assert model.encode_layers is not None
    h_KxBxLxD = model.encode_layers(params["model"], tokens).astype(jnp.float32)
    is_text_BxL = ((ids_BxL != PAD) & (ids_BxL != CLS) & (ids_BxL != SEP)).astype(jnp.float32)
    weight_BxL = is_text_BxL / jnp.maximum(is_text_BxL.sum(-1, keepdims=True), 1)
    table_VxD = params["model"]["token"]["embedding"].astype(jnp.float32)
    return (
        h_KxBxLxD[:, :, 0].swapaxes(0, 1),
        jnp.einsum("kbld,bl->bkd", h_KxBxLxD, weight_BxL),
        jnp.einsum("bld,bl->bd", table_VxD[ids_BxL], weight_BxL),
        *[jnp.stack([heads.pool_states(pooling, h_BxLxD, tokens) for h_BxLxD in h_KxBxLxD], 1)] * bool(pooling),
    )


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """Spearman's correlation of each kind of embeddings, at the last layer."""
    for split, result in get_results(contents, "sts").items():
        for pooling, values in {"static": result["static"], **result["layers"][-1]}.items():
            name, title = f"{split.replace('/', '_')}_{pooling}", f"Spearman of {POOLINGS[pooling]}"
            metric = EvaluationMetric(name, title, result["sha256"], split, bounds=(-1.0, 1.0))
            note, undefined = f"{result['pairs']:,} pairs of sentences", values.get("undefined", "")
            yield EvaluationScore(metric, values["spearman"], values["spearman_se"], note, undefined)


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """A table with a row for each split and kind of embeddings."""
    rows = []
    for split, result in get_results(contents, "sts").items():
        embeddings = {"static": result["static"]}
        for layer, by_pooling in name_layers(result["layers"]).items():
            embeddings |= {f"{pooling}, {layer}": values for pooling, values in by_pooling.items()}
        rows += [
            {"split": split, "pairs": result["pairs"], "embedding": name}
            | {
                score: f"undefined: {values['undefined']}" if "undefined" in values else normal_interval(values, score)
                for score in ("spearman", "pearson")
            }
            for name, values in embeddings.items()
        ]
    columns = [
        Column("split", "similarity"),
        Column("pairs", "pairs", ",d"),
        Column("embedding", "embedding"),
        Column("spearman", "Spearman", ".3f"),
        Column("pearson", "Pearson", ".3f"),
    ]
    return [EvaluationTable(rows, columns)]


def name_layers(values: Sequence[dict]) -> dict[str, dict]:
    """The values of each layer, by its name."""
    return {f"layer {number}" if number else "embeddings": entry for number, entry in enumerate(values)}
