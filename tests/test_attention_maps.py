"""What a model looks at: rollout is the sum over all ways down, saliency the slope that shifting an embedding has."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import build, make_dataset_info, small_config

from mlm.base import config, errors
from mlm.base.special import MASK
from mlm.cli import use
from mlm.data.tokenizers import kinds
from mlm.inference import attention_maps, forward_passes, pretrained_io
from mlm.inference.language_model import LanguageModel

TEXT = "w3 w1 w4 w1 w5 w9 w2"


@pytest.fixture(scope="module")
def words():
    return kinds.train_tokenizer(config.Tokenizer("words", 0), [" ".join(f"w{i}" for i in range(45))])


@pytest.fixture(scope="module")
def open_model(words):
    def of(family, cell="", objective="mlm", **changes):
        cfg = small_config(family, cell, objective=objective, **{"model__num_layers": 1} | changes)
        model, params, _ = build(cfg)
        return LanguageModel(cfg, words, model, None, {"model": params, "objective": {}}, make_dataset_info(cfg), 16)

    return of


def test_rollout_is_the_sum_over_all_ways_down_through_the_layers():
    draw = np.random.default_rng(0)
    weights_KxHxTxT = draw.dirichlet(np.ones(4), size=(3, 2, 4)).astype(np.float32)
    found_KxTxT = attention_maps.compute_rollout(weights_KxHxTxT)
    assert found_KxTxT.shape == (3, 4, 4) and found_KxTxT.dtype == np.float32
    np.testing.assert_allclose(found_KxTxT.sum(-1), 1, atol=1e-6)
    for layers in (1, 2, 3):
        reached_TxT = np.zeros((4, 4))
        for way in itertools.product(range(4), repeat=layers + 1):  # from the embedding up
            steps = itertools.pairwise(way)
            reached_TxT[way[-1], way[0]] += np.prod(
                [
                    0.5 * (low == high) + 0.5 * np.mean([head[high, low] for head in weights_KxHxTxT[layer]])
                    for layer, (low, high) in enumerate(steps)
                ]
            )
        np.testing.assert_allclose(found_KxTxT[layers - 1], reached_TxT, atol=1e-6)


@pytest.mark.exhaustive(but=("transformer-",))
@pytest.mark.parametrize(("family", "cell"), [("transformer", ""), ("rnn", "gru")])
def test_saliency_is_the_steepest_slope_of_the_answer(open_model, family, cell):
    """By central differences along every axis of an embedding, at a place whose token is hidden by hand."""
    model, place, other = open_model(family, cell), 3, 5
    looked = attention_maps.compute_attention_maps(model, TEXT)
    row = [model.tokenizer.pieces.index(token) for token in looked.tokens]
    hidden_1xT = jnp.array([row]).at[0, place].set(MASK)
    width, step = model.model.width, 1e-2
    shift_BxTxD = np.zeros((2 * width, len(row), width), np.float32)
    shift_BxTxD[:width, other], shift_BxTxD[width:, other] = step * np.eye(width), -step * np.eye(width)
    params, text = model.params["model"], forward_passes.make_tokens(jnp.tile(hidden_1xT, (2 * width, 1)))

    @jax.jit
    def compute_log_probs(shift_BxTxD):
        return jax.nn.log_softmax(
            model.model.logits(params, model.model.encode(params, text, shift_BxLxD=shift_BxTxD)[0][:, place])
        )

    likeliest = int(compute_log_probs(np.zeros_like(shift_BxTxD))[0].argmax())
    up_D, down_D = np.split(np.asarray(compute_log_probs(shift_BxTxD))[:, likeliest], 2)
    slope = np.linalg.norm((up_D - down_D) / (2 * step))
    assert slope > 1e-3 and looked.saliency_TxT[place, other] == pytest.approx(slope, rel=0.02)
    assert looked.predictions[place].token == model.tokenizer.pieces[likeliest]
    assert looked.predictions[place].probability == pytest.approx(np.exp((up_D + down_D) / 2).mean(), rel=0.02)


def test_embeddings_shifted_to_those_of_another_text_are_that_text(open_model):
    model = open_model("feedforward", "window")
    params, model, length = model.params["model"], model.model, 9
    one, other = (
        forward_passes.make_tokens(jnp.array([np.random.default_rng(seed).permutation(40)[:length] + 5]))
        for seed in (0, 1)
    )
    layers = jax.jit(model.encode_layers)
    shift_1xLxD = layers(params, other)[0] - layers(params, one)[0]
    hidden = jax.jit(lambda text, shift: model.encode(params, text, shift_BxLxD=shift)[0])
    np.testing.assert_allclose(hidden(one, shift_1xLxD), hidden(other, 0 * shift_1xLxD), atol=1e-5)
    np.testing.assert_allclose(hidden(one, 0 * shift_1xLxD), layers(params, one)[-1], atol=1e-5)


def test_an_answer_does_not_know_the_token_that_stands_there(open_model):
    model, place = open_model("transformer"), 4
    one, other = (attention_maps.compute_attention_maps(model, text) for text in (TEXT, TEXT.replace("w4 w1", "w4 w8")))
    assert one.is_masked and one.tokens[place] != other.tokens[place]
    for text in (TEXT, "w3 [MASK] nothing w1"):
        words, maps = model.surprisal(text), attention_maps.compute_attention_maps(model, text)
        assert [word for word, _ in maps.surprisal] == [word.text for word in words]
        np.testing.assert_allclose([nats for _, nats in maps.surprisal], [word.nats for word in words], atol=1e-5)
    assert one.predictions[place] == other.predictions[place]
    np.testing.assert_allclose(one.saliency_TxT[place], other.saliency_TxT[place], atol=1e-6)
    assert (np.diag(one.saliency_TxT) == 0).all() and np.abs(one.saliency_TxT - other.saliency_TxT).max() > 1e-3
    assert (one.saliency_TxT + np.eye(9) > 0).all()
    np.testing.assert_allclose(one.attention_KxHxTxT, model.attentions(TEXT).weights_KxHxTxT)
    np.testing.assert_allclose(one.attention_KxHxTxT.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(one.rollout_KxTxT, attention_maps.compute_rollout(one.attention_KxHxTxT))


@pytest.mark.exhaustive(but=("transformer--causal-<lambda>", "feedforward-window-mlm-<lambda>"))
@pytest.mark.parametrize(
    ("family", "cell", "objective", "seen"),
    [
        ("transformer", "", "causal", lambda i, j: j <= i),
        ("rnn", "lstm", "causal", lambda i, j: j <= i),
        ("feedforward", "window", "causal", lambda i, j: (j <= i) & (i - j < 2)),
        ("feedforward", "window", "mlm", lambda i, j: (i != j) & (abs(i - j) <= 2)),
        ("feedforward", "bag", "mlm", lambda i, j: (i != j) & (abs(i - j) <= 2)),
    ],
)
def test_saliency_is_where_the_model_sees_and_nowhere_else(open_model, family, cell, objective, seen):
    looked = attention_maps.compute_attention_maps(open_model(family, cell, objective, model__window=2), TEXT)
    size = len(looked.tokens)
    np.testing.assert_array_equal(looked.saliency_TxT > 0, np.fromfunction(seen, (size, size)))
    assert looked.is_masked == (objective == "mlm") and (looked.attention_KxHxTxT is None) == (family != "transformer")


@pytest.mark.exhaustive
def test_many_short_batches_tell_what_one_does(open_model):
    model = open_model("transformer")
    few = attention_maps.compute_attention_maps(dataclasses.replace(model, batch_size=4), TEXT)
    whole = attention_maps.compute_attention_maps(model, TEXT)
    np.testing.assert_allclose(few.saliency_TxT, whole.saliency_TxT, atol=1e-6)
    assert [one.token for one in few.predictions] == [one.token for one in whole.predictions]


def test_the_command_writes_a_page_or_prints_the_numbers(open_model, monkeypatch, tmp_path, capsys):
    model = open_model("transformer")
    monkeypatch.setattr(pretrained_io, "load_model", lambda folder, step: model)
    use.main(["attention", "run", TEXT, f"--out={tmp_path / 'page.html'}"])
    assert "page.html" in capsys.readouterr().out and TEXT in (tmp_path / "page.html").read_text()
    use.main(["attention", "run", TEXT, "w1", "--json"])
    looked = attention_maps.compute_attention_maps(model, TEXT)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["text"] == TEXT and first["tokens"] == looked.tokens and len(second["tokens"]) == 3
    for name, found in (
        ("attention", looked.attention_KxHxTxT),
        ("rollout", looked.rollout_KxTxT),
        ("saliency", looked.saliency_TxT),
    ):
        np.testing.assert_allclose(first[name], found, rtol=1e-3, atol=1e-6)
    assert [one["token"] for one in first["predictions"]] == [one.token for one in looked.predictions]
    for out, texts in (
        ("", [TEXT]),
        ("page.txt", [TEXT]),
        (str(tmp_path / "no" / "page.html"), [TEXT]),
        (str(tmp_path / "page.html"), [TEXT, TEXT]),
    ):
        with pytest.raises(errors.ConfigError, match="expected"):
            use.main(["attention", "run", *texts, f"--out={out}"])
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]
