"""Where the subject of a verb stands: of the main verb and one after "that", the head of the sentence's subject; of a
verb whose clause has a subject of its own, that.

Words other than nouns and names are hidden at random, so that the grammar does not always decide. In the default
language the optimum is right on 0.965 of the questions, the noun or name just before the verb on 0.38.

Letters in array names: N examples, L places of a passage, S states, C classes, W words, D documents.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.base.errors import require
from mlm.data.language.grammar import DOCUMENT_BATCH, Grammar, build_grammar, has_one_reading
from mlm.data.language.hmm import HMM, sample_documents
from mlm.data.language.lexicon import NOUNS, VERBS
from mlm.data.language.probes import SubjectRelation, build_relations, find_subjects, parse_states
from mlm.data.language.synthetic_task import OptimalScore, SyntheticTask, encode_passages, format_passage, make_stream
from mlm.data.tasks.examples import Example

MAX_WORDS = 28  # of a passage at most: with the verb it fits into a row of 32 tokens
HIDE_PROB = 0.5  # probability that a word is hidden, each on its own, where it is no noun or name
MAX_SKIPPED = 2**14  # documents passed over in a row before a language is refused


def compute_hide_probs(language: Grammar) -> np.ndarray:
    """hide_C: the probability that a word of a class is hidden."""
    _, first_C = np.unique(language.hmm.class_W, return_index=True)
    return np.where(np.isin(language.kind_W[first_C], NOUNS), 0, HIDE_PROB)


def iterate_examples(language: Language, first: int) -> Iterator[Example]:
    """A verb and a passage, and where its subject stands.

    The verb is seen once, and since the last stop seen before it there are two nouns or names or more; of such verbs
    chance takes one. A passage is a document up to the sentence that repeats a noun or name, so that an answer's text
    says where it stands; one without such a verb is passed over. Raises ConfigError for a language that leaves nothing
    to ask, or puts words out of order, as a sentence then has more than one reading.
    """
    expected, name = "1, since config.data.task is language/subject", "config.data.language.word_order_prob"
    require(language.word_order_prob == 1, name, language.word_order_prob, expected)
    expected = "a language without ambiguity_prob, num_scenes and morphology, whose sentences have one reading"
    require(has_one_reading(language), "config.data.task", "language/subject", expected)
    grammar, seed = build_grammar(language), language.seed
    noun_W, hide_W = np.isin(grammar.kind_W, NOUNS), compute_hide_probs(grammar)[grammar.hmm.class_W]
    nouns, verbs = (set(itertools.compress(grammar.words, np.isin(grammar.kind_W, kinds))) for kinds in (NOUNS, VERBS))
    last = first
    for begin in itertools.count(first, DOCUMENT_BATCH):
        expected = f"a language with verbs after two different nouns: {begin - last} documents in a row have none"
        require(begin - last <= MAX_SKIPPED, "config.data.task", "language/subject", expected)
        words_DxL = sample_documents(grammar.hmm, MAX_WORDS, seed, begin, DOCUMENT_BATCH)
        length_D = np.array([_count_words_before_repeat(grammar, noun_W, words_L) for words_L in words_DxL])
        words_DxL[np.arange(MAX_WORDS) >= length_D[:, None]] = -1
        subject_DxL = find_subjects(grammar, parse_states(grammar, words_DxL))
        for number, (words_L, subject_L) in enumerate(zip(words_DxL, subject_DxL, strict=True), begin):
            stream = make_stream(seed, number)
            passage = format_passage(grammar, words_L, stream.random(MAX_WORDS) < hide_W[words_L])
            seen = passage.split()
            # Nouns and names between each word and the last stop that is seen before it.
            count = lambda number, word: (number + (word in nouns)) * (word != ".")
            open_L = list(itertools.accumulate(seen, count, initial=0))
            places = [i for i, word in enumerate(seen) if word in verbs and seen.count(word) == 1 and open_L[i] > 1]
            if places:
                last = number
                place = places[stream.integers(len(places))]
                subject = subject_L[place]
                answer = seen[subject], compute_word_offsets(seen)[subject]
                yield Example(str(number - first), (seen[place], passage), label=(answer,))


def _count_words_before_repeat(grammar, noun_W, words_L) -> int:
    """The words of a document's longest beginning, in complete sentences, that has no noun or name twice."""
    length, found = 0, set()
    for place, word in enumerate(words_L[words_L >= 0].tolist(), 1):
        if word in found:
            break
        if noun_W[word]:
            found.add(word)
        if grammar.words[word] == ".":
            length = place
    return length


def compute_word_offsets(words: Sequence[str]) -> list[int]:
    """The first character of each word of a passage."""
    return [0, *itertools.accumulate(len(word) + 1 for word in words[:-1])]


def compute_subject_posterior(
    hmm: HMM,
    between: Sequence[SubjectRelation],
    hide_C: np.ndarray,
    words_NxL: np.ndarray,
    hidden_NxL: np.ndarray,
    verb_N: np.ndarray,
) -> np.ndarray:
    """P(the subject of the word in place verb_N stands here | what is seen), NxL; what lacks to 1 is that it has none.

    Forward-backward (Rabiner 1989, section III.A), where the messages from the verb back to its subject stop at what
    would end the sentence or be a nearer subject. A document's words fit in memory unscaled: some dozens of them.
    hide_C: the probability that a word of each class is hidden; words_NxL: -1 past a passage's end.
    """
    states = len(hmm.trans_SxS)
    class_NxLxS = hmm.class_SxC.T[hmm.class_W[words_NxL]]
    seen_NxLxS = np.where(hidden_NxL[:, :, None], hmm.class_SxC @ hide_C, class_NxLxS)
    last_N, end_S = (words_NxL >= 0).sum(1) - 1, np.eye(states)[hmm.end]

    before_NxS, before_LxNxS = np.tile(hmm.trans_SxS[hmm.end], (len(words_NxL), 1)), []
    for seen_NxS in seen_NxLxS.swapaxes(0, 1):
        before_LxNxS.append(before_NxS * seen_NxS)
        before_NxS = before_LxNxS[-1] @ hmm.trans_SxS

    share_NxL, every_N = np.zeros(words_NxL.shape), np.zeros(len(words_NxL))
    after_NxS, back_NxS = np.zeros(before_NxS.shape), [np.zeros(before_NxS.shape) for _ in between]
    for place in reversed(range(words_NxL.shape[1])):
        is_verb_Nx1 = (verb_N == place)[:, None]
        after_NxS = np.where((last_N == place)[:, None], end_S, after_NxS @ hmm.trans_SxS.T)
        every_N += np.where(verb_N == place, (before_LxNxS[place] * after_NxS).sum(1), 0)
        after_NxS *= seen_NxLxS[:, place]
        for k, (subject_S, verb_S) in enumerate(between):
            onward_NxS = back_NxS[k] @ hmm.trans_SxS.T
            share_NxL[:, place] += (before_LxNxS[place] * onward_NxS) @ subject_S
            inside_NxS = onward_NxS * seen_NxLxS[:, place] * ~(subject_S | (end_S > 0))
            back_NxS[k] = np.where(is_verb_Nx1, after_NxS * verb_S, inside_NxS)
    return share_NxL / every_N[:, None]


def compute_posterior(language: Language, given: Sequence[Example]) -> np.ndarray:
    """P(the answer is this word | verb and passage), NxL.

    A verb is chosen by what is seen and by chance; a passage's end by its nouns, which are seen, and by the sentence
    after it, which tells of topic and name alone. So these choices tell nothing of the grammar.
    """
    grammar = build_grammar(language)
    words_NxL, hidden_NxL = encode_passages(grammar, [one.texts[1] for one in given], MAX_WORDS)
    verb_N = np.array([one.texts[1].split().index(one.texts[0]) for one in given])
    relations, hide_C = build_relations(grammar), compute_hide_probs(grammar)
    return compute_subject_posterior(grammar.hmm, relations, hide_C, words_NxL, hidden_NxL, verb_N)


def _score(_, given: Sequence[Example], share_NxL: np.ndarray) -> OptimalScore:
    """The likeliest word of each passage: of exact match; a longer answer may be worth more by its F1."""
    chosen = zip(given, share_NxL.argmax(1), strict=True)
    right_N = [compute_word_offsets(one.texts[1].split())[place] == one.label[0][1] for one, place in chosen]
    return OptimalScore(np.array(right_N, float), np.ones(len(given)), share_NxL.max(1))


SUBJECT = SyntheticTask("subject", 3, "extractive_qa", lambda _: (), iterate_examples, compute_posterior, _score)
