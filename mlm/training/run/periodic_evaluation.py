"""The hook that evaluates a run on its held-out examples."""

from mlm.base import config
from mlm.data.rows import pack
from mlm.training.run.hook import Hook
from mlm.training.run.log import Log
from mlm.training.step import program
from mlm.training.validation import references, split_scores


class Evaluate(Hook):
    """Evaluates every `train.eval_every` steps and after the last one, beside the references of the data."""

    def __init__(self, cfg: config.Config, program: program.Program, packed: pack.PackedDataset, log: Log):
        self.cfg, self.program, self.packed, self.log = cfg, program, packed, log
        self.references = references.compute_references(cfg, program, packed)
        self.scores = (*program.objective.scores, *self.references.scores)
        self.newest: dict[int, tuple[split_scores.Columns, dict]] = {}  # the newest evaluation, by its step

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        train = self.cfg.train
        return step == train.steps or bool(train.eval_every and step % train.eval_every == 0)

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Evaluates, if that is due."""
        if due:
            self.evaluate(step, state)

    def evaluate(self, step: int, state) -> None:
        """Evaluates the state after a step, and logs the scores."""
        columns = split_scores.evaluate_split(self.cfg, self.program, state, self.packed)
        columns = self.references.add_columns(columns)
        self.newest = {step: (columns, split_scores.summarize(columns, self.scores))}
        self.log.write_evaluation(step, self.newest[step][1], self.scores)

    def get_final(self, state) -> tuple[split_scores.Columns, dict]:
        """The columns and the scores after the last step.

        state: is evaluated if that has not been done: the run was trained before, and its result was lost.
        """
        steps = self.cfg.train.steps
        if steps not in self.newest:
            self.evaluate(steps, state)
        return self.newest[steps]
