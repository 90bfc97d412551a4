"""A run's metrics on their way from the devices to metrics.jsonl and to a person's eye."""
import json
import math
import statistics
import time
from pathlib import Path

import jax

from mlm.base import config, files
from mlm.train.run import log
from mlm.train.run.progress import Progress


class Diverged(Exception):
    """A loss or gradient was not finite."""


TOTALS = ("tokens", "predictions", "eligible", "corrupted", "timed_tokens", "timed_seconds")


def speed(totals: dict) -> float | None:
    """Tokens a second over the steps that were timed; None where none was."""
    return totals["timed_tokens"] / totals["timed_seconds"] if totals["timed_seconds"] else None


def realised(totals: dict) -> dict[str, float]:
    """The shares of eligible tokens that were corrupted (config.mask.rate) and predicted (config.mask.predict)."""
    eligible = max(totals["eligible"], 1)
    return {"realised_rate": totals["corrupted"] / eligible, "realised_predict": totals["predictions"] / eligible}


class Log:
    """Collects the metrics of steps, writes a record every log_every steps, and shows progress.

    Records carry running totals, which a continued run takes up again.
    """

    def __init__(self, workdir: Path, step_now: int, cfg: config.Config):
        self.cfg, self.workdir = cfg, workdir
        first = jax.process_index() == 0
        self.writer = log.Writer(workdir, step_now) if first else None
        self.progress = Progress(step_now, cfg.train.steps, workdir.name) if first else None
        past = [record for record in files.read(workdir / "metrics.jsonl") if "tokens" in record] if first else []
        self.totals = {name: past[-1][name] if past else 0.0 for name in TOTALS}
        self.recorded, self.pending, self.clock = dict(self.totals), [], None
        if first:
            self.progress.say(f"results in {workdir}" + (f", continuing from step {step_now:,}" if step_now else ""))

    def add(self, number: int, values: dict, checkpoints, flush: bool = False) -> None:
        """Takes the metrics of a step. Raises Diverged, naming the last good checkpoint, where they are not finite."""
        size = {name: float(values[name]) for name in ("loss", "gradient_norm", "parameter_norm")}
        if not all(map(math.isfinite, size.values())):
            checkpoints.wait_until_finished()
            good = checkpoints.latest_step()
            raise Diverged(f"step {number:,}: {', '.join(f'{name} {value:.4g}' for name, value in size.items())}; "
                           + (f"last good checkpoint: {self.workdir}/checkpoints/{good}" if good is not None
                              else "there is no checkpoint yet"))
        if self.progress is None:
            return
        sums, now = values["sums"], time.monotonic()
        tokens = sums.sums_B["tokens"]
        new = {"predictions": sums.weight_B["mlm"],
               **{name: sums.sums_B[name] for name in ("tokens", "eligible", "corrupted")}}
        if self.clock is not None:  # the first step after a start or pause is not timed: it compiles, or waits
            new |= {"timed_tokens": tokens, "timed_seconds": now - self.clock}
        for name, value in new.items():
            self.totals[name] += float(value)
        self.pending.append(values)
        self.clock = now
        self.progress.advance(number)
        if flush or number % self.cfg.train.log_every == 0:
            self.record(number)

    def record(self, number: int) -> None:
        def total(field, name):
            return float(sum(getattr(values["sums"], field)[name] for values in self.pending))

        since = {name: self.totals[name] - self.recorded[name] for name in TOTALS}
        last = self.pending[-1]
        record = {"loss": statistics.fmean(float(values["loss"]) for values in self.pending),
                  "accuracy": total("sums_B", "correct") / max(since["predictions"], 1),
                  **realised(since),
                  **{name: float(last[name]) for name in ("gradient_norm", "parameter_norm", "learning_rate")},
                  "tokens_per_second": speed(since), **self.totals}
        if len(terms := last["sums"].loss_B) > 1:
            record |= {f"{term}_loss": total("loss_B", term) / max(total("weight_B", term), 1) for term in terms}
        self.recorded, self.pending = dict(self.totals), []
        self.writer.write(number, record)
        self.progress.log(record)

    def evaluation(self, number: int, values: dict) -> None:
        if self.progress is not None:
            self.writer.write(number, {f"eval_{name}": value for name, value in values.items()})
            self.progress.say(f"step {number:,}: {log.brief(values)}")
        self.pause()

    def pause(self) -> None:
        """What comes next is not training and is not timed."""
        self.clock = None

    def summary(self) -> dict:
        """The run's totals, its speed and its realised rates."""
        return {**self.totals, "tokens_per_second": speed(self.totals), **realised(self.totals)}

    def close(self) -> None:
        if self.progress is not None:
            self.progress.close()
            self.writer.close()


def brief(evaluation: dict) -> str:
    """An evaluation in one line, for a person."""
    line = (f"held-out loss {evaluation['loss']:.4f} ± {evaluation['loss_se']:.4f}, "
            f"accuracy {evaluation['accuracy']:.4f}; unigram baseline {evaluation['unigram_loss']:.4f}")
    if "gap" in evaluation:
        line += f"; {evaluation['gap']:.4f} ± {evaluation['gap_se']:.4f} nats above the floor"
    return line


class Writer:
    """Appends records, each with its step, to metrics.jsonl and to TensorBoard events in the same folder.

    Opened at a step, it first drops the records after it, which the steps to come write again.
    """

    def __init__(self, folder: Path, step: int):
        from tensorboardX import SummaryWriter

        path = folder / "metrics.jsonl"
        kept = [json.dumps(record) + "\n" for record in files.read(path) if record["step"] <= step]
        aside = path.with_name(".metrics.jsonl.new")
        aside.write_text("".join(kept))
        aside.rename(path)
        self.file = path.open("a")
        self.events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: dict) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self.events.add_scalar(name, value, step)

    def close(self) -> None:
        self.file.close()
        self.events.close()
