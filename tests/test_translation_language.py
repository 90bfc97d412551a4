"""The language of translations: each target has one source, and its probabilities are those of every target."""

import dataclasses
import itertools

import numpy as np
import pytest

from mlm.base import config, fields
from mlm.base.config import Language
from mlm.base.special import NUM_SPECIAL
from mlm.data.language import grammar, translation
from mlm.data.language.hmm import compute_topic_posterior
from mlm.data.rows import loader, pack
from mlm.objectives import causal
from mlm.training.run import resolution

LANGUAGE = Language(max_words=20)
SHORT = dataclasses.replace(LANGUAGE, max_words=12)


def take(language, count, start=0):
    return list(itertools.islice(translation.generate_pairs(language, start), count))


def every(language, source):
    """All that can be written as a translation of a source."""
    return [
        " ".join(words)
        for words in itertools.product(*(token.forms for token in translation.list_target_tokens(language, source)))
    ]


def test_a_sentence_is_turned_round():
    source = "these old horses near the barn that many cows feed chase every tired farmer ."
    words = [token.forms[0] for token in translation.list_target_tokens(LANGUAGE, source)]
    assert " ".join(words) == (
        "horseoj oldaj theselaj barno thela nearim thati cowoj manylaj feedan wa farmero tireda everyla chasean ."
    )


def test_pairs_depend_on_seed_and_number_alone():
    found = take(LANGUAGE, 300)
    assert found[280:] == take(LANGUAGE, 20, start=280)
    assert found[:20] != take(dataclasses.replace(LANGUAGE, seed=1), 20)
    for source, target in found:
        assert np.isfinite(translation.score_translation(LANGUAGE, source, target).log_prob_L).all()
    known = set(translation.list_words(LANGUAGE))
    assert {word for pair in found for text in pair for word in text.split()} <= known


def test_the_probabilities_of_all_targets_of_a_source_sum_to_one_and_are_the_mixture_over_topics():
    two, some, source_of = translation.build_translation(SHORT), 0, {}
    for source, _ in take(SHORT, 40):
        targets = every(SHORT, source)
        if len(targets) > 300:
            continue
        some += len(targets) > 8
        assert {source_of.setdefault(target, source) for target in targets} == {source}  # each has one source
        share = [np.exp(translation.score_translation(SHORT, source, target).log_prob_L.sum()) for target in targets]
        assert sum(share) == pytest.approx(1, abs=1e-12)
        topic_T = compute_topic_posterior(two.grammar.hmm, grammar.encode_texts(two.grammar, [source]))[0]
        places = translation.list_target_tokens(SHORT, source)
        for target, found in zip(targets, share, strict=True):
            by_topic = [
                np.prod(
                    [
                        token.share_GxA[topic % 2, token.forms.index(word)]
                        for token, word in zip(places, target.split(), strict=True)
                    ]
                )
                for topic in range(len(topic_T))
            ]
            assert found == pytest.approx(topic_T @ by_topic, rel=1e-9)
    assert some > 5


def test_what_is_drawn_is_as_likely_as_it_is_said_to_be():
    """The optimum is right as often as it expects to be, and the nats are those of the entropy, token by token."""
    right, expected, variance, nats, entropy = 0, 0, 0, [], []
    for source, target in take(LANGUAGE, 600):
        weight_G = translation.compute_dialect_posterior(LANGUAGE, [source])[0]
        judged = translation.score_translation(LANGUAGE, source, target)
        right, own = right + judged.is_best_L.sum(), 0
        nats.append(-judged.log_prob_L.sum())
        for token, word in zip(translation.list_target_tokens(LANGUAGE, source), target.split(), strict=True):
            share_A = weight_G @ token.share_GxA
            own -= (share_A * np.log(share_A)).sum()
            expected, variance = expected + share_A.max(), variance + share_A.max() * (1 - share_A.max())
            weight_G = weight_G * token.share_GxA[:, token.forms.index(word)] / share_A[token.forms.index(word)]
        entropy.append(own)
    assert abs(right - expected) < 4 * variance**0.5
    apart = np.array(nats) - entropy
    assert abs(apart.mean()) < 4 * apart.std() / len(apart) ** 0.5 and np.mean(nats) > 1


def test_the_topic_settles_prepositions_as_far_as_the_source_tells_it():
    share = translation.compute_dialect_posterior(LANGUAGE, [source for source, _ in take(LANGUAGE, 300)]).max(1)
    assert share.mean() > 0.8 and share.min() < 0.7
    flat = dataclasses.replace(LANGUAGE, topic_strength=0.0)
    np.testing.assert_allclose(
        translation.compute_dialect_posterior(flat, [source for source, _ in take(flat, 5)]), 0.5
    )


def test_the_floor_of_rows_is_the_sum_over_their_pairs():
    found = take(LANGUAGE, 6)
    floor = translation.compute_floor(LANGUAGE, [found[:4], found[4:]])
    judged = [translation.score_translation(LANGUAGE, *pair) for pair in found]
    np.testing.assert_allclose(
        floor.nats_N, [-sum(one.log_prob_L.sum() for one in judged[a:b]) for a, b in ((0, 4), (4, 6))]
    )
    np.testing.assert_array_equal(
        floor.count_N, [sum(len(target.split()) + 1 for _, target in found[a:b]) for a, b in ((0, 4), (4, 6))]
    )
    source, target = found[0]
    with pytest.raises(ValueError, match="row 1: expected complete pairs"):
        translation.compute_floor(LANGUAGE, [found[1:3], [(source, target.rsplit(" ", 2)[0])]])


def test_what_is_no_document_is_refused():
    for source in ("the horse sees", "the unicorn sleeps .", "the horse .", ""):
        with pytest.raises(ValueError, match="expected"):
            translation.list_target_tokens(LANGUAGE, source)


def test_rows_of_drawn_pairs_hold_them_and_ask_for_what_the_floor_is_of(tmp_path):
    cfg = resolution.resolve(
        fields.override(
            config.Config(),
            {
                "data.corpus": "parallel",
                "data.cache_dir": str(tmp_path),
                "objective": "causal",
                "pack.seq_len": 64,
                "model.family": "encoder_decoder",
                "data.language.train_documents": 40,
                "data.language.validation_documents": 30,
            },
        )
    )
    resolution.check(cfg)
    assert cfg.data.language.max_words == translation.MAX_WORDS
    packed = pack.load_dataset(cfg)
    rows = translation.decode_pairs(
        packed.tokenizer.pieces,
        *(packed.validation[name] for name in ("ids", "segments", "source_ids", "source_segments")),
    )
    held = take(cfg.data.language, 30, translation.HELD_OUT)
    assert sorted(pair for row in rows for pair in row) == sorted(held)
    floor = translation.compute_floor(cfg.data.language, rows)
    every_N = np.arange(len(rows))
    asked_NxL = causal.compute_eval_mask(loader.read_batch(packed.validation, every_N, every_N).text, None, None)
    np.testing.assert_array_equal(floor.count_N, asked_NxL.sum(1))
    assert (
        packed.validation["source_ids"].max()
        < packed.dataset_info.vocab_size
        == len(translation.list_words(cfg.data.language)) + NUM_SPECIAL
    )
