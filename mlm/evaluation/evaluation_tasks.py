"""The evaluations of a trained run by name, and those that follow the training of every run."""

from mlm.base import config
from mlm.data.rows import pack
from mlm.evaluation import (
    context_range,
    embeddings,
    evaluations,
    few_shot,
    finetuned_tasks,
    grammar_probes,
    loss_decomposition,
    mask_rates,
    minimal_pairs,
    predictions,
    prompts,
    sentence_scores,
    text_baseline,
    translation_scores,
)
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTask
from mlm.training.run import trained_run

EVALUATION_TASKS = {
    "mask_rates": EvaluationTask(mask_rates.get_unsupported_reason, mask_rates.evaluate),
    "grammar_probes": EvaluationTask(grammar_probes.get_unsupported_reason, grammar_probes.evaluate),
    "loss_decomposition": EvaluationTask(loss_decomposition.get_unsupported_reason, loss_decomposition.evaluate),
    "pseudo_likelihood": EvaluationTask(
        sentence_scores.get_unsupported_reason, sentence_scores.evaluate, sentence_scores.count_units
    ),
    "text_baseline": EvaluationTask(text_baseline.get_unsupported_reason, text_baseline.evaluate),
    "predictions": EvaluationTask(predictions.get_unsupported_reason, predictions.evaluate),
    "anisotropy": EvaluationTask(embeddings.get_unsupported_reason, embeddings.evaluate_anisotropy),
    "context_range": EvaluationTask(context_range.get_unsupported_reason, context_range.evaluate),
    "sts": EvaluationTask(embeddings.get_unsupported_reason, embeddings.evaluate_similarity, embeddings.count_units),
    "zero_shot": EvaluationTask(sentence_scores.get_unsupported_reason, prompts.evaluate, prompts.count_units),
    "few_shot": EvaluationTask(
        few_shot.get_unsupported_reason, few_shot.evaluate, few_shot.count_units, few_shot.summarize
    ),
    "minimal_pairs": EvaluationTask(
        sentence_scores.get_unsupported_reason,
        minimal_pairs.evaluate,
        sentence_scores.count_units,
        minimal_pairs.summarize,
    ),
    "translation": EvaluationTask(translation_scores.get_unsupported_reason, translation_scores.evaluate),
    "finetuned_tasks": EvaluationTask(
        finetuned_tasks.get_unsupported_reason, finetuned_tasks.evaluate, summarize=finetuned_tasks.summarize
    ),
}


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The cases to evaluate when a run's training ends: those its config names and those its corpus has answers to.

    Raises ConfigError for what cannot be evaluated on this machine.
    """
    cases = _list_due_cases(cfg)
    if cfg.eval.beams:
        translation_scores.build_bleu(cfg.eval.bleu_tokenizer)
    return cases


def _list_due_cases(cfg):
    cases = [
        EvaluationCase("mask_rates", f"{rate:g}", mask_rates.make_inputs(cfg, rate)) for rate in cfg.eval.mask_rates
    ]
    if not grammar_probes.get_unsupported_reason(cfg):
        cases += [
            EvaluationCase("grammar_probes", name, grammar_probes.make_inputs(cfg))
            for name in grammar_probes.list_probes(cfg)
        ]
    if not loss_decomposition.get_unsupported_reason(cfg):
        cases.append(EvaluationCase("loss_decomposition", "parts", loss_decomposition.make_inputs(cfg)))
    if not predictions.get_unsupported_reason(cfg):
        cases += predictions.list_cases(cfg)
    if cfg.eval.anisotropy:
        cases.append(embeddings.make_anisotropy_case())
    if cfg.eval.context_range:
        cases += context_range.list_cases(cfg)
    if cfg.eval.sts:
        cases += embeddings.list_similarity_cases("config.eval.sts", cfg.eval.sts)
    beams = tuple(map(int, cfg.eval.beams))
    cases += translation_scores.list_due_cases(cfg, beams) + text_baseline.list_cases(cfg)
    return cases + finetuned_tasks.list_cases(cfg)


def list_missing_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The due cases of which a finished run has no result yet, as `evaluations.list_missing_cases` finds them."""
    return evaluations.list_missing_cases(cfg, _list_due_cases(cfg))


def finish_evaluations(cfg: config.Config, packed: pack.PackedDataset | None = None) -> dict:
    """Evaluates the due cases that are missing, as `evaluations.finish_evaluations` does."""
    return evaluations.finish_evaluations(EVALUATION_TASKS, cfg, list_due_cases(cfg), packed)


def evaluate(run: trained_run.TrainedRun, cases: list[EvaluationCase]) -> dict:
    """Evaluates these cases, as `evaluations.evaluate` does."""
    return evaluations.evaluate(EVALUATION_TASKS, run, cases)
