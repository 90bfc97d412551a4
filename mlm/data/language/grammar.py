"""The built-in language: a finite-state grammar under document-level latents, whose optimum can be computed exactly.

A word belongs to one class (noun, determiner, ...). The hidden state, which is the place in the sentence with the
numbers still to be agreed with, decides the class alone. The document's topic and protagonist decide which word of the
class is used, and nothing else. `HMM` says what follows from that. Ingredients that are off by default
(docs/design/language.md, section 4) add favorites of the document to these two, scenes and endings to the states, and
classes of forms that several kinds or numbers share.

Letters in array names: S states, C classes, Q classes of the language without ingredients, G scenes, W words, T topics,
M names, F fields, L places of a document.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlm.base import errors
from mlm.base.config import Language
from mlm.base.special import NUM_SPECIAL
from mlm.data.language.hmm import HMM, Favorites, sample_documents
from mlm.data.language.lexicon import INFLECTED, NOUN_ENDINGS, OTHER_NUMBER, VERB_ENDINGS, VERBS, build_classes

ADJECTIVE_PROB = 0.3  # probability that a noun phrase takes a further adjective
MARKED_DETERMINER_PROB = 0.3  # share of determiners that show number
INTRANSITIVE_PROB = 0.4  # share of main verbs without an object
DOCUMENT_BATCH = 256  # documents sampled at a time: changes speed and memory, never the documents


class State(NamedTuple):
    """A place in the sentence: what is written there, in which part of it, and the numbers held there, its own last."""

    kind: str  # determiner, adjective, noun, name, transitive, intransitive, preposition, that, adverb or stop
    part: str  # subject | modifier | relative | inner | deep | main | object | "" (once a sentence)
    numbers: str  # s or p each; "ps": in the modifier of a plural subject, a singular


class Grammar(NamedTuple):
    """The language with its words and states named."""

    hmm: HMM
    words: tuple[str, ...]
    states: tuple[State, ...]
    kind_W: np.ndarray  # of a word: as of a state, str; "noun/transitive" of a form of either, "ending"
    number_W: np.ndarray  # "s" or "p", as a noun, a verb or a determiner shows it; of an ending itself; "" elsewhere
    partner_W: np.ndarray  # the same lemma in the other number, of a noun or verb; -1 elsewhere

    def number_words(self) -> dict[str, int]:
        """The index of each word."""
        return {word: i for i, word in enumerate(self.words)}


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

    openings = ("preposition", "that")  # of what modifies a noun
    phrase("subject", "", lambda n: {State(kind, "modifier", n): go / 2 for kind in openings} | main(n, 1 - go))
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


def check(language: Language) -> None:
    """Raises ConfigError for ingredients that do not go together."""
    recall, ambiguity = language.recall_prob, language.ambiguity_prob
    expected = "below 1, since config.data.language.num_favorites is set"
    errors.require(not language.num_favorites or recall < 1, "config.data.language.recall_prob", recall, expected)
    expected = "0, since config.data.language.morphology gives endings to nouns that no verb has"
    errors.require(not language.morphology or not ambiguity, "config.data.language.ambiguity_prob", ambiguity, expected)
    build_classes(language)


def has_one_reading(language: Language) -> bool:
    """Whether each sentence is written by one path of states: without it, no verb has a subject for certain."""
    return language.word_order_prob == 1 and not (language.ambiguity_prob or language.num_scenes or language.morphology)


def list_ingredients(language: Language) -> dict[str, Any]:
    """The fields beyond the first language that are set, by name; they stand in its repr and digests alone."""
    return {
        one.name: value
        for one in dataclasses.fields(language)
        if not one.repr and (value := getattr(language, one.name)) != one.default
    }


def _list_places(language, states):
    """(state, declension, whether it is the ending's) of each hidden state of a scene."""
    forms = [(0, False)]
    if language.morphology == "split":
        forms = list(itertools.product(range(language.num_declensions), (False, True)))
    return [(state, *form) for state in states for form in (forms if state.kind in INFLECTED else forms[:1])]


def _build_place_transitions(language, table, places):
    """trans_SxS: the grammar's, where a stem of any declension is as likely and its ending follows it."""
    trans_SxS = np.zeros((len(places), len(places)))
    split = language.morphology == "split"
    for i, (state, declension, ending) in enumerate(places):
        for j, (after, to, to_ending) in enumerate(places):
            if split and state.kind in INFLECTED and not ending:
                trans_SxS[i, j] = (state, declension, True) == (after, to, to_ending)
            elif not to_ending:
                many = language.num_declensions if split and after.kind in INFLECTED else 1
                trans_SxS[i, j] = table[state].get(after, 0.0) / many
    return trans_SxS


def _list_cells(language, place) -> dict[str, float]:
    """P(class of the first language | place); of a stem its declension, of an ending the ending."""
    (kind, _, numbers), declension, ending = place
    n, wrong = numbers[-1:], OTHER_NUMBER.get(numbers[-1:], "")
    if kind == "determiner":
        return {kind: 1 - MARKED_DETERMINER_PROB, kind + n: MARKED_DETERMINER_PROB}
    if kind not in INFLECTED:
        return {kind: 1.0}
    if language.morphology == "split" and not ending:
        return {f"{kind}{declension}": 1.0}
    right = language.agreement_prob if kind in VERBS else 1.0
    shows = {n: right, wrong: 1 - right}
    if not ending:
        return {kind + number: prob for number, prob in shows.items()}
    table = dict(zip("sp", (VERB_ENDINGS if kind in VERBS else NOUN_ENDINGS)[declension], strict=True))
    cells = dict.fromkeys(("ending" + table[number] for number in shows), 0.0)
    for number, prob in shows.items():
        cells["ending" + table[number]] += prob
    return cells


@functools.lru_cache(maxsize=4)  # a start needs it twice, and building it takes a tenth of a second
def build_grammar(language: Language) -> Grammar:
    """The grammar, its words and its exact probabilities; language: within its limits."""
    check(language)
    table = build_transitions(language)
    places = _list_places(language, table)
    trans_SxS = _build_place_transitions(language, table, places)
    classes, scenes = build_classes(language), max(1, language.num_scenes)
    words = tuple(word for one in classes for word in one.words)
    assert len(set(words)) == len(words), "the lexicon gives one word to two classes"
    end = places.index((State("stop", "", ""), 0, False))

    cells = list(dict.fromkeys(cell for one in classes for cell in one.share))
    cell_SxQ = np.zeros((len(places), len(cells)))
    for i, place in enumerate(places):
        for cell, prob in _list_cells(language, place).items():
            cell_SxQ[i, cells.index(cell)] = prob
    # Out of order, a word has the class of any place but the stop: sentences keep their length, classes their share.
    often_S = np.linalg.matrix_power((trans_SxS + np.eye(len(places))) / 2, 4096)[end]
    often_S[end] = 0
    any_Q = often_S @ cell_SxQ / often_S.sum()
    mixed_SxQ = language.word_order_prob * cell_SxQ + (1 - language.word_order_prob) * any_Q
    mixed_SxQ[end] = cell_SxQ[end]
    class_QxC = np.array([[one.share.get(cell, 0.0) for one in classes] for cell in cells])

    # Scenes: as many copies of the states. A sentence's words are of its scene or of any; its end may change the scene.
    scene_C = np.array([one.scene for one in classes])
    own_GxC = language.scene_prob * (scene_C == np.arange(scenes)[:, None]) + (1 - language.scene_prob) / scenes
    by_scene_GxC = np.where(scene_C < 0, 1.0, own_GxC)
    class_SxC = np.concatenate([mixed_SxQ @ class_QxC * by_scene_C for by_scene_C in by_scene_GxC])
    stay_SxGxG = np.tile(np.eye(scenes), (len(places), 1, 1))
    stay_SxGxG[end] = language.scene_keep_prob * np.eye(scenes) + (1 - language.scene_keep_prob) / scenes
    trans_SxS = np.einsum("st,sgh->gsht", trans_SxS, stay_SxGxG).reshape(scenes * len(places), -1)
    ends = end + len(places) * np.arange(scenes)

    class_W = np.repeat(np.arange(len(classes)), [len(one.words) for one in classes])
    kind_W, number_W = (np.array([getattr(classes[c], name) for c in class_W]) for name in ("kind", "number"))
    hmm = HMM(ends if scenes > 1 else np.array(end), trans_SxS, class_SxC, class_W, *_build_latents(language, classes))
    states = tuple(state for state, *_ in places) * scenes
    return Grammar(hmm, words, states, kind_W, number_W, _list_partners(classes))


def _list_partners(classes):
    first_C = np.cumsum([0, *(len(one.words) for one in classes)])
    first = {(one.stems, one.number): start for one, start in zip(classes, first_C, strict=False)}
    partner_W = []
    for one in classes:
        start = first.get((one.stems, OTHER_NUMBER.get(one.number)))
        partner_W += [-1 if start is None else start + i for i in range(len(one.words))]
    return np.array(partner_W)


def _build_latents(language, classes):
    """The latents of an HMM: topics, names and favorites, with their emissions."""
    topic_T = np.full(language.num_topics, 1 / language.num_topics)
    names = 1 if language.num_favorites else language.num_names
    name_M = _compute_zipf_probs(np.zeros(names), language.zipf_exponent)
    topic_TxW, name_MxW, of_words = [], [], []
    fields: dict[tuple[str, int], int] = {}  # numbers from 1 of the fields that have favorites
    lemmas: dict[tuple[str, int], int] = {}
    for one in classes:
        count, topical = len(one.words), one.kind in INFLECTED or "/" in one.kind
        rank_W, topics = np.arange(count), language.num_topics if topical else 1
        is_own_TxW = rank_W % language.num_topics == np.arange(language.num_topics)[:, None]
        by_topic_TxW = _compute_zipf_probs(is_own_TxW * language.topic_strength * topical, language.zipf_exponent)
        by_name_MxW = np.ones((names, count))
        field_W, base_W = np.zeros(count, int), np.ones(count)
        if language.num_favorites and (topical or one.kind in ("adverb", "adjective", "name")):
            many = min(count, topics * max(1, min(language.num_favorites, count // topics)))
            often_W = _compute_zipf_probs(np.zeros(count), language.zipf_exponent)
            base_W = often_W / np.bincount(rank_W % many, often_W)[rank_W % many]
            in_field_TxF = np.stack([np.bincount(rank_W % many, by_topic_W) for by_topic_W in by_topic_TxW])
            by_topic_TxW = in_field_TxF[:, rank_W % many]
            field_W = np.array([fields.setdefault((one.stems, i), len(fields) + 1) for i in range(many)])[rank_W % many]
        elif one.kind == "name":
            by_topic_TxW = np.ones((language.num_topics, count))
            by_name_MxW = language.recall_prob * np.eye(count) + (1 - language.recall_prob) * name_M
        topic_TxW.append(by_topic_TxW)
        name_MxW.append(by_name_MxW)
        of_words.append((field_W, [lemmas.setdefault((one.stems, i), len(lemmas)) for i in range(count)], base_W))
    tables = topic_T, np.concatenate(topic_TxW, 1), name_M, np.concatenate(name_MxW, 1)
    if not fields:
        return *tables, None
    prob_F = [language.recall_prob if stems == "name" else language.favorite_prob for stems, _ in fields]
    return *tables, Favorites(
        *(np.concatenate(x_W) for x_W in zip(*of_words, strict=True)), prob_F=np.array([0, *prob_F])
    )


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
    number = language.number_words()
    return np.array([-1 if i < NUM_SPECIAL else number[piece] for i, piece in enumerate(pieces)])[ids_NxL]


def encode_texts(language: Grammar, texts: Sequence[str], length: int = 1) -> np.ndarray:
    """words_NxL, the texts as `posterior` takes rows, of `length` places or as many as the longest needs.

    Raises ConfigError for a word that is not the language's.
    """
    number = language.number_words()
    words_NxL = np.full((len(texts), max([length, *(len(text.split()) for text in texts)])), -1)
    for n, text in enumerate(texts):
        for place, word in enumerate(text.split()):
            hint = "" if word in number else errors.format_hint(word, language.words)
            where = f"text {n + 1}, word {place + 1}"
            errors.require(word in number, where, word, f"a word of the built-in language{hint}")
            words_NxL[n, place] = number[word]
    return words_NxL
