"""How each objective encodes labelled examples as token ids and labels."""

import bisect
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config
from mlm.base.special import CLS, SEP, UNK
from mlm.data.rows.columns import ColumnSpec
from mlm.data.tasks.examples import Example
from mlm.data.tasks.tasks import MAX_QUESTION_TOKENS
from mlm.data.tokenizers import hub
from mlm.data.tokenizers.tokenizer import Tokenizer

EDGE_COLUMNS = {"edge": ColumnSpec(np.int32, "NxL", -1)} | {
    name: ColumnSpec(np.int32, "NxL") for name in ("from", "to", "other_from", "other_to")
}


class EncodedExample(NamedTuple):
    """A labelled example as token ids."""

    ids: list[int]  # without padding
    second_start: int  # where the second text starts; len(ids) if there is none
    labels: dict[str, Any]  # by column
    num_truncated: int = 0  # tokens, or words with tags, that did not fit
    metadata: Mapping[str, Any] = MappingProxyType({})  # saved with the example
    other_choices: tuple["EncodedExample", ...] = ()  # sequences after this one in the example, each with own attention


class Preprocessor(NamedTuple):
    """How the examples of an objective are encoded."""

    columns: dict[str, ColumnSpec]  # in addition to those of every example
    encode: Callable[..., Iterator[list[EncodedExample]]]  # (examples, tokenizer, cfg, classes) -> sequences of each
    truncation_message: str = (
        "are longer than config.pack.seq_len = {seq_len} tokens and were truncated; {lost} tokens are lost"
    )


def encode_texts(
    examples: list[Example], tokenizer: Tokenizer, cfg: config.Config, get_labels: Callable
) -> Iterator[list[EncodedExample]]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP]: a sequence per example; of a pair the longer text is truncated first.

    The texts of a pair are separated by as many [SEP] as in the tokenizer's own pairs (RoBERTa's: two).
    """
    ids_of_texts = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    for example in examples:
        texts = [next(ids_of_texts) for _ in example.texts]
        encoded = _join_texts(texts, cfg.pack.seq_len, hub.count_pair_separators(tokenizer))
        yield [encoded._replace(labels=get_labels(example))]


def _join_texts(texts, seq_len, num_separators):
    """A sequence without labels, of one text, or of two with so many [SEP] between them."""
    a, *others = texts
    b, separators = (others[0], [SEP] * num_separators) if others else ([], [])
    max_tokens = seq_len - 2 - len(separators)
    len_b = min(len(b), max(max_tokens - len(a), max_tokens // 2))
    len_a = min(len(a), max_tokens - len_b)
    ids = [CLS, *a[:len_a], *separators, *b[:len_b], SEP]
    return EncodedExample(ids, 1 + len_a + max(1, len(separators)), {}, len(a) + len(b) - len_a - len_b)


def encode_classification(examples, tokenizer, cfg, classes):
    """[CLS] text [SEP], or a pair of texts, with the number of the class."""
    class_index = {name: index for index, name in enumerate(classes)}
    return encode_texts(examples, tokenizer, cfg, lambda example: {"label": class_index[example.label]})


def encode_regression(examples, tokenizer, cfg, classes):
    """[CLS] text [SEP], or a pair of texts, with the number to predict."""
    return encode_texts(examples, tokenizer, cfg, lambda example: {"value": example.label})


def encode_multiple_choice(examples, tokenizer, cfg, classes):
    """[CLS] context [SEP] ending [SEP] for each ending in order: sequences of config.pack.seq_len tokens each."""
    class_index = {name: index for index, name in enumerate(classes)}
    texts = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    for example in examples:
        context = next(texts)
        first, *others = (
            _join_texts((context, next(texts)), cfg.pack.seq_len, hub.count_pair_separators(tokenizer))
            for _ in example.texts[1:]
        )
        num_truncated = sum(choice.num_truncated for choice in (first, *others))
        labels = {"label": class_index[example.label]}
        yield [first._replace(labels=labels, num_truncated=num_truncated, other_choices=tuple(others))]


def _encode_words(tokenizer, examples):
    """The ids of each word after a space: byte-level pieces differ at the beginning of a text."""
    return tokenizer.encode_batch([f" {word}" for example in examples for word in example.words])


def encode_tagging(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: the first piece of each word has its tag, every other token has -1 and no loss."""
    class_index = {name: index for index, name in enumerate(classes)}
    pieces = iter(_encode_words(tokenizer, examples))
    max_tokens = cfg.pack.seq_len - 2
    for example in examples:
        ids, tags, num_truncated = [], [], 0
        for name in example.label:
            word_ids = next(pieces) or [UNK]  # the tokenizer may have no piece for a word
            if len(ids) < max_tokens:
                ids += word_ids
                tags += [class_index[name] if name else -1, *[-1] * (len(word_ids) - 1)]
            else:
                num_truncated += 1
        del ids[max_tokens:], tags[max_tokens:]
        ids = [CLS, *ids, SEP]
        labels = {"tag": [-1, *tags] + [-1] * (cfg.pack.seq_len - 1 - len(tags))}
        yield [EncodedExample(ids, len(ids), labels, num_truncated)]


def encode_edges(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: for each word, by its index, its class, and the first and last token of it and of its head.

    The head of a word is the word that its label relates it to, or itself. A word that does not fit, or whose head
    does not, has the class -1 and no loss.
    """
    class_index = {name: index for index, name in enumerate(classes)}
    pieces = iter(_encode_words(tokenizer, examples))
    max_tokens = cfg.pack.seq_len - 2
    for example in examples:
        ids, spans = [], []
        for _ in example.label:
            word_ids = next(pieces) or [UNK]  # the tokenizer may have no piece for a word
            spans.append((len(ids) + 1, len(ids) + len(word_ids)))
            ids += word_ids
        edge_5xL = np.zeros((len(EDGE_COLUMNS), cfg.pack.seq_len), np.int32)
        edge_5xL[0], num_truncated = -1, 0
        heads = getattr(example, "heads", ()) or range(1, len(spans) + 1)
        for index, (name, head) in enumerate(zip(example.label, heads, strict=True)):
            if name and max(spans[index][1], spans[head - 1][1]) <= max_tokens:
                edge_5xL[:, index] = class_index[name], *spans[index], *spans[head - 1]
            else:
                num_truncated += bool(name)
        ids = [CLS, *ids[:max_tokens], SEP]
        yield [EncodedExample(ids, len(ids), dict(zip(EDGE_COLUMNS, edge_5xL, strict=True)), num_truncated)]


def encode_questions(examples, tokenizer, cfg, classes):
    """[CLS] question [SEP] window [SEP] for overlapping windows of the passage (Devlin et al. 2019, section 4.2).

    start and end are the positions in the sequence of the first answer's tokens, or 0 if they are not all in the
    window.
    """
    encode_passage = functools.lru_cache(1)(tokenizer.encode_with_offsets)  # consecutive questions share a passage
    for example in examples:
        question, passage = example.texts
        question_ids = tokenizer.encode(question)
        separators = [SEP] * hub.count_pair_separators(tokenizer)
        max_question = MAX_QUESTION_TOKENS + 1 - len(separators)  # so that what precedes a window is never longer
        num_truncated, question_ids = len(question_ids[max_question:]), question_ids[:max_question]
        passage_ids, spans = encode_passage(passage)
        first, last = _find_answer_tokens(spans, *example.label[0]) if example.label else (0, -1)
        passage_start = 1 + len(question_ids) + len(separators)
        window_size, has_answer, sequences = cfg.pack.seq_len - passage_start - 1, False, []
        stride = cfg.data.labelled.doc_stride
        for window_start in range(0, max(1, len(passage_ids) - window_size + stride), stride):
            window = passage_ids[window_start : window_start + window_size]
            is_inside = window_start <= first <= last < window_start + len(window)
            has_answer |= is_inside
            shift = passage_start - window_start
            start, end = (shift + first, shift + last) if is_inside else (0, 0)
            ids = [CLS, *question_ids, *separators, *window, SEP]
            labels = {"start": start, "end": end, "passage": passage_start, "first": window_start}
            sequences.append(EncodedExample(ids, passage_start, labels, num_truncated))
        num_lost = 0 if has_answer or not example.label else max(1, last - first + 1)
        sequences[0] = sequences[0]._replace(num_truncated=num_truncated + num_lost, metadata={"spans": spans})
        yield sequences


def _find_answer_tokens(spans, text, start):
    """The first and the last token of an answer; the last precedes the first if the answer has no token."""
    first = bisect.bisect_right(spans, start, key=lambda span: span[1])
    return first, bisect.bisect_left(spans, start + len(text), key=lambda span: span[0]) - 1


PREPROCESSORS = {
    "classification": Preprocessor({"label": ColumnSpec(np.int32, "N")}, encode_classification),
    "regression": Preprocessor({"value": ColumnSpec(np.float32, "N")}, encode_regression),
    "multiple_choice": Preprocessor(
        {"label": ColumnSpec(np.int32, "N")},
        encode_multiple_choice,
        "have an ending that is, with its context, longer than config.pack.seq_len = {seq_len} tokens and was "
        "truncated; {lost} tokens are lost",
    ),
    "tagging": Preprocessor(
        {"tag": ColumnSpec(np.int32, "NxL", -1)},
        encode_tagging,
        "are longer than config.pack.seq_len = {seq_len} tokens and were truncated; {lost} words are lost",
    ),
    "edge_probing": Preprocessor(
        EDGE_COLUMNS,
        encode_edges,
        "are longer than config.pack.seq_len = {seq_len} tokens and were truncated; {lost} labels are lost",
    ),
    "extractive_qa": Preprocessor(
        {name: ColumnSpec(np.int32, "N") for name in ("start", "end", "example", "passage", "first")},
        encode_questions,
        f"have a question of more than {MAX_QUESTION_TOKENS} tokens, which was truncated, or an answer that no "
        "window of config.pack.seq_len = {seq_len} tokens contains; {lost} tokens are lost",
    ),
}
