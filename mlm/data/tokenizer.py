"""Text to token ids and back, with the same five special ids whatever the kind of vocabulary."""
import io
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm import config

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NUM_SPECIAL = len(SPECIAL)
SAMPLE = 2 ** 26        # characters a vocabulary is learnt from, at most: SentencePiece takes 25 bytes for each
SENTENCE = 1000         # characters; the longest stretch learnt from at once
SPACE = "\u2581"        # how SentencePiece writes the space before a word


class Tokenizer(NamedTuple):
    """A vocabulary as a value: the bytes that it is saved as, and pure functions made from them."""

    kind: str
    model: bytes                                             # SentencePiece model, or one entry a line
    pieces: list[str]                                        # of each id
    starts_word_V: np.ndarray                                # bool: the piece does not continue a word
    encode_batch: Callable[[list[str]], list[list[int]]]     # no special ids are added
    decode: Callable[[Iterable[int]], str]                   # special ids are written as "[MASK]" and so on

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; UNK is the only special id among them, whatever the text holds."""
        return self.encode_batch([text])[0]

    def save(self, folder: Path | str) -> Path:
        """Writes the vocabulary into a folder, which exists, and returns the file's path."""
        path = Path(folder) / f"{self.kind}.{'model' if self.kind == 'unigram' else 'txt'}"
        path.write_bytes(self.model)
        return path


def load(path: Path | str) -> Tokenizer:
    """The tokenizer that `save` wrote to this path; the file's stem names its kind."""
    kind = Path(path).stem
    config.one_of("kind of tokenizer", kind, list(KINDS))
    return KINDS[kind].restore(Path(path).read_bytes())


def train(knobs: config.Tokenizer, sentences: Iterable[str]) -> Tokenizer:
    """A vocabulary of exactly knobs.vocab_size entries, learnt from sentences; the same for the same sentences.

    0 entries, for words alone: those of all the words.

    Raises config.ConfigError for a size that the text cannot give, and says which it can.
    """
    config.one_of("config.tokenizer.kind", knobs.kind, list(KINDS))
    sample = _sample(sentences)
    if not sample:
        raise config.ConfigError("config.data: no text to learn a vocabulary from")
    return KINDS[knobs.kind].restore(KINDS[knobs.kind].train(knobs.vocab_size, sample))


class Kind(NamedTuple):
    train: Callable[[int, list[str]], bytes]     # (vocab_size, sentences) -> model
    restore: Callable[[bytes], Tokenizer]


def _sample(sentences) -> list[str]:
    """All the sentences, or so evenly drawn a share of them (with a fixed seed) that they stay under SAMPLE."""
    draw, sample, size, share = random.Random(0), [], 0, 1.0
    for sentence in sentences:
        for first in range(0, len(sentence), SENTENCE):
            if share == 1.0 or draw.random() < share:
                sample.append(sentence[first:first + SENTENCE])
                size += len(sample[-1])
            if size > SAMPLE:
                share /= 2
                sample = [kept for kept in sample if draw.random() < 0.5]
                size = sum(map(len, sample))
    return sample


def _characters(sentences, normalize) -> Counter:
    """Counts of the characters that remain after normalisation, spaces left out."""
    raw = Counter()
    for first in range(0, len(sentences), 1000):
        raw.update("".join(sentences[first:first + 1000]))
    counts = Counter()
    for character, count in raw.items():
        for part in normalize(character):
            if not part.isspace():
                counts[part] += count
    return counts


def _ranked(counts: Counter) -> list[str]:
    """Most frequent first; ties in the order of their characters, so that the order of counting does not show."""
    return [entry for entry, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _alphabet(counts: Counter, entries: int) -> list[str]:
    """The characters that get an entry: all, where an eighth of the entries holds them; else the most frequent.

    Of these as many as cover 99.99% of the text, but at most half of the entries: stray characters of a large corpus
    would otherwise crowd out the words.
    """
    ranked = _ranked(counts)
    covered = np.cumsum([counts[character] for character in ranked])
    enough = int(np.searchsorted(covered, 0.9999 * counts.total())) + 1
    return ranked[:max(1, entries // 8, min(enough, entries // 2))]


def _too_many(asked, possible):
    return config.ConfigError(f"config.tokenizer.vocab_size = {asked}: expected at most {possible}, "
                              "which is what the training text can give")


def _too_few(asked, needed):
    return config.ConfigError(f"config.tokenizer.vocab_size = {asked}: expected at least {needed}, "
                              "to hold the special tokens and the characters")


# ------------------------------------------------------------------------------------------------------------ unigram
def _train_unigram(vocab_size, sentences):
    """SentencePiece's Unigram model (Kudo 2018, arXiv:1804.10959), NFKC-normalised."""
    import sentencepiece

    def normalize(character):
        return unicodedata.normalize("NFKC", character)

    counts = _characters(sentences, normalize)
    rare = counts.keys() - _alphabet(counts, vocab_size - NUM_SPECIAL)
    # Left out here, since SentencePiece accepts no character coverage under 98%. They are unknown in any case.
    blanks = {ord(c): " " for c in set().union(*sentences) if not rare.isdisjoint(normalize(c))} if rare else {}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(sentence.translate(blanks) for sentence in sentences) if rare else iter(sentences),
            model_writer=model, model_type="unigram", vocab_size=vocab_size, character_coverage=1.0,
            pad_id=PAD, unk_id=UNK, bos_id=CLS, eos_id=SEP, pad_piece=SPECIAL[PAD], unk_piece=SPECIAL[UNK],
            bos_piece=SPECIAL[CLS], eos_piece=SPECIAL[SEP],
            control_symbols=[SPECIAL[MASK]],  # a control symbol is never read from text; a user-defined one is
            max_sentence_length=16 * SENTENCE,
            num_threads=4,                    # fixed: the sums of the EM steps follow the number of threads
            minloglevel=2)
    except (RuntimeError, OSError) as error:
        message = str(error)
        if most := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
            raise _too_many(vocab_size, most[1]) from None
        if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
            raise _too_few(vocab_size, least[1]) from None
        raise config.ConfigError(f"config.tokenizer.vocab_size = {vocab_size}: SentencePiece could not learn it from "
                                 f"{len(sentences)} sentences ({message.splitlines()[0]})") from None
    return model.getvalue()


def _restore_unigram(model):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]

    def decode(ids):
        return "".join(pieces[i] for i in ids).replace(SPACE, " ").strip()

    # An unknown stretch may lie within a word; the other special tokens never do.
    starts_V = np.array([p.startswith(SPACE) or (i < NUM_SPECIAL and i != UNK) for i, p in enumerate(pieces)])
    return Tokenizer("unigram", model, pieces, starts_V, processor.encode, decode)


# ---------------------------------------------------------------------------------------------------------- wordpiece
def _wordpiece(entries=()):
    import tokenizers
    # Without added tokens: those are looked for in the text, and "[MASK]" would be found there.
    wordpiece = tokenizers.models.WordPiece({entry: i for i, entry in enumerate(entries)}, unk_token=SPECIAL[UNK])
    tool = tokenizers.Tokenizer(wordpiece)
    tool.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tool.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tool


def _train_wordpiece(vocab_size, sentences):
    """BERT's WordPiece (Devlin et al. 2019, arXiv:1810.04805), cased, as the tokenizers library learns it."""
    import tokenizers
    tool = _wordpiece()
    counts = _characters(sentences, tool.normalizer.normalize_str)
    alphabet = sorted(_alphabet(counts, (vocab_size - NUM_SPECIAL) // 2))  # each takes two entries, one within words
    inner = [c for c in alphabet if len(tool.pre_tokenizer.pre_tokenize_str(f"a{c}a")) == 1]
    # The trainer numbers "##x" in the random order of a hash map, and its ties follow the numbers. Entries given as
    # special keep their place, which makes the vocabulary a function of the text.
    first = [*SPECIAL, *alphabet, *(f"##{c}" for c in inner)]
    if vocab_size < len(first):
        raise _too_few(vocab_size, len(first))
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=first, initial_alphabet=alphabet, limit_alphabet=len(alphabet),
        show_progress=False)
    tool.train_from_iterator(iter(sentences), trainer)
    number = tool.get_vocab()
    if len(number) < vocab_size:
        raise _too_many(vocab_size, len(number))
    return "\n".join(sorted(number, key=number.get)).encode()


def _restore_wordpiece(model):
    pieces = model.decode().split("\n")
    tool = _wordpiece(pieces)

    def encode_batch(texts):
        return [encoding.ids for encoding in tool.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(ids):
        return " ".join(pieces[i] for i in ids).replace(" ##", "")

    starts_V = np.array([not (p.startswith("##") and len(p) > 2) for p in pieces])
    return Tokenizer("wordpiece", model, pieces, starts_V, encode_batch, decode)


# -------------------------------------------------------------------------------------------------------------- words
def _train_words(vocab_size, sentences):
    """The most frequent words between white space, most frequent first; all of them for a size of 0."""
    counts = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    for special in SPECIAL:
        counts.pop(special, None)
    words = _ranked(counts)
    if vocab_size:
        words = words[:vocab_size - NUM_SPECIAL]
    if len(words) < vocab_size - NUM_SPECIAL:
        raise _too_many(vocab_size, len(words) + NUM_SPECIAL)
    return "\n".join([*SPECIAL, *words]).encode()


def _restore_words(model):
    pieces = model.decode().split("\n")
    number = {word: i for i, word in enumerate(pieces) if i >= NUM_SPECIAL}

    def encode_batch(texts):
        return [[number.get(word, UNK) for word in text.split()] for text in texts]

    def decode(ids):
        return " ".join(pieces[i] for i in ids)

    return Tokenizer("words", model, pieces, np.ones(len(pieces), bool), encode_batch, decode)


KINDS = {"unigram": Kind(_train_unigram, _restore_unigram),
         "wordpiece": Kind(_train_wordpiece, _restore_wordpiece),
         "words": Kind(_train_words, _restore_words)}
