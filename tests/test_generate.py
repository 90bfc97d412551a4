"""Texts that opened models write: within their length, the same by the seed, and what the model itself finds likeliest.

Parameters are drawn: what is asked here holds whatever a model has learnt.
"""

import jax
import numpy as np
import pytest
from small import get_refusal, small_config

from mlm.base import errors
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, UNK
from mlm.cli import use
from mlm.data.tokenizers import kinds
from mlm.inference import decoding, forward_passes, pretrained_io
from mlm.inference.forward_passes import compute_logits
from mlm.models import MODELS

pytestmark = pytest.mark.usefixtures("quick_to_compile")

WORDS = [f"w{i}" for i in range(12)]
PROMPTS = ["w3 w1", "", "w5 w5 w7 w2 w0 w9"]


def open_model(family="transformer", cell="", objective="causal", source=0, **changes):
    """A model with drawn parameters, its rows of 16 tokens, over the words w0 to w11; source: tokens beside a row."""
    tokenizer = kinds.KINDS["words"].build_tokenizer(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]).encode()
    )
    cfg = small_config(family, cell, objective=objective, **changes)
    shapes = jax.eval_shape(MODELS[family].build(cfg.model, tokenizer.vocab_size).init, jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.4 * rng.normal(size=x.shape).astype(np.float32), shapes
    )
    about = pretrained_io.folders.make_dataset_info(cfg, tokenizer)._replace(source_len=source)
    return pretrained_io.build_language_model(cfg, tokenizer, params, dataset_info=about)


@pytest.fixture(scope="module")
def model():
    return open_model()


@pytest.fixture(scope="module")
def masked():
    return open_model(objective="mlm")


def logits(model, ids):
    """logits_LxV of one row, of 16 places."""
    ids_1xL = np.array([[*ids, *[0] * (16 - len(ids))]], np.int32)
    return np.asarray(forward_passes.compile_pass(compute_logits, model.model)(model.params, ids_1xL))[0]


def likeliest(logits_V, never):
    return int(np.where(np.isin(np.arange(len(logits_V)), never), -np.inf, logits_V).argmax())


def test_greedy_takes_the_likeliest_token_of_the_model_up_to_its_length(model):
    for prompt, (found,) in zip(PROMPTS, model.generate(PROMPTS, max_length=13), strict=True):
        ids = [CLS, *model.tokenizer.encode(prompt)]
        begun = len(ids)
        while ids[-1] != SEP and len(ids) < 13:
            ids.append(likeliest(logits(model, ids)[len(ids) - 1], (0, UNK, CLS, MASK)))
        assert found.text == model.tokenizer.decode([i for i in ids if i >= NUM_SPECIAL])
        assert found.num_tokens == len(ids) - begun
        assert found.text.startswith(prompt)


def test_the_same_seed_gives_the_same_texts_whatever_is_asked_beside(model):
    how = {"temperature": 1.5, "top_k": 8, "top_p": 0.95, "num_return_sequences": 3, "max_length": 16}
    one = model.generate(PROMPTS, seed=3, **how)
    again = model.generate(PROMPTS[0], seed=3, **how)
    assert [each.text for each in again] == [each.text for each in one[0]]
    np.testing.assert_allclose([each.log_prob for each in again], [each.log_prob for each in one[0]], rtol=1e-4)
    other = model.generate(PROMPTS, seed=4, **how)
    assert [each.text for texts in other for each in texts] != [each.text for texts in one for each in texts]
    assert len({each.text for each in one[0]}) > 1 and all(len(texts) == 3 for texts in one)


def test_rows_of_a_stream_are_gone_on_with_as_they_are():
    """No [CLS] stood in one, and no [SEP]: neither is put before a prompt nor written."""
    model = open_model("feedforward", "window", data__corpus="text", data__path="a.txt", pack__mode="stream")
    ids = model.tokenizer.encode("w3 w1")
    while len(ids) < 12:
        ids.append(likeliest(logits(model, ids)[len(ids) - 1], (0, UNK, CLS, MASK, SEP)))
    (found,) = model.generate("w3 w1", max_length=12)
    assert found.text == model.tokenizer.decode(ids) and found.num_tokens == 10
    assert [
        one.num_tokens
        for how in ({"num_beams": 2}, {"temperature": 3.0})
        for one in model.generate("w3 w1", max_length=12, num_return_sequences=2, **how)
    ] == [10] * 4
    with pytest.raises(
        errors.ConfigError, match=r"^text = '': expected a text to continue, since sequences of a stream"
    ):
        model.generate("")


def fill_by_hand(model, ids, order, at_once):
    """A row's [MASK]s filled by hand."""
    ids = list(ids)
    while MASK in ids:
        found = logits(model, ids)
        turns = []
        for place in [i for i, token in enumerate(ids) if token == MASK]:
            token = likeliest(found[place], (0, UNK, CLS, SEP, MASK))
            kept_V = np.where(np.isin(np.arange(len(found[place])), (0, UNK, CLS, SEP, MASK)), -np.inf, found[place])
            sure = found[place][token] - np.logaddexp.reduce(kept_V)
            turns.append((-sure if order == "confidence" else place, place, token))
        for _, place, token in sorted(turns)[:at_once]:
            ids[place] = token
    return ids


@pytest.mark.parametrize(("by", "at_once"), [("left", 1), ("confidence", 1), ("confidence", 3)])
def test_masks_are_filled_left_to_right_or_the_surest_first(masked, by, at_once):
    texts = ["w3 [MASK] w4 [MASK] [MASK] w1 [MASK]", "[MASK] w2"]
    for text, (found,) in zip(texts, masked.generate(texts, unmask_order=by, tokens_per_step=at_once), strict=True):
        row = [MASK if word == "[MASK]" else NUM_SPECIAL + WORDS.index(word) for word in text.split()]
        assert found.text == masked.tokenizer.decode(fill_by_hand(masked, [CLS, *row, SEP], by, at_once)[1:-1])
        assert found.num_tokens == row.count(MASK) and found.log_prob < 0
    assert len(masked.generate("w1 w2", max_length=10)[0].text.split()) == 8


@pytest.mark.parametrize(("objective", "sees"), [("mlm", "causal"), ("mlm", "mixed"), ("diffusion", "mixed")])
def test_what_is_told_at_its_own_place_is_filled_whatever_the_model_sees(objective, sees):
    model = open_model("feedforward", "window", objective, model__directionality=sees)
    (found,) = model.generate("w3 [MASK] w4 [MASK]")
    row = [CLS, *model.tokenizer.encode("w3"), MASK, *model.tokenizer.encode("w4"), MASK, SEP]
    assert found.text == model.tokenizer.decode(fill_by_hand(model, row, "confidence", 1)[1:-1])
    assert found.num_tokens == 2
    with pytest.raises(errors.ConfigError, match=r"^num_beams = 2: expected 1, where \[MASK\]s are filled"):
        model.generate("w3 [MASK]", num_beams=2)


def test_a_hybrid_run_goes_on_from_the_left_and_takes_no_mask_for_a_word():
    model = open_model("feedforward", "window", "hybrid")
    (found,) = model.generate("w3 w1", max_length=5)
    assert found.text.startswith("w3 w1")
    with pytest.raises(
        errors.ConfigError,
        match=r"^text = 'the \[MASK\] sleeps': expected one without \[MASK\], since "
        r"a hybrid run continues a text",
    ):
        model.generate("the [MASK] sleeps")


@pytest.mark.exhaustive
def test_drawn_fillings_are_by_their_seed_and_likeliest_where_one_is_left(masked):
    text = "w3 [MASK] w4 [MASK] [MASK]"
    drawn = masked.generate(text, temperature=2.0, num_return_sequences=4, seed=5)
    assert masked.generate(text, temperature=2.0, num_return_sequences=4, seed=5) == drawn and len({*drawn}) > 1
    assert masked.generate(text, temperature=2.0, top_k=1) == masked.generate(text)
    assert decoding.UNMASK_ORDERS == ("left", "confidence")


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("temperature = 1.0", {"num_beams": 2, "temperature": 1.0}),
        ("max_length = 1: expected at least 2", {"max_length": 1}),
        ("num_beams = 2.5: expected a whole number", {"num_beams": 2.5}),
    ],
)
def test_what_cannot_be_written_is_said_in_a_line(model, what, how):
    assert get_refusal(model.generate, **how).startswith(what)


@pytest.mark.exhaustive(but=("transformer",))
@pytest.mark.parametrize("cell", ["transformer", "gru"])
def test_a_translation_is_the_likeliest_text_beside_its_source(cell, caplog):
    model = open_model("encoder_decoder", cell, source=10, data__corpus="parallel")
    sources = ["w3 w1", "w5 w5 w7 w2 w0 w9"]
    answer = jax.jit(
        lambda ids_BxL, source_BxS: model.model.logits(
            model.params["model"],
            model.model.encode(
                model.params["model"], forward_passes.make_tokens(ids_BxL), forward_passes.make_tokens(source_BxS)
            )[0],
        )
    )
    for text, (found,) in zip(sources, model.translate(sources, num_beams=1), strict=True):
        given = [*model.tokenizer.encode(text), SEP]
        source_1xS = np.array([[*given, *[0] * (10 - len(given))]], np.int32)
        ids = [CLS]
        while ids[-1] != SEP and len(ids) < 16:
            said = np.asarray(answer(np.array([[*ids, *[0] * (16 - len(ids))]], np.int32), source_1xS))[0]
            ids.append(likeliest(said[len(ids) - 1], (0, UNK, CLS, MASK)))
        assert found.text == model.tokenizer.decode([i for i in ids if i >= NUM_SPECIAL])
        assert found.num_tokens == len(ids) - 1
    assert not caplog.records
    model.translate(["w1 " * 10, "w1 x"], num_beams=1)
    lost = "1 truncated to 10 tokens, the length of its training sequences; 1 with words that"
    assert lost in caplog.records[0].getMessage()
    nats = [one.log_prob for one in model.translate(text, num_beams=3, length_penalty="none", num_return_sequences=3)]
    assert nats[0] >= found.log_prob - 1e-4 and nats == sorted(nats, reverse=True)


def test_the_command_shows_what_is_written(model):
    how = {"num_beams": 2, "num_return_sequences": 2, "max_length": 9}
    args = use.make_parser("generate").parse_args(
        ["run", "w3 w1", *(f"--{name}={value}" for name, value in how.items())]
    )
    rows = list(use.generate(args, lambda: model))
    assert [(row["number"], row["text"]) for row in rows] == [
        (number, one.text) for number, one in enumerate(model.generate("w3 w1", **how), 1)
    ]
