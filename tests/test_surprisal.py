"""Surprisal of words and tokens: by hand for models that read from left to right, summed to the texts' scores."""

import csv
import json
import math

import jax
import numpy as np
import pytest
from layouts import LAYOUTS, TEXT, write
from scipy.special import log_softmax
from small import PLAIN, get_refusal, params_of, read_alone, small_config

import mlm
from mlm.base import config
from mlm.base.special import CLS
from mlm.cli import use
from mlm.data.tokenizers import kinds
from mlm.inference import batching, forward_passes, pretrained_io, pseudo_likelihood
from mlm.models import MODELS

SENTENCES = [line.strip() for line in TEXT.split("\n") if line.strip()]
MASKED = {"objective": "mlm"}
CAUSAL = {"objective": "causal", "model__directionality": "causal"}
HYBRID = {"objective": "hybrid", "model__directionality": "mixed"}
TWO_STACK = {"family": "rnn", "cell": "lstm", "objective": "causal", "model__directionality": "two_stack"}
STREAM = CAUSAL | {"pack__mode": "stream"}


@pytest.fixture(scope="module")
def words():
    return kinds.train_tokenizer(config.Tokenizer("words", 0), [" ".join(f"w{i}" for i in range(25))])


def make_model(tokenizer, **changes):
    """A model of random parameters."""
    cfg = small_config(**PLAIN | {"model__num_layers": 1, "pack__seq_len": 32} | changes)
    shapes = jax.eval_shape(MODELS[cfg.model.family].build(cfg.model, tokenizer.vocab_size).init, jax.random.key(0))
    return pretrained_io.build_language_model(cfg, tokenizer, params_of(shapes))


@pytest.mark.exhaustive(but=("unigram",))
@pytest.mark.parametrize("layout", [*LAYOUTS, "unigram", "wordpiece"])
def test_tokens_and_words_sum_to_the_text_and_stand_where_it_has_them(layout, tmp_path):
    if layout in LAYOUTS:
        write(layout, tmp_path)
        tokenizer = kinds.load_tokenizer_folder("config.tokenizer.path", str(tmp_path))
    else:
        tokenizer = kinds.train_tokenizer(
            config.Tokenizer(layout, {"unigram": 70, "wordpiece": 180}[layout]), SENTENCES
        )
    model = make_model(tokenizer, **CAUSAL)
    by = {unit: model.surprisal([*SENTENCES, SENTENCES[0]], by=unit) for unit in ("text", "word", "token")}
    for i, text in enumerate(SENTENCES):
        assert [word.text for word in by["word"][i]] == text.split()
        for part in (*by["word"][i], *by["token"][i]):
            assert part.text == text[part.start : part.end]
        total = by["text"][i][0].nats
        assert np.nansum([part.nats for part in by["token"][i]]) == pytest.approx(total)
        ends = [0, *(word.end for word in by["word"][i])]
        for word, first, end in zip(by["word"][i], ends[:-1], ends[1:], strict=True):  # the space before a word is its
            tokens = [token.nats for token in by["token"][i] if first <= token.start < end]
            assert word.nats == pytest.approx(sum(tokens) if tokens else math.nan, nan_ok=True)
        if not any(math.isnan(word.nats) for word in by["word"][i]):
            assert sum(word.nats for word in by["word"][i]) == pytest.approx(total)
    np.testing.assert_equal(by["word"][-1], by["word"][0])


def test_white_space_alone_has_tokens_but_no_words():
    tokenizer = kinds.train_tokenizer(config.Tokenizer("characters", 0), SENTENCES)
    model = make_model(tokenizer, **MASKED)
    words, tokens = (model.surprisal([" ", "\n ", "a"], by=unit) for unit in ("word", "token"))
    assert list(map(len, words)) == [0, 0, 1] and all(tokens)


@pytest.mark.exhaustive(but=("causal", "hybrid"))
@pytest.mark.parametrize(
    "changes", [CAUSAL, TWO_STACK, STREAM, HYBRID], ids=["causal", "two_stack", "stream", "hybrid"]
)
def test_from_left_to_right_each_is_by_hand_what_the_tokens_before_it_say(words, changes):
    model, text = make_model(words, **changes), "w3 w1 w4 w1"
    start = [] if changes is STREAM else [CLS]
    ids = [*start, *words.encode(text)]
    found = [word.nats for word in model.surprisal([text, "w1 w1"], metric="causal")[0]]
    read = {"left_B": np.ones(1, bool)} if changes is HYBRID else {}
    for i in range(1, len(ids)):
        _, logits_LxV = read_alone(model.model, model.params["model"], ids[:i], 8, **read)
        log_prob_V = log_softmax(logits_LxV[-1])
        assert found[i - len(start)] == pytest.approx(-log_prob_V[ids[i]], rel=1e-4)
    assert math.isnan(found[0]) == (changes is STREAM)


@pytest.mark.exhaustive(but=("causal",))
@pytest.mark.parametrize("changes", [CAUSAL, STREAM], ids=["causal", "stream"])
def test_a_long_text_is_read_in_windows_that_repeat_the_end_of_the_one_before(words, changes):
    """Each token has what it would have in a text of its window's tokens."""
    model, draws = make_model(words, **changes), np.random.default_rng(0)
    text = [f"w{i}" for i in draws.integers(25, size=77)]
    least = int(changes is STREAM)  # nothing predicts the first token of its windows
    none = () if least else ((0, (0, 30, 60)),)
    for overlap, begins in ((10, (0, 20, 40, 60)), *none, (None, (0, 15, 30, 45, 60))):
        found = [word.nats for word in model.surprisal(" ".join(text), overlap=overlap)]
        skip = 15 if overlap is None else overlap
        for begin in begins:
            window = [word.nats for word in model.surprisal(" ".join(text[begin : begin + 30]))]
            first = begin and skip
            np.testing.assert_allclose(found[begin + first : begin + 30], window[first:], rtol=1e-5)
        assert np.isfinite(found[least:]).all()
    for overlap in (least - 1, 30):
        assert f"{least} <= value < 30" in get_refusal(model.surprisal, "w1", overlap=overlap)
    masked = make_model(words, **MASKED)
    assert "does not read left to right" in get_refusal(masked.surprisal, "w1", metric="causal")
    assert "overlap" in get_refusal(masked.surprisal, "w1", overlap=3)


@pytest.mark.exhaustive(but=("pll", "diffusion"))
@pytest.mark.parametrize(
    ("metric", "changes"),
    [("pll", MASKED), ("pll_word_l2r", MASKED), ("pll", {"objective": "diffusion"})],
    ids=["pll", "pll_word_l2r", "diffusion"],
)
def test_of_a_masked_model_they_are_the_terms_of_the_pseudo_log_likelihood(tmp_path, metric, changes):
    model = make_model(kinds.train_tokenizer(config.Tokenizer("wordpiece", 180), SENTENCES), **changes)
    for text in ("[MASK] horse unbelievable", "Zeus slept \u2603 near the river, " * 4):  # split over two sequences
        parts = model.surprisal(text, metric=metric)
        total = -model.pseudo_log_likelihood(text, metric=metric)
        queries = pseudo_likelihood.build_queries(batching.recognize_masks(model.tokenizer), [text], model.length)
        compute = jax.jit(lambda batch: forward_passes.compute_target_log_prob(model.model, model.params, batch))
        scores = pseudo_likelihood.score_sentences(compute, queries, 8)
        assert total == pytest.approx(-getattr(scores, f"{metric}_S")[0])
        assert np.nansum([part.nats for part in model.surprisal(text, "token", metric)]) == pytest.approx(total)
        assert [part.text for part in parts if math.isnan(part.nats)] == [
            word for word in text.split() if word in ("[MASK]", "\u2603")
        ]
    one, both = model.surprisal(["the horse", "the horse slept"], metric=metric)
    assert one[1].nats != pytest.approx(both[1].nats)  # what follows is read


def test_what_predicts_no_text_is_refused(words):
    for changes in ({"objective": "replaced_token_detection"}, {"objective": "denoising", "family": "encoder_decoder"}):
        assert changes["objective"] in get_refusal(make_model(words, **changes).surprisal, "w1")
    assert get_refusal(make_model(words, **MASKED).surprisal, "w1", by="words").endswith("did you mean 'word'?")


def test_the_command_writes_a_row_a_word(plain, tmp_path, capsys):
    folder, texts, out = str(plain["bert"]), ["the old horse sleeps .", "\u2603 sleeps"], tmp_path / "words.csv"
    use.main(["score", folder, *texts, "--by=word", f"--out={out}"])
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert [(int(row["line"]), row["word"]) for row in rows] == [
        (line, word) for line, text in enumerate(texts, 1) for word in text.split()
    ]
    found = [word.nats for words in mlm.load(folder).surprisal(texts) for word in words]
    np.testing.assert_allclose([float(row["surprisal"] or math.nan) for row in rows], found, rtol=1e-6)
    use.main(["score", folder, texts[0], "--json"])
    scored = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scored["nats"] == pytest.approx(-sum(found[:5]))
    assert scored["bits_per_byte"] == pytest.approx(sum(found[:5]) / math.log(2) / len(texts[0]))
    (tmp_path / "passages.txt").write_text("the old horse\n")
    for command in (["score", folder], ["fill", folder], ["generate", folder], ["score", folder, *texts]):
        refused = get_refusal(use.main, [*command, f"{tmp_path}/passages.txt"])
        assert refused == f"text = '{tmp_path}/passages.txt': expected a text; --file=FILE reads those of a file"
