"""Extractive question answering: where in a passage the answer starts and ends (Devlin et al. 2019, sections 4.2 and
4.3).
"""

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.static_config import StaticConfig
from mlm.objectives import answer_extraction, features, heads, scores

SCORE_NAMES = ("f1", "exact")  # allowed in config.data.labelled.scores
SCORES = {
    name: Score(name, f"held-out {title}", (f"answer_{name}", "answer_weight"), better=1, share=True, chart=True)
    for name, title in (("f1", "answer F1"), ("exact", "exact match"))
}

NULL_COLUMNS = {name: (f"null_{name}",) for name in SCORE_NAMES}  # the scores of no answer


def build(cfg: StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on windows of passages with start_B and end_B, both 0 where a window holds no answer.

    The nats of a window are the mean of those of its start and its end, each among all its tokens. In evaluation the
    sums include the logits, from which `answer_extraction.compute_answer_metrics` makes "predicted" and "score". All
    windows of an example are in one split; answer_weight counts windows in training and examples in evaluation.

    Where some questions have no answer, the majority class is that none has one.
    """

    def init(key, model):
        return heads.init_word_head(cfg, key, features.compute_width(cfg, model), 2) | features.init_features(cfg)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        h_BxLxD = features.read_features(cfg, params, model, batch, key_B if train else None)
        logits_Bx2xL = jnp.moveaxis(heads.apply_word_head(cfg, params["objective"], h_BxLxD, None), -1, 1)
        real_BxL, real_B = batch.text.segments_BxL > 0, heads.flag_real_examples(batch.text)
        log_prob_Bx2xL = jax.nn.log_softmax(jnp.where(real_BxL[:, None], logits_Bx2xL, -1e9))
        target_Bx2 = jnp.stack([batch.labels["start_B"], batch.labels["end_B"]], 1)
        nats_Bx2 = -jnp.take_along_axis(log_prob_Bx2xL, target_Bx2[..., None], axis=-1)[..., 0]
        correct_B = (log_prob_Bx2xL.argmax(-1) == target_Bx2).all(1) * real_B
        sums = {"correct": correct_B, "tokens": heads.count_tokens(batch.text), "answer_weight": real_B}
        if not train:
            start_BxL, end_BxL = jnp.moveaxis(logits_Bx2xL * real_BxL[:, None], 1, 0)
            sums |= {"start_logit": start_BxL, "end_logit": end_BxL}
        return types.LossSums({"extractive_qa": nats_Bx2.mean(1) * real_B}, {"extractive_qa": real_B}, sums)

    has_unanswerable = bool(dataset.class_counts) and np.frombuffer(dataset.class_counts, np.int64)[-1] > 0
    model_scores = tuple(SCORES[name] for name in scores.parse_score_names(cfg, SCORE_NAMES))
    return types.Objective(
        init=init,
        loss=loss,
        eval_mask=heads.make_empty_eval_mask,
        predicts_tokens=False,
        host_metrics=answer_extraction.compute_answer_metrics,
        scores=(
            *model_scores,
            scores.build_loss_score("extractive_qa", "nats per window"),
            *(scores.build_majority_scores(model_scores, dataset, NULL_COLUMNS) if has_unanswerable else ()),
        ),
        train_scores=(Score("accuracy", "training exact spans", ("correct", "extractive_qa_weight"), share=True),),
    )


def check(cfg: config.Config) -> None:
    """Raises ConfigError for unknown scores and bad features."""
    features.check(cfg)
    scores.parse_score_names(cfg, SCORE_NAMES)


SPEC = types.ObjectiveSpec(
    build,
    check,
    predictions_per_token=lambda cfg: 1 / cfg.pack.seq_len,
    directionalities=heads.DIRECTIONALITIES,
    visibility=types.Visibility.FULL,
    conditional_fields=("finetune.pooler", "finetune.layer_features", "data.labelled.scores"),
)
