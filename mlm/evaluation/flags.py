"""The flags of `mlm evaluate`, by evaluation: plain data, so that help and a wrong flag need no JAX."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from mlm.base import errors
from mlm.base.flag import Flag

PSEUDO_LIKELIHOOD = (
    Flag(
        "sentences",
        "",
        "text files (default: held-out documents of the run's corpus). A sentence ends with its line, or at . ! ? "
        "before a space",
        "GLOBS",
    ),
    Flag("max_sentences", 0, "evaluate the first so many sentences; 0: all"),
)
MINIMAL_PAIRS = (
    Flag(
        "blimp",
        "",
        "minimal pairs: BLiMP's files, or your own of its format: a file PARADIGM.jsonl for each paradigm, in it "
        'a line for each pair: {"sentence_good": "...", "sentence_bad": "...", "linguistics_term": "..."}, where the '
        "last names the phenomenon",
        "FOLDER",
    ),
    Flag(
        "suite",
        "",
        "name of these minimal pairs in tables (default: blimp for all of BLiMP, else the folder's name); without "
        "--blimp, tasks by their names",
        "NAME",
        needs="--blimp=FOLDER",
    ),
    Flag("paradigms", (), "paradigms of the suite (default: all)", "NAME,...", needs="--blimp=FOLDER"),
    Flag("max_pairs", 0, "evaluate the first so many pairs of each paradigm; 0: all", needs="--blimp=FOLDER"),
)
NONCE_WORDS = (
    Flag("wug", "", "BabyLM's adjectives that nobody has seen: is -ity preferred to -ness as people do", "FILE"),
)
AGES = Flag("aoa", "", "BabyLM's words with the age at which children say them: do late ones surprise a model", "FILE")
RETRIEVAL = (
    Flag("retrieval", "", "BEIR's queries, documents, judgements: nearness by the cosine of mean states", "FOLDER"),
)
ANISOTROPY = (
    Flag("anisotropy", False, "similarity of different words' states, and of one word's by context (Ethayarajh 2019)"),
)
STS = (
    Flag(
        "sts",
        "",
        "STS-B's files, or a task file (.toml) of your own pairs, with text_column, text_pair_column, "
        'label_column, dev or test, and objective = "regression": correlation of the cosine of two sentences\' '
        "embeddings with their similarity",
        "FOLDER",
    ),
)
ZERO_SHOT = (
    Flag(
        "prompt",
        "",
        "zero-shot prompting: sst2 | cola | rte | mrpc, another classification task of "
        "mlm/data/tasks/task_specs.toml with --pattern and --verbalizers, or a task file (.toml), in which a table "
        "[prompt] may have pattern and verbalizers (a word for each label)",
        "TASK",
    ),
    Flag("task_path", "", "folder of the task's files (not of a task file)", "FOLDER", needs="--prompt=TASK"),
    Flag(
        "pattern",
        "",
        "words, {text}, {second} and [MASK], separated by spaces (default: of the task file, or from Gao et al. 2021)",
        needs="--prompt=TASK",
    ),
    Flag(
        "verbalizers",
        (),
        "words of the labels; without LABEL= in their order (default: of the task file, or from Gao et al. 2021)",
        "LABEL=WORD,...",
        needs="--prompt=TASK",
    ),
)
FEW_SHOT = (
    Flag(
        "few_shot",
        False,
        "also fine-tune on 16 examples a label: on five samples, 45 times in all",
        needs="--prompt=TASK",
    ),
    Flag("few_steps", 1000, "steps of each few-shot fine-tuning (1000)", low=1, needs="--few_shot"),
    Flag(
        "few_rates",
        (),
        "learning rates to try (1e-5,2e-5,5e-5; for widths up to 256 those of mlm finetune)",
        "RATE,...",
        float,
        needs="--few_shot",
    ),
    Flag("few_batches", (2, 4, 8), "batch sizes to try (2,4,8)", "SIZE,...", int, needs="--few_shot"),
)
TRANSLATION = (
    Flag("beams", (), "translate held-out pairs with these beams, with and without length penalty", "SIZE,...", int),
    Flag(
        "pairs",
        (),
        "two files with one sentence a line, or one with two columns (default: the run's test split, or its dev split)",
        "FILE,...",
        needs="--beams=1,4",
    ),
)
# Evaluation -> the title above its flags in the help, and its flags; one that is set asks for the evaluation.
FLAGS = {
    "pseudo_likelihood": ("pseudo-log-likelihood", PSEUDO_LIKELIHOOD),
    "minimal_pairs": ("pseudo-log-likelihood", MINIMAL_PAIRS),
    "nonce_words": ("pseudo-log-likelihood", NONCE_WORDS),
    "age_of_acquisition": ("pseudo-log-likelihood", (AGES,)),
    "anisotropy": ("representations", ANISOTROPY),
    "sts": ("representations", STS),
    "retrieval": ("representations", RETRIEVAL),
    "zero_shot": ("prompts", ZERO_SHOT),
    "few_shot": ("prompts", FEW_SHOT),
    "translation": ("translation", TRANSLATION),
}


def make_arguments(options: Mapping[str, Any]) -> argparse.Namespace:
    """The values of all flags, of which keyword arguments set some. Raises ConfigError for a wrong name or value."""
    known = {flag.name: flag for _, flags in FLAGS.values() for flag in flags}
    values: dict[str, Any] = {name: flag.default for name, flag in known.items()}
    for name, value in options.items():
        errors.require_one_of("option", name, known)
        try:
            values[name] = convert_value(known[name], value)
        except (TypeError, ValueError):
            kind = type(known[name].default).__name__
            errors.require(False, name, value, f"{kind}, as --{name} of mlm evaluate takes it (mlm evaluate --help)")
    return argparse.Namespace(**values)


def convert_value(flag: Flag, value: Any) -> Any:
    """A keyword argument as the flag's parser would give it. Raises TypeError or ValueError for a wrong one."""
    kind = type(flag.default)
    if kind is tuple:
        return tuple(map(flag.kind, value.split(",") if isinstance(value, str) else value))
    if kind is str:
        return os.path.expanduser(os.fspath(value))
    if not isinstance(value, int | float) or not isinstance(value, kind) or value < flag.low:
        raise ValueError(value)
    return value


def find_evaluations(args: argparse.Namespace) -> list[str]:
    """The evaluations that the flags ask for. Raises ConfigError for a flag without the one that it needs."""
    named = {}
    for name, (_, flags) in FLAGS.items():
        for flag in flags:
            value = getattr(args, flag.name)
            if value != flag.default:
                needed = flag.needs.lstrip("-").partition("=")[0]
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                errors.require(not needed or getattr(args, needed), f"--{flag.name}", shown, f"{flag.needs} with it")
                named[name] = None
    return [*named]
