"""How each objective encodes labelled examples as token ids and labels."""

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config
from mlm.base.labelled_objectives import LabelKind, has_kind
from mlm.base.special import CLS, SEP, UNK
from mlm.data.rows.columns import ColumnSpec
from mlm.data.tasks.examples import Example
from mlm.data.tasks.tasks import MAX_QUESTION_TOKENS
from mlm.data.tokenizers.hub_model import count_pair_separators
from mlm.data.tokenizers.tokenizer import Tokenizer

EDGE_COLUMNS = {"edge": ColumnSpec(np.int32, "NxL", -1)} | {
    name: ColumnSpec(np.int32, "NxL") for name in ("from", "to", "other_from", "other_to")
}


class EncodedExample(NamedTuple):
    """A labelled example as token ids."""

    ids: list[int]  # without padding
    second_start: int  # where tokens have the type of a second text; len(ids) if none has
    labels: dict[str, Any]  # by column
    num_truncated: int = 0  # tokens, or words with tags, that did not fit
    metadata: Mapping[str, Any] = MappingProxyType({})  # saved with the example
    other_sequences: tuple["EncodedExample", ...] = ()  # after this one in the example, each with own attention


class Preprocessor(NamedTuple):
    """How the examples of an objective are encoded."""

    columns: dict[str, ColumnSpec]  # in addition to those of every example
    encode: Callable[..., Iterator[list[EncodedExample]]]  # (examples, tokenizer, cfg, classes) -> sequences of each
    truncation: str = "are longer than config.pack.seq_len = {seq_len} and were truncated; {lost} tokens are lost"
    format: int = 1  # of the cached files; a change of their content must raise it


def encode_texts(
    examples: list[Example], tokenizer: Tokenizer, cfg: config.Config, classes: Sequence[str]
) -> Iterator[list[EncodedExample]]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], with the number of the class, or the number to predict.

    Where there are endings to choose from, one such sequence for each of them in order, with the context before it;
    where texts belong together, one without a label for each text, or twice for a single one. Of a pair the longer text
    is truncated first; its texts are separated by as many [SEP] as in the tokenizer's own pairs (RoBERTa's: two).
    """
    class_index = {name: index for index, name in enumerate(classes)}
    num_separators, has_labels = count_pair_separators(tokenizer), not has_kind(cfg.objective, LabelKind.NONE)
    ids_of_texts = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    for example in examples:
        texts = [next(ids_of_texts) for _ in example.texts]
        sequences, labels = [texts], {"label": class_index[example.label]} if classes else {"value": example.label}
        if not has_labels:
            sequences, labels = [[ids] for ids in (texts if len(texts) > 1 else texts * 2)], {}
        elif cfg.data.labelled.choice_columns:
            sequences = [(texts[0], ending) for ending in texts[1:]]
        first, *others = (_join_texts(one, cfg.pack.seq_len, num_separators) for one in sequences)
        num_truncated = sum(one.num_truncated for one in (first, *others))
        yield [first._replace(labels=labels, num_truncated=num_truncated, other_sequences=tuple(others))]


def _join_texts(texts, seq_len, num_separators):
    """A sequence without labels, of one text, or of two with so many [SEP] between them."""
    a, *others = texts
    b, separators = (others[0], [SEP] * num_separators) if others else ([], [])
    max_tokens = seq_len - 2 - len(separators)
    len_b = min(len(b), max(max_tokens - len(a), max_tokens // 2))
    len_a = min(len(a), max_tokens - len_b)
    ids = [CLS, *a[:len_a], *separators, *b[:len_b], SEP]
    return EncodedExample(ids, _find_second(ids, 2 + len_a, num_separators), {}, len(a) + len(b) - len_a - len_b)


def _find_second(ids, start, num_separators):
    """`second_start` of a pair. Where two [SEP] separate its texts, as RoBERTa's, both have one type."""
    return len(ids) if num_separators > 1 else start


def list_windows(size_W: Sequence[int], max_tokens: int, stride: int) -> list[tuple[int, int]]:
    """(first word, end) of each window of a sentence: all words where they fit, else overlapping runs of whole words.

    The last window is as long as the others. A word longer than a window has one of its own.

    size_W: tokens of each word; max_tokens: of a window; stride: at least so many between the starts of two windows.
    """
    start_W = np.cumsum([0, *size_W])
    num_words, windows, first, end = len(size_W), [], 0, 0
    last_first = min(np.searchsorted(start_W, start_W[-1] - max_tokens), num_words - 1)
    while end < num_words:
        first = min(max(np.searchsorted(start_W, start_W[first] + stride), first + 1), end, last_first) if end else 0
        end = max(np.searchsorted(start_W, start_W[first] + max_tokens, "right") - 1, first + 1)
        windows.append((int(first), int(end)))
    return windows or [(0, 0)]


def find_widest_window(windows: Sequence[tuple[int, int]], start_W: np.ndarray, words: Sequence[int]) -> int:
    """The index of the window in which the nearer end is farthest from these words; -1: none holds them all.

    start_W: the position of each word in the sentence, and last the sentence's length.
    """
    low, high = min(words), max(words)
    contexts = [
        (min(start_W[low] - start_W[first], start_W[end] - start_W[high + 1]), -index)
        for index, (first, end) in enumerate(windows)
        if first <= low and high < end
    ]
    return -max(contexts)[1] if contexts else -1


def _iterate_sentences(examples, tokenizer, cfg):
    """Yields (example, ids of each word, start_W, windows); a byte-level piece differs at the beginning of a text."""
    max_tokens = cfg.pack.seq_len - 2
    stride = cfg.data.labelled.doc_stride or max(1, max_tokens // 2)
    pieces = iter(tokenizer.encode_batch([f" {word}" for example in examples for word in example.words]))
    for example in examples:
        word_ids = [next(pieces) or [UNK] for _ in example.label]  # the tokenizer may have no piece for a word
        sizes = [len(ids) for ids in word_ids]
        yield example, word_ids, np.cumsum([0, *sizes]), list_windows(sizes, max_tokens, stride)


def _join_words(word_ids, seq_len):
    """[CLS] words [SEP], without what does not fit, and how many tokens do not."""
    ids = [CLS, *itertools.chain.from_iterable(word_ids)]
    return [*ids[: seq_len - 1], SEP], max(0, len(ids) - (seq_len - 1))


def encode_tagging(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: the first piece of each word has its tag, every other token has -1 and no loss.

    A sentence that is too long is several windows. Each word has its tag in the one where it has most context.
    """
    class_index = {name: index for index, name in enumerate(classes)}
    for example, word_ids, start_W, windows in _iterate_sentences(examples, tokenizer, cfg):
        window_W = [find_widest_window(windows, start_W, [word]) for word in range(len(word_ids))]
        sequences = []
        for index, (first, end) in enumerate(windows):
            tag_L = np.full(cfg.pack.seq_len, -1, np.int32)
            for word in range(first, end):
                if example.label[word] and window_W[word] == index:
                    tag_L[1 + start_W[word] - start_W[first]] = class_index[example.label[word]]
            ids, num_truncated = _join_words(word_ids[first:end], cfg.pack.seq_len)
            sequences.append(EncodedExample(ids, len(ids), {"tag": tag_L}, num_truncated))
        yield sequences


def encode_edges(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: for each word, by its index, its class, and the first and last token of it and of its head.

    The head of a word is the word that its label relates it to, or itself. A sentence that is too long is several
    windows, whose first words are in the metadata; a label is in the one that shows most context around word and head.
    Where none holds both of them whole, the word has the class -1 everywhere and no loss.
    """
    class_index = {name: index for index, name in enumerate(classes)}
    for example, word_ids, start_W, windows in _iterate_sentences(examples, tokenizer, cfg):
        edges = np.zeros((len(windows), len(EDGE_COLUMNS), cfg.pack.seq_len), np.int32)
        edges[:, 0], num_truncated = -1, 0
        heads = example.heads or range(1, len(word_ids) + 1)
        for word, (name, head) in enumerate(zip(example.label, heads, strict=True)):
            window = find_widest_window(windows, start_W, [word, head - 1]) if name else 0
            first, end = windows[window]
            if name and window >= 0 and start_W[end] - start_W[first] <= cfg.pack.seq_len - 2:
                spans = [(start_W[one] + 1, start_W[one + 1]) for one in (word, head - 1)]
                edges[window, 0, word - first] = class_index[name]
                edges[window, 1:, word - first] = np.ravel(spans) - start_W[first]
            else:
                num_truncated += bool(name)
        metadata = {"first_words": [first for first, _ in windows]} if len(windows) > 1 else {}
        sequences = []
        for (first, end), edge_5xL in zip(windows, edges, strict=True):
            ids, _ = _join_words(word_ids[first:end], cfg.pack.seq_len)
            labels = dict(zip(EDGE_COLUMNS, edge_5xL, strict=True))
            sequences.append(EncodedExample(ids, len(ids), labels, num_truncated, metadata))
        yield sequences


def encode_questions(examples, tokenizer, cfg, classes):
    """[CLS] question [SEP] window [SEP] for overlapping windows of the passage (Devlin et al. 2019, section 4.2).

    start and end are the positions in the sequence of the first answer's tokens, or 0 if the window lacks one.
    """
    encode_passage = functools.lru_cache(1)(tokenizer.encode_with_offsets)  # consecutive questions share a passage
    for example in examples:
        question, passage = example.texts
        question_ids = tokenizer.encode(question)
        separators = [SEP] * count_pair_separators(tokenizer)
        max_question = MAX_QUESTION_TOKENS + 1 - len(separators)  # so that what precedes a window is never longer
        num_truncated, question_ids = len(question_ids[max_question:]), question_ids[:max_question]
        passage_ids, spans = encode_passage(passage)
        first, last = 0, -1  # the tokens of the first answer; none where the last precedes the first
        if example.label:
            text, start = example.label[0]
            first = bisect.bisect_right(spans, start, key=lambda span: span[1])
            last = bisect.bisect_left(spans, start + len(text), key=lambda span: span[0]) - 1
        passage_start = 1 + len(question_ids) + len(separators)
        window_size, has_answer, sequences = cfg.pack.seq_len - passage_start - 1, False, []
        stride = cfg.data.labelled.doc_stride or max(1, window_size // 2)
        for window_start in range(0, max(1, len(passage_ids) - window_size + stride), stride):
            window = passage_ids[window_start : window_start + window_size]
            is_inside = window_start <= first <= last < window_start + len(window)
            has_answer |= is_inside
            shift = passage_start - window_start
            start, end = (shift + first, shift + last) if is_inside else (0, 0)
            ids = [CLS, *question_ids, *separators, *window, SEP]
            labels = {"start": start, "end": end, "passage": passage_start, "first": window_start}
            second_start = _find_second(ids, passage_start, len(separators))
            sequences.append(EncodedExample(ids, second_start, labels, num_truncated))
        num_lost = 0 if has_answer or not example.label else max(1, last - first + 1)
        sequences[0] = sequences[0]._replace(num_truncated=num_truncated + num_lost, metadata={"spans": spans})
        yield sequences


PREPROCESSORS = {
    "classification": Preprocessor({"label": ColumnSpec(np.int32, "N")}, encode_texts),
    "regression": Preprocessor({"value": ColumnSpec(np.float32, "N")}, encode_texts),
    "multiple_choice": Preprocessor(
        {"label": ColumnSpec(np.int32, "N")},
        encode_texts,
        "have an ending that is, with its context, longer than config.pack.seq_len = {seq_len} tokens and was "
        "truncated; {lost} tokens are lost",
    ),
    "contrastive": Preprocessor({}, encode_texts),
    "tagging": Preprocessor(
        {"tag": ColumnSpec(np.int32, "NxL", -1)},
        encode_tagging,
        "have a word longer than config.pack.seq_len = {seq_len} tokens, which was truncated; {lost} tokens are lost",
        format=2,
    ),
    "edge_probing": Preprocessor(
        EDGE_COLUMNS,
        encode_edges,
        "have a word, or a word and its head, that no window of config.pack.seq_len = {seq_len} tokens contains; "
        "{lost} labels are not scored",
        format=2,
    ),
    "extractive_qa": Preprocessor(
        {name: ColumnSpec(np.int32, "N") for name in ("start", "end", "example", "passage", "first")},
        encode_questions,
        f"have a question of more than {MAX_QUESTION_TOKENS} tokens, which was truncated, or an answer that no "
        "window of config.pack.seq_len = {seq_len} tokens contains; {lost} tokens are lost",
        format=3,
    ),
}
