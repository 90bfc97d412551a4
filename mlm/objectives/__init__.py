"""Objectives by name. A new one: a file with its GOAL, and a row here."""
import dataclasses

from mlm.base import config, errors, types
from mlm.base.conditional_fields import FieldCondition
from mlm.objectives import (
    causal,
    choice,
    classify,
    denoise,
    diffusion,
    edge,
    hybrid,
    masking,
    mlm,
    nsp,
    regress,
    replaced,
    span,
    tag,
)

OBJECTIVES = {
    "mlm": mlm.GOAL, "nsp": nsp.GOAL, "causal": causal.GOAL,
    "hybrid": hybrid.GOAL, "diffusion": diffusion.GOAL, "denoise": denoise.GOAL,
    "replaced": replaced.GOAL,
    "classify": classify.GOAL, "regress": regress.GOAL, "choice": choice.GOAL, "tag": tag.GOAL,
    "span": span.GOAL, "edge": edge.GOAL,
}
READ = [*masking.READ, *tag.READ,
        *(FieldCondition((field,), "objective", tuple(n for n, goal in OBJECTIVES.items() if field in goal.reads))
          for field in sorted({field for goal in OBJECTIVES.values() for field in goal.reads}))]


def resolve(cfg: config.Config) -> config.Config:
    """With what the objective asks for where nothing is said: how states see their row, and how masks are drawn."""
    errors.require_one_of("config.objective", cfg.objective, list(OBJECTIVES))
    model = dataclasses.replace(cfg.model, context=cfg.model.context or OBJECTIVES[cfg.objective].sees[0])
    return dataclasses.replace(cfg, model=model, mask=masking.resolve(cfg.mask))


def of_tokens(sees: str) -> str:
    """The name of the objective that asks for tokens of models that see so: for which a folder of theirs was made."""
    return next(name for name, goal in OBJECTIVES.items() if goal.seen != "row" and goal.sees[0] == sees)


def seen(cfg: config.Config) -> str:
    """What of an asked token's row the objective lets a model see, in evaluation: Goal.seen; "sides" where that is its
    left, and its right apart from it.
    """
    found = OBJECTIVES[cfg.objective].seen
    return "sides" if found == "left" and cfg.model.context == "apart" else found


def losses(cfg: config.Config) -> dict[str, str]:
    """What each loss among the objective's scores lets a model see of an asked token's row, by the score's name."""
    return {"loss": seen(cfg)} | dict(OBJECTIVES[cfg.objective].losses)


def source(cfg: config.Config) -> bool:
    """Whether the objective makes of each row the source that a model reads beside it."""
    return OBJECTIVES[cfg.objective].source


def telling(cfg: config.Config, model: types.Model) -> types.Model:
    """The model as hidden tokens are read from it: its state at a token's place tells the token."""
    return OBJECTIVES[cfg.objective].telling(model)


def predicted(cfg: config.Config) -> float:
    """The share of a row's words that a step predicts, on average over the run."""
    return OBJECTIVES[cfg.objective].predicted(cfg)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what the objective cannot use."""
    sees = OBJECTIVES[cfg.objective].sees
    errors.require_one_of("config.model.context", cfg.model.context, ("both", "left", "apart", "row"))
    errors.require(cfg.model.context in sees, "config.model.context", cfg.model.context,
                  f"{' or '.join(sees)}, since config.objective is {cfg.objective}")
    OBJECTIVES[cfg.objective].check(cfg)
