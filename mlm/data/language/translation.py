"""A second language into which documents of the built-in one are translated, and how likely each translation is.

Every sentence is turned round in the same way: a noun comes before its adjectives, these before their determiner and
this before its preposition; the main verb goes to the end, and "wa" stands where the subject ends. Each word has one
sense: which form it takes is settled by the source (adjectives and verbs show a number), by chance (adjectives and
adverbs have a synonym, determiners now and then the other number than their noun), or by the document's topic
(prepositions have a form for every other topic), which the source's words tell in part. So P(target | source) is exact,
and the source follows from any of its translations.

Letters in array names: L tokens of a target, G dialects, A alternatives of a token.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import errors
from mlm.base.config import Language
from mlm.base.special import NUM_SPECIAL
from mlm.data.language import grammar as grammars
from mlm.data.language.grammar import DOCUMENT_BATCH, Grammar
from mlm.data.language.hmm import Floor, compute_topic_posterior, sample_documents, sample_latents
from mlm.data.language.lexicon import NOUNS, OTHER_NUMBER, TARGET_ENDINGS, VERBS
from mlm.data.language.synthetic_task import make_stream

MAX_WORDS = 20  # of a source at most, where config says nothing
HELD_OUT = 2**32  # number of the first held-out pair
DIALECTS = 2  # a topic's is its number modulo this
DIALECT_PROB = 0.9  # probability that a preposition has its topic's form
SYNONYM_PROB = 0.3  # of an adjective's and an adverb's second form
AGREEMENT_PROB = 0.85  # probability that a determiner has its noun's number
SUBJECT_MARKER = "wa"


class TargetToken(NamedTuple):
    """A place of a target: its alternatives, one or two, and the probability of each in each dialect."""

    forms: tuple[str, ...]
    share_GxA: np.ndarray


SUBJECT_TOKEN = TargetToken((SUBJECT_MARKER,), np.ones((DIALECTS, 1)))


class TranslationGrammar(NamedTuple):
    """The language of the targets beside that of the sources."""

    grammar: Grammar
    tokens: dict[tuple[int, str], TargetToken]  # of a source's word beside a noun of a number, "s" or "p"
    forms: tuple[str, ...]
    dialect_T: np.ndarray  # dialect of a topic


def check(language: Language, length: int) -> None:
    """Raises ConfigError for a language that has no such translation, or longer ones than rows have room for."""
    name, order = "config.data.language", language.word_order_prob
    for field, value in grammars.list_ingredients(language).items():
        errors.require(False, f"{name}.{field}", value, "its default, since config.data.corpus is parallel")
    errors.require(order == 1, f"{name}.word_order_prob", order, "1, since config.data.corpus is parallel")
    most = (length - 2) * 3 // 4  # three words or more have a "wa" more
    errors.require_number(f"{name}.max_words", language.max_words, 8, most)


@functools.lru_cache(maxsize=2)
def build_translation(language: Language) -> TranslationGrammar:
    """The two languages; language: resolved and within its limits."""
    grammar = grammars.build_grammar(language)
    keys = itertools.product(range(len(grammar.words)), "sp")
    table = {(word, number): _make_token(grammar, word, number) for word, number in keys}
    back: dict[str, int] = {}
    for (word, _), token in table.items():
        for form in token.forms:
            assert back.setdefault(form, word) == word, f"two words have the form {form}"
    return TranslationGrammar(grammar, table, (*back,), np.arange(len(grammar.hmm.topic_T)) % DIALECTS)


def _make_token(grammar, word, number):
    kind, shown, stem = grammar.kind_W[word], grammar.number_W[word], grammar.words[word]
    endings = TARGET_ENDINGS[kind]  # by the number that a form shows, the word's own where it shows one
    if kind in ("noun", *VERBS):
        stem = stem if (shown == "s") == (kind == "noun") else grammar.words[grammar.partner_W[word]]
        endings = {shown: endings[shown]}
    by_number = {shows: tuple(stem + ending for ending in each) for shows, each in endings.items()}
    if kind == "determiner":
        forms = by_number[number] + by_number[OTHER_NUMBER[number]]
        return TargetToken(forms, np.tile([AGREEMENT_PROB, 1 - AGREEMENT_PROB], (DIALECTS, 1)))
    forms = by_number[number] if kind == "adjective" else next(iter(by_number.values()))
    if kind == "preposition":
        return TargetToken(forms, DIALECT_PROB * np.eye(DIALECTS) + (1 - DIALECT_PROB) * (1 - np.eye(DIALECTS)))
    return TargetToken(forms, np.tile([1 - SYNONYM_PROB, SYNONYM_PROB] if len(forms) > 1 else [1.0], (DIALECTS, 1)))


def list_words(language: Language) -> tuple[str, ...]:
    """Every word of sources and targets."""
    two = build_translation(language)
    return tuple(dict.fromkeys((*two.grammar.words, *two.forms, SUBJECT_MARKER)))


def list_target_tokens(language: Language, source: str) -> list[TargetToken]:
    """What can stand at each place of a source's translations; how many places there are is certain.

    Raises ValueError for what is no document of the language: a word that it lacks, or a sentence that it cannot build.
    """
    two, found = build_translation(language), []
    (words_L,) = grammars.encode_texts(two.grammar, [source])
    ends = (np.flatnonzero(words_L == two.grammar.words.index(".")) + 1).tolist()
    if ends[-1:] != [len(words_L)]:
        raise ValueError(f"{source!r}: expected complete sentences of the built-in language")
    for start, end in zip([0, *ends], ends, strict=False):
        sentence = words_L[start:end].tolist()
        verbs = [place for place, word in enumerate(sentence) if two.grammar.kind_W[word] in VERBS]
        if not verbs:
            raise ValueError(f"{source!r}: expected a verb in each sentence")
        parts = sentence[verbs[-1] + 1 : -1], [sentence[verbs[-1]]], sentence[-1:]
        found += [*_translate_part(two, sentence[: verbs[-1]]), SUBJECT_TOKEN]
        found += itertools.chain.from_iterable(_translate_part(two, part) for part in parts)
    return found


def _translate_part(two, words):
    """The tokens of a part of a sentence: what stands up to a noun or name is turned round with it."""
    found, phrase = [], []
    for word in words:
        kind = two.grammar.kind_W[word]
        phrase.append(word)
        if kind in NOUNS or kind in ("that", "adverb", *VERBS):
            number = str(two.grammar.number_W[word]) if kind == "noun" else "s"
            found += [two.tokens[each, number] for each in reversed(phrase)]
            phrase = []
    return found + [two.tokens[each, "s"] for each in phrase]


def compute_dialect_posterior(language: Language, sources: Sequence[str]) -> np.ndarray:
    """P(dialect | source), NxG."""
    two = build_translation(language)
    share_NxT = compute_topic_posterior(two.grammar.hmm, grammars.encode_texts(two.grammar, sources))
    return share_NxT @ (two.dialect_T[:, None] == np.arange(DIALECTS))


def generate_pairs(language: Language, start: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs start, start + 1, ... without end, a source and one of its translations, sampled by its probability.

    Words have spaces between. Pair i depends on i and config alone; its source is the language's document i.
    """
    two = build_translation(language)
    for begin in itertools.count(start, DOCUMENT_BATCH):
        words_DxL = sample_documents(two.grammar.hmm, language.max_words, language.seed, begin, DOCUMENT_BATCH)
        topic_D, _ = sample_latents(two.grammar.hmm, language.seed, begin, DOCUMENT_BATCH)
        for d, words_L in enumerate(words_DxL):
            source = " ".join(two.grammar.words[word] for word in words_L[words_L >= 0])
            places, group = list_target_tokens(language, source), two.dialect_T[topic_D[d]]
            first_L = [token.share_GxA[group, 0] for token in places]
            other_L = make_stream(language.seed, begin + d).random(len(places)) >= first_L
            yield source, " ".join(token.forms[int(other)] for token, other in zip(places, other_L, strict=True))


class TranslationScore(NamedTuple):
    """Probabilities of each token of a target, given the source and the tokens before it."""

    log_prob_L: np.ndarray  # in nats; -inf from the first token on that no translation has there
    is_best_L: np.ndarray  # whether none is likelier


def score_translation(
    language: Language, source: str, target: str, dialect_G: np.ndarray | None = None
) -> TranslationScore:
    """How likely a translation is; its end is certain. dialect_G: P(dialect | source), where it is known already."""
    places, words = list_target_tokens(language, source), target.split()
    weight_G = compute_dialect_posterior(language, [source])[0] if dialect_G is None else dialect_G
    length = max(len(words), len(places))
    log_prob_L, right_L = np.full(length, -np.inf), np.zeros(length, bool)
    for at, (token, word) in enumerate(zip(places, words, strict=False)):
        if word not in token.forms:
            break
        chosen, share_A = token.forms.index(word), weight_G @ token.share_GxA
        log_prob_L[at], right_L[at] = np.log(share_A[chosen]), share_A[chosen] >= share_A.max()
        weight_G = weight_G * token.share_GxA[:, chosen] / share_A[chosen]
    return TranslationScore(log_prob_L, right_L)


def decode_pairs(pieces: Sequence[str], *columns: np.ndarray) -> list[list[tuple[str, str]]]:
    """The pairs of each row; columns: ids_NxL, segments_NxL, and the sources' ids_NxS, segments_NxS; pieces: words."""

    def join(ids_L):
        return " ".join(pieces[int(number)] for number in ids_L if number >= NUM_SPECIAL)

    return [
        [(join(source_S[beside_S == i]), join(target_L[segment_L == i])) for i in range(1, segment_L.max() + 1)]
        for target_L, segment_L, source_S, beside_S in zip(*columns, strict=True)
    ]


def compute_floor(language: Language, rows: Iterable[Sequence[tuple[str, str]]]) -> Floor:
    """The least loss of any model on rows of pairs; each row's predictions are its target's words and its end."""
    rows = list(rows)
    dialect_NxG = compute_dialect_posterior(language, [source for row in rows for source, _ in row])
    each, sums_Nx3 = iter(dialect_NxG), []
    for row in rows:
        scores = [score_translation(language, source, target, next(each)) for source, target in row]
        right, count = (sum(map(function, (one.is_best_L for one in scores))) + len(row) for function in (np.sum, len))
        sums_Nx3.append((sum(-one.log_prob_L.sum() for one in scores), right, count))
    nats_N, right_N, count_N = np.array(sums_Nx3, float).T.copy()
    if not np.isfinite(nats_N).all():
        raise ValueError(f"row {np.flatnonzero(~np.isfinite(nats_N))[0]}: expected complete pairs of the two languages")
    return Floor(nats_N, right_N, count_N)
