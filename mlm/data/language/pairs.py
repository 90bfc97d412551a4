"""Whether two passages share their topic: half of the pairs do.

In the default language the optimum is right on 0.91 of the pairs, the most frequent label on 0.5.

Letters in array names: N examples, L places of a passage, T topics, D documents.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.data.language.grammar import DOCUMENT_BATCH, build_grammar
from mlm.data.language.hmm import HMM, sample_documents, sample_latents
from mlm.data.language.synthetic_task import (
    SPLIT_SIZES,
    OptimalScore,
    SyntheticExample,
    SyntheticTask,
    encode_passages,
    format_passage,
    get_first_document,
    make_stream,
    score_labels,
)
from mlm.data.language.topics import compute_topic_log_likelihood, require_several_topics

TASK_NUMBER = 1  # its place among the tasks' documents
MAX_WORDS = 14  # of a passage at most: the two fit into a row of 32 tokens
LABELS = ("different", "same")


def list_labels(language: Language) -> tuple[str, ...]:
    """The labels of the task, in the order of their numbers."""
    return LABELS


def generate_examples(language: Language, split: str, count: int | None = None) -> Iterator[SyntheticExample]:
    """Two passages, and whether their topics are the same; example n is documents 2n and 2n + 1 of the split.

    The two have their own protagonists, which say nothing. By a coin the second has the first one's topic, else another
    in proportion to its probability. Raises ConfigError for a split that is none, and a language of one topic.
    """
    first, grammar = get_first_document(TASK_NUMBER, split), build_grammar(language)
    require_several_topics(language, "pair")
    hmm, seed = grammar.hmm, language.seed
    for begin in itertools.count(first, DOCUMENT_BATCH):
        topic_D, _ = sample_latents(hmm, seed, begin, DOCUMENT_BATCH)
        same_N = np.zeros(DOCUMENT_BATCH // 2, int)
        for n in range(DOCUMENT_BATCH // 2):
            stream = make_stream(seed, begin + 2 * n)
            same_N[n] = stream.random() < 0.5
            other_T = np.where(np.arange(len(hmm.topic_T)) == topic_D[2 * n], 0, hmm.topic_T)
            other = stream.choice(len(other_T), p=other_T / other_T.sum())
            topic_D[2 * n + 1] = topic_D[2 * n] if same_N[n] else other
        words_DxL = sample_documents(hmm, MAX_WORDS, seed, begin, DOCUMENT_BATCH, topic_D)
        for n, same in enumerate(same_N):
            number = (begin - first) // 2 + n
            if number == (SPLIT_SIZES[split] if count is None else count):
                return
            one, two = (format_passage(grammar, words_L) for words_L in words_DxL[2 * n : 2 * n + 2])
            yield SyntheticExample(f"pair/{split}/{number}", (one, two), (), LABELS[same])


def compute_pair_posterior(hmm: HMM, one_NxL: np.ndarray, two_NxL: np.ndarray) -> np.ndarray:
    """P(topics differ | words) and P(they are the same | words), Nx2, where half of the pairs share theirs.

    words: -1 where there is none.
    """
    # Each passage's evidence, scaled by its largest: the scales are common to both answers.
    one_NxT, two_NxT = (
        np.exp(odds_NxT - odds_NxT.max(1, keepdims=True))
        for odds_NxT in (compute_topic_log_likelihood(hmm, words_NxL) for words_NxL in (one_NxL, two_NxL))
    )
    same_TxT = np.diag(hmm.topic_T)
    other_TxT = hmm.topic_T * (1 - np.eye(len(hmm.topic_T)))
    differ_TxT = hmm.topic_T[:, None] * other_TxT / other_TxT.sum(1, keepdims=True)
    weight_Nx2 = np.stack([((one_NxT @ joint_TxT) * two_NxT).sum(1) for joint_TxT in (differ_TxT, same_TxT)], 1)
    return weight_Nx2 / weight_Nx2.sum(1, keepdims=True)


def compute_posterior(language: Language, given: Sequence[SyntheticExample]) -> np.ndarray:
    """P(label | passages), Nx2, in the order of LABELS."""
    grammar = build_grammar(language)
    one_NxL, two_NxL = (
        encode_passages(grammar, [example.texts[i] for example in given], MAX_WORDS)[0] for i in range(2)
    )
    return compute_pair_posterior(grammar.hmm, one_NxL, two_NxL)


def score_optimum(language: Language, given: Sequence[SyntheticExample]) -> OptimalScore:
    """The likelier answer to each pair."""
    return score_labels(np.array([LABELS.index(one.label) for one in given]), compute_posterior(language, given))


PAIR = SyntheticTask("classification", list_labels, generate_examples, compute_posterior, score_optimum)
