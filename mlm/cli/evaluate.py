"""mlm evaluate: evaluates trained runs."""

import sys

from mlm.base import text_files
from mlm.cli import command

DESCRIPTION = """Evaluate trained runs. Without flags: pseudo-perplexity of held-out sentences.

    mlm evaluate runs/a [runs/b ...] --blimp=FOLDER --sentences='held-out/*.txt'
    mlm evaluate runs/a --anisotropy --sts=FOLDER
    mlm evaluate runs/text --prompt=sst2 --task_path=FOLDER [--few_shot]
    mlm evaluate runs/text --prompt=reviews.toml --sts=pairs.toml
    mlm evaluate runs/a --beams=1,4 [--pairs=SOURCES,REFERENCES]
    mlm evaluate runs/a --milestones --blimp=FOLDER
    mlm evaluate runs/a HUGGING_FACE_FOLDER --blimp=FOLDER

Results are written to evaluations.json in each run's directory, which the sweep's table reads; those of a Hugging Face
folder NAME to runs/NAME, or to workdir=DIR. A second call computes only what is missing. NAME=VALUE sets a field that
cannot change a result, such as eval.batch_size or data.cache_dir.
"""


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm evaluate", description=DESCRIPTION, has_fields=True)
    at_least_0 = command.Number(int, 0)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="directories of runs, or Hugging Face folders; a directory without a trained model is skipped",
    )
    parser.add_argument(
        "--milestones",
        action="store_true",
        help="evaluate the model at each milestone of its training (train.milestones), in place of the newest",
    )
    group = parser.add_argument_group("pseudo-log-likelihood")
    group.add_argument(
        "--sentences",
        default="",
        metavar="GLOBS",
        help="text files (default: held-out documents of the run's corpus). A sentence ends with its line, or at . ! ? "
        "before a space",
    )
    group.add_argument(
        "--max_sentences", type=at_least_0, default=0, help="evaluate the first so many sentences; 0: all"
    )
    group.add_argument(
        "--blimp",
        default="",
        metavar="FOLDER",
        help="minimal pairs: BLiMP's files, or your own of its format: a file PARADIGM.jsonl for each paradigm, in it "
        'a line for each pair: {"sentence_good": "...", "sentence_bad": "...", "linguistics_term": "..."}, where the '
        "last names the phenomenon",
    )
    group.add_argument(
        "--suite",
        default="",
        metavar="NAME",
        help="name of these minimal pairs in tables (default: blimp for all of BLiMP, else the folder's name)",
    )
    group.add_argument(
        "--paradigms",
        type=command.split_words,
        default=[],
        metavar="NAME,...",
        help="paradigms of the suite (default: all)",
    )
    group.add_argument(
        "--max_pairs", type=at_least_0, default=0, help="evaluate the first so many pairs of each paradigm; 0: all"
    )
    group = parser.add_argument_group("representations")
    group.add_argument(
        "--anisotropy",
        action="store_true",
        help="similarity of the states of different words, and of one word in different contexts (Ethayarajh 2019)",
    )
    group.add_argument(
        "--sts",
        default="",
        metavar="FOLDER",
        help="STS-B's files, or a task file (.toml) of your own pairs, with text_column, text_pair_column, "
        'label_column, dev or test, and objective = "regression": correlation of the cosine of two sentences\' '
        "embeddings with their similarity",
    )
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompt",
        default="",
        metavar="TASK",
        help="zero-shot prompting: sst2 | cola | rte | mrpc, another classification task of "
        "mlm/data/tasks/task_specs.py with --pattern and --verbalizers, or a task file (.toml), in which a table "
        "[prompt] may have pattern and verbalizers (a word for each label)",
    )
    group.add_argument(
        "--task_path", default="", metavar="FOLDER", help="folder of the task's files (not of a task file)"
    )
    group.add_argument(
        "--pattern",
        default="",
        help="words, {text}, {second} and [MASK], separated by spaces (default: of the task file, or from Gao et al. "
        "2021)",
    )
    group.add_argument(
        "--verbalizers",
        type=command.split_words,
        default=[],
        metavar="LABEL=WORD,...",
        help="words of the labels; without LABEL= in their order (default: of the task file, or from Gao et al. 2021)",
    )
    group.add_argument(
        "--few_shot",
        action="store_true",
        help="also fine-tune on 16 examples a label: on five samples, at each rate and batch size, 45 times in all",
    )
    group.add_argument(
        "--few_steps", type=command.Number(int, 1), default=1000, help="steps of each few-shot fine-tuning (1000)"
    )
    group.add_argument(
        "--few_rates",
        type=command.split_words,
        default=[],
        metavar="RATE,...",
        help="learning rates to try (1e-5,2e-5,5e-5; for widths up to 256 those of mlm finetune)",
    )
    group.add_argument(
        "--few_batches",
        type=command.split_words,
        default=["2", "4", "8"],
        metavar="SIZE,...",
        help="batch sizes to try (2,4,8)",
    )
    group = parser.add_argument_group("translation")
    group.add_argument(
        "--beams",
        type=command.split_words,
        default=[],
        metavar="SIZE,...",
        help="translate held-out pairs with these beam sizes, each with and without length normalization",
    )
    group.add_argument(
        "--pairs",
        type=text_files.split_paths,
        default=[],
        metavar="FILE,...",
        help="two files with one sentence a line, or one with two columns (default: the run's test split, or its "
        "dev split)",
    )
    return parser


def select_runs(workdirs: list[str]) -> list[str]:
    """The directories with a trained model. Prints which have none, and which are not fully trained.

    Raises ConfigError if several are given and none has a trained model.
    """
    from mlm.base import errors, files
    from mlm.training.run import pretrained_folder
    from mlm.training.run.directory import RunDirectory

    skipped: dict[str, list[str]] = {}
    selected = []
    for workdir in workdirs:
        if pretrained_folder.is_pretrained_folder(workdir):
            selected.append(workdir)
            continue
        steps = [int(path.name) for path in RunDirectory(workdir).checkpoints.glob("*") if path.name.isdigit()]
        try:
            identity = RunDirectory(workdir).read_identity()
        except files.DamagedFile:
            skipped.setdefault("skipped, damaged config", []).append(workdir)
            continue
        except errors.ConfigError:  # another version: loading it raises an error that says so
            selected.append(workdir)
            continue
        if identity is None:
            skipped.setdefault("skipped, not runs", []).append(workdir)
        elif not steps:
            skipped.setdefault("skipped, no checkpoint yet", []).append(workdir)
        else:
            selected.append(workdir)
            if max(steps) < identity["config"]["train.steps"]:
                skipped.setdefault("not trained to the end", []).append(
                    f"{workdir} (step {max(steps):,} of {identity['config']['train.steps']:,})"
                )
    notes = [f"{what}: {', '.join(names)}" for what, names in skipped.items()]
    if len(workdirs) == 1 and not selected:
        return workdirs  # loading it raises an error with the reason
    errors.require(
        bool(selected), "directories", len(workdirs), f"at least one with a trained model; {'; '.join(notes)}"
    )
    for line in notes:
        print(line, file=sys.stderr, flush=True)
    return selected


def evaluate_run(workdir: str, args, overrides, step: int | None = None) -> dict:
    """Evaluates a run as the arguments say and stores the results; returns {"evaluations", "summary"}.

    step: of the milestone to evaluate; None: the newest checkpoint. With --milestones the result of each, by step.
    """
    from mlm.base import errors
    from mlm.cli import evaluate_cases
    from mlm.evaluation import evaluation_tasks
    from mlm.training.run import trained_run

    suite, common = evaluate_cases.read_suite(args), evaluate_cases.list_common_cases(args)
    if args.milestones:
        errors.require(step is None, "milestones", True, f"a run: this model was loaded from its step {step}")
        return evaluate_milestones(workdir, args, overrides, suite, common)
    run = trained_run.load(workdir, overrides, step=step)
    return evaluation_tasks.evaluate(run, evaluate_cases.list_run_cases(run, args, suite, common))


def evaluate_milestones(workdir: str, args, overrides, suite, common: list) -> dict[int, dict]:
    """Evaluates the models at all milestones of a run; returns what `evaluate_run` does, by step.

    Raises ConfigError if the run has none.
    """
    from mlm.base import errors
    from mlm.cli import evaluate_cases
    from mlm.evaluation import evaluation_tasks
    from mlm.training.run import checkpoint, trained_run
    from mlm.training.run.directory import RunDirectory

    RunDirectory(workdir).require_identity()
    steps, cases, by_step = checkpoint.list_milestones(workdir), None, {}
    if not steps:
        raise errors.ConfigError(
            f"run {workdir!r}, --milestones: it has none; train one with train.milestones=log:24, or evaluate without "
            "--milestones"
        )
    for step in steps:
        run = trained_run.load(workdir, overrides, step=step)
        cases = evaluate_cases.list_run_cases(run, args, suite, common) if cases is None else cases
        by_step[step] = evaluation_tasks.evaluate(run, cases)
    return by_step


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    from mlm.base import errors
    from mlm.data.text import files

    config_flags, others = command.extract_config_flags(words[1:], allow_bare=True)
    args = make_parser().parse_words(others)
    if args.sentences:  # before JAX is imported
        files.find_files("--sentences", args.sentences)
    from mlm.cli import evaluate_cases, evaluate_tables
    from mlm.evaluation import evaluation_tasks
    from mlm.training.run import trained_run

    command.raise_on_interrupt()
    suite, common = evaluate_cases.read_suite(args), evaluate_cases.list_common_cases(args)
    for prompt in (case.inputs for case in common if case.task == "zero_shot"):
        pairs = ", ".join(f"{label}={word}" for label, word in prompt["verbalizers"].items())
        print(f"prompt: {prompt['pattern']!r}, verbalizers: {pairs}", file=sys.stderr, flush=True)
    if few := [case for case in common if case.task == "few_shot"]:
        print(evaluate_cases.describe_few_shot(few), file=sys.stderr, flush=True)
    workdirs, failed, evaluated = select_runs(args.runs), [], {}
    workdir = config_flags.overrides.get("workdir", "")
    errors.require(not workdir or len(workdirs) == 1, "config.workdir", workdir, "none, with several runs")
    for workdir in workdirs:
        try:
            if args.milestones:
                by_step = evaluate_milestones(workdir, args, config_flags.overrides, suite, common)
                evaluate_tables.print_milestones(workdir, by_step)
                written = f"milestone_evaluations/ ({len(by_step)} milestones)"
            else:
                run = trained_run.load(workdir, config_flags.overrides)
                cases = evaluate_cases.list_run_cases(run, args, suite, common)
                evaluated[workdir] = evaluation_tasks.evaluate(run, cases)
                evaluate_tables.print_evaluations(evaluated[workdir])
                written = f"evaluations.json (step {run.step:,})"
        except errors.ConfigError as error:
            if len(workdirs) == 1:
                raise
            failed.append(workdir)
            print(f"not evaluated: {workdir}: {error}", file=sys.stderr, flush=True)
        else:
            folder = workdir if args.milestones else run.cfg.workdir
            print(f"\nwritten: {folder.rstrip('/')}/{written}")
    if len(evaluated) > 1:
        evaluate_tables.print_comparison(evaluated)
    if failed:
        raise errors.ConfigError(f"{len(failed)} of {len(workdirs)} runs could not be evaluated: {', '.join(failed)}")
