"""The floors of a language with favorites, scenes, shared forms and endings: brute force, and that paths agree."""

import collections
import itertools

import jax
import numpy as np
import pytest
from scipy import stats
from tiny import FAVORITES, SCENES, TINY, TOGETHER, documents

from mlm.base import errors
from mlm.base.config import Language
from mlm.base.special import MASK
from mlm.data.language import diffusion_bound, floor, grammar, lexicon, posterior
from mlm.data.language.hmm import sample_documents

LENGTH = 5
WIDTHS = {"window": 1, "wide_window": 2, "bag": 1, "wide_bag": 2}
LANGUAGES = {"plain": TINY, "favorites": FAVORITES, "scenes": SCENES, "together": TOGETHER}
INGREDIENTS = {
    "vocabulary": {"vocab_size": 3000},
    "favorites": {"num_favorites": 2},
    "ambiguity": {"ambiguity_prob": 0.4},
    "scenes": {"num_scenes": 3},
    "fused": {"morphology": "fused", "num_declensions": 4},
    "split": {"morphology": "split", "agreement_prob": 0.8},
    "shared": {"vocab_size": 3000, "num_favorites": 2, "num_scenes": 3, "ambiguity_prob": 0.4, "word_order_prob": 0.9},
    "endings": {"vocab_size": 3000, "num_favorites": 1, "num_scenes": 2, "morphology": "split", "num_declensions": 2},
}


@pytest.fixture(scope="module", params=LANGUAGES)
def tiny(request):
    """A language, P(words, count) of its documents, some documents with room on both sides, and masks of every rate."""
    hmm = LANGUAGES[request.param]
    words_NxL = np.pad(sample_documents(hmm, LENGTH, 0, 0, 40), ((0, 0), (1, 2)), constant_values=-1)
    stream = np.random.default_rng(0)
    masked_NxL = (stream.random(words_NxL.shape) < stream.random((len(words_NxL), 1))) & (words_NxL >= 0)
    return hmm, documents(hmm, LENGTH), words_NxL, masked_NxL


@pytest.mark.parametrize("seen", ["masked", "leave_one_out", "window", "wide_window", "bag", "wide_bag", "infilling"])
def test_posteriors_are_the_enumerated_ones(tiny, seen):
    hmm, tables, words_NxL, masked_NxL = tiny
    compute = {
        "masked": posterior.compute_posterior,
        "leave_one_out": lambda hmm, words, asked: posterior.compute_posterior(hmm, words, np.zeros_like(asked), asked),
        "window": lambda *rows: posterior.compute_window_posterior(*rows, 1),
        "wide_window": lambda *rows: posterior.compute_window_posterior(*rows, 2),
        "bag": lambda *rows: posterior.compute_bag_posterior(*rows, 1),
        "wide_bag": lambda *rows: posterior.compute_bag_posterior(*rows, 2),
        "infilling": posterior.compute_infilling_posterior,
    }[seen]
    known = compute(hmm, words_NxL, masked_NxL)
    log_prob_KxW = posterior.compute_log_probs(hmm, known)
    assert len(log_prob_KxW) == masked_NxL.sum() > 50
    for example, column, log_prob_W in zip(known.example_K, known.position_K, log_prob_KxW, strict=True):
        words_L, masked_L = words_NxL[example], masked_NxL[example]
        distance_L = np.arange(len(words_L)) - column
        near = np.flatnonzero((words_L >= 0) & (distance_L != 0) & (np.abs(distance_L) <= WIDTHS.get(seen, LENGTH)))
        is_hidden_L = masked_L & ((distance_L > 0) if seen == "infilling" else seen != "leave_one_out")
        orders = [  # those of a bag may stand in any order, hidden ones too
            {place - 1: np.eye(len(hmm.class_W))[words_L[source]] for place, source in pairs if not is_hidden_L[source]}
            for pairs in (zip(near, order, strict=True) for order in _list_orders(near, "bag" in seen))
        ]
        share_W = sum(_sum_documents(tables[(words_L >= 0).sum()], column - 1, order) for order in orders)
        np.testing.assert_allclose(np.exp(log_prob_W), share_W / share_W.sum(), rtol=1e-5, atol=1e-6)
    log_prob_K, best_K = posterior.predict_words(hmm, known, words_NxL)
    at_K, true_K = np.arange(len(best_K)), words_NxL[known.example_K, known.position_K]
    np.testing.assert_allclose(log_prob_K, log_prob_KxW[at_K, true_K], atol=1e-5)
    np.testing.assert_allclose(log_prob_KxW[at_K, best_K], log_prob_KxW.max(1), atol=1e-5)


def _list_orders(places, is_bag):
    return itertools.permutations(places) if is_bag else [places]


def _sum_documents(joint, asked, likelihoods):
    """P(word asked, what is seen), where likelihoods maps a place to the likelihood of what is seen there."""
    for place, likelihood_W in likelihoods.items():
        joint = joint * likelihood_W.reshape([-1 if axis == place else 1 for axis in range(joint.ndim)])
    return joint.sum(tuple(axis for axis in range(joint.ndim) if axis != asked))


def test_documents_have_the_enumerated_probability_from_every_side(tiny):
    hmm, tables, _, _ = tiny
    words, shares = [], []
    for count, joint in tables.items():
        for word_n in itertools.product(range(len(hmm.class_W)), repeat=count):
            if joint[word_n] > 0 and (count < LENGTH or sum(word_n) % 7 == 0):
                words.append([-1, *word_n, *[-1] * (LENGTH - count)])
                shares.append(joint[word_n])
    words_NxL, share_N = np.array(words), np.array(shares)
    log_P, count_N = diffusion_bound.compute_length_log_probs(hmm, LENGTH), (words_NxL >= 0).sum(1)
    fits = sum(joint.sum() for joint in tables.values())
    exact_N = diffusion_bound.compute_log_probs(hmm, words_NxL, words_NxL >= 0) + log_P[count_N]
    np.testing.assert_allclose(exact_N, np.log(share_N / fits), rtol=1e-9)
    few_NxL, few_N = words_NxL[::5], exact_N[::5]
    for compute in (floor.compute_causal_floor, floor.compute_backward_floor):
        np.testing.assert_allclose(compute(hmm, few_NxL, LENGTH).nats_N, -few_N, atol=1e-5)


def test_samples_are_as_frequent_as_enumerated_and_reach_the_entropy(tiny):
    hmm, tables, _, _ = tiny
    fits = sum(joint.sum() for joint in tables.values())
    share = np.concatenate([joint.ravel() / fits for joint in tables.values()])
    entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
    words_NxL = sample_documents(hmm, LENGTH, 10, 0, 20_000)
    sampled = collections.Counter(map(tuple, words_NxL.tolist()))
    found, expected = [], []  # how often each document comes that should ten times
    for count, joint in tables.items():
        for word_n in map(tuple, np.argwhere(joint * 20_000 > 10 * fits).tolist()):
            found.append(sampled[*word_n, *[-1] * (LENGTH - count)])
            expected.append(joint[word_n] * 20_000 / fits)
    others = 20_000 - sum(found), 20_000 - sum(expected)
    assert stats.chisquare([*found, others[0]], [*expected, others[1]]).pvalue > 1e-4

    def score(model):
        nats_N = -diffusion_bound.compute_log_probs(model, words_NxL, words_NxL >= 0)
        return nats_N - diffusion_bound.compute_length_log_probs(model, LENGTH)[(words_NxL >= 0).sum(1)]

    nats_N = score(hmm)
    assert abs(nats_N.mean() - entropy) < 3.5 * nats_N.std() / len(nats_N) ** 0.5 < 0.06
    if hmm.favorites is not None:  # a wrong floor is told from the right one
        above_N = score(hmm._replace(favorites=hmm.favorites._replace(prob_F=np.array([0, 0.4, 0.3])))) - nats_N
        assert above_N.mean() > 3 * above_N.std() / len(above_N) ** 0.5


@pytest.fixture(scope="module", params=INGREDIENTS)
def grown(request):
    """A language with ingredients at its full size, and some documents."""
    language = Language(max_words=40, **INGREDIENTS[request.param])
    built = grammar.build_grammar(language)
    return language, built, np.pad(sample_documents(built.hmm, 40, 0, 0, 64), ((0, 0), (1, 1)), constant_values=-1)


@pytest.mark.exhaustive(but=("shared", "endings"))
def test_probabilities_are_probabilities(grown):
    language, built, words_NxL = grown
    hmm = built.hmm
    np.testing.assert_allclose(hmm.trans_SxS.sum(1), 1)
    np.testing.assert_allclose(hmm.class_SxC.sum(1), 1)
    for one in np.unique(hmm.class_W):
        (member_W,) = np.nonzero(hmm.class_W == one)
        word_TxW = hmm.topic_emission_TxW[:, member_W] * (hmm.name_M @ hmm.name_emission_MxW[:, member_W])
        if hmm.favorites is not None:
            word_TxW *= hmm.favorites.base_W[member_W]
            assert len(np.unique(hmm.favorites.lemma_W[member_W])) == len(member_W)
        np.testing.assert_allclose(word_TxW.sum(1), 1)
    assert len(built.words) == (language.vocab_size or len(built.words)) == len(set(built.words))
    assert set(np.unique(words_NxL)) - {-1} <= set(range(len(built.words)))
    assert (sample_documents(built.hmm, 40, 0, 7, 1) == words_NxL[7, 1:-1]).all()


@pytest.mark.exhaustive(but=("shared", "endings"))
def test_floors_agree_with_each_other(grown):
    _, built, words_NxL = grown
    hmm, masked_NxL = built.hmm, (np.random.default_rng(0).random(words_NxL.shape) < 0.3) & (words_NxL >= 0)
    causal = floor.compute_causal_floor(hmm, words_NxL, 40)
    exact_N = diffusion_bound.compute_log_probs(hmm, words_NxL, words_NxL >= 0)
    exact_N += diffusion_bound.compute_length_log_probs(hmm, 40)[(words_NxL >= 0).sum(1)]
    np.testing.assert_allclose(causal.nats_N, -exact_N, atol=2e-4)
    np.testing.assert_allclose(floor.compute_backward_floor(hmm, words_NxL, 40).nats_N, -exact_N, atol=2e-4)
    known = posterior.compute_posterior(hmm, words_NxL, masked_NxL)
    parts = floor.decompose_floor(built, words_NxL, known)
    masked = floor.compute_floor(hmm, words_NxL, known)
    np.testing.assert_allclose(sum(parts.values()), masked.nats_N, atol=1e-4)
    assert all(nats_N.min() > -1e-5 for nats_N in parts.values())
    few = type(known)(*(x_Kx[:60] for x_Kx in known))
    log_prob_KxW = posterior.compute_log_probs(hmm, few)
    np.testing.assert_allclose(np.exp(log_prob_KxW).sum(1), 1, atol=1e-4)
    log_prob_K, best_K = posterior.predict_words(hmm, few, words_NxL)
    at_K = np.arange(60)
    np.testing.assert_allclose(log_prob_KxW[at_K, best_K], log_prob_KxW.max(1), atol=1e-5)
    np.testing.assert_allclose(log_prob_KxW[at_K, words_NxL[few.example_K, few.position_K]], log_prob_K, atol=1e-5)


@pytest.mark.parametrize("name", [*INGREDIENTS])
def test_the_language_itself_has_the_posterior_of_every_latent_in_turn(name):
    """At full size: a topic and a name at a time, in float64, by products over states alone; all but favorites."""
    fields = INGREDIENTS[name] | {"num_favorites": 0}
    hmm = grammar.build_grammar(Language(max_words=12, num_names=6, **fields)).hmm
    words_NxL = sample_documents(hmm, 12, 0, 0, 4)
    masked_NxL = (np.random.default_rng(0).random(words_NxL.shape) < 0.3) & (words_NxL >= 0)
    known = posterior.compute_posterior(hmm, words_NxL, masked_NxL)
    log_prob_KxW = posterior.compute_log_probs(hmm, known)
    assert len(log_prob_KxW) > 5
    for example, column, log_prob_W in zip(known.example_K, known.position_K, log_prob_KxW, strict=True):
        words_L = words_NxL[example]
        own_L = words_L >= 0
        share_W = _sum_latents(hmm, words_L[own_L], ~masked_NxL[example, own_L], column)
        np.testing.assert_allclose(np.exp(log_prob_W), share_W / share_W.sum(), rtol=1e-5, atol=1e-7)
    for words_L, log_prob in zip(
        words_NxL, diffusion_bound.compute_log_probs(hmm, words_NxL, words_NxL >= 0), strict=True
    ):
        own_L = words_L[words_L >= 0]
        written, any_words = (_sum_latents(hmm, own_L, np.full(len(own_L), seen), 0).sum() for seen in (True, False))
        np.testing.assert_allclose(log_prob, np.log(written / any_words), rtol=1e-9)


def _sum_latents(hmm, words_L, seen_L, asked):
    """P(word asked, the words seen of a whole document) over all words; what is asked counts as any, or as seen."""
    word_ZxW = (hmm.topic_emission_TxW[:, None] * hmm.name_emission_MxW).reshape(-1, len(hmm.class_W))
    prior_Z = np.outer(hmm.topic_T, hmm.name_M).ravel()
    word_SxW = hmm.class_SxC[:, hmm.class_W]
    evidence_LxZxS = [
        word_ZxW[:, [w]] * word_SxW[:, w] if seen else np.ones((1, 1)) for w, seen in zip(words_L, seen_L, strict=True)
    ]
    ahead_ZxS, back_ZxS = np.tile(hmm.initial, (len(prior_Z), 1)), np.tile(1.0 * hmm.is_end, (len(prior_Z), 1))
    for evidence_ZxS in evidence_LxZxS[:asked]:
        ahead_ZxS = (ahead_ZxS * evidence_ZxS) @ hmm.trans_SxS
    for evidence_ZxS in evidence_LxZxS[:asked:-1]:
        back_ZxS = (back_ZxS * evidence_ZxS) @ hmm.trans_SxS.T
    share_W = prior_Z @ ((ahead_ZxS * back_ZxS) @ word_SxW * word_ZxW)
    return share_W[words_L[asked]] if seen_L[asked] else share_W


def test_a_teacher_knows_the_favorites():
    """The distribution of masked tokens in training is that of the floor."""
    words_NxL = sample_documents(TOGETHER, LENGTH, 0, 0, 20)
    masked_NxL = (np.arange(LENGTH) == 1) & (words_NxL >= 0)
    known = posterior.compute_posterior(TOGETHER, words_NxL, masked_NxL)
    word_V = np.append(np.full(MASK + 1, -1), np.arange(7))
    ids_NxL = np.where(masked_NxL, MASK, np.where(words_NxL >= 0, words_NxL + MASK + 1, 0))
    prob_NxKxV = jax.jit(posterior.build_teacher(TOGETHER, word_V))(ids_NxL, np.ones((20, 1), int))
    expected_KxW = np.exp(posterior.compute_log_probs(TOGETHER, known))
    np.testing.assert_allclose(prob_NxKxV[known.example_K, 0, MASK + 1 :], expected_KxW, atol=1e-5)


def test_what_ingredients_do():
    def draw(**fields):
        built = grammar.build_grammar(Language(**fields))
        return built, sample_documents(built.hmm, 126, 0, 0, 100)

    def repeat(fields):  # the share of nouns that are the most frequent of their document
        built, words_NxL = draw(**fields, vocab_size=4000, num_topics=1)
        nouns = [row[(row >= 0) & (built.kind_W == "noun")[row]] for row in words_NxL]
        return np.mean([np.bincount(row).max() / len(row) for row in nouns if len(row)])

    assert repeat({"num_favorites": 1, "favorite_prob": 0.6}) > 1.5 * repeat({})
    built, words_NxL = draw(ambiguity_prob=0.4)
    verbs = {"transitive", "intransitive", "noun/transitive", "noun/intransitive"}
    assert 0.3 < np.mean(["/" in kind for kind in built.kind_W[words_NxL[words_NxL >= 0]] if kind in verbs]) < 0.7
    built, words_NxL = draw(num_scenes=3, scene_prob=1.0, scene_keep_prob=1.0)
    scene_C = np.array([int(one.scene) for one in lexicon.build_classes(Language(num_scenes=3))])
    scenes = [set(scene_C[built.hmm.class_W[row[row >= 0]]].tolist()) - {-1} for row in words_NxL]
    assert {len(own) for own in scenes} == {1} and set.union(*scenes) == {0, 1, 2}
    built, words_NxL = draw(morphology="split")
    ending_NxL = (words_NxL >= 0) & (built.kind_W[words_NxL] == "ending")
    stem_NxL = (words_NxL >= 0) & np.isin(built.kind_W[words_NxL], lexicon.INFLECTED)
    np.testing.assert_array_equal(ending_NxL[:, 1:], stem_NxL[:, :-1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ambiguity_prob": 0.2, "morphology": "fused"}, "ambiguity_prob = 0.2: expected 0, since .*morphology"),
        ({"num_favorites": 1, "recall_prob": 1.0}, "recall_prob = 1.0: expected below 1, since .*num_favorites"),
        ({"morphology": "fused", "num_scenes": 16}, "vocab_size = 0: expected more: .* leave scenes without"),
    ],
)
def test_ingredients_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(errors.ConfigError, match=message):
        grammar.check(Language(**fields))


def test_the_first_language_keeps_its_repr():
    """Digests of data read it; what came later stands beside it where it is set."""
    assert repr(Language()).endswith("protagonist_prob=0.4, recall_prob=0.9)")
    assert grammar.list_ingredients(Language()) == {}
    assert grammar.list_ingredients(Language(num_scenes=2)) == {"num_scenes": 2}
