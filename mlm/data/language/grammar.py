"""The built-in language: a finite-state grammar under document-level latents, whose optimum can be computed exactly.

A word belongs to one class (noun, determiner, ...). The hidden state, which is the place in the sentence with the
numbers still to be agreed with, decides the class alone. The document's topic and protagonist decide which word of the
class is used, and nothing else. `HMM` says what follows from that.

Letters in array names: S states, C classes, W words, T topics, M names, L places of a document.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlm.base import errors
from mlm.base.config import Language
from mlm.base.special import NUM_SPECIAL
from mlm.data.language.hmm import HMM, Favorites, sample_documents

# One row a topic, words from frequent to rare. Lemmas are dealt to topics in turn, so fewer topics merge rows.
NOUNS = """
horse cow barn farmer tractor fence goat shepherd orchard stable haystack field
sailor ship harbour captain anchor whale island gull pirate lighthouse net wave
banker tower bridge mayor tram street clerk station shop lawyer square taxi
baker oven kettle plate spoon cake recipe table waiter pan bowl chef
soldier knight king queen castle sword shield banner spy tent guardian horn
teacher pupil lesson book pencil desk exam library student essay map classroom
hunter fox bear tree river owl ranger hut stone path squirrel oak
singer violin piano band drummer song concert guitar poet dancer stage flute
"""
TRANSITIVE = """
feed milk chase herd brush
rescue tow sight steer board
hire pay elect sue photograph
serve taste bake stir burn
attack guard betray salute crown
teach question praise copy grade
hunt track climb bury follow
hear tune applaud record admire
"""
INTRANSITIVE = """
graze trot plough yawn
sail drift float dive
commute hurry shout queue
eat sizzle boil simmer
march surrender fight retreat
listen study cheat read
hide howl sleep wander
sing dance hum bow
"""
ADJECTIVES = """old young small tall quiet brave grey tired famous clever strange gentle rich proud dusty lazy polite
bright hungry nervous foreign lonely cheerful broken modern silent clumsy golden heavy curious ancient honest"""
PREPOSITIONS = "near behind with beside under above before against beyond opposite"
ADVERBS = "often quickly again today slowly early alone outside rarely tonight together twice"
DETERMINERS = {"": "the my our some", "s": "this every each one another", "p": "these many several two few those"}
NAMES = """Anna Boris Clara David Elena Felix Greta Henry Irene Jonas Karin Louis Maria Nils Olga Peter Rosa Simon Tanja
Ulrich Vera Walter Yusuf Zoe"""
TOPICS = NOUNS.strip().splitlines()

INFLECTED = "noun", "transitive", "intransitive"  # kinds with a form for each number, chosen by the topic
ADJECTIVE_PROB = 0.3  # probability that a noun phrase takes a further adjective
MARKED_DETERMINER_PROB = 0.3  # share of determiners that show number
INTRANSITIVE_PROB = 0.4  # share of main verbs without an object
MADE_UP = {"noun": 0.4, "transitive": 0.14, "intransitive": 0.08, "adverb": 0.06, "name": 0.12, "adjective": 0.2}
#   shares of the lemmas that a larger vocabulary adds
ONSETS = (
    "b",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "br",
    "dr",
    "gr",
    "pl",
    "tr",
)
VOWELS, CODAS = "aeiou", "bdfgklmnprtv"
DOCUMENT_BATCH = 256  # documents sampled at a time: changes speed and memory, never the documents


class State(NamedTuple):
    """A place in the sentence: what is written there, in which part of it, and the numbers held there, its own last."""

    kind: str  # determiner | adjective | noun | name | transitive | intransitive | preposition | that
    #     | adverb | stop
    part: str  # subject | modifier | relative | inner | deep | main | object | "" (once a sentence)
    numbers: str  # s or p each; "ps": in the modifier of a plural subject, a singular


class Grammar(NamedTuple):
    """The language with its words and states named."""

    hmm: HMM
    words: tuple[str, ...]
    states: tuple[State, ...]
    kind_W: np.ndarray  # of a word: as of a state, str
    number_W: np.ndarray  # "s" or "p", as a noun, a verb or a determiner shows it; "" elsewhere
    partner_W: np.ndarray  # the same lemma in the other number, of a noun or verb; -1 elsewhere

    @property
    def word_index(self) -> dict[str, int]:
        """The index of each word."""
        return _index_words(self.words)


@functools.lru_cache(maxsize=4)
def _index_words(words):
    return {word: i for i, word in enumerate(words)}


def build_transitions(language: Language) -> dict[State, dict[State, float]]:
    """Transition probabilities of the grammar, by state.

    Sentences look like
    determiner adjective* noun modifier* verb (object) (preposition object)* (adverb) stop, or a name for the subject,
    where a modifier is a preposition with a noun phrase, "that" with a verb and its object, or "that" with a subject,
    which may be modified itself, and its verb. The modified subject's number is held until its verb comes.
    """
    go, more, other = language.modifier_prob, language.modifier_continue_prob, language.attractor_prob
    named = language.protagonist_prob
    table: dict[State, dict[State, float]] = {}

    def into(part, held, like, share):  # the determiner that opens a noun phrase, by number
        odds = {n: 0.5 if like is None else 1 - other if n == like else other for n in "sp"}
        return {State("determiner", part, held + n): share * odds[n] for n in "sp"}

    def phrase(part, held, after):
        for n in "sp":
            determiner, adjective, noun = (State(kind, part, held + n) for kind in ("determiner", "adjective", "noun"))
            table[determiner] = table[adjective] = {adjective: ADJECTIVE_PROB, noun: 1 - ADJECTIVE_PROB}
            table[noun] = after(n)

    def main(n, share=1.0):
        return {
            State("intransitive", "main", n): share * INTRANSITIVE_PROB,
            State("transitive", "main", n): share * (1 - INTRANSITIVE_PROB),
        }

    stop, adverb = State("stop", "", ""), State("adverb", "", "")
    subject, thing = State("name", "subject", "s"), State("name", "object", "s")
    near = State("preposition", "object", "")
    table[stop] = {subject: named} | into("subject", "", None, 1 - named)
    table[subject] = main("s")

    def modify(n):
        return {State("preposition", "modifier", n): go / 2, State("that", "modifier", n): go / 2} | main(n, 1 - go)

    phrase("subject", "", modify)
    for n in "sp":
        beside, that = State("preposition", "modifier", n), State("that", "modifier", n)
        seen_by, seeing = State("name", "inner", n + "s"), State("transitive", "relative", n)
        table[beside] = into("modifier", n, n, 1.0)
        phrase("modifier", n, lambda _, n=n, beside=beside: {beside: more} | main(n, 1 - more))
        table[that] = {seeing: 0.4, seen_by: 0.6 * named / 2} | into("inner", n, n, 0.6 * (1 - named / 2))
        table[seeing] = into("modifier", n, n, 1.0)
        table[seen_by] = {State("transitive", "inner", n + "s"): 1.0}
        phrase(
            "inner",
            n,
            lambda h, n=n: {State("preposition", "inner", n + h): more, State("transitive", "inner", n + h): 1 - more},
        )
        for h in "sp":
            deeper, verb = State("preposition", "inner", n + h), State("transitive", "inner", n + h)
            table[deeper] = into("deep", n + h, h, 1.0)
            phrase("deep", n + h, lambda _, deeper=deeper, verb=verb: {deeper: more, verb: 1 - more})
            table[verb] = {beside: more} | main(n, 1 - more)
        table[State("intransitive", "main", n)] = {near: 0.3, adverb: 0.3, stop: 0.4}
        table[State("transitive", "main", n)] = {thing: named / 2} | into("object", "", None, 1 - named / 2)
    table[near] = {thing: named / 2} | into("object", "", None, 1 - named / 2)
    phrase("object", "", lambda _: {near: 0.2, adverb: 0.1, stop: 0.7})
    table[thing] = {near: 0.2, adverb: 0.1, stop: 0.7}
    table[adverb] = {stop: 1.0}
    return table


def add_s(lemma: str) -> str:
    """The form in -s: plural of a noun, third person singular of a verb."""
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ies"
    return lemma + ("es" if lemma.endswith(("s", "x", "ch", "sh")) else "s")


def check(language: Language) -> None:
    """Raises ConfigError for ingredients that do not go together."""
    if language.num_favorites:
        field, below = "config.data.language.recall_prob", "below 1, since config.data.language.num_favorites is set"
        errors.require(language.recall_prob < 1, field, language.recall_prob, below)
    list_lemmas(language)


def list_ingredients(language: Language) -> dict[str, Any]:
    """The fields beyond the first language that are set, by name; they stand in its repr and digests alone."""
    return {
        one.name: value
        for one in dataclasses.fields(language)
        if not one.repr and (value := getattr(language, one.name)) != one.default
    }


def iterate_made_up_words() -> Iterator[str]:
    """Stems that sound like words, each once; with -s they differ from all stems."""
    parts = ONSETS, VOWELS, ONSETS, VOWELS, CODAS
    count = math.prod(map(len, parts))
    for i in range(count):
        number, letters = i * 40_503 % count, []  # a step without a common divisor
        for part in parts:
            number, at = divmod(number, len(part))
            letters.append(part[at])
        yield "".join(letters)


def list_lemmas(language: Language) -> dict[str, list[str]]:
    """The lemmas of each open kind of word from frequent to rare, as many as the vocabulary has room for."""
    lemmas: dict[str, list[str]] = {
        kind: [lemma for rank in zip(*map(str.split, text.strip().splitlines()), strict=True) for lemma in rank]
        for kind, text in (("noun", NOUNS), ("transitive", TRANSITIVE), ("intransitive", INTRANSITIVE))
    }
    lemmas |= {"adverb": ADVERBS.split(), "adjective": ADJECTIVES.split(), "name": NAMES.split()[: language.num_names]}
    forms = {kind: 2 if kind in INFLECTED else 1 for kind in lemmas}
    closed = len(PREPOSITIONS.split()) + sum(len(text.split()) for text in DETERMINERS.values()) + len(("that", "."))
    more = language.vocab_size - closed - sum(forms[kind] * len(members) for kind, members in lemmas.items())
    if language.vocab_size:
        errors.require(
            more >= 0, "config.data.language.vocab_size", language.vocab_size, f"at least {language.vocab_size - more}"
        )
        known = {form for members in lemmas.values() for lemma in members for form in (lemma.lower(), add_s(lemma))}
        fresh = (word for word in iterate_made_up_words() if word not in known)
        count = more / sum(share * forms[kind] for kind, share in MADE_UP.items())
        for kind, share in MADE_UP.items():
            new = more if kind == "adjective" else int(count * share) * (kind != "name" or language.num_favorites > 0)
            more -= new * forms[kind]
            lemmas[kind] += [word.capitalize() if kind == "name" else word for word in itertools.islice(fresh, new)]
    return lemmas


@functools.lru_cache(maxsize=4)  # a start needs it twice, and building it takes a tenth of a second
def build_grammar(language: Language) -> Grammar:
    """The grammar, its words and its exact probabilities; language: within its limits."""
    table = build_transitions(language)
    states = tuple(table)
    index = {state: i for i, state in enumerate(states)}
    trans_SxS = np.zeros((len(states), len(states)))
    for state, following in table.items():
        for after, share in following.items():
            trans_SxS[index[state], index[after]] = share

    open_lemmas = list_lemmas(language)
    lexicon: dict[str, Sequence[str]] = {
        "stop": ["."],
        "that": ["that"],
        "adverb": open_lemmas["adverb"],
        "preposition": PREPOSITIONS.split(),
        "adjective": open_lemmas["adjective"],
        "name": open_lemmas["name"],
    }
    lexicon |= {"determiner" + n: text.split() for n, text in DETERMINERS.items()}
    for kind in INFLECTED:
        lemmas = open_lemmas[kind]
        inflected = [add_s(lemma) for lemma in lemmas]
        lexicon[kind + "s"], lexicon[kind + "p"] = (lemmas, inflected) if kind == "noun" else (inflected, lemmas)
    classes = list(lexicon)
    words = tuple(word for members in lexicon.values() for word in members)
    assert len(set(words)) == len(words), "the lexicon gives one word to two classes"

    class_W, topic_TxW, name_MxW, kind_W, number_W, partner_W, of_words = [], [], [], [], [], [], []
    fields: dict[tuple[str, int], int] = {}  # numbers from 1 of the fields that have favorites
    lemma_index: dict[tuple[str, int], int] = {}
    topic_T = np.full(language.num_topics, 1 / language.num_topics)
    names = 1 if language.num_favorites else language.num_names
    name_M = _compute_zipf_probs(np.zeros(names), language.zipf_exponent)
    for kind, members in lexicon.items():
        count, n = len(members), len(partner_W)
        class_W += [classes.index(kind)] * count
        topical = kind[:-1] in INFLECTED
        is_own_TxW = np.arange(count) % language.num_topics == np.arange(language.num_topics)[:, None]
        topic_TxW.append(_compute_zipf_probs(is_own_TxW * language.topic_strength * topical, language.zipf_exponent))
        name_MxW.append(np.ones((names, count)))
        lemma = kind[:-1] if topical else kind
        field_W, base_W = np.zeros(count, int), np.ones(count)
        if language.num_favorites and lemma in open_lemmas:
            topics = language.num_topics if topical else 1
            number = topics * max(1, min(language.num_favorites, count // topics))
            share_FxW = _compute_zipf_probs(np.zeros(count), language.zipf_exponent) * (
                np.arange(count) % number == np.arange(number)[:, None]
            )
            topic_TxW[-1] = (topic_TxW[-1] @ (share_FxW > 0).T)[:, np.arange(count) % number]
            base_W = (share_FxW / share_FxW.sum(1, keepdims=True)).sum(0)
            field_W = np.array([fields.setdefault((lemma, i), len(fields) + 1) for i in range(number)])[
                np.arange(count) % number
            ]
        elif kind == "name":
            topic_TxW[-1] = np.ones((language.num_topics, count))
            name_MxW[-1] = language.recall_prob * np.eye(count) + (1 - language.recall_prob) * name_M
        lemmas_W = [lemma_index.setdefault((lemma, i), len(lemma_index)) for i in range(count)]
        of_words.append((field_W, lemmas_W, base_W))
        number = kind[-1] if topical or kind[:-1] == "determiner" else ""
        kind_W += [kind.removesuffix(number)] * count
        number_W += [number] * count
        shift = count if kind[-1] == "s" else -count  # a lemma's two forms have the same rank in neighbouring classes
        partner_W += [n + i + shift if topical else -1 for i in range(count)]

    class_SxC = np.zeros((len(states), len(classes)))
    for i, (kind, _, numbers) in enumerate(states):
        n, wrong = numbers[-1:], {"s": "p", "p": "s"}.get(numbers[-1:], "")
        if kind == "determiner":
            class_SxC[i, classes.index(kind)] = 1 - MARKED_DETERMINER_PROB
            class_SxC[i, classes.index(kind + n)] = MARKED_DETERMINER_PROB
        elif kind in ("transitive", "intransitive"):
            class_SxC[i, classes.index(kind + n)] = language.agreement_prob
            class_SxC[i, classes.index(kind + wrong)] = 1 - language.agreement_prob
        else:
            class_SxC[i, classes.index(kind + n if kind == "noun" else kind)] = 1
    # Out of order, a word has the class of any place but the stop: sentences keep their length, classes their share.
    end = index[State("stop", "", "")]
    often_S = np.linalg.matrix_power((trans_SxS + np.eye(len(states))) / 2, 4096)[end]
    often_S[end] = 0
    any_C = often_S @ class_SxC / often_S.sum()
    mixed_SxC = language.word_order_prob * class_SxC + (1 - language.word_order_prob) * any_C
    mixed_SxC[end] = class_SxC[end]
    tables = (topic_T, np.concatenate(topic_TxW, 1), name_M, np.concatenate(name_MxW, 1))
    hmm = HMM(np.array(end), trans_SxS, mixed_SxC, np.array(class_W), *tables)
    if fields:
        prob_F = [language.recall_prob if kind == "name" else language.favorite_prob for kind, _ in fields]
        favorites = (np.concatenate(x_W) for x_W in zip(*of_words, strict=True))
        hmm = hmm._replace(favorites=Favorites(*favorites, np.array([0, *prob_F])))
    return Grammar(hmm, words, states, np.array(kind_W), np.array(number_W), np.array(partner_W))


def _compute_zipf_probs(nats_xW: np.ndarray, zipf: float) -> np.ndarray:
    """Zipf's law over the last axis, tilted by nats."""
    weight_xW = np.exp(nats_xW) * np.arange(1, nats_xW.shape[-1] + 1) ** -zipf
    return weight_xW / weight_xW.sum(-1, keepdims=True)


def iterate_documents(language: Language, start: int = 0) -> Iterator[str]:
    """Documents start, start + 1, ... without end: words with spaces between; document i depends on i and config alone.

    language: resolved, and within its limits.
    """
    grammar = build_grammar(language)
    while True:
        for words_L in sample_documents(grammar.hmm, language.max_words, language.seed, start, DOCUMENT_BATCH):
            yield " ".join([grammar.words[word] for word in words_L[words_L >= 0]])
        start += DOCUMENT_BATCH


def convert_ids_to_words(language: Grammar, pieces: list[str], ids_NxL: np.ndarray) -> np.ndarray:
    """words_NxL, the rows as `posterior` takes them: indices into language.words, -1 where a special token stands."""
    return np.array([-1 if i < NUM_SPECIAL else language.word_index[piece] for i, piece in enumerate(pieces)])[ids_NxL]


def encode_texts(language: Grammar, texts: Sequence[str], length: int = 1) -> np.ndarray:
    """words_NxL, the texts as `posterior` takes rows, of `length` places or as many as the longest needs.

    Raises ConfigError for a word that is not the language's.
    """
    number = language.word_index
    words_NxL = np.full((len(texts), max([length, *(len(text.split()) for text in texts)])), -1)
    for n, text in enumerate(texts):
        for place, word in enumerate(text.split()):
            hint = "" if word in number else errors.format_hint(word, language.words)
            where = f"text {n + 1}, word {place + 1}"
            errors.require(word in number, where, word, f"a word of the built-in language{hint}")
            words_NxL[n, place] = number[word]
    return words_NxL
