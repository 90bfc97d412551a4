"""Contrastive: the embedding of a text is nearest to that of the text that belongs to it (van den Oord et al. 2018).

The first text of each example is to find the second among those of the whole batch, by a softmax over cosines (SimCSE,
Gao et al. 2021, arXiv 2104.08821, equation 1). Where examples have a third text, a negative, all of these are to choose
from as well (equation 5). A single text is its own second text, under another dropout mask (equation 4).

Letters in array names: T texts of an example, F texts of a batch, which are B * T; N examples of all devices; C texts
to choose from: the second ones of N examples, then their third ones.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.objectives import heads, labelled, scores

TERM, WEIGHT = "contrastive", "contrastive_weight"
GROUP_SIZE = 64  # held-out examples that are compared with each other, however many a batch or a device has
SCORE_NAMES = ("accuracy",)  # allowed in config.data.labelled.scores


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples of two or three texts, each of which is a sequence of its own.

    Evaluation adds the columns "predicted", the cosine of the first two texts, and "score", the log-probability of the
    second; "correct_D" counts as "correct" does, by the first D numbers of the embeddings.
    """
    num_texts, dims = 2 + bool(cfg.data.labelled.negative_column), cfg.contrastive.matryoshka_dims

    def embed(params, model, batch, key_B):
        texts, key_F = heads.split_sequences(batch, key_B, num_texts)
        h_FxLxD = heads.read_features(cfg, params, model, texts, key_F)
        embedding_FxD = heads.pool_states(cfg.finetune.pooling, h_FxLxD, texts.text)
        return embedding_FxD.reshape(len(batch.index_B), num_texts, -1)

    def compare(embedding_BxTxD, batch, hparams, gather=lambda tree: tree):
        real_B = heads.flag_real_examples(batch.text)
        others_NxTxD, index_N, real_N = gather((embedding_BxTxD[:, 1:], batch.index_B, real_B))
        first_BxD, temperature = embedding_BxTxD[:, 0], hparams.objective["temperature"]
        nats_B, correct = find_pairs(first_BxD, batch.index_B, others_NxTxD, index_N, real_N, temperature, dims)
        sums = {name: correct_B * real_B for name, correct_B in correct.items()}
        sums["tokens"] = heads.count_tokens(batch.text)
        return types.LossSums({TERM: nats_B * real_B}, {TERM: real_B}, sums)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        embedding_BxTxD = embed(params, model, batch, key_B if train or repeats_text(cfg) else None)
        if train:
            return compare(embedding_BxTxD, batch, hparams)
        # The host compares: which held-out examples meet must not depend on batches and devices.
        real_B = heads.flag_real_examples(batch.text)
        columns = {"embedding": embedding_BxTxD * real_B[:, None, None]}
        columns |= {"temperature": hparams.objective["temperature"] * real_B, "tokens": heads.count_tokens(batch.text)}
        return types.LossSums({}, {TERM: real_B}, columns)

    accuracies = [scores.build_score("accuracy", WEIGHT)]
    for dim in dims:
        name, title = f"accuracy_{dim}", f"held-out accuracy, first {dim}"
        accuracies.append(accuracies[0]._replace(name=name, title=title, columns=(f"correct_{dim}", WEIGHT)))
    return types.Objective(
        loss,
        (*accuracies, scores.build_loss_score(TERM, "nats per example")),
        train_scores=(Score("accuracy", "training accuracy", ("correct", WEIGHT), share=True),),
        host_metrics=lambda columns, rows, examples: compare_groups(columns, dims),
        coupling=types.Coupling(embed, compare),
    )


def find_pairs(first_BxD, index_B, others_NxTxD, index_N, real_N, temperature, dims=()):
    """How the first text of each example finds its second one among those of N examples.

    Args:
        others_NxTxD: their other texts: the second, and perhaps the third, which belongs to none.
        index_B, index_N: of an example, by which it is the same one in both.
        real_N: 0 for examples that fill up a batch; their texts are none to choose from.
        dims: how many of an embedding's first numbers are used as well.

    Returns:
        nats_B, the mean over dims and the whole of -log softmax(cosine / temperature) of the second text; and whether
        it is the nearest: "correct", and "correct_D" for each of dims.
    """
    other_CxD = others_NxTxD.swapaxes(0, 1).reshape(-1, first_BxD.shape[-1])
    is_real_C = jnp.tile(real_N > 0, others_NxTxD.shape[1])
    is_pair_BxC = jnp.pad(index_B[:, None] == index_N, ((0, 0), (0, len(other_CxD) - len(index_N))))
    nats_B, correct = 0.0, {}
    for dim in (*dims, None):
        unit_BxD, unit_CxD = _normalize(first_BxD[:, :dim]), _normalize(other_CxD[:, :dim])
        cosine_BxC = jnp.matmul(unit_BxD, unit_CxD.T, precision="highest")
        logits_BxC = jnp.where(is_real_C, cosine_BxC / temperature, -1e9)
        nats_B -= jnp.where(is_pair_BxC, jax.nn.log_softmax(logits_BxC), 0).sum(-1) / (len(dims) + 1)
        nearest_Bx1 = logits_BxC.argmax(-1, keepdims=True)
        correct[f"correct_{dim}" if dim else "correct"] = jnp.take_along_axis(is_pair_BxC, nearest_Bx1, 1)[:, 0]
    return nats_B, correct


def _normalize(x_PxD):
    """The vectors scaled to length 1; zero vectors, those of padding, stay zero and have a gradient."""
    return x_PxD * jax.lax.rsqrt(jnp.maximum((x_PxD * x_PxD).sum(-1, keepdims=True), 1e-24))


def compare_groups(columns, dims=()):
    """The columns of a split by its embeddings, which are dropped: each example beside GROUP_SIZE - 1 others, or fewer.

    Examples that follow each other in a file often share a text: they are in different groups.
    """
    columns = {name: np.asarray(column) for name, column in columns.items()}
    embedding_NxTxD, temperature_N, real_N = (columns[name] for name in ("embedding", "temperature", WEIGHT))
    found = {name: column for name, column in columns.items() if name not in ("embedding", "temperature")}
    num_groups = -(-len(real_N) // GROUP_SIZE)
    for group in range(num_groups):
        index_B = np.arange(group, len(real_N), num_groups)
        embedding_BxTxD, real_B = embedding_NxTxD[index_B], real_N[index_B]
        first_BxD, others_BxTxD = embedding_BxTxD[:, 0], embedding_BxTxD[:, 1:]
        nats_B, correct = find_pairs(first_BxD, index_B, others_BxTxD, index_B, real_B, temperature_N.max(), dims)
        cosine_B = (_normalize(first_BxD) * _normalize(others_BxTxD[:, 0])).sum(-1)
        group_columns = {f"{TERM}_nats": nats_B, "score": -nats_B, "predicted": cosine_B, **correct}
        for name, column_B in group_columns.items():
            found.setdefault(name, np.zeros(len(real_N)))[index_B] = column_B * real_B
    return found


def repeats_text(cfg: config.Config) -> bool:
    """Whether the second text of an example is the first one."""
    return bool(cfg.data.labelled.text_column) and not cfg.data.labelled.text_pair_column


def check(cfg: config.Config) -> None:
    """Raises ConfigError for embeddings that cannot be trained, or not compared."""
    heads.check_pooling(cfg)
    layers, dims, dropout = cfg.finetune.trainable_layers, cfg.contrastive.matryoshka_dims, cfg.model.dropout
    errors.require_field(cfg, "finetune.trainable_layers", layers != 0, "another, since nothing else is", "objective")
    width = cfg.model.width * (1 + (cfg.model.directionality == types.Directionality.TWO_STACK))
    are_parts = len({*dims}) == len(dims) and max(dims, default=0) < width
    expected = f"different numbers below {width}, the width of an embedding"
    errors.require_field(cfg, "contrastive.matryoshka_dims", are_parts, expected)
    expected = "above 0, since dropout alone tells a text from itself: data.labelled.text_pair_column is empty"
    errors.require_field(cfg, "model.dropout", dropout > 0 or not repeats_text(cfg), expected)


def _make_hparams(cfg):
    return {"temperature": np.float32(cfg.contrastive.temperature)}


SPEC = dataclasses.replace(
    labelled.build_spec(build, SCORE_NAMES, ("pooling",), check, labelled.PREDICT_ONCE),
    # Warm-up leaves out examples of a batch; here they are the others' negatives.
    required_fields={"train.batch_warmup_fraction": 0.0},
    train_hparams=_make_hparams,
    eval_hparams=_make_hparams,
    conditional_fields=("contrastive", "finetune.pooling", "data.labelled.scores"),
    embedding_pooling=types.Pooling.MEAN,
)
