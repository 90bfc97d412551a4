"""The functions of `import mlm`: load a model, train one, evaluate one."""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlm.base import errors, warnings_
from mlm.base.config import Config
from mlm.inference.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Result:
    """What a finished run reports: the content of its result.json.

    Attributes:
        workdir: the run's directory, for `mlm.load`.
        steps: optimizer steps.
        loss: held-out loss, nats; on a labelled task its first score.
        metrics: all held-out scores by name; NAME_se is the standard error of NAME over examples.
        content: the whole of result.json.
    """

    workdir: str
    steps: int
    loss: float
    metrics: Mapping[str, float]
    content: Mapping[str, Any] = dataclasses.field(repr=False)


def load(path: str | os.PathLike, *, step: int | None = None) -> LanguageModel:
    """Loads a trained model.

    Args:
        path: a run's directory (its newest checkpoint is read, also while it trains), a Hugging Face folder (BERT,
            RoBERTa, XLM-R, GPT-2, or one that `save_pretrained` wrote), or hf:ORG/NAME, which is downloaded.
        step: of a run: one of its milestones (config.train.milestones), or a checkpoint that is still there.

    Raises:
        mlm.base.errors.ConfigError: there is no model.

    Examples:
        >>> model = mlm.load("runs/a")
        >>> model.fill_mask("the [MASK] milks the old cow .", top_k=1)[0][0].token
    """
    from mlm.inference import pretrained_io

    return pretrained_io.load_model(str(path), step)


def train(config: Config | Mapping[str, Any]) -> Result:
    """Trains the model of a config, or continues its run, as `mlm train` does in a single process.

    Args:
        config: a Config, or the fields that differ from the defaults by dotted name, such as
            {"mask.rate": 0.4, "workdir": "runs/a"}.

    Raises:
        mlm.base.errors.ConfigError: a field or its value is wrong, or the directory holds another run.
        mlm.training.run.hooks.DivergenceError: the loss is not finite.
        mlm.base.errors.RunStopped: a signal stopped the run; the same call continues it.

    Examples:
        >>> result = mlm.train({"mask.rate": 0.4, "train.steps": 100, "workdir": "runs/a"})
        >>> result.loss, result.metrics["excess_loss"]
    """
    from mlm.base.estimates import read_first_score
    from mlm.data.rows import pack
    from mlm.evaluation import evaluated_run
    from mlm.training.run import resolution

    base, overrides = (config, {}) if isinstance(config, Config) else (Config(), dict(config))
    cfg = resolution.resolve(base, overrides)
    evaluated_run.check(cfg)
    content = evaluated_run.train_and_evaluate(cfg, pack.load_dataset(cfg))
    metrics = content["evaluation"]
    return Result(cfg.workdir, content["steps"], metrics[read_first_score(content).name], metrics, content)


def evaluate(
    model: LanguageModel | str | os.PathLike, *, suite: str = "", data: str | os.PathLike = "", **options: Any
) -> dict[Any, Any]:
    """Evaluates a run's model, as `mlm evaluate` does, and stores the results in the run's evaluations.json.

    Args:
        model: a run's directory, or a model that was loaded from one.
        suite: names of suites with commas, or the path of one (.toml), in place of other options.
        data: of suite: the folder that holds a folder for each task; a task that is not there is left out, and said.
        **options: the flags of `mlm evaluate` (`mlm evaluate --help`), such as max_sentences=50, blimp="FOLDER",
            sts="FOLDER", anisotropy=True or prompt="sst2". None: pseudo-log-likelihood of the held-out sentences.

    Returns:
        dict: {"evaluations": {evaluation: {case: result}}, "summary": {evaluation: its scores}} of this call; with
        milestones=True one of these for each milestone of the run, by its step. Of suites {"scores": records with
        "suite", "task", "metric", "unit", "value" and its 95% interval from "low" to "high"}.

    Raises:
        mlm.base.errors.ConfigError: no such run or option, or the model does not support an evaluation.

    Examples:
        >>> found = mlm.evaluate("runs/a", max_sentences=20)
        >>> found["summary"]
        >>> pandas.DataFrame(mlm.evaluate("runs/a", suite="babylm", data="FOLDER")["scores"])
    """
    from mlm.evaluation import evaluated_run, evaluation_tasks, flags
    from mlm.evaluation import suite as suites
    from mlm.training.run import trained_run

    is_loaded = isinstance(model, LanguageModel)
    run, step = (model.config.workdir, model.milestone) if is_loaded else (str(model), None)
    if suite and "blimp" not in options:
        errors.require(not options and step is None, "suite", suite, "no other option, and no model of a milestone")
        found = [suites.read_suite(name, Path(data).expanduser()) for name in suite.split(",")]
        for task, reason in itertools.chain.from_iterable(one.missing.items() for one in found):
            warnings_.warn_once(f"left out: {task}: {reason}")
        suite_tasks = [task for one in found for task in one.tasks]
        scores = suites.evaluate_model(run, suite_tasks, {}, warnings_.warn_once)
        return {"scores": [score.make_record() for score in scores]}
    options |= {"suite": suite} if suite else {}  # the name of blimp's pairs
    at_milestones = options.pop("milestones", False)
    list_cases = evaluation_tasks.read_flags(flags.make_arguments(options))
    if at_milestones:
        errors.require(step is None, "milestones", True, f"a run: this model was loaded from its step {step}")
        return evaluated_run.evaluate_milestones(run, list_cases, {})
    loaded = trained_run.load(run, {}, step=step)
    return evaluation_tasks.evaluate(loaded, list_cases(loaded))
