"""Our heads on our Transformer are BERT's of `transformers`: the same logits and losses from the same weights.

Against the file that fixtures/transformers_heads.py makes; where torch and transformers are installed, it is what they
still say.
"""

import functools

import jax
import numpy as np
import pytest
from fixtures import transformers_heads as theirs
from small import PLAIN, load_arrays, make_dataset_info, small_config

from mlm.base import types
from mlm.objectives import classification, heads
from mlm.training.step import program

load_outputs = functools.partial(load_arrays, theirs.PATH)


def layer(name):
    """A dense layer, whose matrices there are turned."""
    return {"kernel": load_outputs()[f"{name}.weight"].T, "bias": load_outputs()[f"{name}.bias"]}


def norm(name):
    return {"scale": load_outputs()[f"{name}.weight"], "bias": load_outputs()[f"{name}.bias"]}


def encoder(number):
    at = f"bert.encoder.layer.{number}"
    qkv = [layer(f"{at}.attention.self.{name}") for name in ("query", "key", "value")]
    return {
        "attention": {
            "qkv": {name: np.concatenate([one[name] for one in qkv], -1) for name in ("kernel", "bias")},
            "out": layer(f"{at}.attention.output.dense"),
        },
        "attention_norm": norm(f"{at}.attention.output.LayerNorm"),
        "mlp": {"up": layer(f"{at}.intermediate.dense"), "down": layer(f"{at}.output.dense")},
        "mlp_norm": norm(f"{at}.output.LayerNorm"),
    }


# By the names that the fixture has for its heads.
OBJECTIVES = {"classify": "classification", "tag": "tagging", "span": "extractive_qa", "choice": "multiple_choice"}


def params(drawn, head):
    """Theirs by our names; what is left of `drawn` is the output layer over tokens, which no label reads."""
    tables = {
        name: {"embedding": load_outputs()[f"bert.embeddings.{there}_embeddings.weight"]}
        for name, there in (("token", "word"), ("position", "position"), ("type", "token_type"))
    }
    layers = jax.tree.map(lambda *each: np.stack(each), *map(encoder, range(theirs.SIZES["num_hidden_layers"])))
    one = jax.tree.map(lambda x: x[..., :1], layer("classifier"))
    own = {
        "classify": lambda: {"pool": layer("bert.pooler.dense"), "label": layer("classifier")},
        "choice": lambda: {"pool": layer("bert.pooler.dense"), "label": one},
        "tag": lambda: layer("classifier"),
        "span": lambda: layer("qa_outputs"),
    }[head]()
    return {
        "model": drawn["model"]
        | tables
        | {"embed_norm": norm("bert.embeddings.LayerNorm"), "body": {"stack": {"layers": {"layer": layers}}}},
        "objective": own,
    }


def batch(number, head):
    one = {
        name.removeprefix("batches_"): x[number] for name, x in load_outputs().items() if name.startswith("batches_")
    }
    places = np.tile(np.arange(theirs.LENGTH, dtype=np.int32), (theirs.ROWS, 1))
    segments = np.ones_like(one["ids"]) if head == "span" else one["segments"]
    if head == "choice":
        segments = segments * (np.arange(theirs.ROWS)[:, None] % theirs.ENDINGS + 1)
        text = (x.reshape(-1, theirs.ENDINGS * theirs.LENGTH) for x in (one["ids"], segments, places, one["types"]))
        examples = theirs.ROWS // theirs.ENDINGS
        return types.Batch(types.Tokens(*text), {"label_B": one["label"][:examples]}, places[:examples, 0])
    labels = {"label_B": one["label"], "tag_BxL": one["tag"], "start_B": one["start"], "end_B": one["end"]}
    return types.Batch(types.Tokens(one["ids"], segments, places, one["types"]), labels, places[:, 0])


def build_program(head):
    """Theirs' config, its program, and the state that holds their weights."""
    sizes, (b1, b2) = theirs.SIZES, theirs.ADAM["betas"]
    cfg = small_config(
        objective=OBJECTIVES[head],
        model__num_layers=sizes["num_hidden_layers"],
        model__width=sizes["hidden_size"],
        model__num_heads=sizes["num_attention_heads"],
        model__mlp_dim=sizes["intermediate_size"],
        model__max_positions=sizes["max_position_embeddings"],
        model__norm_placement="post",
        model__norm_eps=1e-12,
        model__scan_unroll=1,
        pack__seq_len=theirs.LENGTH,
        train__steps=theirs.STEPS,
        train__batch_size=theirs.ROWS,
        optim__learning_rate=theirs.PEAK,
        optim__warmup_fraction=theirs.WARMUP / theirs.STEPS,
        optim__b1=b1,
        optim__b2=b2,
        optim__eps=theirs.ADAM["eps"],
        optim__weight_decay=theirs.DECAY,
        optim__clip_norm=theirs.CLIP,
        **PLAIN,
    )
    of, knobs = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:1]), program.make_train_hparams(cfg)
    state = jax.device_get(of.init_state(knobs))
    ours = params(state.params, head)
    assert jax.tree.map(np.shape, ours) == jax.tree.map(np.shape, state.params)
    return cfg, of, knobs, of.partitioner.put_state(state._replace(params=ours))


def logits(cfg, model, head, params, given):
    if head == "choice":
        return classification.compute_choice_logits(cfg, params, model, given, None, num_choices=theirs.ENDINGS)
    (h_BxLxD,), own = model.encode(params["model"], given.text), params["objective"]
    return (
        heads.apply_pooled_head(cfg, own, h_BxLxD, given.text, None)
        if head == "classify"
        else (heads.apply_dense(own, h_BxLxD))
    )


@pytest.mark.exhaustive(but=("classify",))
@pytest.mark.slow
@pytest.mark.parametrize("head", theirs.HEADS)
def test_logits_and_fifty_losses_are_theirs(head):
    cfg, of, knobs, state = build_program(head)
    given = batch(0, head)
    found = np.asarray(jax.jit(functools.partial(logits, cfg, of.model, head))(state.params, given))
    asked = np.ones(found.shape[:-1], bool) if found.ndim == 2 else np.asarray(given.text.segments_BxL) > 0
    np.testing.assert_allclose(found[asked], load_outputs()[f"{head}_logits"][asked], rtol=0, atol=1e-5)

    losses = []
    for step in range(theirs.STEPS):
        state, metrics = of.partitioner.train_step(
            state, of.partitioner.put_batch(batch(step % theirs.BATCHES, head)), knobs
        )
        losses.append(float(of.partitioner.get_metrics(metrics)["loss"]))
    np.testing.assert_allclose(losses, load_outputs()[f"{head}_losses"], rtol=1e-4)
