"""Edge probing: what a small classifier tells of words, and of pairs of them, from a frozen model's layers (Tenney et
al. 2019, arXiv 1905.06316 and 1905.05950).

Letters in array names: S spans of a row, as many as it has tokens at most; P width of a span; C classes; K layers.
"""
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.objectives import features, heads, scores

NAMES = ("f1", "accuracy")  # what config.data.labelled.scores may ask for
WEIGHT = "edge_weight"
WIDTH, DROPOUT = 256, 0.3   # of the projection and of the hidden layer; of the hidden layer
F1 = Score("f1", "held-out micro-F1", ("right", "found", WEIGHT, WEIGHT), "f1", better=1, share=True, chart=True)
GRAVITY = Score("gravity", "centre of gravity of the mix", ("gravity", WEIGHT), unit="layers", form=".2f")


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on rows that bring edge_BxS, a class or -1 where nothing is asked, and two spans beside it: the
    first and last token of each, from_BxS and to_BxS, other_from_BxS and other_to_BxS (S = L).

    The probe reads a learnt mix of the layers 0 (the embeddings) to config.finetune.max_layer, each span's tokens by attention
    of its own, and asks of each class by itself whether it is one (nats are summed over classes). "gravity", in the
    sums of evaluation, is the layer that the mix lies at on average, the embeddings' 0 included.
    """
    log_share_C, classes, asked = scores.log_shares(about), len(about.classes), scores.names(cfg, NAMES)
    made = {"f1": F1, "accuracy": scores.accuracy(WEIGHT)}
    own = (*(made[name] for name in asked), scores.loss("edge", "nats per label"))
    layers = (cfg.model.num_layers if cfg.finetune.max_layer < 0 else cfg.finetune.max_layer) + 1

    def init(key, model):
        one, other, hidden, label = jax.random.split(key, 4)
        width = len(model.directions) * model.width
        return {"mix": features.mix_init(layers), "one": span_init(one, width), "other": span_init(other, width),
                "hidden": dense_init(hidden, 2 * WIDTH, WIDTH), "label": dense_init(label, WIDTH, classes)}

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        head, brought, key_B = params["objective"], batch.labels, key_B if train else None
        h_BxLxD = features.mix(head["mix"], features.every(cfg, params, model, batch, key_B)[:layers])
        spans_BxSx2P = jnp.concatenate([
            span(head["one"], h_BxLxD, brought["from_BxL"], brought["to_BxL"]),
            span(head["other"], h_BxLxD, brought["other_from_BxL"], brought["other_to_BxL"])], -1)
        hidden_BxSxP = jnp.tanh(heads.dense(head["hidden"], spans_BxSx2P))
        logits_BxSxC = heads.dense(head["label"], heads.dropout(hidden_BxSxP, key_B, DROPOUT))
        label_BxS = jnp.maximum(brought["edge_BxL"], 0)
        real_Bx1 = heads.real(batch.text)[:, None]
        asked_BxS = (brought["edge_BxL"] >= 0) * real_Bx1
        right_BxS = jnp.take_along_axis(logits_BxSxC, label_BxS[..., None], axis=-1)[..., 0]
        predicted_BxS = logits_BxSxC.argmax(-1)
        weight_B = asked_BxS.sum(-1)
        sums = {"correct": ((predicted_BxS == label_BxS) * asked_BxS).sum(-1), "tokens": heads.tokens(batch.text)}
        if not train:
            share_K = jax.nn.softmax(head["mix"]["logits"])
            sums |= {"gravity": (share_K @ jnp.arange(layers)) * weight_B,
                     "right": ((right_BxS > 0) * asked_BxS).sum(-1),
                     "found": ((logits_BxSxC > 0).sum(-1) * asked_BxS).sum(-1),
                     "majority_correct": ((label_BxS == log_share_C.argmax()) * asked_BxS).sum(-1),
                     "predicted": predicted_BxS * real_Bx1,
                     "score": jax.nn.log_sigmoid(logits_BxSxC.max(-1)) * real_Bx1}
        nats_BxS = jax.nn.softplus(logits_BxSxC).sum(-1) - right_BxS
        return types.LossSums({"edge": (nats_BxS * asked_BxS).sum(-1)}, {"edge": weight_B}, sums)

    return types.Objective(
        init=init, loss=loss, asked=heads.asked, words=False, scores=(*own, *references(own, about), GRAVITY),
        training=(Score("accuracy", "training accuracy", ("correct", WEIGHT), share=True),))


def dense_init(key, inputs: int, outputs: int) -> types.Params:
    """A dense layer whose weights are uniform within 1/sqrt(inputs)."""
    uniform = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    return {"kernel": uniform(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def span_init(key, width: int) -> types.Params:
    key_project, key_attend = jax.random.split(key)
    return {"project": dense_init(key_project, width, WIDTH), "attend": dense_init(key_attend, WIDTH, 1)["kernel"]}


def span(params: types.Params, h_BxLxD, first_BxS, last_BxS):
    """span_BxSxP: the tokens from first to last, projected, and summed by shares that their own states decide."""
    x_BxLxP = heads.dense(params["project"], h_BxLxD)
    place_L = jnp.arange(x_BxLxP.shape[1])
    inside_BxSxL = (first_BxS[..., None] <= place_L) & (place_L <= last_BxS[..., None])
    attend_BxL = (x_BxLxP @ params["attend"])[..., 0]
    share_BxSxL = jax.nn.softmax(jnp.where(inside_BxSxL, attend_BxL[:, None], -jnp.inf))
    return jnp.einsum("bsl,blp->bsp", share_BxSxL, x_BxLxP)


def references(own: tuple[Score, ...], about: types.DatasetInfo) -> tuple[Score, ...]:
    """The majority class beside F1 and accuracy, which are the same of one answer to each question."""
    columns = {"f1": ("majority_correct", WEIGHT, WEIGHT, WEIGHT), "accuracy": ("majority_correct", WEIGHT)}
    return tuple(score._replace(name=f"majority_{score.name}", title=score.title.replace("held-out", "majority class"),
                                columns=columns[score.name], better=0, chart=False, reference="majority class",
                                beside=score.name) for score in own if score.name in columns and about.counts)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for scores that are not of spans, a model that is not frozen, and layers that it has not."""
    scores.names(cfg, NAMES)
    errors.require(cfg.finetune.trainable_layers == 0, "config.finetune.trainable_layers",
                   cfg.finetune.trainable_layers, "0, since config.objective is edge, which probes a model as it is")
    errors.require_number("config.finetune.max_layer", cfg.finetune.max_layer, -1, cfg.model.num_layers)


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1.0, sees=heads.SEES, seen="row",
                  reads=("finetune.max_layer", "data.labelled.scores"))
