"""Fine-tunes a trained run on a task: its model goes on from there, under a head of the task's own.

    python -m launch.finetune runs/a --config.data.task=sst2 --config.data.task_path=FOLDER

A row of TASKS (mlm/data/tasks/tasks.py) knows a data set; config.data.task=own reads any other of its formats. The
model, its tokenizer and the length of its rows are the run's; all else is configs.recipes.FINE_TUNING, or what is set
as --config.NAME=value. The same command again continues, or says that it is done. Predictions of dev and test lie in
the run's folder, which is the pretrained run's with -TASK behind it where config.workdir is not set.
"""
import sys

from absl import flags

from launch import command

_EPOCHS = flags.DEFINE_float("epochs", None, "Passes over the train split, in the place of config.train.steps.",
                             lower_bound=0.0)
_FROM_SCRATCH = flags.DEFINE_bool("from_scratch", False, "Draw the first parameters: the same model without its "
                                  "pretraining, to compare with.")


def main(argv):
    from mlm.base import errors

    if len(argv) != 2:
        raise errors.ConfigError("expected the directory of one run, such as: python -m launch.finetune runs/a "
                                 "--config.data.task=sst2 --config.data.task_path=FOLDER")
    from configs import recipes
    from mlm.base.estimates import scores_of
    from mlm.data.rows import pack
    from mlm.judge import questions
    from mlm.train import recipe
    from mlm.train.run import log, loop, start
    from mlm.train.run.stop import Stopped

    command.listen()
    run, given = argv[1].rstrip("/"), command.overrides(sys.argv)
    began = start.of_run(run, drawn=_FROM_SCRATCH.value)
    errors.expect(bool(given.get("data.task")), "config.data.task", given.get("data.task", ""),
                  "the task to fine-tune for: --config.data.task=NAME")
    errors.expect(_EPOCHS.value is None or "train.steps" not in given, "--epochs", _EPOCHS.value,
                  "left out beside config.train.steps, which says how long to train too")
    named = {"workdir": f"{run}-{given['data.task'].replace('/', '-')}" + ("-drawn" if _FROM_SCRATCH.value else "")}
    own = recipes.fine_tuning(began["model.size"]) | named
    layers = command.base(), began, own, given
    cfg = recipe.resolve(*layers)
    recipe.check(cfg)
    packed = pack.load(cfg)
    if "train.steps" not in given:
        epochs = recipes.EPOCHS if _EPOCHS.value is None else _EPOCHS.value
        cfg = recipe.resolve(*layers, {"train.steps": recipes.steps(len(packed.train["ids"]), cfg.train.batch_size,
                                                                    epochs)})
    try:
        result = loop.train(cfg, packed)
        answers = questions.finish(cfg, packed)["answers"]["predictions"]
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
