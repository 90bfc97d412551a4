"""Retrieval: which of many documents are near a query, by the cosine of embeddings (BEIR, Thakur et al. 2021).

Letters in array names: Q queries, D documents.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import errors
from mlm.base.estimates import FRACTION, EvaluationMetric, EvaluationScore, compute_ratio, normal_interval
from mlm.data.tasks import examples
from mlm.data.text import records
from mlm.evaluation import sentence_similarity
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.inference.forward_passes import l2_normalize
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

DEPTH, RECALL_DEPTH = 10, 100  # of nDCG and of recall

# Where a data set of BEIR's form has its parts, as published or unpacked into one folder.
CORPUS, QUERIES = ("corpus.jsonl", "corpus.jsonl.gz"), ("queries.jsonl", "queries-test.jsonl")
JUDGEMENTS = ("qrels/test.tsv", "qrels-test.tsv")

get_unsupported_reason = sentence_similarity.get_unsupported_reason


def read_flags(args: argparse.Namespace):
    """Reads the texts and the judgements; returns the function from a run to its case."""
    folder = Path(args.retrieval)
    documents = {
        str(row["_id"]): " ".join(filter(None, (row.get("title"), row["text"])))
        for row in _read_rows(folder, CORPUS, ("_id", "text"))
    }
    queries = {str(row["_id"]): row["text"] for row in _read_rows(folder, QUERIES, ("_id", "text"))}
    relevant: dict[str, dict[str, float]] = {}
    for row in _read_rows(folder, JUDGEMENTS, ("query-id", "corpus-id", "score")):
        query, document = str(row["query-id"]), str(row["corpus-id"])
        grade = examples.parse_number(row["score"], f"{folder}: score of query {query}")
        if query in queries and document in documents and grade > 0:
            relevant.setdefault(query, {})[document] = grade
    errors.require(bool(relevant), "--retrieval", str(folder), "judgements of its queries and documents")
    texts = {query: queries[query] for query in relevant}
    inputs = {"documents": documents, "queries": texts, "relevant": relevant}
    return lambda run: [EvaluationCase("retrieval", folder.resolve().name, inputs)]


def _read_rows(folder: Path, names: Sequence[str], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    path = next((path for name in names if (path := folder / name).is_file()), None)
    errors.require(path is not None, "--retrieval", str(folder), f"a folder with {' or '.join(names)}")
    for where, row in records.read_records(str(path), records.detect_kind(str(path))):
        examples.require_columns(columns, row, where)
        yield row


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The means over queries of "ndcg" at 10 and "recall" at 100, with standard errors ("_se").

    A document of the query's own id is the query itself, which BEIR does not rank either (ArguAna, Quora).
    An embedding is the mean of the last layer's states, or as the run's were trained ("embedding" says which);
    "truncated" counts the texts that are longer than an example.
    """
    documents, queries, relevant = (case.inputs[name] for name in ("documents", "queries", "relevant"))
    embeddings, truncated = sentence_similarity.embed_sentences(run, [*documents.values(), *queries.values()], progress)
    embedding = sentence_similarity.TRAINED if sentence_similarity.TRAINED in embeddings else "mean"
    vectors = l2_normalize(embeddings[embedding][:, -1])
    cosine_QxD = vectors[len(documents) :] @ vectors[: len(documents)].T
    ids = np.array([*documents])
    found = []
    for query, cosine_D in zip(queries, cosine_QxD, strict=True):
        nearest = ids[np.argsort(-cosine_D, kind="stable")[: RECALL_DEPTH + 1]]
        grades = [relevant[query].get(one, 0.0) for one in nearest[nearest != query][:RECALL_DEPTH]]
        ideal = compute_dcg(sorted(relevant[query].values(), reverse=True))
        found.append((compute_dcg(grades) / ideal, np.count_nonzero(grades) / len(relevant[query])))
    result: dict[str, Any] = {"queries": len(queries), "documents": len(documents), "truncated": truncated}
    result["embedding"] = embedding
    for name, value_Q in zip(("ndcg", "recall"), np.array(found).T, strict=True):
        result[name], result[f"{name}_se"] = compute_ratio(value_Q, np.ones(len(value_Q)))
    return result


def compute_dcg(grades: Sequence[float]) -> float:
    """The discounted cumulative gain of the first ten, as trec_eval and BEIR compute it: grade / log2(1 + rank)."""
    return sum(grade / np.log2(2 + rank) for rank, grade in enumerate(grades[:DEPTH]))


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """nDCG at 10."""
    for name, result in get_results(contents, "retrieval").items():
        metric = EvaluationMetric(f"retrieval_{name}", "nDCG@10", result["sha256"], name, bounds=FRACTION)
        vectors = sentence_similarity.POOLINGS[result.get("embedding", "mean")]
        note = f"{result['queries']:,} queries, {result['documents']:,} documents, cosine of {vectors}"
        yield EvaluationScore(metric, result["ndcg"], result["ndcg_se"], note)


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """nDCG at 10 and recall at 100, a row for each data set."""
    columns = [Column("name", "retrieval"), *(Column(name, name, ",d") for name in ("queries", "documents"))]
    columns += [Column("ndcg", "nDCG@10", ".3f"), Column("recall", "recall@100", ".3f")]
    rows = [
        {"name": name, **result, **{score: normal_interval(result, score) for score in ("ndcg", "recall")}}
        for name, result in get_results(contents, "retrieval").items()
    ]
    return [EvaluationTable(rows, columns)]
