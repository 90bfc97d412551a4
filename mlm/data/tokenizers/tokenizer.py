"""Text to token ids and back, with the same five special ids whatever the kind of vocabulary."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base import errors, files
from mlm.base.special import MASK, NUM_SPECIAL, SPECIAL_TOKENS

FILE_SUFFIXES = {"unigram": "model", "wordpiece": "txt", "words": "txt"}  # of a kind's file; the others': json
MAX_TRAINING_PIECE = 1000  # characters; the longest stretch learnt from at once
# Where a sentence ends at other white space than a space or line end, beside other white space, or without any. A
# vocabulary without tokens of white space has, in all other documents, the ids of their sentences.
# It begins with the one rare character of each, so that the search is fast.
UNUSUAL_SENTENCE_END = (
    r"[\t\r\x0b\f\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\u3002\uff01\uff1f]"
    r"(?:(?<=[\u3002\uff01\uff1f])|(?<=[.!?][^\S \n])|(?<=[ \n][^\S \t\r\n])|(?<=[^\S \t\r\n])(?=\n))"
)

# The ids of a text, as `Tokenizer.encode` has them, and where in it each begins and ends, in characters.
OffsetEncoder = Callable[[str], tuple[list[int], list[tuple[int, int]]]]


class Tokenizer(NamedTuple):
    """A vocabulary as a value: the bytes that it is saved as, and pure functions made from them."""

    kind: str
    model: bytes  # SentencePiece model, one entry a line, or JSON
    pieces: list[str]  # of each id
    starts_word_V: np.ndarray  # bool: the piece does not continue a word
    encode_batch: Callable[[list[str]], list[list[int]]]  # no special ids are added
    decode: Callable[[Iterable[int]], str]  # special ids are written as "[MASK]" and so on
    encode_with_offsets: OffsetEncoder
    # `encode_with_offsets` of a text in which [MASK] is that special token; None: as mlm/inference/batching.py finds it
    encode_masked: OffsetEncoder | None = None
    splits_at_spaces: bool = False  # whether a stripped text has the ids of its words, between spaces
    # The parts whose ids a word has, or a text that is not split at spaces. `encode_parts` is of parts that keep the
    # white space before them; None: `encode_batch`.
    split_parts: Callable[[str], list[str]] | None = None
    encode_parts: Callable[[list[str]], list[list[int]]] | None = None
    document_pattern: str = ""  # a regular expression: a stripped document without it has the ids of its sentences
    ends_word_V: np.ndarray | None = None  # bool: the piece ends a word, so that the next one begins another
    shows_words: bool = True  # whether the pieces of a text show where its words begin or end

    @property
    def vocab_size(self) -> int:
        """The number of pieces, the special ones among them."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; UNK is the only special id among them, whatever the text holds."""
        return self.encode_batch([text])[0]

    @property
    def keeps_space(self) -> bool:
        """Whether white space is a part of tokens, or a token."""
        return self.encode_parts is not None or not self.document_pattern

    @property
    def loses_space(self) -> bool:
        """Whether ids do not tell if white space stands before a mark, so that the bytes of a text are not known."""
        return self.encode("cow.") == self.encode("cow .")

    def find_word_starts(self, ids_xL: np.ndarray) -> np.ndarray:
        """bool: whether each token of sequences begins a word. Raises ConfigError as `require_words`."""
        self.require_words()
        starts_xL = self.starts_word_V[ids_xL]
        if self.ends_word_V is not None:
            starts_xL[..., 1:] |= self.ends_word_V[ids_xL][..., :-1]
        return starts_xL

    def pack_word_bounds(self) -> bytes:
        """What `DatasetInfo.word_starts` holds of the vocabulary. Raises ConfigError as `find_word_starts`."""
        self.require_words()
        ends_V = np.zeros(self.vocab_size, bool) if self.ends_word_V is None else self.ends_word_V
        return (self.starts_word_V + 2 * ends_V.astype(np.uint8)).astype(np.uint8).tobytes()

    def require_words(self) -> None:
        """Raises ConfigError for a vocabulary whose pieces do not show where words begin."""
        example = ", ".join(map(repr, self.pieces[NUM_SPECIAL : NUM_SPECIAL + 3]))
        expected = "pieces that show where words begin or end, as by a space, ##, or </w>, since words are counted"
        errors.require(self.shows_words, "tokenizer, its pieces", f"{example}, ...", expected)

    def save(self, folder: Path | str) -> Path:
        """Writes the vocabulary into a folder, and returns the file's path."""
        path = files.make_path(folder) / f"{self.kind}.{FILE_SUFFIXES.get(self.kind, 'json')}"
        with files.atomic_write(path) as temporary:
            temporary.write_bytes(self.model)
        return path


def encode_with_offsets(tool, text: str, blank: Set[int] = frozenset()) -> tuple[list[int], list[tuple[int, int]]]:
    """`encode_with_offsets` of a tool of the library, in its numbers; white space before a piece is no letter of it.

    blank: pieces that are white space alone, which may stand for a space that the text does not have.
    """
    found = tool.encode(text, add_special_tokens=False)
    spans, last = [], 0
    for i, (first, end) in zip(found.ids, found.offsets, strict=True):
        # A space within what normalization made of one character has its place.
        spans.append((first, max(first, last)) if i in blank else (end - len(text[first:end].lstrip()), end))
        last = spans[-1][1]
    return found.ids, spans


def make_mask_encoder(make: Callable, ours: Sequence[int], lstrip: bool = False, rstrip: bool = False) -> Callable:
    """`encode_masked` of a tool: `make` makes the tool, `ours` maps its ids to ours.

    lstrip, rstrip: white space on that side of [MASK] is part of what is hidden.
    """

    @functools.cache
    def finding():
        import tokenizers

        tool, name = make(), SPECIAL_TOKENS[MASK]
        tool.add_special_tokens([tokenizers.AddedToken(name, lstrip=lstrip, rstrip=rstrip, normalized=False)])
        return tool, tool.token_to_id(name)

    def hide(text):
        tool, mask = finding()
        ids, spans = encode_with_offsets(tool, text)
        return [MASK if i == mask else ours[i] for i in ids], spans

    return hide


def count_characters(sentences, normalize) -> Counter:
    """Counts of the characters that remain after normalisation, spaces left out."""
    raw = Counter()
    for first in range(0, len(sentences), 1000):
        raw.update("".join(sentences[first : first + 1000]))
    counts = Counter()
    for character, count in raw.items():
        for part in normalize(character):
            if not part.isspace():
                counts[part] += count
    return counts


def sort_by_count(counts: Counter) -> list[str]:
    """Most frequent first; ties in the order of their characters, so that the order of counting does not show."""
    return [entry for entry, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def select_alphabet(counts: Counter, entries: int) -> list[str]:
    """The characters that get an entry: all, where an eighth of the entries holds them; else the most frequent.

    Of these as many as cover 99.99% of the text, but at most half of the entries: stray characters of a large corpus
    would otherwise crowd out the words.
    """
    entries_by_count = sort_by_count(counts)
    covered = np.cumsum([counts[character] for character in entries_by_count])
    enough = int(np.searchsorted(covered, 0.9999 * counts.total())) + 1
    return entries_by_count[: max(1, entries // 8, min(enough, entries // 2))]


class VocabularyTooLarge(errors.ConfigError):
    """The training text has too few distinct pieces for config.tokenizer.vocab_size."""

    def __init__(self, vocab_size, possible):
        expected = f"at most {possible}, which is what the training text can give"
        super().__init__(f"config.tokenizer.vocab_size = {vocab_size}: expected {expected}")


def make_too_small_error(vocab_size, needed):
    """The error for a vocabulary that cannot hold every character."""
    expected = f"at least {needed}, to hold the special tokens and the characters"
    return errors.ConfigError(f"config.tokenizer.vocab_size = {vocab_size}: expected {expected}")
