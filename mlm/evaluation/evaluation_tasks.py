"""What a trained run can be asked, by name, and which of it every run is asked when its training ends."""
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
    translation_scores,
)
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTask
from mlm.inference import pseudo_likelihood
from mlm.train.run import trained_run

EVALUATION_TASKS = {"rates": EvaluationTask(mask_rates.can, mask_rates.ask),
                    "probes": EvaluationTask(grammar_probes.can, grammar_probes.ask),
                    "gap": EvaluationTask(loss_decomposition.can, loss_decomposition.ask),
                    "sentences": EvaluationTask(pseudo_likelihood.can, pseudo_likelihood.ask, pseudo_likelihood.work),
                    "predictions": EvaluationTask(predictions.can, predictions.ask),
                    "embeddings": EvaluationTask(embeddings.can, embeddings.ask_held_out),
                    "distance": EvaluationTask(context_range.can, context_range.ask),
                    "sts": EvaluationTask(embeddings.can, embeddings.ask_similarities, embeddings.work),
                    "zero_shot": EvaluationTask(pseudo_likelihood.can, prompts.ask, prompts.work),
                    "few_shot": EvaluationTask(few_shot.can, few_shot.ask, few_shot.work, few_shot.summary),
                    "pairs": EvaluationTask(pseudo_likelihood.can, minimal_pairs.ask, pseudo_likelihood.work,
                                            minimal_pairs.summary),
                    "translation": EvaluationTask(translation_scores.can, translation_scores.ask),
                    "tasks": EvaluationTask(finetuned_tasks.can, finetuned_tasks.ask, summary=finetuned_tasks.summary)}


def due(cfg: config.Config) -> list[EvaluationCase]:
    """What a run is asked at the end of its training: what its config names, and what its corpus has answers to.

    Raises ConfigError for what cannot be asked here.
    """
    if cfg.eval.beams:
        translation_scores.metrics()
    return _due(cfg)


def _due(cfg):
    parts = [EvaluationCase("rates", f"{rate:g}", mask_rates.asked(cfg, rate)) for rate in cfg.eval.mask_rates]
    if not grammar_probes.can(cfg):
        parts += [EvaluationCase("probes", name, grammar_probes.asked(cfg)) for name in grammar_probes.names(cfg)]
    if not loss_decomposition.can(cfg):
        parts.append(EvaluationCase("gap", "parts", loss_decomposition.asked(cfg)))
    if not predictions.can(cfg):
        parts += predictions.parts(cfg)
    if cfg.eval.anisotropy:
        parts.append(embeddings.held_out(cfg))
    if cfg.eval.context_range:
        parts += context_range.parts(cfg)
    if cfg.eval.sts:
        parts += embeddings.similarities("config.eval.sts", cfg.eval.sts)
    return parts + translation_scores.due(cfg, tuple(map(int, cfg.eval.beams))) + finetuned_tasks.parts(cfg)


def missing(cfg: config.Config) -> list[EvaluationCase]:
    """`judged.missing` of what is due."""
    return evaluations.missing(cfg, _due(cfg))


def finish(cfg: config.Config, packed: pack.Packed | None = None) -> dict:
    """`judged.finish` of what is due."""
    return evaluations.finish(EVALUATION_TASKS, cfg, due(cfg), packed)


def ask(run: trained_run.Trained, parts: list[EvaluationCase]) -> dict:
    """`judged.ask` of these questions."""
    return evaluations.ask(EVALUATION_TASKS, run, parts)
