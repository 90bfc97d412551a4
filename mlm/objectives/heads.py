"""Dense heads of objectives on labelled examples, and how they pool a model's states.

Letters in array names: C classes, or other outputs of a dense layer.
"""

import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.base.types import Directionality, Pooling
from mlm.objectives import features

POOLINGS: dict[str, tuple[Pooling, ...]] = {
    Directionality.BIDIRECTIONAL: tuple(Pooling),
    Directionality.MIXED: tuple(Pooling),  # by config.model.directionality
    Directionality.CAUSAL: (Pooling.LAST, Pooling.MEAN),
    Directionality.TWO_STACK: (Pooling.LAST, Pooling.MEAN),
}
DIRECTIONALITIES = tuple(map(Directionality, POOLINGS))
DROPOUT_STREAM = 2**31  # folded into an example's key; no layer has this number


def check(cfg: config.Config) -> None:
    """Raises ConfigError where config.finetune.pooling does not see a whole example, and as `features.check` does."""
    pooling, context = cfg.finetune.pooling, cfg.model.directionality
    errors.require_one_of("config.finetune.pooling", pooling, list(Pooling))
    errors.require(
        pooling in POOLINGS[context],
        "config.finetune.pooling",
        pooling,
        f"{' or '.join(POOLINGS[context])}, since config.model.directionality is {context}",
    )
    features.check(cfg)


def init_dense(key, inputs: int, outputs: int) -> types.Params:
    """A dense layer as BERT initialises it: truncated normal of 0.02, biases of zero."""
    return {"kernel": jax.nn.initializers.truncated_normal(0.02)(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def apply_dense(params: types.Params, x_BxD):
    """A dense layer: BxD to BxC."""
    return x_BxD @ params["kernel"] + params["bias"]


def apply_dropout(x_BxD, key_B, rate: float):
    """Zeroes a share `rate` of x and rescales the rest, with one key an example; key_B None: no dropout."""
    if key_B is None or rate == 0:
        return x_BxD
    keep_BxD = jax.vmap(
        lambda key: jax.random.bernoulli(jax.random.fold_in(key, DROPOUT_STREAM), 1 - rate, x_BxD.shape[1:])
    )(key_B)
    return jnp.where(keep_BxD, x_BxD / (1 - rate), 0)


def init_pooled_head(key, width: int, outputs: int, pooling: str) -> types.Params:
    """The parameters of `apply_pooled_head`, with a new pooler."""
    key_pool, key_label = jax.random.split(key)
    pool = {} if pooling == Pooling.MEAN else {"pool": init_dense(key_pool, width, width)}
    return pool | {"label": init_dense(key_label, width, outputs)}


def apply_pooled_head(params: types.Params, h_BxLxD, text: types.Tokens, key_B, *, pooling: str, dropout_rate: float):
    """logits_BxC: a dense layer, after dropout, on one vector of each example.

    That is a tanh pooler of the first token's state (Devlin et al. 2019, section 4.1) or of the last token's (Radford
    et al. 2018, section 3.2), or the mean of all tokens' states.
    """
    real_BxL = text.segments_BxL > 0
    if pooling == Pooling.MEAN:
        pooled_BxD = (h_BxLxD * real_BxL[..., None]).sum(1) / jnp.maximum(real_BxL.sum(1), 1)[:, None]
    else:
        place_B = jnp.maximum(real_BxL.sum(1) - 1, 0) if pooling == Pooling.LAST else jnp.zeros(len(h_BxLxD), jnp.int32)
        token_BxD = jnp.take_along_axis(h_BxLxD, place_B[:, None, None], axis=1)[:, 0]
        pooled_BxD = jnp.tanh(apply_dense(params["pool"], token_BxD))
    return apply_dense(params["label"], apply_dropout(pooled_BxD, key_B, dropout_rate))


def flag_real_examples(text: types.Tokens):
    """real_B: 1.0 for examples that hold tokens, 0.0 for those that fill up a batch."""
    return (text.segments_BxL > 0).any(-1).astype(jnp.float32)


def count_tokens(text: types.Tokens):
    """tokens_B: tokens that are not padding, float32."""
    return (text.segments_BxL > 0).sum(-1).astype(jnp.float32)


def make_empty_eval_mask(text: types.Tokens, key_B, hparams):
    """eval_mask_BxL, all False: labels are predicted, no tokens."""
    return jnp.zeros(text.ids_BxL.shape, bool)
