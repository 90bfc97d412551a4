"""What objectives on labelled examples read of a model's states, and the dense heads on that, with their pooling.

Letters in array names: K layers, the embeddings first; D width of what is read; C classes, or other outputs.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.base.types import Directionality, Pooling

POOLINGS: dict[str, tuple[Pooling, ...]] = {
    Directionality.BIDIRECTIONAL: tuple(Pooling),
    Directionality.MIXED: tuple(Pooling),  # by config.model.directionality
    Directionality.CAUSAL: (Pooling.LAST, Pooling.MEAN),
    Directionality.TWO_STACK: (Pooling.LAST, Pooling.MEAN),
}
DIRECTIONALITIES = tuple(map(Directionality, POOLINGS))
ACTIVATIONS: dict[str, Callable] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}  # by config.model.lm_head_activation
POOLER_ACTIVATIONS: dict[str, Callable] = {
    "bert": jnp.tanh,
    "electra": ACTIVATIONS["gelu"],
    "distilbert": jax.nn.relu,
}  # by config.finetune.pooler
BERT_INIT = jax.nn.initializers.truncated_normal(0.02)
DROPOUT_STREAM = 2**31  # folded into an example's key; no layer has this number

NUM_COMBINED_LAYERS = 4
LAYER_FEATURES = ("last", "second_to_last", "sum4", "concat4", "mix")  # of finetune.layer_features, beside a number


def check(cfg: config.Config) -> None:
    """Raises ConfigError as `check_pooling` and `check_features` do."""
    check_pooling(cfg)
    check_features(cfg)


def check_pooling(cfg: config.Config) -> None:
    """Raises ConfigError where config.finetune.pooling does not see a whole example."""
    pooling, context = cfg.finetune.pooling, cfg.model.directionality
    expected = " or ".join(POOLINGS[context])
    errors.require_field(cfg, "finetune.pooling", pooling in POOLINGS[context], expected, "model.directionality")


def check_features(cfg: config.Config) -> None:
    """Raises ConfigError where config.finetune.layer_features names no layers of this model."""
    features, num_layers = cfg.finetune.layer_features, cfg.model.num_layers
    names = (*LAYER_FEATURES, *map(str, range(num_layers + 1)))
    errors.require_one_of("config.finetune.layer_features", features, names)
    exist = num_layers >= NUM_COMBINED_LAYERS or features not in ("sum4", "concat4")
    errors.require_field(cfg, "finetune.layer_features", exist, "features of fewer layers", "model.num_layers")


def select_layers(cfg: config.Config) -> range:
    """The layers that layer_features names, 0 the embeddings; mix: all others (Devlin et al. 2019, table 7)."""
    features, top = cfg.finetune.layer_features, cfg.model.num_layers
    if features.isdecimal():
        return range(int(features), int(features) + 1)
    if features == "second_to_last":
        return range(top - 1, top)
    return range({"last": top, "mix": 1}.get(features, top - NUM_COMBINED_LAYERS + 1), top + 1)


def compute_width(cfg: config.Config, model: types.Model) -> int:
    """D, the numbers that are read of a token."""
    num_combined = NUM_COMBINED_LAYERS if cfg.finetune.layer_features == "concat4" else 1
    return len(model.directions) * model.width * num_combined


def init_features(cfg: config.Config) -> types.Params:
    """The parameters of `read_features`, to be merged with those of a head; {} where it has none."""
    if cfg.finetune.layer_features not in ("sum4", "mix"):
        return {}
    return {"mix": init_layer_mix(len(select_layers(cfg)))}


def read_features(cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B):
    """h_BxLxD, float32, of the layers of finetune.layer_features; key_B None, or a frozen model: no dropout."""
    if cfg.finetune.layer_features == "last":
        key_B = key_B if cfg.finetune.trainable_layers else None
        states = model.encode(params["model"], batch.text, batch.source, key_B=key_B)
        return jnp.concatenate(states, -1).astype(jnp.float32)
    layers = select_layers(cfg)
    h_KxBxLxD = encode_all_layers(cfg, params, model, batch, key_B)[layers.start : layers.stop]
    if cfg.finetune.layer_features in ("sum4", "mix"):
        return mix_layers(params["objective"]["mix"], h_KxBxLxD)
    return jnp.concatenate(h_KxBxLxD, -1)


def encode_all_layers(cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B):
    """h_KxBxLxD, float32, of all layers, the embeddings first."""
    assert model.encode_layers is not None
    key_B = key_B if cfg.finetune.trainable_layers else None  # a frozen model drops nothing
    h_KxBxLxD = model.encode_layers(params["model"], batch.text, batch.source, key_B=key_B)
    return h_KxBxLxD.astype(jnp.float32)


def init_layer_mix(num_layers: int) -> types.Params:
    """The parameters of `mix_layers`: equal shares at first."""
    return {"logits": jnp.zeros(num_layers), "scale": jnp.ones(())}


def mix_layers(params: types.Params, h_KxBxLxD):
    """h_BxLxD: the mean of layers with learned weights, times a learned scale (Peters et al. 2018, equation 1)."""
    return params["scale"] * jnp.einsum("k,kbld->bld", jax.nn.softmax(params["logits"]), h_KxBxLxD)


def init_dense(key, inputs: int, outputs: int, init=BERT_INIT) -> types.Params:
    """A dense layer, biases of zero; init: of its weights, as BERT's unless given."""
    return {"kernel": init(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def apply_dense(params: types.Params, x_BxD):
    """A dense layer, with or without a bias: BxD to BxC."""
    out_BxC = x_BxD @ params["kernel"]
    return out_BxC + params["bias"] if "bias" in params else out_BxC


def apply_dropout(x_BxD, key_B, rate: float):
    """Zeroes a share `rate` of x and rescales the rest, with one key an example; key_B None: no dropout."""
    if key_B is None or rate == 0:
        return x_BxD
    stream_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, DROPOUT_STREAM)
    keep_BxD = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x_BxD.shape[1:]))(stream_B)
    return jnp.where(keep_BxD, x_BxD / (1 - rate), 0)


def init_pooled_head(cfg: config.Config, key, width: int, outputs: int) -> types.Params:
    """The parameters of `apply_pooled_head`, with a new pooler."""
    key_pool, key_label = jax.random.split(key)
    has_pooler = cfg.finetune.pooling != Pooling.MEAN or cfg.finetune.pooler == "modernbert"
    pool = init_pooler(cfg, key_pool, width) if has_pooler else {}
    return pool | {"label": init_dense(key_label, width, outputs)}


def init_pooler(cfg: config.Config, key, width: int) -> types.Params:
    """The parameters of `apply_pooler`."""
    layers = {"pool": init_dense(key, width, width)}
    if cfg.finetune.pooler == "modernbert":
        layers["pool_norm"] = {"scale": jnp.ones(width), "bias": jnp.zeros(width)}
        if cfg.model.bias not in ("all", "norms"):
            for layer in layers.values():
                del layer["bias"]
    return layers


def apply_pooler(cfg: config.Config, params: types.Params, x_BxD):
    """The layer that config.finetune.pooler names: BxD to BxD."""
    x_BxD = apply_dense(params["pool"], x_BxD)
    if cfg.finetune.pooler != "modernbert":
        return POOLER_ACTIVATIONS[cfg.finetune.pooler](x_BxD)
    x_BxD = ACTIVATIONS[cfg.model.lm_head_activation](x_BxD)
    norm = params["pool_norm"]
    x_BxD = jax.nn.standardize(x_BxD, epsilon=cfg.model.norm_eps) * norm["scale"]
    return x_BxD + norm["bias"] if "bias" in norm else x_BxD


def init_word_head(cfg: config.Config, key, width: int, outputs: int) -> types.Params:
    """The parameters of `apply_word_head`."""
    if cfg.finetune.pooler != "modernbert":
        return init_dense(key, width, outputs)
    key_pool, key_label = jax.random.split(key)
    return init_pooler(cfg, key_pool, width) | init_dense(key_label, width, outputs)


def apply_word_head(cfg: config.Config, params: types.Params, h_BxLxD, key_B):
    """logits_BxLxC: a dense layer, after dropout, on each token's state; ModernBERT has its pooler between them."""
    if "pool" in params:
        h_BxLxD = apply_pooler(cfg, params, h_BxLxD)
    return apply_dense(params, apply_dropout(h_BxLxD, key_B, cfg.model.dropout))


def apply_pooled_head(cfg: config.Config, params: types.Params, h_BxLxD, text: types.Tokens, key_B):
    """logits_BxC: a dense layer, after dropout, on one vector of each example.

    That is a pooler of the first token's state (Devlin et al. 2019, section 4.1) or of the last token's (Radford et al.
    2018, section 3.2), or the mean of all tokens' states, of which ModernBERT alone has a pooler.
    """
    pooling = cfg.finetune.pooling
    pooled_BxD = pool_states(pooling, h_BxLxD, text)
    if pooling != Pooling.MEAN or cfg.finetune.pooler == "modernbert":
        pooled_BxD = apply_pooler(cfg, params, pooled_BxD)
    return apply_dense(params["label"], apply_dropout(pooled_BxD, key_B, cfg.model.dropout))


def pool_states(pooling: str, h_BxLxD, text: types.Tokens):
    """BxD: the state of the first or the last token of each example, or the mean of all; pooling: of types.Pooling."""
    real_BxL = text.segments_BxL > 0
    if pooling == Pooling.MEAN:
        return (h_BxLxD * real_BxL[..., None]).sum(1) / jnp.maximum(real_BxL.sum(1), 1)[:, None]
    place_B = jnp.maximum(real_BxL.sum(1) - 1, 0) if pooling == Pooling.LAST else jnp.zeros(len(h_BxLxD), jnp.int32)
    return jnp.take_along_axis(h_BxLxD, place_B[:, None, None], axis=1)[:, 0]


def split_sequences(batch: types.Batch, key_B, num_sequences: int):
    """(batch, key_F or None) of the sequences that stand beside each other in an example: F is B * num_sequences."""
    text = types.Tokens(*(x_BxL.reshape(len(x_BxL) * num_sequences, -1) for x_BxL in batch.text))
    key_F = None if key_B is None else jax.vmap(lambda key: jax.random.split(key, num_sequences))(key_B).reshape(-1)
    return batch._replace(text=text), key_F


def flag_real_examples(text: types.Tokens):
    """real_B: 1.0 for examples that hold tokens, 0.0 for those that fill up a batch."""
    return (text.segments_BxL > 0).any(-1).astype(jnp.float32)


def count_tokens(text: types.Tokens):
    """tokens_B: tokens that are not padding, float32."""
    return (text.segments_BxL > 0).sum(-1).astype(jnp.float32)
