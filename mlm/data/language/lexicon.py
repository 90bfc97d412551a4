"""The words of the built-in language: lemmas, their forms, and the classes that the grammar chooses among.

A class is a list of words that no state tells apart: of one kind, of one number where they show it, and where the
language has such ingredients, of one scene and one declension. A form that two classes of the first language share is a
class of its own, which the states of both can choose.
"""

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import errors
from mlm.base.config import Language

NOUNS = "noun", "name"
VERBS = "transitive", "intransitive"
INFLECTED = "noun", *VERBS  # kinds with a form for each number, chosen by the topic
OTHER_NUMBER = {"s": "p", "p": "s"}

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOPICS: list[str] = _WORDS["by_topic"]["noun"]
SHARED: dict[str, list[str]] = {kind: text.split() for kind, text in _WORDS["shared"].items()}  # by all topics
DETERMINERS: dict[str, list[str]] = {number: text.split() for number, text in _WORDS["determiner"].items()}
TARGET_ENDINGS: dict[str, dict[str, list[str]]] = _WORDS["target_endings"]  # by kind and number

# Shares of the lemmas that a larger vocabulary adds; the rest, about a fifth, are adjectives.
MADE_UP = {"noun": 0.4, "transitive": 0.14, "intransitive": 0.08, "adverb": 0.06, "name": 0.12}
ONSETS = "b d f g h j k l m n p r s t v w z br dr gr pl tr"
VOWELS, CODAS = "aeiou", "bdfgklmnprtv"
# Endings of a singular and a plural, by declension; some serve several cells, and in the last the two are the same.
NOUN_ENDINGS = ("o", "i"), ("a", "o"), ("i", "en"), ("um", "um")
VERB_ENDINGS = ("at", "ant"), ("et", "at"), ("it", "ent"), ("ur", "ur")

NUM_CLOSED = sum(map(len, (SHARED["preposition"], *DETERMINERS.values(), ("that", "."))))


class WordClass(NamedTuple):
    """Words that no state tells apart, from frequent to rare."""

    kind: str  # of a word: as of a state; "noun/transitive" where a form is of either; "ending"
    number: str  # "s" or "p", as a noun, a verb or a determiner shows it; else "", but of an ending the ending
    stems: str  # classes of the same stems have the same lemmas, word by word
    words: Sequence[str]
    share: Mapping[str, float]  # P(this class | class of the first language), where that is not 0
    scene: int = -1  # -1: of none


def add_s(lemma: str) -> str:
    """The form in -s: plural of a noun, third person singular of a verb."""
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ies"
    return lemma + ("es" if lemma.endswith(("s", "x", "ch", "sh")) else "s")


def iterate_made_up_words() -> Iterator[str]:
    """Stems that sound like words, each once; with -s they differ from all stems."""
    onsets = ONSETS.split()
    parts = onsets, VOWELS, onsets, VOWELS, CODAS
    count = math.prod(map(len, parts))
    for i in range(count):
        number, letters = i * 40_503 % count, []  # a step without a common divisor
        for part in parts:
            number, at = divmod(number, len(part))
            letters.append(part[at])
        yield "".join(letters)


def list_lemmas(language: Language) -> tuple[dict[str, list[str]], Iterator[str]]:
    """The lemmas of each open kind of word from frequent to rare, and further words, which fill up the adjectives."""
    lemmas: dict[str, list[str]] = {
        kind: [lemma for rank in zip(*map(str.split, rows), strict=True) for lemma in rank]
        for kind, rows in _WORDS["by_topic"].items()
    }
    lemmas |= {kind: [*SHARED[kind]] for kind in ("adverb", "adjective")}
    lemmas["name"] = SHARED["name"][: language.num_names]
    forms = {kind: 2 if kind in INFLECTED and language.morphology != "split" else 1 for kind in lemmas}
    more = language.vocab_size - sum(forms[kind] * len(members) for kind, members in lemmas.items()) - NUM_CLOSED
    count = more / sum(share * forms[kind] for kind, share in {**MADE_UP, "adjective": 0.2}.items())
    known = {word.lower() for members in lemmas.values() for word in members}
    fresh = (word for word in iterate_made_up_words() if word not in known)
    for kind, share in MADE_UP.items():
        if kind != "name" or language.num_favorites:  # else each name is a value of a latent
            new = itertools.islice(fresh, max(0, int(count * share)))
            lemmas[kind] += [word.capitalize() if kind == "name" else word for word in new]
    return lemmas, fresh


def _deal(lemmas: Sequence[str], block: int, count: int) -> list[list[str]]:
    """The lemmas in `count` parts, blocks of them in turn: each part has the topics' own in turn, as the whole has."""
    return [[lemma for rank, lemma in enumerate(lemmas) if rank // block % count == part] for part in range(count)]


def build_classes(language: Language) -> list[WordClass]:
    """The classes of words. Raises ConfigError where the vocabulary is too small for so many."""
    (lemmas, fresh), classes = list_lemmas(language), list[WordClass]()
    topics, scenes, shared = language.num_topics, max(1, language.num_scenes), language.ambiguity_prob
    declensions = language.num_declensions if language.morphology else 1
    kinds = {"stop": ["."], "that": ["that"], "adverb": lemmas["adverb"], "preposition": SHARED["preposition"]}
    for kind, words in (kinds | {kind: lemmas[kind] for kind in ("adjective", "name")}).items():
        classes.append(WordClass(kind, "", kind, words, {kind: 1.0}))
    for number, words in DETERMINERS.items():
        classes.append(WordClass("determiner", number, "determiner" + number, words, {"determiner" + number: 1.0}))

    def decline(kind, part, declension):
        """The forms by the number that they show, and the numbers that they serve."""
        if language.morphology == "split":
            return [("", "", part)]
        if language.morphology:
            one, many = (VERB_ENDINGS if kind in VERBS else NOUN_ENDINGS)[declension]
            forms = [[lemma + ending for lemma in part] for ending in (one, many)]
            return [("", "sp", forms[0])] if one == many else [("s", "s", forms[0]), ("p", "p", forms[1])]
        forms = part, [add_s(lemma) for lemma in part]
        return list(zip("sp", "sp", forms[::-1] if kind in VERBS else forms, strict=True))

    def inflect(kind, members, share):
        """The classes of lemmas, by declension and scene; share: P(they | cell) of the cells of a number."""
        for declension, part in enumerate(_deal(members, topics, declensions)):
            for scene, own in enumerate(_deal(part, topics, scenes)):
                field, value = "config.data.language.vocab_size", language.vocab_size
                errors.require(len(own) > 0, field, value, f"more: {len(members)} lemmas ({kind}) leave scenes without")
                stems = kind + str(declension) * (declensions > 1) + f"@{scene}" * (scenes > 1)
                for number, numbers, words in decline(kind, own, declension):
                    of_cells = {cell: prob / declensions for n in numbers for cell, prob in share[n].items()}
                    if language.morphology == "split":
                        of_cells = {f"{kind}{declension}": 1.0}
                    classes.append(WordClass(kind, number, stems, words, of_cells, scene if scenes > 1 else -1))

    both = {kind: lemmas[kind][:: max(2, round(1 / shared))] if shared else [] for kind in VERBS}
    for kind in INFLECTED:
        own = [lemma for lemma in lemmas[kind] if lemma not in set(both.get(kind, []))]
        inflect(kind, own, {n: {kind + n: 1 - shared} for n in "sp"})
    for kind, members in both.items():
        if members:  # the form in -s is a noun's plural and a verb's singular
            share = {n: {"noun" + n: shared / len(both), kind + many: shared} for n, many in OTHER_NUMBER.items()}
            inflect(f"noun/{kind}", members, share)
    endings = NOUN_ENDINGS[:declensions] + VERB_ENDINGS[:declensions] if language.morphology == "split" else ()
    for ending in dict.fromkeys(itertools.chain.from_iterable(endings)):
        classes.append(WordClass("ending", ending, "ending" + ending, ["-" + ending], {"ending" + ending: 1.0}))
    missing = language.vocab_size - sum(len(one.words) for one in classes)
    if language.vocab_size:
        field = "config.data.language.vocab_size"
        errors.require(missing >= 0, field, language.vocab_size, f"at least {language.vocab_size - missing}")
        lemmas["adjective"] += itertools.islice(fresh, missing)  # the list that the class holds
    return classes
