"""What the arguments of mlm evaluate ask for, as the cases of a run."""

import itertools
from pathlib import Path

from mlm.base import config, errors
from mlm.cli import command
from mlm.data.tasks import blimp
from mlm.data.text import corpus, files, parallel_text
from mlm.evaluation import embeddings, few_shot, minimal_pairs, prompts, translation_scores
from mlm.evaluation.evaluations import EvaluationCase


def read_sentences(data, args) -> list[str]:
    """The sentences to evaluate: those of --sentences, else of the held-out documents."""
    if args.sentences:
        texts = list(
            files.read_documents(
                files.find_files("--sentences", args.sentences), files.make_boundary("--sentences", "file")
            )
        )
        errors.require(bool(texts), "--sentences", args.sentences, "text; there is none in it")
    else:
        is_run = data.corpus != "auto"
        errors.require(is_run, "--sentences", "", "text files, since a Hugging Face folder has no held-out text")
        texts = corpus.read_documents(data, "validation")
    sentences = itertools.chain.from_iterable(map(corpus.split_sentences, texts))
    return list(itertools.islice(sentences, args.max_sentences or None))


def read_suite(args):
    """The minimal pairs of --blimp, or None."""
    for name in ("paradigms", "suite"):
        value = getattr(args, name)
        errors.require(
            bool(args.blimp) or not value,
            f"--{name}",
            ",".join(value) if name == "paradigms" else value,
            "--blimp=FOLDER with it",
        )
    return blimp.read_suite(args.blimp, args.paradigms, args.max_pairs, args.suite) if args.blimp else None


def list_common_cases(args) -> list:
    """The cases that are the same for every run: sentence similarity and prompts."""
    cases = embeddings.list_similarity_cases("--sts", args.sts) if args.sts else []
    for name in ("task_path", "pattern", "verbalizers", "few_shot"):
        value = getattr(args, name)
        errors.require(bool(args.prompt) or not value, f"--{name}", value, "--prompt=TASK with it")
    if args.prompt:
        task = prompts.read_task(args.prompt, args.task_path, args.pattern, args.verbalizers)
        cases.append(prompts.make_zero_shot_case(task))
        if args.few_shot:
            cases += few_shot.list_cases(
                task,
                few_shot.FewShotGrid(
                    parse_numbers("few_batches", args, int),
                    parse_numbers("few_rates", args, float),
                    args.few_steps,
                    min(few_shot.FewShotGrid().every, args.few_steps),
                ),
            )
    errors.require(bool(args.beams) or not args.pairs, "--pairs", ",".join(args.pairs), "--beams=1,4 with it")
    if args.beams:
        translation_scores.import_sacrebleu()
    return cases


def list_run_cases(run, args, suite, common: list) -> list:
    """The cases that the arguments ask for, of a loaded run; without any, the held-out sentences."""
    cases = minimal_pairs.list_cases(suite) if suite else []
    if args.sentences or args.max_sentences or not (cases or common or args.anisotropy or args.beams):
        sentences = read_sentences(run.cfg.data, args)
        cases = [EvaluationCase("pseudo_likelihood", "all", sentences)] * bool(sentences) + cases
    cases += common + list_translation_cases(run.cfg, args)
    return cases + ([embeddings.make_anisotropy_case()] if args.anisotropy else [])


def list_translation_cases(cfg, args) -> list:
    """The translation cases of a run."""
    beam_sizes = parse_numbers("beams", args, int)
    for beam_size in beam_sizes:
        errors.require_number("--beams", beam_size, 1, config.MAX_BEAMS)
    if not (beam_sizes and args.pairs):
        return translation_scores.list_due_cases(cfg, beam_sizes)
    errors.require(len(args.pairs) < 3, "--pairs", ",".join(args.pairs), "one file, or two separated by a comma")
    paths = [Path(path) for path in args.pairs]
    pairs = list(parallel_text.read_pairs(paths))
    return translation_scores.list_pair_cases(paths[-1].name, pairs, beam_sizes, cfg.eval.bleu_tokenizer)


def parse_numbers(name: str, args, kind: type) -> tuple:
    """The numbers of a flag with several values. Raises ConfigError for a word that is none."""
    words = getattr(args, name)
    try:
        return tuple(command.parse_number(kind, word) for word in words)
    except ValueError:
        raise errors.ConfigError(f"--{name} = {','.join(words)!r}: expected numbers separated by commas") from None


def describe_few_shot(cases) -> str:
    """What few-shot evaluations train, before they do."""
    grid = few_shot.FewShotGrid(*cases[0].inputs["grid"])
    num_rates = len(grid.learning_rates or few_shot.PAPER_RATES)
    return (
        f"few-shot: {len(cases) * len(grid.batch_sizes) * num_rates} fine-tunings of {grid.steps:,} steps for each run "
        f"({len(cases)} samples, {len(grid.batch_sizes)} batch sizes, {num_rates} learning rates); --few_steps, "
        "--few_batches and --few_rates make fewer"
    )
