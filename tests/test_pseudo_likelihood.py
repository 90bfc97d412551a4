"""PLL is the sum that one forward a token gives by hand; where words end; no padding, batch or device shows."""

import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import MEMBERS, PLAIN, VOCAB, build, small_config

from mlm.base import config, errors, types
from mlm.base.special import CLS, MASK, SEP, SPECIAL_TOKENS, UNK
from mlm.data.rows import loader
from mlm.data.tokenizers import kinds, unigram
from mlm.evaluation import minimal_pairs
from mlm.inference import forward_passes, pseudo_likelihood
from mlm.training.step import parallel

LETTERS = "abcdefghijklmnopqrst"
# "cab" is c ##a ##b. Of VOCAB entries.
PIECES = kinds.KINDS["wordpiece"].build_tokenizer(
    "\n".join([*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS + "uvwxy")]).encode()
)
ONE = PLAIN | {"model__num_layers": 1}
SENTENCES = ["cab d ef", "a b c d e f", "tsrq po", "b"]


def whole_words(words):
    return kinds.KINDS["words"].build_tokenizer("\n".join([*SPECIAL_TOKENS, *words]).encode())


@functools.lru_cache
def compile_scores(cfg):
    model, params, _ = build(cfg)
    return jax.jit(functools.partial(forward_passes.compute_target_log_prob, model, {"model": params}))


def score_sentences(cfg, words=PIECES, sentences=SENTENCES, length=16, batch_size=4):
    return pseudo_likelihood.score_sentences(
        compile_scores(cfg), pseudo_likelihood.build_queries(words, sentences, length), batch_size
    )


def find_word_ends(ids):
    """For each token the end of its word."""
    ends = [i for i in range(1, len(ids) + 1) if i == len(ids) or not PIECES.pieces[ids[i]].startswith("##")]
    return [min(end for end in ends if end > i) for i in range(len(ids))]


def score_by_hand(cfg, sentence, rest_of_word):
    """One unpadded row a token."""
    _, _, logits = build(cfg)
    ids, total = PIECES.encode(sentence), 0.0
    for i, token in enumerate(ids):
        row = np.array([[CLS, *ids, SEP]], np.int32)
        row[0, 1 + i : 1 + (find_word_ends(ids)[i] if rest_of_word else i + 1)] = MASK
        there, places = np.ones_like(row), np.arange(row.shape[1], dtype=np.int32)[None]
        text = types.Tokens(row, there, places, 0 * row)
        total += float(jax.nn.log_softmax(logits(text)[0, 1 + i])[token])
    return total


def test_scores_are_those_of_one_forward_a_token_by_hand():
    cfg = small_config(**ONE)
    found = score_sentences(cfg)
    np.testing.assert_allclose(found.pll_S, [score_by_hand(cfg, s, False) for s in SENTENCES], rtol=1e-5)
    np.testing.assert_allclose(found.pll_word_l2r_S, [score_by_hand(cfg, s, True) for s in SENTENCES], rtol=1e-5)
    assert (found.pll_S != found.pll_word_l2r_S).tolist() == [True, False, True, False]  # two have words of one letter
    assert found.tokens_S.tolist() == [6, 6, 6, 1] and found.words_S.tolist() == [3, 6, 2, 1]


@pytest.mark.exhaustive(but=("transformer-",))
@MEMBERS
def test_padding_and_batch_size_change_no_score(family, cell):
    cfg = small_config(family, cell, **ONE)
    assert [*map(loader.list_bucket_lengths, (12, 29))] == [[12], [16, 24, 29]]  # padded to 12 there, to 16 here
    tight, wide = score_sentences(cfg, length=12, batch_size=3), score_sentences(cfg, length=29, batch_size=7)
    for metric in ("pll_S", "pll_word_l2r_S"):
        np.testing.assert_allclose(getattr(tight, metric), getattr(wide, metric), rtol=1e-5)


@pytest.mark.parametrize("mode", ["data_parallel", "pmap"])
def test_all_devices_give_the_scores_of_one(mode):
    cfg = small_config(**ONE)
    model, params, _ = build(cfg)
    run = parallel.MODES[mode].build(lambda *operands: (operands[1], {}), None, cfg.parallel)
    state = run.put_state(types.TrainState(jnp.int32(0), {"model": params}, ()))
    together = pseudo_likelihood.score_sentences(
        forward_passes.make_scorer(model, run, state),
        pseudo_likelihood.build_queries(PIECES, SENTENCES, 16),
        jax.device_count(),
    )
    assert jax.device_count() == 4
    np.testing.assert_allclose(together.pll_S, score_sentences(cfg).pll_S, rtol=1e-5)


def test_each_token_is_asked_in_one_forward_and_in_a_second_only_where_its_word_goes_on():
    asked = pseudo_likelihood.build_queries(PIECES, SENTENCES, 16)
    count = sum(len(PIECES.encode(sentence)) for sentence in SENTENCES)
    words = sum(len(sentence.split()) for sentence in SENTENCES)
    seen, shapes = [], set()

    def score(queries):
        seen.extend(map(tuple, np.column_stack(queries)))
        shapes.add(queries.ids_BxL.shape)
        return np.zeros(len(queries.position_B))

    pseudo_likelihood.score_sentences(score, asked, batch_size=2)
    assert asked.in_pll_I.sum() == asked.in_word_l2r_I.sum() == count
    assert len(asked.sequence_I) == len(set(seen)) == count + (count - words)
    assert len(shapes) == 1 and len(seen) < len(asked.sequence_I) + 2


def test_rows_of_like_length_are_asked_together_in_few_shapes():
    sentences = [" ".join("a" * n) for n in range(1, 60)]
    asked = pseudo_likelihood.build_queries(PIECES, sentences, 64)
    batches = pseudo_likelihood.plan_batches(asked, 2)
    assert sorted(np.concatenate([index_B for _, index_B in batches])) == list(range(len(asked.sequence_I)))
    assert {length for length, _ in batches} == {16, 24, 32, 48, 64}
    for length, index_B in batches:
        assert len(index_B) <= 2 * (64 // length)
        tokens_B = (asked.ids_RxL[asked.sequence_I[index_B]] > 0).sum(-1)
        assert tokens_B.max() <= length and (length == 16 or tokens_B.min() > 2 * length / 3 - 1)


def spans(words, sentence):
    """The text that each query of PLL-word-l2r masks."""
    asked = pseudo_likelihood.build_queries(words, [sentence], 64)
    ids_L = asked.ids_RxL[0]
    return [
        words.decode(ids_L[place:end].tolist())
        for place, end in zip(asked.position_I[asked.in_word_l2r_I], asked.end_I[asked.in_word_l2r_I], strict=True)
    ]


def test_words_end_where_wordpiece_and_whole_words_say():
    words = kinds.KINDS["wordpiece"].build_tokenizer(
        "\n".join([*SPECIAL_TOKENS, "cat", "##al", "##og", "sit", "."]).encode()
    )
    assert sorted(spans(words, "sit catalog.")) == sorted(["sit", "catalog", "##alog", "##og", "."])
    assert sorted(spans(whole_words(["sit", "catalog", "."]), "sit catalog .")) == sorted(["sit", "catalog", "."])


@pytest.mark.parametrize(("kind", "size"), [("unigram", 60), ("bpe", 290)])
def test_words_end_where_the_meta_symbol_says(kind, size):
    draw = random.Random(0)
    texts = [
        " ".join("".join(draw.choices("abcdefgh", k=draw.randint(1, 6))) for _ in range(6)) + "." for _ in range(100)
    ]
    words = kinds.train_tokenizer(config.Tokenizer(kind, size), texts)
    for text in texts[:10]:
        expected, pieces = [], [words.pieces[i].strip(unigram.SPACE) for i in words.encode(text)]
        for word in text.split():  # from each of its tokens to its end, the full stop behind it too
            while word:
                expected.append(word)
                word = word.removeprefix(pieces.pop(0))
        assert len(words.encode(text)) > len(text.split()) and sorted(spans(words, text)) == sorted(expected)


def bigram(table_VxV):
    """A model of the known distribution of a token given the one before it."""

    def encode(params, text, source=None, *, key_B=None):
        return (jnp.pad(text.ids_BxL, ((0, 0), (1, 0)))[:, :-1, None],)

    model = types.Model(("bidirectional",), 1, None, encode, lambda logits_VxV, h: logits_VxV[h[..., 0]])
    return model, {"model": jnp.log(table_VxV)}


def test_a_model_of_known_probabilities_has_the_known_pseudo_perplexity():
    rng = np.random.default_rng(0)
    table_VxV = rng.dirichlet(np.ones(VOCAB), VOCAB).astype(np.float32)
    model, params = bigram(table_VxV)
    score = jax.jit(functools.partial(forward_passes.compute_target_log_prob, model, params))
    found = pseudo_likelihood.score_sentences(score, pseudo_likelihood.build_queries(PIECES, SENTENCES, 16), 4)
    ids = [[CLS, *PIECES.encode(sentence)] for sentence in SENTENCES]
    alone = [sum(np.log(table_VxV[a, b]) for a, b in itertools.pairwise(row)) for row in ids]
    # The token before is seen in both: what PLL-word-l2r hides comes after.
    np.testing.assert_allclose(found.pll_S, alone, rtol=1e-5)
    np.testing.assert_allclose(found.pll_word_l2r_S, alone, rtol=1e-5)
    texts = [text.replace("a", "\u00e4") for text in SENTENCES]  # of two bytes
    result = pseudo_likelihood.compute_pseudo_perplexity(found, texts)
    num_bytes = len("".join(texts).encode())
    assert result["pll"]["bits_per_byte"] == pytest.approx(-sum(alone) / np.log(2) / num_bytes, rel=1e-5)
    assert result["pll"]["token_perplexity"] == pytest.approx(np.exp(-sum(alone) / 19), rel=1e-5)
    assert result["pll"]["word_perplexity"] == pytest.approx(np.exp(-sum(alone) / 12), rel=1e-5)
    perplexity, nats_error = result["pll"]["word_perplexity"], result["pll"]["word_nats_se"]
    assert result["pll"]["word_perplexity_se"] == pytest.approx(perplexity * nats_error)
    assert result["pll_word_l2r"] == pytest.approx(result["pll"], rel=1e-5)
    assert (result["sentences"], result["tokens"], result["words"], result["unknown_tokens"]) == (4, 19, 12, 0)
    residual = [-total - result["pll"]["token_nats"] * (len(row) - 1) for total, row in zip(alone, ids, strict=True)]
    assert result["pll"]["token_nats_se"] == pytest.approx(np.sqrt(np.sum(np.square(residual)) * 4 / 3) / 19, rel=1e-4)


def test_unknown_tokens_are_shown_but_not_asked_for():
    asked = pseudo_likelihood.build_queries(PIECES, ["a 7 b", "a b"], 16)
    assert asked.ids_RxL[0, 2] == UNK and asked.unknown_U.tolist() == [1, 0]
    assert UNK not in asked.ids_RxL[asked.sequence_I, asked.position_I]
    found = score_sentences(small_config(**ONE), sentences=["a 7 b", "a b"])
    assert found.tokens_S.tolist() == [2, 2] and found.unknown_S.tolist() == [1, 0]
    with pytest.raises(errors.ConfigError, match=r"^sentences = 2: expected some with a token of the vocabulary$"):
        found = score_sentences(small_config(**ONE), sentences=["7", "8 9"])
        pseudo_likelihood.compute_pseudo_perplexity(found, ["7", "8 9"])


def test_a_sentence_longer_than_a_row_is_cut_before_a_word_and_no_token_is_lost():
    sentence = "abcd efgh ijkl mnop"
    asked = pseudo_likelihood.build_queries(PIECES, [sentence, "a"], 12)
    assert [PIECES.decode(row[row >= 5].tolist()) for row in asked.ids_RxL] == ["abcd efgh", "ijkl mnop", "a"]
    found = score_sentences(small_config(**ONE), sentences=[sentence, "a"], length=12)
    assert found.tokens_S.tolist() == [16, 1] and found.sequences_S.tolist() == [2, 1]
    parts = score_sentences(small_config(**ONE), sentences=["abcd efgh", "ijkl mnop"], length=12)
    assert found.pll_word_l2r_S[0] == pytest.approx(parts.pll_word_l2r_S.sum(), rel=1e-6)
    endless = pseudo_likelihood.build_queries(PIECES, ["a" * 25], 12)
    assert (endless.ids_RxL >= 5).sum(-1).tolist() == [10, 10, 5]
    assert pseudo_likelihood.compute_pseudo_perplexity(found, [sentence, "a"])["split_sentences"] == 1


def make_scores(good, bad, unknown=None):
    both = np.stack([good, bad], -1).ravel().astype(float)
    ones = np.ones(len(both), int)
    return pseudo_likelihood.SentenceScores(
        both, -both, ones, ones, 0 * ones if unknown is None else np.array(unknown), ones
    )


def test_a_pair_of_unequal_numbers_of_unknown_tokens_counts_half():
    result = minimal_pairs.compute_accuracy(make_scores([-1, -1, -1], [-2, -2, -2], [0, 1, 1, 1, 1, 0]))
    assert result["pll_accuracy"] == pytest.approx((0.5 + 1 + 0.5) / 3) and result["incomparable"] == 2


def test_sentences_of_the_same_tokens_tie_exactly_and_are_asked_about_once():
    words = whole_words(["w0", "w1"])
    sentences = ["w0 cat", "w0 dog", "w1 w0", "w0 w1", "w0 cat", "w0 cow"]
    asked = pseudo_likelihood.build_queries(words, sentences, 16)
    assert len(asked.ids_RxL) == 3
    found = score_sentences(small_config(**ONE), words, sentences)
    assert found.pll_S[0] == found.pll_S[1] == found.pll_S[4] and found.pll_S[2] != found.pll_S[3]
    assert minimal_pairs.compute_accuracy(found)["pll_accuracy"] in (pytest.approx(1 / 3), pytest.approx(2 / 3))
