"""The requests that the page of models side by side sends for one of the models, and their answers."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import config, errors, text_files
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.language import grammar, posterior
from mlm.data.text.corpus import FIRST_VALIDATION_NUMBER
from mlm.inference import attention_maps, batching, neighbors, prediction
from mlm.inference.forward_passes import l2_normalize
from mlm.inference.language_model import LanguageModel, MaskPrediction
from mlm.report.pages import attention

MAX_TEXT = 1000  # characters of a text
MAX_MASKS = 8  # [MASK] in a text
MAX_TOKENS = 96  # of a text whose attention is shown
TOP_K = 8  # answers of one task
EXAMPLE_WORDS = 6  # words of an example that a model writes
NUM_EXAMPLES, EXAMPLE_LETTERS = 4, 90  # of the page; letters of each, at most
NUM_DOCUMENTS = 64  # held-out ones in which examples are looked for
PAIR_SEPARATOR = " | "  # between the texts of a pair, since a browser's text field takes no tab


class ModelPanel(NamedTuple):
    """A model, and its states of the lines of --file."""

    name: str
    model: LanguageModel
    unsupported: dict[str, str]  # why it does not support a task, by task
    lines: Mapping[int, str]  # by their numbers in the file, from 1
    unit_OxD: np.ndarray | None = None
    words: neighbors.WordStates | None = None
    has_attention: bool = True  # whether its page shows attention, or what all models have, saliency


class OptimumPanel(NamedTuple):
    """The Bayes optimum of the language of all models, which only fills in [MASK]s."""

    language: config.Language
    name: str = "Bayes optimum"
    unsupported: Mapping[str, str] = {
        "predict": "",
        **dict.fromkeys(("similar", "word"), "no states: it sums over all documents of the language"),
        "attend": "none: it sums over all documents of the language",
    }
    lines: Mapping[int, str] = {}

    def fill_mask(self, text: str, top_k: int) -> list[list[MaskPrediction]]:
        """The most probable words of each [MASK]. Raises ConfigError for a text that is no document of the language."""
        language, mask = grammar.build_grammar(self.language), batching.MASK_TOKEN
        words = text.replace(mask, f" {mask} ").split()
        errors.require(mask in words, "text", text, f"a text with {mask} in it")
        is_masked_1xL = np.array([[word == mask for word in words]])
        words_1xL = grammar.encode_texts(language, [" ".join(words).replace(mask, language.words[0])])
        with errors.explain(f"text = {text!r}", "a document of the built-in language", ValueError):
            found = posterior.compute_posterior(language.hmm, words_1xL, is_masked_1xL)

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
        for document in itertools.islice(documents, NUM_DOCUMENTS):
            yield f"{document.split(' . ')[0].removesuffix(' .')} ."


Panel = ModelPanel | OptimumPanel


class PanelRequest(NamedTuple):
    """run: index of a panel. what: a task, key of PANEL_TASKS. word, which: see neighbors.locate_word."""

    run: int
    what: str
    text: str
    word: str = ""
    which: int = 1


def parse_request(value, num_panels: int) -> PanelRequest:
    """A request from a JSON value. Raises ConfigError for a value that is no request, or too large."""
    errors.require(isinstance(value, dict), "request", value, "an object")
    for name, field in value.items():
        errors.require_one_of("request", name, PanelRequest._fields)
        kind = int if name in ("run", "which") else str
        errors.require(type(field) is kind, name, field, "a number" if kind is int else "a text")
    missing = sorted({*PanelRequest._fields} - {*value, *PanelRequest._field_defaults})
    errors.require(not missing, "request", list(value), f"{', '.join(missing)}, too")
    request = PanelRequest(**value)
    errors.require_number("run", request.run, 0, num_panels - 1)
    errors.require_one_of("what", request.what, list(PANEL_TASKS))
    for text in (request.text, request.word):
        errors.require(len(text) <= MAX_TEXT, "text", text, f"at most {MAX_TEXT} characters")
        errors.require(not text_files.SURROGATE.search(text), "text", text, "whole characters")
    text, mask = request.text, batching.MASK_TOKEN
    errors.require(bool(text.strip()), "text", text, "a text")
    errors.require(text.count(mask) <= MAX_MASKS, "text", text, f"at most {MAX_MASKS} {mask}")
    return request


def answer_request(panel: Panel, request: PanelRequest):
    """The model's answer, for JSON. Raises ConfigError for a task that it does not support."""
    if request.what in panel.unsupported:
        raise errors.ConfigError(f"{request.what}: {panel.unsupported[request.what]}")
    _, answer, _ = PANEL_TASKS[request.what]
    return answer(panel, request)


def fill_mask(panel: Panel, request: PanelRequest) -> list:
    """The most probable tokens of each [MASK] of the request's text."""
    if isinstance(panel, OptimumPanel):
        fillings = panel.fill_mask(request.text, TOP_K)
    else:
        fillings = panel.model.fill_mask(request.text, min(TOP_K, panel.model.tokenizer.vocab_size))
    return [[dataclasses.asdict(prediction) for prediction in best] for best in fillings]


def predict(panel: ModelPanel, request: PanelRequest) -> list:
    """The labels that a fine-tuned model predicts for the request's text."""
    model, text = panel.model, request.text
    if prediction.labels_words(model.config):
        words = text.split()
        return [{"text": word, **dataclasses.asdict(one)} for word, one in zip(words, model.predict(text), strict=True)]
    parts = text.replace(PAIR_SEPARATOR, "\t").split("\t") if 2 in prediction.get_text_counts(model.config) else [text]
    (found,) = model.predict([parts[0] if len(parts) == 1 else tuple(parts)])
    return [{"text": PAIR_SEPARATOR.join(parts), **dataclasses.asdict(found)}]


def find_similar_lines(panel: ModelPanel, request: PanelRequest) -> dict:
    """The lines most similar to the text, and the text's words. The model itself fills in [MASK] first."""
    model, text, lines = panel.model, fill_masks(panel, request.text), list(panel.lines.items())
    cosine_O = panel.unit_OxD @ l2_normalize(model.encode(text))
    near = [
        {"line": lines[i][0], "cosine": float(cosine_O[i]), "text": lines[i][1]}
        for i in np.argsort(-cosine_O, kind="stable")[:TOP_K].tolist()
    ]
    return {
        "text": text,
        "near": near,
        "words": [text[one.start : one.end] for one in neighbors.find_words(model.tokenizer, text, model.length - 2)],
    }


def find_similar_words(panel: ModelPanel, request: PanelRequest) -> dict:
    """The words of the lines that are most similar to a word of the text, each with the text before and after it."""
    assert panel.words is not None
    model, text = panel.model, fill_masks(panel, request.text)
    one, numbers = neighbors.locate_word(model, text, request.word, request.which), list(panel.lines)
    state = neighbors.compute_word_state(model, text, one)
    near = [
        {
            "line": numbers[other.line],
            "cosine": other.cosine,
            "word": other.word,
            "before": other.text[: other.start],
            "after": other.text[other.start + len(other.word) :],
        }
        for other in neighbors.rank_neighbors(state, panel.words, dict(enumerate(panel.lines.values())), TOP_K)
    ]
    return {"text": text, "near": near}


def show_attention(panel: ModelPanel, request: PanelRequest) -> str:
    """The attention page, as HTML."""
    size = len(batching.encode_text(panel.model.tokenizer, request.text, allow_mask=True))
    expected = f"at most {MAX_TOKENS} tokens to show attention, not {size}"
    errors.require(size <= MAX_TOKENS, "text", request.text, expected)
    maps = attention_maps.compute_attention_maps(panel.model, request.text)
    if not panel.has_attention and maps.saliency_TxT is not None:
        maps = maps._replace(attention_KxHxTxT=None, rollout_KxTxT=None)
    return attention.render_page(panel.name, request.text, **maps._asdict())


# By name: the title, what answers, and what a model would have to be that does not support the task ("": it does).
PANEL_TASKS: dict[str, tuple[str, Callable, Callable[[LanguageModel], str]]] = {
    "fill_mask": ("Tokens for [MASK]", fill_mask, LanguageModel.get_masking_requirement),
    "predict": ("Predictions", predict, prediction.get_requirement),
    "similar": ("Similar texts", find_similar_lines, lambda model: ""),
    "word": ("Similar words", find_similar_words, lambda model: ""),
    "attend": ("Attention", show_attention, attention_maps.get_requirement),
}


def align_maps(panels: Sequence[Panel]) -> list[Panel]:
    """The panels, whose pages all show attention if all models have it, else saliency."""
    found = [one for one in panels if isinstance(one, ModelPanel) and "attend" not in one.unsupported]
    has_attention = all(one.model.model.attention is not None for one in found)
    return [one._replace(has_attention=has_attention) if isinstance(one, ModelPanel) else one for one in panels]


def fill_masks(panel: ModelPanel, text: str) -> str:
    """The text with the likeliest token for each [MASK], filled in from left to right."""
    for _ in range(text.count(batching.MASK_TOKEN)):
        text = answer_request(panel, PanelRequest(0, "fill_mask", text))[0][0]["text"]
    return text


def prepare_panel(name: str, model: LanguageModel, lines: Mapping[int, str]) -> ModelPanel:
    """The panel of a model. Every task runs once, for two lengths, to compile its programs."""
    unmet = {what: requirement for what, (_, _, find) in PANEL_TASKS.items() if (requirement := find(model))}
    panel = ModelPanel(name, model, {what: f"needs {requirement}" for what, requirement in unmet.items()}, lines)
    if texts := list(lines.values()):
        states = zip(*(words for _, words in neighbors.iterate_word_states(model, texts)), strict=True)
        words = neighbors.WordStates(*map(np.concatenate, states))
        panel = panel._replace(unit_OxD=l2_normalize(model.encode(texts)), words=words)
    else:
        panel.unsupported.update(dict.fromkeys(("similar", "word"), "no texts to search: --file=TEXTS names some"))
    word = next(filter(str.isalpha, map(batching.format_piece, model.tokenizer.pieces[NUM_SPECIAL:])), "a")
    for what, size in itertools.product(PANEL_TASKS, (3, 16)):
        last = batching.MASK_TOKEN if what == "fill_mask" else word
        text = " ".join([word] * size) + (PAIR_SEPARATOR if _takes_pairs(model) else " ") + last
        with contextlib.suppress(errors.ConfigError):  # what it does not support, or an error of this text
            answer_request(panel, PanelRequest(0, what, text, word))
    return panel


def describe_panel(panel: Panel) -> str:
    """A model in one line: architecture, size, objective, vocabulary."""
    if isinstance(panel, OptimumPanel):
        return "the exact posterior of the built-in language: no model can be better on average"
    model, cfg = panel.model, panel.model.config
    name, kind = f"{cfg.model.family} {cfg.model.cell}".rstrip(), model.tokenizer.kind
    return (
        f"{name}, {cfg.model.num_layers} \u00d7 {cfg.model.width}; {cfg.objective}; vocabulary of "
        f"{model.tokenizer.vocab_size:,d}"
        + (f" ({kind})" if model.source is None else "")
        + (f"; the texts of a pair are separated by {PAIR_SEPARATOR.strip()}" if _takes_pairs(model) else "")
    )


def _takes_pairs(model: LanguageModel) -> bool:
    """Whether the model reads pairs of texts alone."""
    return prediction.get_text_counts(model.config) == (2,)


def find_optimum(models: Sequence[LanguageModel]) -> OptimumPanel | None:
    """The panel of models that were all trained on one built-in language; None for any others."""
    settings = [model.config.data for model in models]
    languages = {dataclasses.replace(data.language, train_documents=1, validation_documents=1) for data in settings}
    is_shared = len(languages) == 1 and all(data.corpus == "language" for data in settings)
    return OptimumPanel(languages.pop()) if is_shared else None


def choose_examples(panels: Sequence[ModelPanel], sentences: Iterable[str] = ()) -> list[str]:
    """Texts with a [MASK] that all models know all words of; without a model that fills them a line of --file."""
    filling = [panel for panel in panels if "fill_mask" not in panel.unsupported]
    if not filling:
        return [*panels[0].lines.values()][:1]
    examples: list[str] = []
    for line in itertools.chain(filling[0].lines.values(), sentences):
        found = neighbors.find_words(filling[0].model.tokenizer, line, filling[0].model.length - 2)
        if 4 <= len(found) <= 12 and len(line) <= EXAMPLE_LETTERS and batching.MASK_TOKEN not in line:
            longest = max(found[1:], key=lambda word: word.end - word.start)
            text = line[: longest.start] + batching.MASK_TOKEN + line[longest.end :]
            if not any(UNK in batching.encode_text(panel.model.tokenizer, line) for panel in filling):
                examples.append(text)
        if len(examples) == NUM_EXAMPLES:
            break
    return examples or [write_example(filling[0])]


def write_example(panel: ModelPanel) -> str:
    """A text with [MASK] that a model writes from masks alone: at each place the likeliest word that is not there."""
    text = " ".join([batching.MASK_TOKEN] * EXAMPLE_WORDS)
    for _ in range(EXAMPLE_WORDS):
        best = answer_request(panel, PanelRequest(0, "fill_mask", text))[0]
        text = next(
            (one["text"] for one in best if batching.format_piece(one["token"]) not in text.split()), best[0]["text"]
        )
    words = text.split()
    return " ".join([*words[:2], batching.MASK_TOKEN, *words[3:]])
