"""mlm finetune: fine-tunes a trained run or a Hugging Face folder on a task."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence

from mlm.base import errors, fields, files
from mlm.base.flag import Flag
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind, has_kind
from mlm.cli import command, config_help, evaluate

DESCRIPTION = """Fine-tune a trained model on a task, with a new head for the task.

    mlm finetune runs/a reviews.csv --text=review --label=stars
    mlm finetune runs/a data.task=sst2 data.task_path=FOLDER
    mlm finetune FOLDER --task=reviews.toml
    mlm finetune FOLDER pairs.csv objective=contrastive --text=question --text_pair=answer

A table (csv, tsv, JSON lines, Parquet) is enough: a share of its rows is held out, and whether its labels are
classes, numbers or a tag for each word is inferred and said, with the task file that was written for it.
data.task is a task of mlm/data/tasks/task_specs.toml or of the built-in language (topic, pair, tag, subject). A file
(TOML) describes any other: its keys are the fields of data.labelled, and name, objective, path and prompt. The run
records what the file says. Model, tokenizer and language are those of the run. All other fields are those
of the fine-tuning recipe, unless NAME=VALUE sets them. If the fine-tuning was interrupted, the same command continues
it. Results and predictions are written to RUN/tasks/TASK (for a Hugging Face folder: runs/NAME/tasks/TASK), or to
workdir.
"""
TABLE_FLAGS = (
    Flag("text", "", "of a table: the column of the text (text, or the only one of texts)", "COLUMN"),
    Flag("text_pair", "", "of a table: the column of a second text", "COLUMN"),
    Flag("negative", "", "of a table, objective=contrastive: the column of a text that does not go with it", "COLUMN"),
    Flag("label", "label", "of a table: the column of the label", "COLUMN"),
    Flag("held_out", 0.1, "of a table: the share of its texts to hold out", high=0.9),
    Flag("split_seed", 0, "of a table: the seed by which they are chosen"),
)
FLAGS = (
    Flag(
        "task",
        "",
        'TOML file that describes the task: format = "csv", path = "FOLDER", train = "train.csv", dev = "dev.csv", '
        'text_column = "text", label_column = "label", and so on; instead of data.task',
        "FILE",
    ),
    command.PRINT_CONFIG,
    Flag("from_scratch", False, "start from random parameters: the same model without pretraining, for comparison"),
)


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm finetune", description=DESCRIPTION, has_fields=True)
    parser.add_argument("model", metavar="RUN", help="directory of a run, or a Hugging Face folder")
    parser.add_argument("table", metavar="TABLE", nargs="?", default="", help="a table of texts and labels")
    command.add_flags(parser, command.CONFIG, *FLAGS, *TABLE_FLAGS)
    parse = functools.partial(command.parse_bounded, float, 0.0, None)
    parser.add_argument("--epochs", type=parse, help="number of epochs, instead of train.steps")
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:])
    args = make_parser().parse_words(others)
    command.check_layers(config_flags.load_layers())
    from mlm.base.estimates import read_first_score, read_scores
    from mlm.data.tasks import task_file
    from mlm.evaluation import evaluated_run, text_baseline
    from mlm.training.run import finetuning_recipe, hooks, log
    from mlm.training.run.directory import RunDirectory

    command.raise_on_interrupt()
    *base, command_line = config_flags.load_layers()
    name, overrides = "", [command_line]
    if task := write_table_task(args, [*base, command_line]):
        args.task = task
    if args.task:
        errors.require("data.task" not in command_line.values, "--task", args.task, "no data.task beside it")
        name, task_fields, *_ = task_file.read_task_file("--task", args.task)
        overrides = [fields.Layer(args.task, task_fields), command_line]
    resolved, packed = finetuning_recipe.prepare_finetuning(
        args.model.rstrip("/"), overrides, base=base, from_scratch=args.from_scratch, epochs=args.epochs, name=name
    )
    if args.print_config:
        config_help.print_origins(resolved.config, resolved.origins)
        return
    cfg = resolved.config
    evaluated_run.check(cfg)
    try:
        result = evaluated_run.train_and_evaluate(cfg, packed)
    except hooks.DivergenceError as error:
        command.exit_with_line(1, f"error: {error}")
    directory, first = RunDirectory(cfg.workdir), read_first_score(result)
    evaluations = directory.read_evaluations()["evaluations"]
    predictions = evaluations["predictions"]
    print(f"done: {cfg.workdir}: {log.format_evaluation(result['evaluation'], read_scores(result))}")
    evaluate.print_evaluations({"evaluations": {"predictions": predictions}, "summary": {}})
    if line := describe_weak_score(read_scores(result), result["evaluation"]):
        print(line)
    answers = directory.read_predictions("dev")
    if LABELLED_OBJECTIVES[cfg.objective].classifies_texts and (line := describe_unpredicted_classes(answers)):
        print(line)
    if line := text_baseline.describe(first, result["evaluation"][first.name], evaluations, cfg.data.task):
        print(line)
    if "test" in predictions:
        scores = [score for score in read_scores(result) if score.name in predictions["test"]]
        print(f"test: {log.format_evaluation(predictions['test'], scores)}")


def write_table_task(args, layers: Sequence[fields.Layer]) -> str:
    """The path of the task file that is written for TABLE, of which a line is printed; "": there is no TABLE."""
    from mlm.data.tasks import table_task

    settings = {name: value for layer in layers for name, value in layer.values.items()}
    if not args.table:
        command.refuse_flags(args, TABLE_FLAGS, "a table beside it: RUN TABLE")
        return ""
    errors.require(not args.task, "--task", args.task, f"none beside {args.table}")
    errors.require("data.task" not in settings, "finetune", args.table, "no data.task beside it")
    cache = settings.get("data.cache_dir", fields.DEFAULT["data.cache_dir"])
    columns = {name: getattr(args, name) for name in ("text", "text_pair", "negative", "label")}
    objective = settings.get("objective", "")
    if has_kind(objective, LabelKind.NONE):
        errors.require(args.label == "label", "--label", args.label, f"none beside objective={objective}")
        errors.require(not args.negative or bool(args.text_pair), "--negative", args.negative, "--text_pair beside it")
        columns["label"] = ""
    else:
        errors.require(not args.negative, "--negative", args.negative, "none without objective=contrastive")
        objective = ""
    folder = files.expand_home("config.data.cache_dir", cache)
    task = table_task.write_task(args.table, folder, columns, args.held_out, args.split_seed, objective)
    print(f"{args.table}: {task.description}. To change this: --task={task.path}")
    return str(task.path)


def describe_weak_score(scores, evaluation) -> str:
    """A line for a score that selects models and is no better than that of the majority class; "": it is better."""
    score = next(score for score in scores if score.better > 0)
    majority = next((other for other in scores if other.reference_for == score.name), None)
    baseline = evaluation[majority.name] if majority else 0.0  # of correlations and F1
    if evaluation[score.name] > baseline:
        return ""
    return (
        f"no better than {'the majority class' if majority else 'chance'}: {score.title} "
        f"{evaluation[score.name]:{score.format}}, there {baseline:{score.format}}: the model learned nothing of the "
        "task; try more --epochs, another optim.learning_rate, or finetune.pooling=mean"
    )


def describe_unpredicted_classes(predictions: Sequence[Mapping]) -> str:
    """A line for the labels of dev that no example was given; "": there are none, or all have one label."""
    gold, predicted = Counter(one["gold"] for one in predictions), {one["predicted"] for one in predictions}
    missed = [label for label, _ in gold.most_common() if label not in predicted]
    if not missed or len(predicted) < 2:  # `describe_weak_score` says so of one label for all
        return ""
    count = sum(gold[label] for label in missed)
    return (
        f"never predicted: {', '.join(map(errors.format_value, missed))}, {count:,} of {len(predictions):,} examples "
        "of dev; more --epochs or examples of these may help"
    )
