"""n-gram models beside the loss of runs that predict each token from the tokens before it."""

# NumPy 2.5 types some functions in part.
# pyright: reportUnknownMemberType=false
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.estimates import Score, make_reference
from mlm.data.rows import loader, ngram, pack, store

FORMAT = 2  # of the cached file: raise it when the columns are computed differently
COUNT_COLUMN = "ngram_predictions"


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a bad order."""
    order = cfg.eval.ngram_order
    errors.require(order == 0 or 2 <= order <= 9, "config.eval.ngram_order", order, "0, or an order from 2 to 9")


def list_orders(cfg: config.Config) -> range:
    """The orders to compute: from 2 to config.eval.ngram_order."""
    return range(2, cfg.eval.ngram_order + 1)


def compute_columns(cfg: config.Config, packed: pack.PackedDataset) -> dict[str, np.ndarray]:
    """The nats of each order over the held-out examples, and their number, cached; {} where there are no orders."""
    count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)

    def make(folder: Path) -> dict[str, Any]:
        grams = ngram.count_ngrams(packed.train, packed.dataset_info.vocab_size, cfg.eval.ngram_order)
        columns: dict[str, Any] = {}
        for order in list_orders(cfg):
            smooth = ngram.smooth_counts(grams, order)
            columns[_nats_column(order)], columns[COUNT_COLUMN] = ngram.compute_nats(smooth, packed.validation, count)
        np.savez(folder / "nats.npz", **columns)
        return {}

    if not list_orders(cfg):
        return {}
    inputs = {"format": FORMAT, "rows": packed.manifest["inputs"], "order": cfg.eval.ngram_order, "examples": count}
    with np.load(store.get_or_make_folder(cfg.data.cache_dir, "ngrams", inputs, make)[0] / "nats.npz") as file:
        return dict(file)


def make_names(cfg: config.Config) -> dict[str, str]:
    """The name of each order by its column."""
    return {_nats_column(order): f"Kneser-Ney, order {order}" for order in list_orders(cfg)}


def make_scores(cfg: config.Config, loss: Score) -> tuple[Score, ...]:
    """Loss and perplexity of each order, as references of a model's."""
    perplexity = Score("perplexity", "", loss.columns, "exp_mean", format=".2f")
    return tuple(
        make_reference(score, f"ngram{order}_{score.name}", f"{order}-gram {score.name}", (column,), reference)
        for order, (column, reference) in zip(list_orders(cfg), make_names(cfg).items(), strict=True)
        for score in (loss, perplexity)
    )


def add_columns(
    columns: Mapping[str, np.ndarray], ngram_columns: Mapping[str, np.ndarray], loss: Score
) -> dict[str, np.ndarray]:
    """The columns of a model and of the n-gram models. Raises ValueError unless they predict the same tokens."""
    if not np.array_equal(columns[loss.columns[-1]], ngram_columns[COUNT_COLUMN]):
        raise ValueError("the n-gram models predict other tokens than the evaluation")
    return {**columns, **{name: nats_N for name, nats_N in ngram_columns.items() if name != COUNT_COLUMN}}


def _nats_column(order: int) -> str:
    return f"ngram{order}_nats"
