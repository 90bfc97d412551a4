"""Asks trained runs what they know without being trained further, or after a few examples.

    python -m mlm.cli.evaluate runs/a [runs/b ...] --blimp=FOLDER --sentences='held-out/*.txt'
    python -m mlm.cli.evaluate runs/a --embeddings --sts=FOLDER
    python -m mlm.cli.evaluate runs/a --prompt=sst2 --task_path=FOLDER [--few_shot]
    python -m mlm.cli.evaluate runs/a --beams=1,4 [--pairs=SOURCES,REFERENCES]

By pseudo-log-likelihood: pseudo-perplexity of sentences (those of the held-out documents where nothing else is asked),
and accuracy on BLiMP's minimal pairs. How far states are their words' own, and how well they tell how alike sentences
are. Accuracy on a task that is put as a cloze: with nothing trained, and with 16 examples a label. BLEU and chrF of
translations by beams of these widths.

Writes judged.json into each run's directory, which the table of its sweep reads; a second call does only what is not
yet in it. What a glob such as runs/* finds besides runs is named first and left out. --config.NAME=value changes a
setting that cannot change a result, such as config.eval.batch_size or config.data.cache.
"""
import itertools
import sys

from absl import flags

from mlm.cli import command

_SENTENCES = flags.DEFINE_string("sentences", "", "Globs of text files; not given: the held-out documents of the run's "
                                 "corpus. A sentence ends with its line, or with a full stop, ! or ? before a space.")
_MAX_SENTENCES = flags.DEFINE_integer("max_sentences", 0, "The first so many; 0: all.", lower_bound=0)
_BLIMP = flags.DEFINE_string("blimp", "", "Folder of a suite of minimal pairs, .jsonl files of BLiMP or of its form; "
                             "not given: no minimal pairs.")
_SUITE = flags.DEFINE_string("suite", "", "What that suite is called in judged.json and in tables; not given: blimp "
                             "for the whole of BLiMP, else the folder's name.")
_PARADIGMS = flags.DEFINE_list("paradigms", "", "Which of them, separated by commas; not given: all.")
_MAX_PAIRS = flags.DEFINE_integer("max_pairs", 0, "The first so many of each paradigm; 0: all.", lower_bound=0)
_EMBEDDINGS = flags.DEFINE_bool("embeddings", False, "Of held-out text: how alike the states of different words are, "
                                "and those of one word in different contexts (Ethayarajh 2019).")
_STS = flags.DEFINE_string("sts", "", "Folder of STS-B's files: how the cosine of two sentences' embeddings goes with "
                           "their similarity.")
_PROMPT = flags.DEFINE_string("prompt", "", "A task to put as a cloze, with nothing trained: sst2, cola, rte or mrpc.")
_TASK_PATH = flags.DEFINE_string("task_path", "", "Folder of that task's files.")
_PATTERN = flags.DEFINE_string("pattern", "", "How it is put: words, {text}, {second} and [MASK], spaces between; not "
                               "given: the paper's (Gao et al. 2021).")
_VERBALISERS = flags.DEFINE_list("verbalisers", "", "A word for each label, in the order that an error names; not "
                                 "given: the paper's.")
_FEW_SHOT = flags.DEFINE_bool("few_shot", False, "Also after learning from 16 examples a label, five times.")
_FEW_STEPS = flags.DEFINE_integer("few_steps", 1000, "Steps of each such learning.", lower_bound=1)
_FEW_RATES = flags.DEFINE_list("few_rates", "1e-5,2e-5,5e-5", "Learning rates to choose from there; the smallest "
                               "models want larger ones.")
_FEW_BATCHES = flags.DEFINE_list("few_batches", "2,4,8", "Batch sizes to choose from there.")
_BEAMS = flags.DEFINE_list("beams", "", "Translates held-out pairs by beams of so many texts, each with and without "
                           "dividing log P by the length.")
_PAIRS = flags.DEFINE_list("pairs", "", "Two files of pairs line by line, or one of two columns; not given: those of "
                           "the run's test split, of dev where it has none.")


def sentences(data) -> list[str]:
    from mlm.data.text import corpus, files

    if _SENTENCES.value:
        texts = files.read(files.find("--sentences", _SENTENCES.value), files.boundary("--sentences", "file"))
    else:
        texts = corpus.documents(data, "validation")
    every = itertools.chain.from_iterable(map(corpus.sentences, texts))
    return list(itertools.islice(every, _MAX_SENTENCES.value or None))


def show(judged: dict) -> None:
    from mlm.inference import pseudo_likelihood
    from mlm.report import evaluation_tables
    from mlm.report.table import Column, markdown

    names = dict(zip(pseudo_likelihood.METRICS, ("PLL", "PLL-word-l2r"), strict=True))
    if held := judged["answers"].get("sentences", {}).get("all"):
        print(f"\n{held['sentences']:,} sentences: {held['words']:,} words, {held['tokens']:,} tokens, "
              f"{held['unknown_tokens']:,} unknown ones not asked for\n")
        units = ("token", "word")
        rows = [{"metric": title} | {unit: perplexity(held, metric, unit) for unit in units}
                for metric, title in names.items()]
        columns = [Column("metric", "pseudo-perplexity"), *(Column(unit, f"per {unit}", ",.2f") for unit in units)]
        print(markdown(rows, columns))
    paradigms = judged["answers"].get("pairs", {})
    for suite, means in judged["summary"].get("pairs", {}).items():
        print(f"\n{suite}\n\n" + markdown(*of_suite(suite, means, paradigms, names)))
    for table in evaluation_tables.TABLES:
        rows, columns = table(judged)
        if rows:
            print("\n" + markdown(rows, columns))


def perplexity(held: dict, metric: str, unit: str):
    """With its interval over sentences, which is even on the scale of its logarithm; none of a single sentence."""
    import math

    from mlm.base.estimates import Estimate, OverItems

    nats, half = held[metric][f"{unit}_nats"], 1.96 * held[metric][f"{unit}_nats_se"]
    if held["sentences"] < 2:
        return Estimate(math.exp(nats), None, None)
    return OverItems(*map(math.exp, (nats, nats - half, nats + half)))


def of_suite(suite: str, means: dict, answers: dict, names: dict[str, str]) -> tuple[list[dict], list]:
    """The table of a suite: rows and columns. names: the title of each metric."""
    from mlm.base.estimates import OverItems, wilson
    from mlm.data.tasks import blimp
    from mlm.report.table import Column

    def row(phenomenon, paradigm, values):
        found = {"phenomenon": phenomenon, "paradigm": paradigm, "pairs": values["pairs"]}
        for name in names:
            share = values[f"{name}_accuracy"]
            low, high = ((values[f"{name}_accuracy_{end}"] for end in ("low", "high")) if "paradigms" in values else
                         wilson(share, values["pairs"]))
            found[name] = OverItems(100 * share, 100 * low, 100 * high)
        return found

    rows = []
    for phenomenon, mean in means["phenomena"].items():
        members = {name.removeprefix(f"{suite}/"): values for name, values in answers.items()
                   if name.startswith(f"{suite}/") and values["phenomenon"] == phenomenon}
        rows += [row(phenomenon, name, values) for name, values in sorted(members.items())]
        rows += [row(phenomenon, f"mean of {len(members)}", mean)] if len(members) > 1 else []
    overall = means["overall"]
    rows += [row("overall", f"mean of {overall['paradigms']}", overall)]
    columns = [Column("phenomenon", "phenomenon"), Column("paradigm", "paradigm"), Column("pairs", "pairs", ",d"),
               *(Column(metric, f"{title} (%)", ".1f") for metric, title in names.items())]
    if means["suite"] == blimp.NAME and overall["pairs"] == blimp.PARADIGMS * blimp.PAIRS:
        rows += [{"phenomenon": "overall", "paradigm": name, "paper": value} for name, value in blimp.PAPER.items()]
        columns += [Column("paper", "paper (%)", ".1f")]
    return rows, columns


def sift(workdirs: list[str]) -> list[str]:
    """Those of some directories that hold a model to judge. Says first which do not, and which are not fully trained.

    Raises ConfigError where there are directories, and none of them does.
    """
    from mlm.base import errors
    from mlm.train.run import directory

    said: dict[str, list[str]] = {}
    kept = []
    for workdir in workdirs:
        steps = [int(path.name) for path in directory.checkpoints(workdir).glob("*") if path.name.isdigit()]
        try:
            origin = directory.read_identity(workdir)
        except ValueError:
            said.setdefault("skipped, their config damaged", []).append(workdir)
            continue
        if origin is None:
            said.setdefault("skipped, not runs", []).append(workdir)
        elif not steps:
            said.setdefault("skipped, no checkpoint yet", []).append(workdir)
        else:
            kept.append(workdir)
            if max(steps) < origin["config"]["train.steps"]:
                said.setdefault("not trained to the end", []).append(
                    f"{workdir} (step {max(steps):,} of {origin['config']['train.steps']:,})")
    lines = [f"{what}: {', '.join(those)}" for what, those in said.items()]
    if len(workdirs) == 1 and not kept:
        return workdirs  # to open it says more
    errors.require(bool(kept), "directories", len(workdirs), f"one that can be judged at least; {'; '.join(lines)}")
    for line in lines:
        print(line, file=sys.stderr, flush=True)
    return kept


def asked() -> list:
    """The parts that are the same for every run: similarities, and a task by cloze."""
    from mlm.base import errors
    from mlm.evaluation import embeddings, few_shot, prompts

    parts = embeddings.similarities("--sts", _STS.value) if _STS.value else []
    for flag in (_TASK_PATH, _PATTERN, _VERBALISERS, _FEW_SHOT):
        errors.require(bool(_PROMPT.value) or not flag.value, f"--{flag.name}", flag.value, "--prompt=TASK beside it")
    if _PROMPT.value:
        task = prompts.read(_PROMPT.value, _TASK_PATH.value, _PATTERN.value, _VERBALISERS.value)
        parts.append(prompts.zero_shot(task))
        if _FEW_SHOT.value:
            parts += few_shot.parts(task, few_shot.Grid(numbers(_FEW_BATCHES, int), numbers(_FEW_RATES, float),
                                                        _FEW_STEPS.value, min(few_shot.Grid().every, _FEW_STEPS.value)))
    errors.require(bool(_BEAMS.value) or not _PAIRS.value, "--pairs", ",".join(_PAIRS.value), "--beams=1,4 beside it")
    return parts


def translated(cfg) -> list:
    """The parts of --beams for a run."""
    from pathlib import Path

    from mlm.base import errors
    from mlm.data.text import aligned
    from mlm.evaluation import translation_scores

    beams = numbers(_BEAMS, int)
    for width in beams:
        errors.require_at_least(1, "--beams", width)
    if not (beams and _PAIRS.value):
        return translation_scores.due(cfg, beams)
    errors.require(len(_PAIRS.value) < 3, "--pairs", ",".join(_PAIRS.value), "one file, or two separated by a comma")
    paths = [Path(path) for path in _PAIRS.value]
    return translation_scores.of_pairs(paths[-1].name, list(aligned.read(paths)), beams)


def numbers(flag, kind) -> tuple:
    from mlm.base import errors

    try:
        return tuple(map(kind, flag.value))
    except ValueError:
        raise errors.ConfigError(f"--{flag.name} = {','.join(flag.value)!r}: expected numbers separated by commas"
                                 ) from None


def main(argv):
    from mlm.base import errors

    if len(argv) < 2:
        raise errors.ConfigError("expected the directories of runs, such as: python -m mlm.cli.evaluate runs/a")
    from mlm.data.tasks import blimp
    from mlm.evaluation import embeddings, evaluation_tasks, minimal_pairs
    from mlm.evaluation.evaluations import EvaluationCase
    from mlm.train.run import trained_run

    command.listen()
    for flag in (_PARADIGMS, _SUITE):
        errors.require(bool(_BLIMP.value) or not flag.value, f"--{flag.name}", ",".join(flag.value)
                      if flag is _PARADIGMS else flag.value, "--blimp=FOLDER beside it")
    suite = blimp.read(_BLIMP.value, _PARADIGMS.value, _MAX_PAIRS.value, _SUITE.value) if _BLIMP.value else None
    other = asked()
    workdirs, failed = sift(argv[1:]), []
    for workdir in workdirs:
        try:
            run = trained_run.load(workdir, command.overrides(sys.argv))
            parts = minimal_pairs.parts(suite) if suite else []
            if not (other or _EMBEDDINGS.value or _BEAMS.value) or suite or _SENTENCES.value or _MAX_SENTENCES.value:
                parts = [*(EvaluationCase("sentences", "all", texts) for texts in [sentences(run.cfg.data)] if texts),
                         *parts]
            parts += other + translated(run.cfg) + ([embeddings.held_out(run.cfg)] if _EMBEDDINGS.value else [])
            show(evaluation_tasks.ask(run, parts))
        except errors.ConfigError as error:
            if len(workdirs) == 1:
                raise
            failed.append(workdir)
            print(f"not judged: {workdir}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"\nwritten: {workdir}/judged.json (step {run.step:,})")
    if failed:
        raise errors.ConfigError(f"{len(failed)} of {len(workdirs)} runs could not be judged: {', '.join(failed)}")


if __name__ == "__main__":
    command.run(main)
