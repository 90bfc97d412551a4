"""Tagging: the cross-entropy of a label of each word, at its first piece (Devlin et al. 2019, section 5.3)."""

import itertools
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import errors, types
from mlm.base.estimates import Score
from mlm.objectives import heads, labelled, scores

SCORE_NAMES = ("f1", "accuracy")  # allowed in config.data.labelled.scores; only the second where tags mark no entities
WEIGHT = "tagging_weight"


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with tag_BxL, a class id, or -1 where no tag is predicted.

    The windows of a long sentence are examples in training, and one example in evaluation, where the sums include
    "predicted", the class id of each token, and "score", its log-probability. Raises ConfigError for F1 where tags mark
    no entities.
    """
    log_share_C, classes = scores.compute_log_class_shares(dataset), dataset.classes
    no_entity_tag = next((name for name in classes if not TAG.fullmatch(name)), None)
    score_names = scores.parse_score_names(cfg, SCORE_NAMES if no_entity_tag is None else SCORE_NAMES[::-1])
    expected = f"accuracy, since {no_entity_tag!r} is no tag of entities (O, B-TYPE or I-TYPE)"
    errors.require(no_entity_tag is None or "f1" not in score_names, scores.FIELD, cfg.data.labelled.scores, expected)
    scores_by_name = {"f1": build_entity_scores(WEIGHT), "accuracy": (scores.build_score("accuracy", WEIGHT),)}
    model_scores = (
        *(score for name in score_names for score in scores_by_name[name]),
        scores.build_loss_score("tagging", "nats per word"),
    )

    def init_head(key, width):
        if cfg.finetune.head == "linear":
            return heads.init_word_head(cfg, key, width, len(classes))
        key_label, key_bilstm = jax.random.split(key)
        dense = heads.init_dense(key_label, 2 * cfg.finetune.head_dim, len(classes))
        return dense | {"below": init_bilstm(key_bilstm, width, cfg.finetune.head_dim)}

    def compute_loss(params, model, batch, key_B, train):
        h_BxLxD, head = heads.read_features(cfg, params, model, batch, key_B), params["objective"]
        if cfg.finetune.head == "bilstm":
            h_BxLxD = apply_bilstm(head["below"], h_BxLxD, batch.text.segments_BxL, unroll=cfg.model.rnn_unroll)
        log_prob_BxLxC = jax.nn.log_softmax(heads.apply_word_head(cfg, head, h_BxLxD, key_B))
        tag_BxL = jnp.maximum(batch.labels["tag_BxL"], 0)
        real_BxL = batch.text.segments_BxL > 0
        word_BxL = ((batch.labels["tag_BxL"] >= 0) & real_BxL).astype(jnp.float32)
        predicted_BxL = log_prob_BxLxC.argmax(-1)
        sums = {"correct": ((predicted_BxL == tag_BxL) * word_BxL).sum(-1)}
        if not train:
            baseline = scores.compute_majority_baseline(log_share_C, tag_BxL, word_BxL)
            sums |= {"predicted": predicted_BxL * real_BxL, "score": log_prob_BxLxC.max(-1) * real_BxL}
            sums |= {name: x_BxL.sum(-1) for name, x_BxL in baseline.items()}
        nats_BxL = -jnp.take_along_axis(log_prob_BxLxC, tag_BxL[..., None], axis=-1)[..., 0] * word_BxL
        return nats_BxL.sum(-1), word_BxL.sum(-1), sums

    def merge_sentences(columns, rows, examples):
        if "f1" in score_names:
            count = len(columns["predicted"])
            sentence_N = np.arange(count)
            for example in examples:
                sentence_N[example["row"] : example["row"] + example["rows"]] = example["row"]
            columns = columns | count_entities(
                columns["predicted"], rows["tag"][:count], rows["segments"][:count], classes, sentence_N
            )
        return scores.merge_windows(columns, WEIGHT, examples)

    mean_scores = [score for score in model_scores if score.function == "mean"]
    return labelled.build_objective(
        cfg,
        "tagging",
        init_head,
        compute_loss,
        (*model_scores, *scores.build_majority_scores(mean_scores, dataset)),
        host_metrics=merge_sentences,
    )


SPEC = labelled.build_spec(build, SCORE_NAMES, ("pooler", "layer_features", "head"))


LAYERS = ("lower", "upper")


def init_bilstm(key, inputs: int, units: int) -> types.Params:
    """Weights uniform within 1/sqrt(fan-in), biases zero; `apply_bilstm` adds 1 to the forget gate's."""
    uniform = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", batch_axis=0)

    def init_layer(key, inputs):
        key_input, key_state = jax.random.split(key)
        return {
            "input": uniform(key_input, (2, inputs, 4 * units)),
            "state": uniform(key_state, (2, units, 4 * units)),
            "bias": jnp.zeros((2, 4 * units)),
        }

    layers = zip(LAYERS, jax.random.split(key), (inputs, 2 * units), strict=True)
    return {name: init_layer(layer_key, layer_inputs) for name, layer_key, layer_inputs in layers}


def apply_bilstm(params: types.Params, x_BxLxI, segments_BxL, *, unroll: int):
    """h_BxLx2H, the forward direction first; unroll: tokens per iteration of the scan.

    Both directions reset where the segment changes. Padding has segment 0, so the backward direction starts at an
    example's last real token.
    """
    segments_LxB = segments_BxL.T
    same_LxExB = jnp.stack([_compare_with_previous(segments_LxB), _compare_with_previous(segments_LxB[::-1])], 1)
    for name in LAYERS:
        x_BxLxI = _apply_layer(params[name], x_BxLxI, same_LxExB, unroll)
    return x_BxLxI


def _compare_with_previous(segments_LxB):
    return jnp.pad(segments_LxB[1:] == segments_LxB[:-1], ((1, 0), (0, 0)))


def _apply_layer(params, x_BxLxI, same_LxExB, unroll):
    input_LxExBxG = jnp.einsum("bli,eig->lebg", x_BxLxI, params["input"]) + params["bias"][:, None]
    input_LxExBxG = jnp.stack([input_LxExBxG[:, 0], input_LxExBxG[::-1, 1]], 1)

    def step(carry, inputs):
        input_ExBxG, same_ExB = inputs
        h_ExBxH, c_ExBxH = (jnp.where(same_ExB[..., None], x_ExBxH, 0) for x_ExBxH in carry)
        gates_ExBxG = input_ExBxG + jnp.einsum("ebh,ehg->ebg", h_ExBxH, params["state"])
        i, f, g, o = jnp.split(gates_ExBxG, 4, -1)
        c_ExBxH = jax.nn.sigmoid(f + 1) * c_ExBxH + jax.nn.sigmoid(i) * jnp.tanh(g)
        h_ExBxH = jax.nn.sigmoid(o) * jnp.tanh(c_ExBxH)
        return (h_ExBxH, c_ExBxH), h_ExBxH

    zero_ExBxH = jnp.zeros((*same_LxExB.shape[1:], params["state"].shape[1]))
    _, h_LxExBxH = jax.lax.scan(step, (zero_ExBxH,) * 2, (input_LxExBxG, same_LxExB), unroll=unroll)
    return jnp.swapaxes(jnp.concatenate([h_LxExBxH[:, 0], h_LxExBxH[::-1, 1]], -1), 0, 1)


TAG = re.compile(r"O|[BI]-.+")
SCHEMES = {"": "conlleval", "strict_": "strict BIO"}  # readings of broken tags, by the prefix of their columns


def find_entities(tags: Sequence[str], *, strict: bool) -> set[tuple[str, int, int]]:
    """(type, first position, end) of each entity.

    An entity begins with a B-, continues with each I- of its type, and ends before anything else. An I- that continues
    none begins one, as in conlleval (Tjong Kim Sang & De Meulder 2003); with strict it belongs to none.
    """
    entities, kind, first = set(), "", 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (prefix, tag_kind) != ("I", kind):
            entities.add((kind, first, position))
            kind = ""
        if prefix == "B" or (prefix == "I" and not kind and not strict):
            kind, first = tag_kind, position
    return entities


def count_entities(
    predicted_NxL, tag_NxL, segments_NxL, classes: Sequence[str], sentence_N: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Columns of the correct, predicted and actual entities of each sentence, by each of SCHEMES, in its first row.

    Tags are indices into classes, those below 0 of no word; words of one segment are a sentence. Rows of one number in
    sentence_N, which are next to each other, are windows of one sentence; None: no two rows.
    """
    sentence_N = np.arange(len(tag_NxL)) if sentence_N is None else sentence_N
    columns = {
        f"{scheme}{count}": np.zeros(len(tag_NxL))
        for scheme in SCHEMES
        for count in ("entities_correct", "entities_predicted", "entities_actual")
    }
    word_NxL = (np.asarray(tag_NxL) >= 0) & (np.asarray(segments_NxL) > 0)
    for row_R in np.split(np.arange(len(tag_NxL)), np.flatnonzero(np.diff(sentence_N)) + 1):
        word_RxL = word_NxL[row_R]
        words = zip(*(x_NxL[row_R][word_RxL] for x_NxL in (segments_NxL, predicted_NxL, tag_NxL)), strict=True)
        for _, sentence in itertools.groupby(words, key=lambda word: word[0]):
            tag_pairs = zip(*((classes[int(predicted)], classes[tag]) for _, predicted, tag in sentence), strict=True)
            predicted_tags, actual_tags = tag_pairs
            for scheme in SCHEMES:
                predicted, actual = (find_entities(tags, strict=bool(scheme)) for tags in (predicted_tags, actual_tags))
                for count, entities in (("correct", predicted & actual), ("predicted", predicted), ("actual", actual)):
                    columns[f"{scheme}entities_{count}"][row_R[0]] += len(entities)
    return columns


def build_entity_scores(weight: str) -> tuple[Score, ...]:
    """F1 of entities by each of SCHEMES."""
    return tuple(
        Score(
            "f1_strict" if scheme else "f1",
            f"held-out entity F1 ({title})",
            (*(f"{scheme}entities_{count}" for count in ("correct", "predicted", "actual")), weight),
            "f1",
            better=1,
            share=True,
            chart=not scheme,
        )
        for scheme, title in SCHEMES.items()
    )
