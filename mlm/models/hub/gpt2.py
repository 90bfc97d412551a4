"""GPT-2 and its like: its config.json, and where each of its tensors stands among our parameters.

Its matrices have their inputs first, as ours do; query, key and value stand side by side in both. It has one special
token, which stands between texts: our other four, which its vocabulary lacks, are rows behind its own.
"""
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, PAD, SEP
from mlm.models.hub import settings
from mlm.models.hub.bert import LEAVES, Kind, Place

LAYER = {"attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down",
         "ln_1": "attention_norm", "ln_2": "mlp_norm"}
KINDS = {"gpt2": Kind("transformer", "GPT2LMHeadModel", "pre", LAYER, {}, "", False, {})}
DECODERS = ("lm_head",)       # the tied table over again
BUFFERS = (".attn.bias", ".attn.masked_bias")
SIZES = {"num_layers": "n_layer", "width": "n_embd", "num_heads": "n_head"}
RATES = {"dropout": "resid_pdrop", "attention_dropout": "attn_pdrop"}
ASKED = {"activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
         "reorder_and_upcast_attn": False, "add_cross_attention": False, "tie_word_embeddings": True}
OURS = {
    "norm_placement": "pre",
    "positions": "learned",
    "context": "left",
    "embed_norm": False,
    "activation": "gelu_tanh",
    "lm_head": "plain",
    "type_vocab_size": 0,
}  # all that it is


def read(where: str, found: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, entries of the vocabulary, 0) of a config.json, as settings.read has it of BERT's like."""
    for name, want in ASKED.items():
        errors.require(found.get(name, want) == want, f"{where}: {name}", found.get(name), f"{want!r}")
    of = found.get("architectures") or [KINDS["gpt2"].architecture]
    errors.require(of[0] in ("GPT2LMHeadModel", "GPT2Model"), f"{where}: architectures", of, "GPT2LMHeadModel")
    sizes = {field: settings.whole(where, found, name, 1) for field, name in SIZES.items()}
    width = sizes["width"]
    errors.require(width % sizes["num_heads"] == 0, f"{where}: n_head", sizes["num_heads"],
                  f"a divisor of n_embd = {width}")
    hidden = 4 * width if found.get("n_inner") is None else settings.whole(where, found, "n_inner", 1)
    eps = settings.fraction(where, found, "layer_norm_epsilon", 1e-5)
    errors.require(eps > 0, f"{where}: layer_norm_epsilon", eps, "0 < value < 1")
    model = config.Model(family="transformer", norm_eps=eps, mlp_dim=hidden, **OURS, **sizes,
                         max_positions=settings.whole(where, found, "n_positions", 1),
                         **{field: settings.fraction(where, found, name, 0.1) for field, name in RATES.items()})
    return model, settings.whole(where, found, "vocab_size", 1), 0


def of(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """config.json of a model of ours; raises ConfigError, saying why, for one that GPT-2 is not."""
    for field, want in ({"family": "transformer"} | OURS).items():
        value = getattr(model, field)
        errors.require(value == want, f"config.model.{field}", value, f"{want}, for transformers' GPT-2 to read it")
    return {"architectures": [KINDS["gpt2"].architecture], "model_type": "gpt2",
            **{theirs: getattr(model, field) for field, theirs in (SIZES | RATES).items()}, "embd_pdrop": model.dropout,
            "n_inner": model.mlp_dim, "n_positions": model.max_positions, "layer_norm_epsilon": model.norm_eps,
            "initializer_range": model.init_std or 0.02, **ASKED, "dtype": "float32", **grown(order_V)}


def grown(order_V: np.ndarray) -> dict[str, Any]:
    """What config.json says of a vocabulary with all our special tokens."""
    return {"vocab_size": len(order_V), "pad_token_id": int(order_V[PAD]), "bos_token_id": int(order_V[CLS]),
            "eos_token_id": int(order_V[SEP])}


def places(kind: Kind, layers: int) -> Iterator[Place]:
    """Every tensor of a model of so many layers."""
    yield Place(f"{kind.prefix}.wte.weight", ("token", "embedding"))
    yield Place(f"{kind.prefix}.wpe.weight", ("position", "embedding"))
    for layer in range(layers):
        for name, ours in kind.layer.items():
            yield from _leaves(f"{kind.prefix}.h.{layer}.{name}", f"body.stack.layers.layer.{ours}", layer)
    yield from _leaves(f"{kind.prefix}.ln_f", "body.norm")


def _leaves(name, ours, layer=None) -> Iterator[Place]:
    for leaf, mine in LEAVES["norm" if ours.endswith("norm") else "dense"].items():
        yield Place(f"{name}.{leaf}", (*ours.split("."), mine), layer)


def canonical(name: str, kind: Kind) -> str:
    """A tensor's name as it would be saved today: the first released files lack the prefix."""
    return f"{kind.prefix}.{name}" if re.match(r"(wte|wpe|h|ln_f)\.", name) else name


def entries(table_NxD: np.ndarray, order_V: np.ndarray) -> np.ndarray:
    """A table with rows for what theirs lacks: [CLS] as [SEP], its token between texts; the others as the mean."""
    missing = len(order_V) - len(table_NxD)
    table = np.concatenate([table_NxD, np.tile(table_NxD.mean(0), (missing, 1))])
    if order_V[CLS] >= len(table_NxD):
        table[order_V[CLS]] = table[order_V[SEP]]
    return table
