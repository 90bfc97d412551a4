"""A language so small that all of its documents can be written out, with their probabilities."""

import itertools

import numpy as np

from mlm.data.language.hmm import HMM

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


def documents(hmm: HMM, length: int) -> dict[int, np.ndarray]:
    """P(words, count) as an array with an axis for each word, by the count: all paths of `length` states, all latents.

    What is missing to 1 is that the first sentence does not fit.
    """
    vocabulary, states = len(hmm.class_W), range(len(hmm.trans_SxS))
    tables = {count: np.zeros((vocabulary,) * count) for count in range(1, length + 1)}
    for path in itertools.product(states, repeat=length):
        share = np.prod([hmm.trans_SxS[a, b] for a, b in itertools.pairwise((int(hmm.end), *path))])
        count = max((i + 1 for i, state in enumerate(path) if state == hmm.end), default=0)
        if count:
            for (topic, by_topic_W), (name, by_name_W) in itertools.product(
                zip(hmm.topic_T, hmm.topic_emission_TxW, strict=True),
                zip(hmm.name_M, hmm.name_emission_MxW, strict=True),
            ):
                word_SxW = hmm.class_SxC[:, hmm.class_W] * by_topic_W * by_name_W
                joint = np.array(share * topic * name)
                for state in path[:count]:
                    joint = joint[..., None] * word_SxW[state]
                tables[count] += joint
    return tables
