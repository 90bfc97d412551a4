"""Replaced token detection: which tokens a small generator replaced (ELECTRA, Clark et al. 2020, 2003.10555).

The generator is trained as mlm. Its samples replace the masked tokens, and the run's model classifies every token as
original or replaced. A sample that happens to be the original token counts as original. No gradient passes through the
sampling.

replaced_token_detection.embeddings says what tables the generator reads: its own; the model's, through a projection
where it is narrower (section 3.2); or its own, whose every update moves the model's too, while the model's loss moves
the model's alone (gradient-disentangled sharing, DeBERTaV3, He et al. 2023, arXiv 2111.09543, section 3.3, with the sum
of its two tables as the model's).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score, make_reference
from mlm.base.special import NUM_SPECIAL
from mlm.objectives import heads, masking, scores

TERM = "replaced_token_detection"
SAMPLING_BLOCK = 128  # tokens whose weights are added up at once: a TPU's lane
TABLES = ("token", "position", "type")  # the embeddings that a generator may share
WEIGHT = f"{TERM}_weight"
LOSS, ACCURACY = scores.build_loss_score(TERM, "nats per token"), scores.build_score("accuracy", WEIGHT)
GENERATOR = ("mlm_nats", "mlm_weight")
ORIGINAL = ("original",), "share of replaced tokens"  # columns and name of the reference
SCORES = (
    LOSS,
    ACCURACY,
    make_reference(LOSS, "original_loss", "loss of the share of replaced tokens", *ORIGINAL)._replace(
        function="entropy"
    ),
    make_reference(ACCURACY, "original_accuracy", "accuracy of always original", *ORIGINAL),
    Score("generator_loss", "generator's held-out loss", GENERATOR, unit="nats per masked token", better=-1),
    Score("generator_accuracy", "generator's held-out accuracy", ("mlm_correct", "mlm_weight"), better=1, share=True),
)
TRAIN_SCORES = (
    Score("accuracy", "training accuracy", ("correct", WEIGHT), share=True),
    Score("original_accuracy", "share of tokens not replaced", ("original", WEIGHT), share=True),
    masking.CORRUPTED,
)


def build_generator_config(cfg: config.Config) -> config.Model:
    """The run's model with a share of its width, its heads and the units of its layers; shared embeddings are as wide
    as the model's.
    """
    model, size = cfg.model, cfg.replaced_token_detection.generator_size
    num_heads = max(1, round(size * model.num_heads)) if model.num_heads else 0
    width = num_heads * (model.width // model.num_heads) if num_heads else max(1, round(size * model.width))
    units = {name: max(1, round(size * count)) for name in ("mlp_dim", "rnn_dim") if (count := getattr(model, name))}
    is_apart = cfg.replaced_token_detection.embeddings == "separate"
    embedding_dim = model.embedding_dim if is_apart else model.embedding_dim or model.width
    return dataclasses.replace(model, width=width, num_heads=num_heads, embedding_dim=embedding_dim, **units)


def get_generator_params(params: types.Params) -> types.Params:
    """The generator's parameters, with the model's tables of embeddings in place of those that it lacks."""
    return get_tables(params["model"]) | params["objective"]["generator"]


def get_tables(params: types.Params) -> types.Params:
    """The tables of embeddings among a model's parameters."""
    return {name: params[name] for name in TABLES if name in params}


def link_params(params: types.Params) -> types.Params:
    """The parameters with the model's tables of embeddings as the generator's."""
    head = params["objective"]
    tables = jax.tree.map(jnp.copy, get_tables(params["model"]))
    return params | {"objective": head | {"generator": head["generator"] | tables}}


def link_updates(updates: types.Params) -> types.Params:
    """The updates, in which the model's tables of embeddings also move as the generator's do."""
    tables = get_tables(updates["objective"]["generator"])
    moved = jax.tree.map(jnp.add, {name: updates["model"][name] for name in tables}, tables)
    return updates | {"model": updates["model"] | moved}


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo, generator: types.Model) -> types.Objective:
    """The objective; the generator is that of `build_generator_config`. Samples are never special tokens."""
    sample_masks, embeddings = masking.build_sampler(cfg, dataset), cfg.replaced_token_detection.embeddings

    def init(key, model):
        key_generator, key_hidden, key_label = jax.random.split(key, 3)
        params = generator.init(key_generator)
        own = {name: leaf for name, leaf in params.items() if embeddings != "shared" or name not in TABLES}
        return {
            "generator": own,
            "hidden": heads.init_dense(key_hidden, model.width, model.width),
            "label": heads.init_dense(key_label, model.width, 1),
        }

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        text, head, generator_params = batch.text, params["objective"], get_generator_params(params)
        masked, rest_key_B = sample_masks(batch, key_B, hparams, train=train)
        generator_key_B, key_B, sample_key_B = jax.vmap(lambda key: jax.random.split(key, 3), out_axes=1)(rest_key_B)
        masked_text = text._replace(ids_BxL=masked.ids_BxL)
        (h_BxLxE,) = generator.encode(generator_params, masked_text, key_B=generator_key_B if train else None)
        h_BxKxE = jnp.take_along_axis(h_BxLxE, masked.positions_BxK[..., None], axis=1)
        logits_BxKxV = generator.logits(generator_params, h_BxKxE)
        label_BxK = jnp.take_along_axis(logits_BxKxV, masked.targets_BxK[..., None], axis=-1)[..., 0]
        log_sum_BxK = jax.nn.logsumexp(logits_BxKxV, axis=-1)
        nats_BxK = log_sum_BxK - label_BxK
        if train and cfg.optim.z_loss:
            nats_BxK += cfg.optim.z_loss * log_sum_BxK**2
        nats_BxK *= masked.weights_BxK
        correct_BxK = (logits_BxKxV.argmax(-1) == masked.targets_BxK) * masked.weights_BxK

        sampled = logits_BxKxV / hparams.objective["temperature"]
        input_BxL = insert_samples(sample_key_B, text.ids_BxL, masked, sampled)
        replaced_BxL, real_BxL = input_BxL != text.ids_BxL, (text.segments_BxL > 0).astype(jnp.float32)
        (h_BxLxD,) = model.encode(params["model"], text._replace(ids_BxL=input_BxL), key_B=key_B if train else None)
        hidden_BxLxD = jax.nn.gelu(heads.apply_dense(head["hidden"], h_BxLxD.astype(jnp.float32)), approximate=False)
        logit_BxL = heads.apply_dense(head["label"], hidden_BxLxD)[..., 0]
        nats_BxL = jax.nn.softplus(jnp.where(replaced_BxL, -logit_BxL, logit_BxL))
        sums = {
            "correct": (((logit_BxL > 0) == replaced_BxL) * real_BxL).sum(-1),
            "original": (~replaced_BxL * real_BxL).sum(-1),
            "mlm_correct": correct_BxK.sum(-1),
        }
        return types.LossSums(
            {"mlm": nats_BxK.sum(-1), TERM: (nats_BxL * real_BxL).sum(-1)},
            {"mlm": masked.weights_BxK.sum(-1), TERM: real_BxL.sum(-1)},
            sums | masking.count_tokens(masked, text),
        )

    return types.Objective(
        init=init,
        loss=loss,
        scores=SCORES,
        train_scores=TRAIN_SCORES,
        totals=("tokens", "eligible", "corrupted"),
        schedule_hparams=masking.schedule_rate,
        loss_weights=lambda hparams: {TERM: hparams.objective["discriminator_weight"]},
        **({"link_params": link_params, "link_updates": link_updates} if embeddings == "disentangled" else {}),
    )


def insert_samples(key_B, ids_BxL, masked: masking.MaskedBatch, logits_BxKxV):
    """ids_BxL with a sample from the logits at each corrupted position; no gradient passes through it."""
    sample_BxK = sample_tokens(key_B, jax.lax.stop_gradient(logits_BxKxV))
    corrupted_BxK = jnp.arange(sample_BxK.shape[1]) < masked.num_corrupted_B[:, None]
    number_Bx1 = jnp.arange(len(ids_BxL))[:, None]
    token_BxK = jnp.where(corrupted_BxK, sample_BxK, masked.targets_BxK).astype(ids_BxL.dtype)
    return ids_BxL.at[number_Bx1, masked.positions_BxK].set(token_BxK)


def sample_tokens(key_B, logits_BxKxV) -> jax.Array:
    """Samples a token that is not special from each row of logits, by the inverse of its distribution function.

    This takes one random number a position, where jax.random.categorical takes one a token of the vocabulary. Weights
    are added up in N blocks of C tokens, then token by token in the block that the number falls into.
    """
    num_positions, num_tokens = logits_BxKxV.shape[1:]
    logits_BxKxV = jnp.where(jnp.arange(num_tokens) < NUM_SPECIAL, -jnp.inf, logits_BxKxV)
    weight_BxKxV = jnp.exp(logits_BxKxV - logits_BxKxV.max(-1, keepdims=True))
    weight_BxKxV = jnp.pad(weight_BxKxV, ((0, 0), (0, 0), (0, -num_tokens % SAMPLING_BLOCK)))
    weight_BxKxNxC = weight_BxKxV.reshape(*logits_BxKxV.shape[:2], -1, SAMPLING_BLOCK)
    end_BxKxN = weight_BxKxNxC.sum(-1).cumsum(-1)
    uniform_BxK = jax.vmap(lambda key: jax.random.uniform(key, (num_positions,)))(key_B)
    drawn_BxKx1 = uniform_BxK[..., None] * end_BxKxN[..., -1:]
    start_BxKxN = jnp.pad(end_BxKxN[..., :-1], ((0, 0), (0, 0), (1, 0)))
    block_BxKx1 = (start_BxKxN[..., 1:] <= drawn_BxKx1).sum(-1, keepdims=True)
    weight_BxKxC = jnp.take_along_axis(weight_BxKxNxC, block_BxKx1[..., None], axis=2)[:, :, 0]
    rest_BxKx1 = drawn_BxKx1 - jnp.take_along_axis(start_BxKxN, block_BxKx1, axis=2)
    place_BxK = (weight_BxKxC.cumsum(-1)[..., :-1] <= rest_BxKx1).sum(-1)
    return jnp.minimum(block_BxKx1[..., 0] * SAMPLING_BLOCK + place_BxK, num_tokens - 1)  # the sum's rounding


def make_train_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """The traced values: those of the masks and of the samples, and the weight of the discriminator's loss."""
    names = ("temperature", "discriminator_weight")
    own = {name: np.float32(getattr(cfg.replaced_token_detection, name)) for name in names}
    return masking.make_train_hparams(cfg) | own


def make_eval_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """The traced values of an evaluation: those of the masks and of the samples."""
    return masking.make_eval_hparams(cfg) | {"temperature": np.float32(cfg.replaced_token_detection.temperature)}


def check(cfg: config.Config) -> None:
    """Raises ConfigError for bad masks, and for a model that does not see its own token."""
    masking.check(cfg)
    sees_token = (cfg.model.family, cfg.model.directionality) != ("feedforward", "bidirectional")
    expected = "mixed, since a bidirectional feedforward net does not see the token itself"
    errors.require(sees_token, "config.model.directionality", "bidirectional", expected)


SPEC = types.ObjectiveSpec(
    build,
    prediction_rates=lambda cfg: types.PredictionRates(tokens=1.0),
    directionalities=(types.Directionality.MIXED, types.Directionality.BIDIRECTIONAL),
    visibility=types.Visibility.CORRUPTED,
    check=check,
    required_fields={"mask.masks_per_example": 1},
    auxiliary_model=build_generator_config,
    train_hparams=make_train_hparams,
    eval_hparams=make_eval_hparams,
    conditional_fields=("mask", "eval.mask_rate", "eval.mask_unit", "optim.z_loss", "replaced_token_detection"),
)
