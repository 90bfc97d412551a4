"""Examples with labels as rows of tokens, by objective."""

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
from mlm.data.tasks.tasks import QUESTION
from mlm.data.tokenizers import hub
from mlm.data.tokenizers.tokenizer import Tokenizer

EDGE_COLUMNS = {"edge": ColumnSpec(np.int32, "NxL", -1)} | {
    name: ColumnSpec(np.int32, "NxL") for name in ("from", "to", "other_from", "other_to")
}


class EncodedExample(NamedTuple):
    """A labelled example as token ids."""

    ids: list[int]  # without padding
    second: int  # where the second text begins, or the end of the row
    labels: dict[str, Any]
    cut: int = 0  # tokens, or words of tags, that did not fit
    kept: Mapping[str, Any] = MappingProxyType({})  # beside the example
    further: tuple["EncodedExample", ...] = ()  # stretches that see nothing of each other, side by side with this


class Preprocessor(NamedTuple):
    """How the examples of an objective become rows."""

    columns: dict[str, ColumnSpec]  # beside those of text
    rows: Callable[..., Iterator[list[EncodedExample]]]  # (examples, tokenizer, cfg, classes) -> the rows of each
    cut: str = "are longer than config.pack.seq_len = {length} tokens and were cut, {lost} tokens in all"


def encode_texts(
    examples: list[Example], tokenizer: Tokenizer, cfg: config.Config, label: Callable
) -> Iterator[list[EncodedExample]]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP]: a row an example, of a pair the longer text is cut first.

    Between the texts of a pair stand as many [SEP] as the tokenizer's own pairs have (RoBERTa's: two).
    """
    texts = iter(tokenizer.encode_batch([text for one in examples for text in one.texts]))
    for one in examples:
        yield [
            _join_texts([next(texts) for _ in one.texts], cfg.pack.seq_len, hub.between(tokenizer))._replace(
                labels=label(one)
            )
        ]


def _join_texts(texts, length, between):
    """A row without labels, of one text, or of two with so many [SEP] between them."""
    a, *second = texts
    b, inner = (second[0], [SEP] * between) if second else ([], [])
    room = length - 2 - len(inner)
    keep_b = min(len(b), max(room - len(a), room // 2))
    keep_a = min(len(a), room - keep_b)
    ids = [CLS, *a[:keep_a], *inner, *b[:keep_b], SEP]
    return EncodedExample(ids, 1 + keep_a + max(1, len(inner)), {}, len(a) + len(b) - keep_a - keep_b)


def encode_classification(examples, tokenizer, cfg, classes):
    number = {name: at for at, name in enumerate(classes)}
    return encode_texts(examples, tokenizer, cfg, lambda one: {"label": number[one.label]})


def encode_regression(examples, tokenizer, cfg, classes):
    return encode_texts(examples, tokenizer, cfg, lambda one: {"value": one.label})


def encode_multiple_choice(examples, tokenizer, cfg, classes):
    """[CLS] context [SEP] ending [SEP] for each ending, a stretch of config.pack.seq_len tokens, in their order."""
    number = {name: at for at, name in enumerate(classes)}
    texts = iter(tokenizer.encode_batch([text for one in examples for text in one.texts]))
    for one in examples:
        context = next(texts)
        first, *further = (
            _join_texts((context, next(texts)), cfg.pack.seq_len, hub.between(tokenizer)) for _ in one.texts[1:]
        )
        cut = sum(each.cut for each in (first, *further))
        yield [first._replace(labels={"label": number[one.label]}, cut=cut, further=tuple(further))]


def _encode_words(tokenizer, examples):
    """The ids of each word, as it stands behind a space: bytes' pieces are others at the beginning of a text."""
    return tokenizer.encode_batch([f" {word}" for one in examples for word in one.words])


def encode_tagging(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: the first piece of each word has its tag, what is not asked has -1."""
    number = {name: at for at, name in enumerate(classes)}
    pieces = iter(_encode_words(tokenizer, examples))
    room = cfg.pack.seq_len - 2
    for one in examples:
        ids, tags, cut = [], [], 0
        for name in one.label:
            word = next(pieces) or [UNK]  # of what the tokenizer has nothing for
            if len(ids) < room:
                ids += word
                tags += [number[name] if name else -1, *[-1] * (len(word) - 1)]
            else:
                cut += 1
        del ids[room:], tags[room:]
        row = [CLS, *ids, SEP]
        yield [EncodedExample(row, len(row), {"tag": [-1, *tags] + [-1] * (cfg.pack.seq_len - 1 - len(tags))}, cut)]


def encode_edges(examples, tokenizer, cfg, classes):
    """[CLS] words [SEP]: for each word, by its number, its class, and the first and last token of it and of the word
    that its label relates it to, which is itself where that is of none. A word is asked where the row holds both.
    """
    number = {name: at for at, name in enumerate(classes)}
    pieces = iter(_encode_words(tokenizer, examples))
    room = cfg.pack.seq_len - 2
    for one in examples:
        ids, spans = [], []
        for _ in one.label:
            word = next(pieces) or [UNK]  # of what the tokenizer has nothing for
            spans.append((len(ids) + 1, len(ids) + len(word)))
            ids += word
        edge_5xL = np.zeros((len(EDGE_COLUMNS), cfg.pack.seq_len), np.int32)
        edge_5xL[0], cut = -1, 0
        heads = getattr(one, "heads", ()) or range(1, len(spans) + 1)
        for at, (name, head) in enumerate(zip(one.label, heads, strict=True)):
            if name and max(spans[at][1], spans[head - 1][1]) <= room:
                edge_5xL[:, at] = number[name], *spans[at], *spans[head - 1]
            else:
                cut += bool(name)
        row = [CLS, *ids[:room], SEP]
        yield [EncodedExample(row, len(row), dict(zip(EDGE_COLUMNS, edge_5xL, strict=True)), cut)]


def encode_question(examples, tokenizer, cfg, classes):
    """[CLS] question [SEP] window [SEP] for windows of the passage that overlap (Devlin et al. 2019, section 4.2).

    start and end: places in the row of the first answer's tokens, 0 where the window does not hold all of them.
    """
    located = functools.lru_cache(1)(tokenizer.locate)  # of a passage several questions are asked in turn
    for one in examples:
        question, passage = one.texts
        asked = tokenizer.encode(question)
        inner = [SEP] * hub.between(tokenizer)
        kept = QUESTION + 1 - len(inner)  # what stands before a window is never longer
        cut, asked = len(asked[kept:]), asked[:kept]
        ids, spans = located(passage)
        at, to = _find_answer_tokens(spans, *one.label[0]) if one.label else (0, -1)
        place = 1 + len(asked) + len(inner)  # of the passage in the row
        room, found, rows = cfg.pack.seq_len - place - 1, False, []
        for first in range(0, max(1, len(ids) - room + cfg.data.labelled.stride), cfg.data.labelled.stride):
            window = ids[first : first + room]
            holds = first <= at <= to < first + len(window)
            found |= holds
            start, end = (place + at - first, place + to - first) if holds else (0, 0)
            rows.append(
                EncodedExample(
                    [CLS, *asked, *inner, *window, SEP],
                    place,
                    {"start": start, "end": end, "passage": place, "first": first},
                    cut,
                )
            )
        lost = 0 if found or not one.label else max(1, to - at + 1)
        rows[0] = rows[0]._replace(cut=cut + lost, kept={"spans": spans})
        yield rows


def _find_answer_tokens(spans, text, start):
    """The first and the last token of an answer, the last before the first where there is none."""
    first = bisect.bisect_right(spans, start, key=lambda span: span[1])
    return first, bisect.bisect_left(spans, start + len(text), key=lambda span: span[0]) - 1


PREPROCESSORS = {
    "classification": Preprocessor({"label": ColumnSpec(np.int32, "N")}, encode_classification),
    "regression": Preprocessor({"value": ColumnSpec(np.float32, "N")}, encode_regression),
    "multiple_choice": Preprocessor(
        {"label": ColumnSpec(np.int32, "N")},
        encode_multiple_choice,
        "have an ending that is, with its context, longer "
        "than config.pack.seq_len = {length} tokens and was cut, {lost} tokens in all",
    ),
    "tagging": Preprocessor(
        {"tag": ColumnSpec(np.int32, "NxL", -1)},
        encode_tagging,
        "are longer than config.pack.seq_len = {length} tokens and were cut, {lost} words in all",
    ),
    "edge_probing": Preprocessor(
        EDGE_COLUMNS,
        encode_edges,
        "are longer than config.pack.seq_len = {length} tokens and were cut, {lost} labels in all",
    ),
    "extractive_qa": Preprocessor(
        {name: ColumnSpec(np.int32, "N") for name in ("start", "end", "example", "passage", "first")},
        encode_question,
        f"have a question of more than {QUESTION} tokens, which was cut, or an answer that no "
        "window of config.pack.seq_len = {length} holds, {lost} tokens in all",
    ),
}
