"""What objectives on labelled rows read of a model's states, and the dense layers on top.

Letters in array names: C classes, or whatever else a dense layer gives out.
"""
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.objectives import features

READS = {"both": ("first", "last", "mean"), "row": ("first", "last", "mean"),  # by what each state has seen of its row
         "left": ("last", "mean"), "apart": ("last", "mean")}
SEES = tuple(READS)
DRAW = 2**31  # folded into a row's key it is no layer's number


def check(cfg: config.Config) -> None:
    """Raises ConfigError where config.finetune.pooling is nothing that tells of a whole row, and as `features.check` does."""
    read, sees = cfg.finetune.pooling, cfg.model.context
    errors.require_one_of("config.finetune.pooling", read, READS["both"])
    errors.require(read in READS[sees], "config.finetune.pooling", read,
                  f"{' or '.join(READS[sees])}, since config.model.context is {sees}")
    features.check(cfg)


def dense_init(key, inputs: int, outputs: int) -> types.Params:
    """A dense layer as BERT starts it: a truncated normal of 0.02, biases of zero."""
    return {"kernel": jax.nn.initializers.truncated_normal(0.02)(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def dense(params: types.Params, x_BxD):
    return x_BxD @ params["kernel"] + params["bias"]


def dropout(x_BxD, key_B, rate: float):
    """Zeroes a share `rate` of x and rescales the rest, by a draw of each row's own; key_B None: x as it is."""
    if key_B is None or rate == 0:
        return x_BxD
    kept_BxD = jax.vmap(lambda key: jax.random.bernoulli(jax.random.fold_in(key, DRAW), 1 - rate, x_BxD.shape[1:]))(
        key_B)
    return jnp.where(kept_BxD, x_BxD / (1 - rate), 0)


def row_init(key, width: int, outputs: int, read: str) -> types.Params:
    """The parameters of `row`; its pooler is a fresh one, whatever the pretraining left."""
    key_pool, key_label = jax.random.split(key)
    pool = {} if read == "mean" else {"pool": dense_init(key_pool, width, width)}
    return pool | {"label": dense_init(key_label, width, outputs)}


def row(params: types.Params, h_BxLxD, text: types.Tokens, key_B, *, read: str, rate: float):
    """logits_BxC of rows: dense on a tanh pooler of one token's state (Devlin et al. 2019, section 4.1; of the last
    token: Radford et al. 2018, section 3.2), or on the mean of all tokens', with dropout before it.
    """
    real_BxL = text.segments_BxL > 0
    if read == "mean":
        pooled_BxD = (h_BxLxD * real_BxL[..., None]).sum(1) / jnp.maximum(real_BxL.sum(1), 1)[:, None]
    else:
        place_B = jnp.maximum(real_BxL.sum(1) - 1, 0) if read == "last" else jnp.zeros(len(h_BxLxD), jnp.int32)
        one_BxD = jnp.take_along_axis(h_BxLxD, place_B[:, None, None], axis=1)[:, 0]
        pooled_BxD = jnp.tanh(dense(params["pool"], one_BxD))
    return dense(params["label"], dropout(pooled_BxD, key_B, rate))


def real(text: types.Tokens):
    """real_B: 1.0 for rows that hold something, 0.0 for those that fill up a batch."""
    return (text.segments_BxL > 0).any(-1).astype(jnp.float32)


def tokens(text: types.Tokens):
    """tokens_B: how many there are, as the log counts them."""
    return (text.segments_BxL > 0).sum(-1).astype(jnp.float32)


def asked(text: types.Tokens, key_B, knobs):
    """asked_BxL: no token is asked for, since labels are."""
    return jnp.zeros(text.ids_BxL.shape, bool)
