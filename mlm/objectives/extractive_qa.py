"""Extractive question answering: where in a passage an answer starts and ends (Devlin et al. 2019, 4.2 and 4.3)."""

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import types
from mlm.base.estimates import Score
from mlm.objectives import answer_extraction, heads, labelled, scores

SCORE_NAMES = ("f1", "exact")  # allowed in config.data.labelled.scores
SCORES = {
    name: Score(name, f"held-out {title}", (f"answer_{name}", "answer_weight"), better=1, share=True, chart=True)
    for name, title in (("f1", "answer F1"), ("exact", "exact match"))
}

NULL_COLUMNS = {name: (f"null_{name}",) for name in SCORE_NAMES}  # the scores of no answer


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on windows of passages with start_B and end_B, both 0 where a window holds no answer.

    The nats of a window are the mean of those of its start and its end, each among all its tokens. In evaluation the
    sums include the logits, from which `answer_extraction.compute_answer_metrics` makes "predicted" and "score". All
    windows of an example are in one split; answer_weight counts windows in training and examples in evaluation.

    Where some questions have no answer, the majority class is that none has one.
    """

    def compute_loss(params, model, batch, key_B, train):
        h_BxLxD = heads.read_features(cfg, params, model, batch, key_B)
        logits_Bx2xL = jnp.moveaxis(heads.apply_word_head(cfg, params["objective"], h_BxLxD, None), -1, 1)
        real_BxL, real_B = batch.text.segments_BxL > 0, heads.flag_real_examples(batch.text)
        log_prob_Bx2xL = jax.nn.log_softmax(jnp.where(real_BxL[:, None], logits_Bx2xL, -1e9))
        target_Bx2 = jnp.stack([batch.labels["start_B"], batch.labels["end_B"]], 1)
        nats_Bx2 = -jnp.take_along_axis(log_prob_Bx2xL, target_Bx2[..., None], axis=-1)[..., 0]
        correct_B = (log_prob_Bx2xL.argmax(-1) == target_Bx2).all(1) * real_B
        sums = {"correct": correct_B, "answer_weight": real_B}
        if not train:
            start_BxL, end_BxL = jnp.moveaxis(logits_Bx2xL * real_BxL[:, None], 1, 0)
            sums |= {"start_logit": start_BxL, "end_logit": end_BxL}
        return nats_Bx2.mean(1) * real_B, real_B, sums

    has_unanswerable = bool(dataset.class_counts) and np.frombuffer(dataset.class_counts, np.int64)[-1] > 0
    model_scores = tuple(SCORES[name] for name in scores.parse_score_names(cfg, SCORE_NAMES))
    return labelled.build_objective(
        cfg,
        "extractive_qa",
        lambda key, width: heads.init_word_head(cfg, key, width, 2),
        compute_loss,
        (
            *model_scores,
            scores.build_loss_score("extractive_qa", "nats per window"),
            *(scores.build_majority_scores(model_scores, dataset, NULL_COLUMNS) if has_unanswerable else ()),
        ),
        Score("accuracy", "training exact spans", ("correct", "extractive_qa_weight"), share=True),
        host_metrics=answer_extraction.compute_answer_metrics,
    )


SPEC = labelled.build_spec(build, SCORE_NAMES, predictions_per_token=labelled.predict_once)
