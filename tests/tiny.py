"""A language so small that all of its documents can be written out, with their probabilities."""

import itertools

import numpy as np

from mlm.data.language.hmm import HMM, Favorites

# Classes: the stop and a word like it; two words by topic; two words by name. Every state shares a class with another.
TINY = HMM(
    end=np.array(0),
    trans_SxS=np.array([[0.1, 0.6, 0.3], [0.3, 0.2, 0.5], [0.45, 0.4, 0.15]]),
    class_SxC=np.array([[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.3, 0.7]]),
    class_W=np.array([0, 1, 1, 2, 2]),
    topic_T=np.array([0.4, 0.6]),
    topic_emission_TxW=np.array([[1, 0.9, 0.1, 1, 1], [1, 0.3, 0.7, 1, 1]]),
    name_M=np.array([0.3, 0.7]),
    name_emission_MxW=np.array([[1, 1, 1, 0.8, 0.2], [1, 1, 1, 0.1, 0.9]]),
)


# Two classes of two lemmas' forms and one of a lemma more; the topic chooses among fields, of one lemma or two.
FAVORITES = TINY._replace(
    class_W=np.array([0, 1, 1, 1, 2, 2, 2]),
    topic_emission_TxW=np.array([[1, 0.7, 0.7, 0.3, 0.6, 0.6, 0.4], [1, 0.2, 0.2, 0.8, 0.5, 0.5, 0.5]]),
    name_M=np.ones(1),
    name_emission_MxW=np.ones((1, 7)),
    favorites=Favorites(
        field_W=np.array([0, 1, 1, 2, 1, 1, 2]),
        lemma_W=np.array([0, 1, 2, 3, 1, 2, 3]),
        base_W=np.array([1, 0.8, 0.2, 1, 0.8, 0.2, 1]),
        prob_F=np.array([0, 0.6, 0.3]),
    ),
)
# Two states that end a sentence, each with a word of its own that the other writes rarely.
_KEEP = np.array([[0.7, 0.3], [0.3, 0.7]])
SCENES = HMM(
    end=np.array([0, 2]),
    trans_SxS=np.block(
        [
            [np.array([[0.4 * _KEEP[g, h], 0.6 * _KEEP[g, h]], [0.7 * (g == h), 0.3 * (g == h)]]) for h in (0, 1)]
            for g in (0, 1)
        ]
    ),
    class_SxC=np.array([[1, 0, 0], [0, 0.9, 0.1], [1, 0, 0], [0, 0.2, 0.8]]),
    class_W=np.array([0, 1, 1, 2, 2]),
    topic_T=np.array([0.4, 0.6]),
    topic_emission_TxW=TINY.topic_emission_TxW,
    name_M=TINY.name_M,
    name_emission_MxW=TINY.name_emission_MxW,
)
TOGETHER = FAVORITES._replace(end=SCENES.end, trans_SxS=SCENES.trans_SxS, class_SxC=SCENES.class_SxC)


def compute_favorite_shares(hmm: HMM):
    """(P(favorites), P(lemma | field, favorites) of each word) of every choice of favorites."""
    if hmm.favorites is None:
        yield 1.0, np.ones(len(hmm.class_W))
        return
    field_W, lemma_W, base_W, prob_F = hmm.favorites
    by_field = [dict(zip(lemma_W[field_W == f], base_W[field_W == f], strict=True)) for f in range(1, len(prob_F))]
    for choice in itertools.product(*(of_field.items() for of_field in by_field)):
        favorite_F = np.array([-1, *(lemma for lemma, _ in choice)])
        repeated_W = lemma_W == favorite_F[field_W]
        yield np.prod([share for _, share in choice]), prob_F[field_W] * repeated_W + (1 - prob_F[field_W]) * base_W


def documents(hmm: HMM, length: int) -> dict[int, np.ndarray]:
    """P(words, count) as an array with an axis for each word, by the count: all paths of `length` states, all latents.

    What is missing to 1 is that the first sentence does not fit.
    """
    vocabulary, states = len(hmm.class_W), range(len(hmm.trans_SxS))
    tables = {count: np.zeros((vocabulary,) * count) for count in range(1, length + 1)}
    ends = hmm.end.reshape(-1).tolist()
    for path in itertools.product(states, repeat=length):
        share = np.mean([hmm.trans_SxS[end, path[0]] for end in ends])
        share *= np.prod([hmm.trans_SxS[a, b] for a, b in itertools.pairwise(path)])
        count = max((i + 1 for i, state in enumerate(path) if state in ends), default=0)
        if count and share:
            for (topic, by_topic_W), (name, by_name_W), (favorites, by_favorites_W) in itertools.product(
                zip(hmm.topic_T, hmm.topic_emission_TxW, strict=True),
                zip(hmm.name_M, hmm.name_emission_MxW, strict=True),
                compute_favorite_shares(hmm),
            ):
                word_SxW = hmm.class_SxC[:, hmm.class_W] * by_topic_W * by_name_W * by_favorites_W
                joint = np.array(share * topic * name * favorites)
                for state in path[:count]:
                    joint = joint[..., None] * word_SxW[state]
                tables[count] += joint
    return tables
