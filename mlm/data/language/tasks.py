"""The tasks of the built-in language, by name: labelled data whose best possible score is computed exactly.

topic: which one a passage has. pair: whether two passages share theirs, as half of the pairs do. tag: the class of each
hidden word, its kind and number, from the passage around it. subject: see subjects.py. In the default language the
optimum is right on 0.91 of topics and pairs and 0.80 of hidden words, the most frequent label on 0.125, 0.5 and 0.15.

Letters in array names: N examples, L places of a passage, T topics, C classes, K hidden words of all examples, W words,
D documents.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base import errors
from mlm.base.config import Language
from mlm.data.language.grammar import DOCUMENT_BATCH, build_grammar
from mlm.data.language.hmm import (
    HMM,
    compute_topic_log_likelihood,
    compute_topic_posterior,
    sample_documents,
    sample_latents,
)
from mlm.data.language.lexicon import TOPICS
from mlm.data.language.subjects import SUBJECT
from mlm.data.language.synthetic_task import OptimalScore, SyntheticTask, encode_passages, format_passage, make_stream
from mlm.data.tasks.examples import Example

FORMAT = 1  # of the examples: raise it where any of them changes
MAX_TOPIC_WORDS = 16  # of a passage at most: few enough that its topic is not always known
MAX_PAIR_WORDS = 14  # of a passage of a pair at most: the two fit into a row of 32 tokens
MAX_TAG_WORDS = 30  # of a passage at most: it fits into a row of 32 tokens
HIDE_PROB = 0.3  # probability that a word of a tag's passage is hidden, each on its own
PAIR_LABELS = ("different", "same")


def _require_topics(language, task):
    field, number = "config.data.language.num_topics", language.num_topics
    errors.require(number > 1, field, number, f"at least 2, since config.data.task is {task}")


def list_topics(language: Language) -> tuple[str, ...]:
    """A topic is called by the noun that it favours most."""
    return tuple(nouns.split()[0] for nouns in TOPICS[: language.num_topics])


def _iterate_topics(language: Language, first: int) -> Iterator[Example]:
    """A passage and its document's topic."""
    label_T, grammar = list_topics(language), build_grammar(language)
    _require_topics(language, "topic")
    for begin in itertools.count(0, DOCUMENT_BATCH):
        words_DxL = sample_documents(grammar.hmm, MAX_TOPIC_WORDS, language.seed, first + begin, DOCUMENT_BATCH)
        topic_D, _ = sample_latents(grammar.hmm, language.seed, first + begin, DOCUMENT_BATCH)
        for n, (words_L, topic) in enumerate(zip(words_DxL, topic_D, strict=True), begin):
            yield Example(str(n), (format_passage(grammar, words_L),), label=label_T[topic])


def _infer_topics(language: Language, given: Sequence[Example]) -> np.ndarray:
    """P(topic | passage), NxT."""
    grammar = build_grammar(language)
    words_NxL, _ = encode_passages(grammar, [one.texts[0] for one in given], MAX_TOPIC_WORDS)
    return compute_topic_posterior(grammar.hmm, words_NxL)


def _iterate_pairs(language: Language, first: int) -> Iterator[Example]:
    """Two passages, and whether their topics are the same; example n is documents 2n and 2n + 1 of the split.

    Their protagonists say nothing. By a coin the second has the first one's topic, else another by its probability.
    """
    grammar = build_grammar(language)
    _require_topics(language, "pair")
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
        words_DxL = sample_documents(hmm, MAX_PAIR_WORDS, seed, begin, DOCUMENT_BATCH, topic_D)
        for n, same in enumerate(same_N):
            one, two = (format_passage(grammar, words_L) for words_L in words_DxL[2 * n : 2 * n + 2])
            yield Example(str((begin - first) // 2 + n), (one, two), label=PAIR_LABELS[same])


def compute_pair_posterior(hmm: HMM, one_NxL: np.ndarray, two_NxL: np.ndarray) -> np.ndarray:
    """P(topics differ | words) and P(they are the same | words), Nx2, where half of the pairs share theirs.

    words: -1 where there is none.
    """
    # Each passage's evidence, scaled by its largest: the scales are common to both answers.
    both = (compute_topic_log_likelihood(hmm, words_NxL) for words_NxL in (one_NxL, two_NxL))
    one_NxT, two_NxT = (np.exp(odds_NxT - odds_NxT.max(1, keepdims=True)) for odds_NxT in both)
    same_TxT = np.diag(hmm.topic_T)
    other_TxT = hmm.topic_T * (1 - np.eye(len(hmm.topic_T)))
    differ_TxT = hmm.topic_T[:, None] * other_TxT / other_TxT.sum(1, keepdims=True)
    weight_Nx2 = np.stack([((one_NxT @ joint_TxT) * two_NxT).sum(1) for joint_TxT in (differ_TxT, same_TxT)], 1)
    return weight_Nx2 / weight_Nx2.sum(1, keepdims=True)


def _infer_pairs(language: Language, given: Sequence[Example]) -> np.ndarray:
    """P(label | passages), Nx2, in the order of PAIR_LABELS."""
    grammar = build_grammar(language)
    sides = zip(*(example.texts for example in given), strict=True)
    return compute_pair_posterior(grammar.hmm, *(encode_passages(grammar, texts, MAX_PAIR_WORDS)[0] for texts in sides))


def list_tags(language: Language) -> tuple[str, ...]:
    """The names of the language's classes: a kind, and a number where words of the class show one ("noun.s").

    Classes that differ in scene or declension share their name.
    """
    grammar = build_grammar(language)
    _, first_C = np.unique(grammar.hmm.class_W, return_index=True)
    return tuple(dict.fromkeys(_name_tag(grammar, word) for word in first_C))


def _name_tag(grammar, word) -> str:
    return f"{grammar.kind_W[word]}.{grammar.number_W[word]}".removesuffix(".")


def _iterate_tags(language: Language, first: int) -> Iterator[Example]:
    """A passage with hidden words, and their classes; documents of which nothing is hidden are passed over."""
    grammar, seed = build_grammar(language), language.seed
    label_W = np.array([_name_tag(grammar, word) for word in range(len(grammar.words))])
    for begin in itertools.count(first, DOCUMENT_BATCH):
        words_DxL = sample_documents(grammar.hmm, MAX_TAG_WORDS, seed, begin, DOCUMENT_BATCH)
        for number, words_L in enumerate(words_DxL, begin):
            hidden_L = (make_stream(seed, number).random(MAX_TAG_WORDS) < HIDE_PROB) & (words_L >= 0)
            if hidden_L.any():
                text = format_passage(grammar, words_L, hidden_L)
                label_L = np.where(hidden_L, label_W[words_L], "")[words_L >= 0]
                yield Example(str(number - first), (text,), tuple(text.split()), tuple(label_L.tolist()))


def _infer_tags(language: Language, given: Sequence[Example]) -> np.ndarray:
    """P(class | passage) of each hidden word, KxC, example by example; exact, computed in float32 (`posterior`).

    Whether a word is hidden does not depend on the word, so what is hidden tells nothing.
    """
    from mlm.data.language import posterior  # imports jax, which takes a second

    grammar = build_grammar(language)
    words_NxL, hidden_NxL = encode_passages(grammar, [one.texts[0] for one in given], MAX_TAG_WORDS)
    share_KxC = posterior.compute_posterior(grammar.hmm, words_NxL, hidden_NxL).class_KxC.astype(np.float64)
    _, first_C = np.unique(grammar.hmm.class_W, return_index=True)
    tag_C = [_name_tag(grammar, word) for word in first_C]
    return share_KxC @ (np.array(tag_C)[:, None] == list_tags(language))


def _score_labels(label_C: Sequence[str], given: Sequence[Example], share_KxC: np.ndarray) -> OptimalScore:
    """The likeliest label of each example, or the likeliest class of each hidden word."""
    labels = [[one.label] if isinstance(one.label, str) else list(filter(None, one.label)) for one in given]
    true_K = np.array([label_C.index(label) for label in itertools.chain.from_iterable(labels)], int)
    weight_N = np.array(list(map(len, labels)), int)
    example_K = np.repeat(np.arange(len(given)), weight_N)
    values_2xK = share_KxC.argmax(1) == true_K, share_KxC.max(1)
    right_N, expected_N = (np.bincount(example_K, value_K, len(given)) for value_K in values_2xK)
    return OptimalScore(right_N, weight_N.astype(float), expected_N)


TOPIC = SyntheticTask("topic", 0, "classification", list_topics, _iterate_topics, _infer_topics, _score_labels)
PAIR = SyntheticTask("pair", 1, "classification", lambda _: PAIR_LABELS, _iterate_pairs, _infer_pairs, _score_labels)
TAG = SyntheticTask("tag", 2, "tagging", list_tags, _iterate_tags, _infer_tags, _score_labels)
TASKS = {task.name: task for task in (TOPIC, PAIR, TAG, SUBJECT)}
