"""Fine-tunes a trained run on a task: its model goes on from there, under a head of the task's own.

    python -m mlm.cli.finetune runs/a --config.data.task=sst2 --config.data.task_path=FOLDER
    python -m mlm.cli.finetune FOLDER --config.data.task=sst2 --config.data.task_path=FOLDER

A row of TASKS (mlm/data/tasks/tasks.py) knows a data set; config.data.task=own reads any other of its formats. The
model, its tokenizer and its language are the run's; all else is mlm/train/finetuning_recipe.py's RECIPE, or what is set as
--config.NAME=value. The same command again continues, or says that it is done. Result and predictions of dev and test
lie in runs/a/tasks/TASK, where config.workdir names no other folder. In the place of a run may stand a Hugging Face
folder; they then lie in runs/NAME/tasks/TASK, NAME being its.
"""
import sys

from absl import flags

from mlm.cli import command

_EPOCHS = flags.DEFINE_float("epochs", None, "Passes over the train split, in the place of config.train.steps.",
                             lower_bound=0.0)
_FROM_SCRATCH = flags.DEFINE_bool("from_scratch", False, "Draw the first parameters: the same model without its "
                                  "pretraining, to compare with.")


def main(argv):
    from mlm.base import errors

    if len(argv) != 2:
        raise errors.ConfigError("expected one run, or Hugging Face folder, such as: python -m mlm.cli.finetune runs/a "
                                 "--config.data.task=sst2 --config.data.task_path=FOLDER")
    from mlm.base.estimates import scores_of
    from mlm.evaluation import evaluation_tasks
    from mlm.train import finetuning_recipe
    from mlm.train.run import log, loop
    from mlm.train.run.shutdown import Stopped

    command.listen()
    cfg, packed = finetuning_recipe.resolve(command.base(), argv[1].rstrip("/"), command.overrides(sys.argv),
                                 drawn=_FROM_SCRATCH.value, epochs=_EPOCHS.value)
    try:
        result = loop.train(cfg, packed)
        answers = evaluation_tasks.finish(cfg, packed)["answers"]["predictions"]
    except Stopped as stop:
        print(stop)
        sys.exit(128 + stop.signal)
    except log.Diverged as diverged:
        print(f"error: {diverged}", file=sys.stderr)
        sys.exit(1)
    print(f"done: {cfg.workdir}: {log.brief(result['evaluation'], scores_of(result))}")
    if "test" in answers:
        of_test = [score for score in scores_of(result) if score.name in answers["test"]]
        print(f"test: {log.brief(answers['test'], of_test)}")


if __name__ == "__main__":
    command.run(main)
