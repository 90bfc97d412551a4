"""The Bayes optimum beside models of the built-in language: the exact probabilities of each [MASK]."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import config, errors
from mlm.data.language import grammar, posterior
from mlm.data.text.corpus import FIRST_VALIDATION_NUMBER
from mlm.inference import batching
from mlm.inference.language_model import LanguageModel, MaskPrediction

NAME = "Bayes optimum"
DESCRIPTION = "the exact posterior of the built-in language: no model can be better on average"
NUM_DOCUMENTS = 64  # held-out ones in which examples are looked for


class Optimum(NamedTuple):
    """The language of all models."""

    language: config.Language

    def fill_mask(self, text: str, top_k: int) -> list[list[MaskPrediction]]:
        """The most probable words of each [MASK]. Raises ConfigError for a text that is no document of the language."""
        language, mask = grammar.build_grammar(self.language), batching.MASK_TOKEN
        words = text.replace(mask, f" {mask} ").split()
        errors.require(mask in words, "text", text, f"a text with {mask} in it")
        is_masked_1xL = np.array([[word == mask for word in words]])
        words_1xL = grammar.encode_texts(language, [" ".join(words).replace(mask, language.words[0])])
        try:
            found = posterior.compute_posterior(language.hmm, words_1xL, is_masked_1xL)
        except ValueError:
            raise errors.ConfigError(f"text = {text!r}: expected a document of the built-in language") from None

        def fill(place: int, best: int, log_prob: float) -> MaskPrediction:
            filled = " ".join([*words[:place], language.words[best], *words[place + 1 :]])
            return MaskPrediction(language.words[best], best, math.exp(log_prob), filled)

        log_prob_KxW = posterior.compute_log_probs(language.hmm, found)
        best_KxW = np.argsort(-log_prob_KxW, kind="stable")[:, :top_k]
        return [
            [fill(place, best, log_prob_KxW[row, best]) for best in best_KxW[row].tolist()]
            for row, place in enumerate(found.position_K.tolist())
        ]

    def list_examples(self) -> Iterator[str]:
        """Sentences of held-out documents."""
        documents = grammar.iterate_documents(self.language, FIRST_VALIDATION_NUMBER)
        for document, _ in zip(documents, range(NUM_DOCUMENTS), strict=False):
            yield f"{document.split(' . ')[0].removesuffix(' .')} ."


def find_optimum(models: Sequence[LanguageModel]) -> Optimum | None:
    """The optimum of models that were all trained on one built-in language; None for any others."""
    settings = [model.config.data for model in models]
    languages = {dataclasses.replace(data.language, train_documents=1, validation_documents=1) for data in settings}
    is_shared = len(languages) == 1 and all(data.corpus == "language" for data in settings)
    return Optimum(languages.pop()) if is_shared else None
