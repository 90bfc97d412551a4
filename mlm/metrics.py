"""metrics.jsonl, a run's truth about itself: one JSON object a line; and the same as TensorBoard events."""
import json
import os
from pathlib import Path


def read(path: Path) -> list[dict]:
    """The records of a metrics file; a last line torn by a kill is left out. No file: no records."""
    if not path.exists():
        return []
    records = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON, yet not the last line: {line[:60]!r}") from None
    return records


def brief(evaluation: dict) -> str:
    """An evaluation in one line, for a person."""
    line = (f"held-out loss {evaluation['loss']:.4f} ± {evaluation['loss_se']:.4f}, "
            f"accuracy {evaluation['accuracy']:.4f}; unigram baseline {evaluation['unigram_loss']:.4f}")
    if "gap" in evaluation:
        line += f"; {evaluation['gap']:.4f} ± {evaluation['gap_se']:.4f} nats above the floor"
    return line


def write_json(path: Path, value) -> None:
    """Writes aside, then renames: the file is whole or not there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    aside.rename(path)


class Writer:
    """Appends records, each with its step, to metrics.jsonl and to TensorBoard events in the same folder.

    Opened at a step, it first drops the records after it, which the steps to come write again.
    """

    def __init__(self, folder: Path, step: int):
        from tensorboardX import SummaryWriter

        path = folder / "metrics.jsonl"
        kept = [json.dumps(record) + "\n" for record in read(path) if record["step"] <= step]
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
