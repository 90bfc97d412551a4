"""Question answering: where in a passage the answer starts and ends (Devlin et al. 2019, sections 4.2 and 4.3)."""
import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.objectives import answers, features, heads, scores

NAMES = ("f1", "exact")  # what config.data.labelled.scores may ask for
SCORES = {name: Score(name, f"held-out {title}", (f"answer_{name}", "answer_weight"), better=1, share=True, chart=True)
          for name, title in (("f1", "answer F1"), ("exact", "exact match"))}


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on rows that bring start_B and end_B, both 0 where a window holds no answer.

    The nats of a window are the mean of those of its start and its end, each among all its tokens. In evaluation the
    sums hold the logits, of which `answers.tally` makes "predicted" and "score". The rows of an example, its windows,
    all stand in one split; answer_weight counts windows in training and examples in evaluation.
    """
    def init(key, model):
        return heads.dense_init(key, features.width(cfg, model), 2) | features.init(cfg)

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        h_BxLxD = features.read(cfg, params, model, batch, key_B if train else None)
        logits_Bx2xL = jnp.moveaxis(heads.dense(params["objective"], h_BxLxD), -1, 1)
        real_BxL, real_B = batch.text.segments_BxL > 0, heads.real(batch.text)
        log_prob_Bx2xL = jax.nn.log_softmax(jnp.where(real_BxL[:, None], logits_Bx2xL, -1e9))
        right_Bx2 = jnp.stack([batch.labels["start_B"], batch.labels["end_B"]], 1)
        nats_Bx2 = -jnp.take_along_axis(log_prob_Bx2xL, right_Bx2[..., None], axis=-1)[..., 0]
        correct_B = (log_prob_Bx2xL.argmax(-1) == right_Bx2).all(1) * real_B
        sums = {"correct": correct_B, "tokens": heads.tokens(batch.text), "answer_weight": real_B}
        if not train:
            start_BxL, end_BxL = jnp.moveaxis(logits_Bx2xL * real_BxL[:, None], 1, 0)
            sums |= {"start_logit": start_BxL, "end_logit": end_BxL}
        return types.LossSums({"span": nats_Bx2.mean(1) * real_B}, {"span": real_B}, sums)

    own = tuple(SCORES[name] for name in scores.names(cfg, NAMES))
    return types.Objective(
        init=init, loss=loss, asked=heads.asked, words=False, tally=answers.tally,
        scores=(*own, scores.loss("span", "nats per window")),
        training=(Score("accuracy", "training exact spans", ("correct", "span_weight"), share=True),))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for scores that are not of answers, and for features that the model has not."""
    features.check(cfg)
    scores.names(cfg, NAMES)


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1 / cfg.pack.seq_len, sees=heads.SEES, seen="row",
                  reads=("finetune.layer_features", "data.labelled.scores"))
