"""What of a model's states objectives on labelled rows read: those of one layer, or of several at once.

Letters in array names: K layers, the embeddings the first; D width of what is read.
"""
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types

FOUR = 4
NAMES = (
    "last",
    "second_to_last",
    "sum4",
    "concat4",
    "mix",
)  # what config.finetune.layer_features may be, beside a number


def check(cfg: config.Config) -> None:
    """Raises ConfigError where config.finetune.layer_features is nothing that a model of so many layers has."""
    asked, layers, field = cfg.finetune.layer_features, cfg.model.num_layers, "config.finetune.layer_features"
    errors.require_one_of(field, asked, (*NAMES, *map(str, range(layers + 1))))
    errors.require(layers >= FOUR or asked not in ("sum4", "concat4"), field, asked,
                   f"last, second_to_last, mix or a layer's number, since config.model.num_layers = {layers} is less than {FOUR}")


def layers(cfg: config.Config) -> range:
    """The layers that config.finetune.layer_features names, 0 the embeddings. mix: all but those, as in Devlin et al. 2019 (table
    7: "weighted sum all 12 layers" of BERT-base).
    """
    asked, top = cfg.finetune.layer_features, cfg.model.num_layers
    if asked.isdecimal():
        return range(int(asked), int(asked) + 1)
    if asked == "second_to_last":
        return range(top - 1, top)
    return range({"last": top, "mix": 1}.get(asked, top - FOUR + 1), top + 1)


def width(cfg: config.Config, model: types.Model) -> int:
    """Numbers that are read of a token."""
    return len(model.directions) * model.width * (FOUR if cfg.finetune.layer_features == "concat4" else 1)


def init(cfg: config.Config) -> types.Params:
    """The parameters of `read`, by a name of their own beside those of a head; {} where it has none."""
    return {"mix": mix_init(len(layers(cfg)))} if cfg.finetune.layer_features in ("sum4", "mix") else {}


def read(cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B):
    """h_BxLxD, float32, of the layers that config.finetune.layer_features names; key_B None: evaluation.

    Of a model of which nothing is trained they are features: it drops nothing.
    """
    if cfg.finetune.layer_features == "last":
        states = model.encode(params["model"], batch.text, batch.source, key_B=while_trained(cfg, key_B))
        return jnp.concatenate(states, -1).astype(jnp.float32)
    read = layers(cfg)
    h_KxBxLxD = every(cfg, params, model, batch, key_B)[read.start:read.stop]
    if cfg.finetune.layer_features in ("sum4", "mix"):
        return mix(params["objective"]["mix"], h_KxBxLxD)
    return jnp.concatenate(h_KxBxLxD, -1)


def every(cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B):
    """h_KxBxLxD, float32, of all layers, as `read` has them."""
    h_KxBxLxD = model.encode_layers(params["model"], batch.text, batch.source, key_B=while_trained(cfg, key_B))
    return h_KxBxLxD.astype(jnp.float32)


def while_trained(cfg: config.Config, key_B):
    return key_B if cfg.finetune.trainable_layers else None


def mix_init(count: int) -> types.Params:
    """The parameters of a mix of so many layers, all alike at first."""
    return {"logits": jnp.zeros(count), "scale": jnp.ones(())}


def mix(params: types.Params, h_KxBxLxD):
    """h_BxLxD: the sum of layers by learnt shares, times a learnt number (Peters et al. 2018, equation 1)."""
    return params["scale"] * jnp.einsum("k,kbld->bld", jax.nn.softmax(params["logits"]), h_KxBxLxD)
