"""Blocks of ours that classes of `transformers` have too: the same states of random weights."""

import jax
import numpy as np
import pytest
from small import PLAIN, VOCAB, small_config

from mlm.base import types
from mlm.models import MODELS, positions


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
LENGTHS = (40, 25)  # of two sequences


def compute_states(their_model):
    """(ids, segments, the last states) of sequences of which one is padded, where weights are no initial ones."""
    import torch

    torch.manual_seed(0)
    for parameter in their_model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    segments_BxL = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
    ids_BxL = np.random.default_rng(0).integers(5, VOCAB, segments_BxL.shape).astype(np.int32)
    return ids_BxL, segments_BxL


def read_layers(tensors, layer_names):
    """Our stack of layers: by our names theirs; several in one matrix lie side by side."""

    def read(layer, names):
        parts = [read_dense(tensors, f"encoder.layer.{layer}.{name}") for name in names]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *parts)

    stacked = {}
    for path, names in layer_names.items():
        *outer, last = path.split(".")
        at = stacked
        for name in outer:
            at = at.setdefault(name, {})
        at[last] = jax.tree.map(lambda *leaves: np.stack(leaves), *(read(layer, names) for layer in range(2)))
    return {"layers": {"layer": stacked}}


def read_dense(tensors, name):
    """A dense layer, or a norm."""
    weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    return {"kernel": weight.T, "bias": bias} if weight.ndim > 1 else {"scale": weight, "bias": bias}


def test_disentangled_attention_is_deberta_v2_s(transformers):
    import torch

    theirs = transformers.DebertaV2Config(
        **SIZES,
        vocab_size=VOCAB,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["c2p", "p2c"],
        position_biased_input=False,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        attn_implementation="eager",
    )
    model = transformers.DebertaV2Model(theirs).eval()
    ids_BxL, segments_BxL = compute_states(model)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids_BxL).long(), torch.from_numpy(segments_BxL).long()).last_hidden_state
    tensors = {name: x.detach().numpy() for name, x in model.state_dict().items()}
    attention = "attention.self"
    names = {
        "attention.qkv": [f"{attention}.{name}_proj" for name in ("query", "key", "value")],
        "attention.out": ["attention.output.dense"],
        "attention_norm": ["attention.output.LayerNorm"],
        "mlp.up": ["intermediate.dense"],
        "mlp.down": ["output.dense"],
        "mlp_norm": ["output.LayerNorm"],
    }
    params = {
        "token": {"embedding": tensors["embeddings.word_embeddings.weight"]},
        "bias": np.zeros(VOCAB),
        "embed_norm": read_dense(tensors, "embeddings.LayerNorm"),
        "body": {
            "relative_embedding": tensors["encoder.rel_embeddings.weight"],
            "relative_norm": read_dense(tensors, "encoder.LayerNorm"),
            "stack": read_layers(tensors, names),
        },
    }
    cfg = small_config(
        **PLAIN,
        model__positions="disentangled",
        model__position_buckets=8,
        model__max_positions=64,
        model__norm_placement="post",
        model__type_vocab_size=0,
        model__norm_eps=1e-7,
        model__num_heads=4,
    )
    ours = MODELS["transformer"].build(cfg.model, VOCAB)
    text = types.Tokens(ids_BxL, segments_BxL, np.arange(40)[None], 0 * ids_BxL)
    (found,) = jax.jit(ours.encode)(params, text)
    real = segments_BxL > 0
    np.testing.assert_allclose(found[real], expected.numpy()[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("num_buckets", "max_positions"), [(256, 512), (8, 64)])
def test_rows_of_distances_are_deberta_v2_s(transformers, num_buckets, max_positions):
    import torch
    from transformers.models.deberta_v2 import modeling_deberta_v2

    offset_N = np.arange(-2 * max_positions, 2 * max_positions)
    theirs = modeling_deberta_v2.make_log_bucket_position(torch.from_numpy(offset_N), num_buckets, max_positions)
    expected = np.clip(theirs.long().numpy() + num_buckets, 0, 2 * num_buckets - 1)
    np.testing.assert_array_equal(positions.compute_rows(num_buckets, max_positions, offset_N), expected)
