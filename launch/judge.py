"""Judges a trained run by pseudo-log-likelihood: pseudo-perplexity of sentences, and accuracy on BLiMP's minimal pairs.

    python -m launch.judge runs/a [runs/b ...] --blimp=FOLDER --sentences='held-out/*.txt'

Writes judged.json into each run's directory, which the table of its sweep reads; a second call does only what is not
yet in it. --config.NAME=value changes a setting that cannot change a result, such as config.eval.batch_size or
config.data.cache.
"""
import itertools
import sys

from absl import flags

from launch import command

_SENTENCES = flags.DEFINE_string("sentences", "", "Globs of text files; not given: the held-out documents of the run's "
                                 "corpus. A sentence ends with its line, or with a full stop, ! or ? before a space.")
_MAX_SENTENCES = flags.DEFINE_integer("max_sentences", 0, "The first so many; 0: all.", lower_bound=0)
_BLIMP = flags.DEFINE_string("blimp", "", "Folder of BLiMP's .jsonl files; not given: no minimal pairs.")
_PARADIGMS = flags.DEFINE_list("paradigms", "", "Which of them, separated by commas; not given: all.")
_MAX_PAIRS = flags.DEFINE_integer("max_pairs", 0, "The first so many of each paradigm; 0: all.", lower_bound=0)


def sentences(data) -> list[str]:
    from mlm.data.text import corpus, files

    if _SENTENCES.value:
        texts = files.read(files.find("--sentences", _SENTENCES.value), lambda line: False)
    else:
        texts = corpus.documents(data, "validation")
    every = itertools.chain.from_iterable(map(corpus.sentences, texts))
    return list(itertools.islice(every, _MAX_SENTENCES.value or None))


def show(judged: dict) -> None:
    from mlm.base.estimates import Estimate
    from mlm.data.tasks import blimp
    from mlm.report.table import Column, markdown

    def interval(values, name, scale=1.0):
        middle, half = scale * values[name], 1.96 * scale * values[f"{name}_se"]
        return Estimate(middle, middle - half, middle + half)

    names = {"pll": "PLL", "pll_word_l2r": "PLL-word-l2r"}
    answers, summary = judged["answers"], judged["summary"]
    if held := answers.get("sentences", {}).get("all"):
        print(f"\n{held['sentences']:,} sentences: {held['words']:,} words, {held['tokens']:,} tokens, "
              f"{held['unknown_tokens']:,} unknown ones not asked for\n")
        units = ("token", "word")
        rows = [{"metric": title} | {unit: interval(held[metric], f"{unit}_perplexity") for unit in units}
                for metric, title in names.items()]
        columns = [Column("metric", "pseudo-perplexity"), *(Column(unit, f"per {unit}", ",.2f") for unit in units)]
        print(markdown(rows, columns))
    if "pairs" not in answers:
        return

    def row(phenomenon, paradigm, values):
        return {"phenomenon": phenomenon, "paradigm": paradigm, "pairs": values["pairs"]} | \
            {metric: interval(values, f"{metric}_accuracy", 100) for metric in names}

    rows = []
    for phenomenon, mean in summary["pairs"]["phenomena"].items():
        members = {name: values for name, values in answers["pairs"].items() if values["phenomenon"] == phenomenon}
        rows += [row(phenomenon, name, values) for name, values in sorted(members.items())]
        rows += [row(phenomenon, f"mean of {len(members)}", mean)] if len(members) > 1 else []
    overall = summary["pairs"]["overall"]
    rows += [row("overall", f"mean of {overall['paradigms']}", overall)]
    columns = [Column("phenomenon", "phenomenon"), Column("paradigm", "paradigm"), Column("pairs", "pairs", ",d"),
               *(Column(metric, f"{title} (%)", ".1f") for metric, title in names.items())]
    if overall["pairs"] == blimp.PARADIGMS * blimp.PAIRS:
        rows += [{"phenomenon": "overall", "paradigm": name, "paper": value} for name, value in blimp.PAPER.items()]
        columns += [Column("paper", "paper (%)", ".1f")]
    print(f"\n{markdown(rows, columns)}")


def main(argv):
    from mlm.base import errors

    if len(argv) < 2:
        raise errors.ConfigError("expected the directories of runs, such as: python -m launch.judge runs/a")
    from mlm.data.tasks import blimp
    from mlm.judge import questions
    from mlm.judge.judged import Part
    from mlm.train.run import trained

    paradigms = blimp.read(_BLIMP.value, _PARADIGMS.value, _MAX_PAIRS.value) if _BLIMP.value else []
    errors.expect(bool(paradigms) or not _PARADIGMS.value, "--paradigms", ",".join(_PARADIGMS.value),
                  "--blimp=FOLDER beside it")
    for workdir in argv[1:]:
        run = trained.load(workdir, command.overrides(sys.argv))
        parts = [Part("pairs", one.name, one.sentences, {"phenomenon": one.phenomenon}) for one in paradigms]
        if texts := sentences(run.cfg.data):
            parts = [Part("sentences", "all", texts), *parts]
        show(questions.ask(run, parts))
        print(f"\nwritten: {workdir}/judged.json (step {run.step:,})")


if __name__ == "__main__":
    command.run(main)
