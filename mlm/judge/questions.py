"""What a trained run can be asked, by name, and which of it every run is asked when its training ends."""
from mlm.base import config
from mlm.data.rows import pack
from mlm.judge import (
    distance,
    embed,
    few_shot,
    finetuned,
    gap,
    grammar,
    judged,
    pairs,
    pll,
    predictions,
    prompts,
    rates,
    translate,
)
from mlm.judge.judged import Part, Question
from mlm.train.run import trained

QUESTIONS = {
    "rates": Question(rates.can, rates.ask),
    "probes": Question(grammar.can, grammar.ask),
    "gap": Question(gap.can, gap.ask),
    "sentences": Question(pll.can, pll.ask, pll.work),
    "predictions": Question(predictions.can, predictions.ask),
    "embeddings": Question(embed.can, embed.ask_held_out),
    "distance": Question(distance.can, distance.ask),
    "sts": Question(embed.can, embed.ask_similarities, embed.work),
    "zero_shot": Question(pll.can, prompts.ask, prompts.work),
    "few_shot": Question(few_shot.can, few_shot.ask, few_shot.work, few_shot.summary),
    "pairs": Question(pll.can, pairs.ask, pll.work, pairs.summary),
    "translation": Question(translate.can, translate.ask),
    "tasks": Question(finetuned.can, finetuned.ask, summary=finetuned.summary),
}


def due(cfg: config.Config) -> list[Part]:
    """What a run is asked at the end of its training: what its config names, and what its corpus has answers to.

    Raises ConfigError for what cannot be asked here.
    """
    if cfg.eval.beams:
        translate.metrics()
    return _due(cfg)


def _due(cfg):
    parts = [Part("rates", f"{rate:g}", rates.asked(cfg, rate)) for rate in cfg.eval.rates]
    if not grammar.can(cfg):
        parts += [Part("probes", name, grammar.asked(cfg)) for name in grammar.names(cfg)]
    if not gap.can(cfg):
        parts.append(Part("gap", "parts", gap.asked(cfg)))
    if not predictions.can(cfg):
        parts += predictions.parts(cfg)
    if cfg.eval.embeddings:
        parts.append(embed.held_out(cfg))
    if cfg.eval.distance:
        parts += distance.parts(cfg)
    if cfg.eval.sts:
        parts += embed.similarities("config.eval.sts", cfg.eval.sts)
    return parts + translate.due(cfg, tuple(map(int, cfg.eval.beams))) + finetuned.parts(cfg)


def missing(cfg: config.Config) -> list[Part]:
    """`judged.missing` of what is due."""
    return judged.missing(cfg, _due(cfg))


def finish(cfg: config.Config, packed: pack.Packed | None = None) -> dict:
    """`judged.finish` of what is due."""
    return judged.finish(QUESTIONS, cfg, due(cfg), packed)


def ask(run: trained.Trained, parts: list[Part]) -> dict:
    """`judged.ask` of these questions."""
    return judged.ask(QUESTIONS, run, parts)
