"""A run's metrics on their way from the devices to metrics.jsonl and to a person's eye."""
import math
import statistics
import time
from pathlib import Path

import jax

from mlm import config, metrics
from mlm.progress import Progress


class Diverged(Exception):
    """A loss or gradient was not finite."""


class Log:
    """Collects the metrics of steps, writes a record every log_every steps, and shows progress.

    Records carry running totals (tokens, predictions, seconds of training), which a continued run takes up again.
    """

    def __init__(self, workdir: Path, step_now: int, cfg: config.Config, title: str):
        self.cfg, self.workdir = cfg, workdir
        first = jax.process_index() == 0
        self.writer = metrics.Writer(workdir, step_now) if first else None
        self.progress = Progress(step_now, cfg.train.steps, title) if first else None
        past = [record for record in metrics.read(workdir / "metrics.jsonl") if "tokens" in record] if first else []
        self.totals = {name: past[-1][name] if past else 0 for name in ("tokens", "predictions", "eligible", "seconds")}
        self.rates = [record["tokens_per_second"] for record in past]
        self.pending, self.clock = [], None
        if first:
            self.progress.say(f"results in {workdir}" + (f", continuing from step {step_now:,}" if step_now else ""))

    def add(self, number: int, values: dict, checkpoints, flush: bool = False) -> None:
        """Takes the metrics of a step. Raises Diverged, naming the last good checkpoint, where they are not finite."""
        if not (math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])):
            checkpoints.wait_until_finished()
            good = checkpoints.latest_step()
            raise Diverged(f"step {number:,}: loss {values['loss']:.4g}, gradient norm {values['gradient_norm']:.4g}; "
                           + (f"last good checkpoint: {self.workdir}/checkpoints/{good}" if good is not None
                              else "there is no checkpoint yet"))
        if self.progress is None:
            return
        now = time.monotonic()
        if self.clock is not None:  # the first step after a start or pause is not timed: it compiles, or waits
            self.totals["seconds"] += now - self.clock
        self.pending.append((values, None if self.clock is None else now - self.clock))
        self.clock = now
        self.progress.advance(number)
        if flush or number % self.cfg.train.log_every == 0:
            self.record(number)

    def record(self, number: int) -> None:
        def total(get):
            return float(sum(get(values["sums"]) for values, _ in self.pending))

        timed = [(values["sums"].sums_B["tokens"], seconds) for values, seconds in self.pending if seconds is not None]
        rate = sum(t for t, _ in timed) / sum(s for _, s in timed) if timed else 0.0
        predictions, eligible = total(lambda s: s.weight_B["mlm"]), total(lambda s: s.sums_B["eligible"])
        self.totals["tokens"] += total(lambda s: s.sums_B["tokens"])
        self.totals["predictions"] += predictions
        self.totals["eligible"] += eligible
        values, _ = self.pending[-1]
        record = {"loss": statistics.fmean(float(values["loss"]) for values, _ in self.pending),
                  "accuracy": total(lambda s: s.sums_B["correct"]) / max(predictions, 1),
                  "realised_rate": predictions / max(eligible, 1),
                  "gradient_norm": float(values["gradient_norm"]), "learning_rate": float(values["learning_rate"]),
                  "tokens_per_second": float(rate), **self.totals}
        for term in values["sums"].loss_B if len(values["sums"].loss_B) > 1 else ():
            record[f"{term}_loss"] = (total(lambda s, t=term: s.loss_B[t])
                                      / max(total(lambda s, t=term: s.weight_B[t]), 1))
        if timed:
            self.rates.append(rate)
        self.pending = []
        self.writer.write(number, record)
        self.progress.log(record)

    def evaluation(self, number: int, values: dict) -> None:
        if self.progress is not None:
            self.writer.write(number, {f"eval_{name}": value for name, value in values.items()})
            self.progress.say(f"step {number:,}: held-out loss {values['loss']:.4f} ± {values['loss_se']:.4f}, "
                              f"accuracy {values['accuracy']:.4f} (unigram {values['unigram_loss']:.4f})")
        self.pause()

    def pause(self) -> None:
        """What comes next is not training and is not timed."""
        self.clock = None

    def summary(self) -> dict:
        totals = dict(self.totals)
        return {**totals, "tokens_per_second": float(statistics.median(self.rates)) if self.rates else None,
                "realised_rate": totals["predictions"] / max(totals["eligible"], 1)}

    def close(self) -> None:
        if self.progress is not None:
            self.progress.close()
            self.writer.close()
