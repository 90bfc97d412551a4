"""The Bayes optimum beside models of the built-in language: the exact probabilities of each [MASK]."""

import dataclasses
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
        language, words = (
            grammar.build_grammar(self.language),
            text.replace(batching.MASK_TOKEN, f" {batching.MASK_TOKEN} ").split(),
        )
        is_masked_1xL = np.array([[word == batching.MASK_TOKEN for word in words]])
        errors.require(bool(is_masked_1xL.any()), "text", text, f"a text with {batching.MASK_TOKEN} in it")
        known_words = [language.words[0] if word == batching.MASK_TOKEN else word for word in words]
        try:
            words_1xL = grammar.encode_texts(language, [" ".join(known_words)])
            found = posterior.compute_posterior(language.hmm, words_1xL, is_masked_1xL)
        except ValueError as error:
            unknown = str(error) if isinstance(error, errors.ConfigError) else "it has probability 0"
            raise errors.ConfigError(f"not a document of the built-in language: {unknown}") from None
        log_prob_KxW = posterior.compute_log_probs(language.hmm, found)
        places = np.flatnonzero(is_masked_1xL[0]).tolist()
        return [
            [
                MaskPrediction(
                    language.words[best],
                    best,
                    float(np.exp(log_prob_W[best])),
                    " ".join([*words[:place], language.words[best], *words[place + 1 :]]),
                )
                for best in np.argsort(-log_prob_W, kind="stable")[:top_k].tolist()
            ]
            for place, log_prob_W in zip(places, log_prob_KxW, strict=True)
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
