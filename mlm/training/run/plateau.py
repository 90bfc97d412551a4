"""The hook that says what token frequencies give, and when a model learns no more than they."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm import models
from mlm.base import config, recipe_constants, types
from mlm.base.special import NUM_SPECIAL
from mlm.training.run.hook import Hook
from mlm.training.run.log import Log

CHECK_FRACTION = 0.1  # share of the steps after which the check is made, or the warm-up if it is longer
WINDOW_FRACTION = 0.05  # share of the steps over whose losses the check takes the mean
MIN_STEPS = 50  # before the check: no recipe has left the unigram's loss sooner
MARGIN = 0.1  # nats below the unigram loss that count as having left it


def compute_unigram_entropy(dataset: types.DatasetInfo) -> float:
    """The entropy, in nats, of the train split's token frequencies, without special tokens: the unigram's loss."""
    counts_V = np.frombuffer(dataset.unigram_counts, np.int64)[NUM_SPECIAL:]
    share_V = counts_V[counts_V > 0] / counts_V.sum()
    return float(-(share_V * np.log(share_V)).sum())


def list_advice(cfg: config.Config) -> str:
    """What may help a model to leave the plateau, as text; names no setting that the config has."""
    advice = ["another optim.learning_rate", "a longer optim.warmup_fraction"]
    if cfg.model.init_std < 0.05:
        advice.append(f"model.init_std={recipe_constants.SMALL_INIT_STD}")
    if models.reads_field(cfg, "positions") and cfg.model.positions != recipe_constants.SMALL_POSITIONS:
        advice.append(f"model.positions={recipe_constants.SMALL_POSITIONS}")
    return ", or ".join([", ".join(advice[:-1]), advice[-1]])


class PlateauWarning(Hook):
    """Says first what loss the unigram has; after a tenth of the steps, if the training loss has not left it.

    Where the warm-up is longer, the check comes at its end: before, the learning rate is not yet what was chosen. Runs
    whose check would come before MIN_STEPS steps have none, nor have those with label smoothing, which the training
    loss contains. The run's result keeps what it says, and so do the totals of its checkpoints, with the sums so far: a
    run that is killed and continued says the same.

    A model of text begins there: it learns how frequent each token is, then how tokens depend on each other. A recipe
    that does not suit the model leaves it there for most of the run.
    """

    def __init__(self, cfg: config.Config, objective: types.Objective, dataset: types.DatasetInfo, log: Log, totals):
        self.log, self.advice = log, list_advice(cfg)
        self.check_step = math.ceil(cfg.train.steps * max(CHECK_FRACTION, cfg.optim.warmup_fraction))
        self.window = math.ceil(cfg.train.steps * WINDOW_FRACTION)
        self.sums: list[float] = totals.get("plateau_sums", [0.0, 0.0])  # nats, predictions
        self.found: dict[str, float] | None = totals.get("plateau")
        first = objective.scores[0]
        has_unigram = any(
            score.reference == "unigram" and score.reference_for == first.name for score in objective.scores
        )
        checks = has_unigram and self.check_step >= MIN_STEPS and not cfg.optim.label_smoothing
        self.term = first.columns[0].removesuffix("_nats") if checks else ""
        self.unigram_loss = compute_unigram_entropy(dataset) if has_unigram else 0.0
        if has_unigram:
            log.write_message(f"token frequencies alone give a loss of {self.unigram_loss:.3f}")

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Adds the losses of the steps before the check, and makes the check."""
        if not self.term or not self.check_step - self.window < step <= self.check_step:
            return
        sums = metrics["sums"]
        self.sums = [self.sums[0] + float(sums.loss[self.term]), self.sums[1] + float(sums.weight[self.term])]
        if step == self.check_step:
            loss = self.sums[0] / max(self.sums[1], 1)
            if loss > self.unigram_loss - MARGIN:
                self.found = {"step": step, "loss": loss, "unigram_loss": self.unigram_loss}
                self.log.write_message(
                    f"step {step:,}: the training loss, {loss:.2f}, is not {MARGIN} nats below that of token "
                    f"frequencies, {self.unigram_loss:.2f}. If it stays so, try {self.advice}"
                )

    def get_totals(self) -> dict[str, Any]:
        """What a checkpoint saves: the sums so far, and what the check found."""
        return ({"plateau_sums": self.sums} if any(self.sums) else {}) | self.summarize()

    def summarize(self) -> dict[str, Any]:
        """What the result keeps: {} unless the check found a plateau."""
        return {"plateau": self.found} if self.found else {}
