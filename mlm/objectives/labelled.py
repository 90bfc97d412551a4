"""What objectives on labelled examples share: they see whole examples, mask nothing and predict no token."""

from collections.abc import Callable, Sequence
from typing import Any

from mlm.base import types
from mlm.base.estimates import Score
from mlm.objectives import heads, scores

PREDICT_TOKENS, PREDICT_ONCE = types.PredictionRates(tokens=1.0), types.PredictionRates(examples=1.0)
POOLED_FIELDS = ("pooling", "pooler", "layer_features")  # of config.finetune, which heads for examples read


def build_objective(
    cfg: types.StaticConfig,
    term: str,
    init_head: Callable[[Any, int], types.Params],
    compute_loss: Callable,
    model_scores: Sequence[Score],
    train_score: Score | None = None,
    **parts: Any,
) -> types.Objective:
    """An objective whose loss has one term; train_score: None: the accuracy; parts: more fields of types.Objective.

    init_head: (key, width of the features) -> parameters of the head. compute_loss: (params, model, batch, key_B or
    None, train) -> (nats_B, weight_B, other sums by name).
    """
    init = lambda key, model: init_head(key, heads.compute_width(cfg, model)) | heads.init_features(cfg)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        nats_B, weight_B, sums = compute_loss(params, model, batch, key_B if train else None, train)
        return types.LossSums({term: nats_B}, {term: weight_B}, sums | {"tokens": heads.count_tokens(batch.text)})

    accuracy = Score("accuracy", "training accuracy", ("correct", f"{term}_weight"), share=True)
    return types.Objective(loss, tuple(model_scores), init, train_scores=(train_score or accuracy,), **parts)


def build_spec(
    build: Callable[..., types.Objective],
    score_names: Sequence[str],
    finetune_fields: Sequence[str] = ("pooler", "layer_features"),
    check: types.CheckFn = heads.check_features,
    prediction_rates: types.PredictionRates = PREDICT_TOKENS,
) -> types.ObjectiveSpec:
    """An entry of OBJECTIVES; score_names: those that config.data.labelled.scores may hold."""

    def check_all(cfg):
        check(cfg)
        scores.parse_score_names(cfg, score_names)

    return types.ObjectiveSpec(
        build,
        lambda cfg: prediction_rates,
        heads.DIRECTIONALITIES,
        types.Visibility.FULL,
        check=check_all,
        conditional_fields=(*(f"finetune.{field}" for field in finetune_fields), "data.labelled.scores"),
    )
