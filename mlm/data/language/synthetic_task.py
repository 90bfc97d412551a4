"""Labelled examples sampled from the built-in language, and what all its tasks share.

Example n of a split depends on the language, the split and n alone: a task draws documents of its own numbers, far past
those that pretraining reads. Passages are documents of few words. Two may be equal by chance, as the language
writes short sentences often; of the label, another passage's tells nothing that the posterior does not know. One space
separates words; a hidden word is HIDDEN_WORD.

Letters in array names: N examples, C labels, L places of a passage, D documents.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlm.base.config import Language
from mlm.base.special import MASK, SPECIAL_TOKENS
from mlm.data.language.grammar import Grammar, encode_texts
from mlm.data.tasks.examples import Example

SPLIT_SIZES = {"train": 4000, "dev": 1000, "test": 1000}  # examples of a split, by default
FIRST_DOCUMENT, SPLIT_STRIDE = 2**40, 2**36  # the tasks' first document, and how many each split of each task may take
STREAM_OFFSET = 2**62  # added to a document's number: the stream of what a task draws for it beside its words
HIDDEN_WORD = SPECIAL_TOKENS[MASK]  # stands where a word is hidden; rows must carry the token of that id


class OptimalScore(NamedTuple):
    """The Bayes-optimal predictions: how many are right, of how many, and the expected number."""

    right_N: np.ndarray
    weight_N: np.ndarray
    expected_N: np.ndarray


class SyntheticTask(NamedTuple):
    """A task whose best possible score is known on the very examples."""

    name: str
    number: int  # its place among the tasks' documents
    objective: str  # classification | tagging | extractive_qa
    list_labels: Callable[[Language], tuple[str, ...]]  # the posterior's columns; extractive_qa: none
    # Examples without end from the documents `first`, first + 1, ...; the id of each counts from `first`. Raises
    # ConfigError for a language that leaves nothing to ask.
    iterate_examples: Callable[[Language, int], Iterator[Example]]
    # Exact, float64, from the texts alone. classification: NxC. tagging: a row per tagged word. extractive_qa:
    # NxL, over the words of the passage, 0 past its end.
    compute_posterior: Callable[[Language, Sequence[Example]], np.ndarray]
    score: Callable[[Sequence[str], Sequence[Example], np.ndarray], OptimalScore]  # (labels, examples, posterior)

    def score_optimum(self, language: Language, given: Sequence[Example]) -> OptimalScore:
        """How often the likeliest answer to each example is right."""
        return self.score(self.list_labels(language), given, self.compute_posterior(language, given))

    def get_first_document(self, split: str) -> int:
        """The number of the first document of a split."""
        return FIRST_DOCUMENT + SPLIT_STRIDE * (len(SPLIT_SIZES) * self.number + list(SPLIT_SIZES).index(split))

    def generate_examples(self, language: Language, split: str, count: int | None = None) -> Iterator[Example]:
        """The examples of a split, or the first so many. Raises ConfigError as `iterate_examples`."""
        examples = self.iterate_examples(language, self.get_first_document(split))
        for example in itertools.islice(examples, SPLIT_SIZES[split] if count is None else count):
            yield example._replace(id=f"{self.name}/{split}/{example.id}")


def make_stream(seed: int, number: int) -> np.random.Generator:
    """The stream of what a task draws for a document beside its words."""
    return np.random.Generator(np.random.Philox(key=[seed, STREAM_OFFSET + number]))


def format_passage(language: Grammar, words_L: np.ndarray, hidden_L: np.ndarray | None = None) -> str:
    """A passage as text."""
    hidden_L = np.zeros(len(words_L), bool) if hidden_L is None else hidden_L
    words = zip(words_L, hidden_L, strict=True)
    return " ".join(HIDDEN_WORD if hidden else language.words[word] for word, hidden in words if word >= 0)


def encode_passages(language: Grammar, passages: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """words_NxL of passages, -1 past a passage's end, and hidden_NxL; any word stands where one is hidden.

    length: at least as many as a passage has words. Raises ConfigError for a word that the language lacks.
    """
    filled = [passage.replace(HIDDEN_WORD, language.words[0]) for passage in passages]
    words_NxL = encode_texts(language, filled, length)
    hidden_NxL = np.zeros(words_NxL.shape, bool)
    for hidden_L, passage in zip(hidden_NxL, passages, strict=True):
        hidden_L[: len(passage.split())] = [word == HIDDEN_WORD for word in passage.split()]
    return words_NxL, hidden_NxL
