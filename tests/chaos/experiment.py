"""The small sweep of the chaos tests. It imports only mlm, since submitted jobs run a copy of this file."""

from collections.abc import Sequence

from mlm.report.table import Column

SMALL = {
    "model.family": "feedforward",
    "model.cell": "bag",
    "model.num_layers": 1,
    "model.width": 8,
    "model.mlp_dim": 8,
    "pack.seq_len": 16,
    "train.steps": 12,
    "train.batch_size": 8,
    "train.checkpoint_every": 3,
    "train.eval_every": 6,
    "train.log_every": 1,
    "eval.batch_size": 8,
    "eval.max_examples": 32,
}
TEXT = {
    "data.path": "text.txt",
    "data.document_boundary": "line",
    "tokenizer.kind": "unigram",
    "tokenizer.vocab_size": 120,
}
DOWNSTREAM = {
    "downstream.tasks": "sst2",
    "downstream.path": "tasks",
    "downstream.learning_rates": (1e-3,),
    "downstream.epochs": (1.0,),
}
SCALES = {"quick": SMALL | TEXT | DOWNSTREAM}


def sweep(scale: str) -> dict[str, dict]:
    return {f"seed{seed}": SCALES[scale] | {"seed": seed} for seed in (0, 1)}


def table(results: Sequence[dict]) -> tuple[list[dict], list[Column]]:
    return (
        [
            {"seed": run["config"]["seed"], "loss": run["evaluation"]["loss"], "predictions": run["predictions"]}
            for run in results
        ],
        [Column(name, name, ".9g") for name in ("seed", "loss", "predictions")],
    )
