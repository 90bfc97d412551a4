"""The states of a model that objectives on labelled examples read: those of one layer, or of several.

Letters in array names: K layers, the embeddings first; D width of the features.
"""

import jax
import jax.numpy as jnp

from mlm.base import config, errors, types

NUM_COMBINED_LAYERS = 4
LAYER_FEATURES = ("last", "second_to_last", "sum4", "concat4", "mix")  # of finetune.layer_features, beside a number


def check(cfg: config.Config) -> None:
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
        states = model.encode(params["model"], batch.text, batch.source, key_B=select_dropout_keys(cfg, key_B))
        return jnp.concatenate(states, -1).astype(jnp.float32)
    layers = select_layers(cfg)
    h_KxBxLxD = encode_all_layers(cfg, params, model, batch, key_B)[layers.start : layers.stop]
    if cfg.finetune.layer_features in ("sum4", "mix"):
        return mix_layers(params["objective"]["mix"], h_KxBxLxD)
    return jnp.concatenate(h_KxBxLxD, -1)


def encode_all_layers(cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B):
    """h_KxBxLxD, float32, of all layers, the embeddings first."""
    assert model.encode_layers is not None
    h_KxBxLxD = model.encode_layers(params["model"], batch.text, batch.source, key_B=select_dropout_keys(cfg, key_B))
    return h_KxBxLxD.astype(jnp.float32)


def select_dropout_keys(cfg: config.Config, key_B):
    """The keys, or None where the model is frozen."""
    return key_B if cfg.finetune.trainable_layers else None


def init_layer_mix(num_layers: int) -> types.Params:
    """The parameters of `mix_layers`: equal shares at first."""
    return {"logits": jnp.zeros(num_layers), "scale": jnp.ones(())}


def mix_layers(params: types.Params, h_KxBxLxD):
    """h_BxLxD: the mean of layers with learned weights, times a learned scale (Peters et al. 2018, equation 1)."""
    return params["scale"] * jnp.einsum("k,kbld->bld", jax.nn.softmax(params["logits"]), h_KxBxLxD)
