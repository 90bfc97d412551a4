"""SentencePiece's Unigram vocabulary."""

import io
import re
import unicodedata
from typing import Any

import numpy as np

from mlm.base import errors
from mlm.base.special import CLS, MASK, NUM_SPECIAL, PAD, SEP, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import tokenizer as common

SPACE = "\u2581"  # how SentencePiece writes the space before a word


def train_model(vocab_size, sentences):
    """SentencePiece's Unigram model (Kudo 2018, arXiv:1804.10959), NFKC-normalised."""
    counts = common.count_characters(sentences, normalize)
    alphabet = common.select_alphabet(counts, vocab_size - NUM_SPECIAL)
    try:
        return _learn(vocab_size, counts.keys() - alphabet, sentences)
    except common.VocabularyTooLarge:
        # Room is left, which the rarer characters fill: with all of them, no text gives more.
        more = common.sort_by_count(counts)[: max(len(alphabet), vocab_size - NUM_SPECIAL - 1)]
        return _learn(vocab_size, counts.keys() - more, sentences)


def normalize(character):
    """A character as SentencePiece normalizes it (NFKC): it may become several."""
    return unicodedata.normalize("NFKC", character)


def _learn(vocab_size, rare, sentences):
    import sentencepiece

    # Left out here, since SentencePiece accepts no character coverage under 98%. They are unknown in any case.
    blanks = {ord(c): " " for c in set().union(*sentences) if not rare.isdisjoint(normalize(c))} if rare else {}
    roles = {"pad": PAD, "unk": UNK, "bos": CLS, "eos": SEP}
    special: dict[str, Any] = {f"{role}_id": i for role, i in roles.items()}
    special |= {f"{role}_piece": SPECIAL_TOKENS[i] for role, i in roles.items()}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(sentence.translate(blanks) for sentence in sentences) if rare else iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=1.0,
            **special,
            control_symbols=[SPECIAL_TOKENS[MASK]],  # a control symbol is never read from text; a user-defined one is
            max_sentence_length=16 * common.MAX_TRAINING_PIECE,
            num_threads=4,  # fixed: the sums of the EM steps follow the number of threads
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        message = str(error)
        if most := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
            raise common.VocabularyTooLarge(vocab_size, most[1]) from None
        if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
            raise common.make_too_small_error(vocab_size, least[1]) from None
        reason = f"SentencePiece could not learn it from {len(sentences)} sentences ({message.splitlines()[0]})"
        raise errors.ConfigError(f"config.tokenizer.vocab_size = {vocab_size}: {reason}") from None
    return model.getvalue()


def build_tokenizer(model):
    """The tokenizer of a serialized SentencePiece model."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]

    def decode(ids):
        return "".join(pieces[i] for i in ids).replace(SPACE, " ").strip()

    def locate(text):
        """Where normalization made several pieces of one character, each has its place."""
        found = processor.encode(text, return_type="offset_mapping")
        spans = []
        for piece, (start, end) in zip(found["pieces"], found["offsets"], strict=True):
            if start == end and (piece != SPACE or (spans and end < spans[-1][1])):
                end += 1
            words = [found.span() for found in re.finditer(r"\S+", text[start:end])]
            # White space, alone or before a word, is no letter of it.
            spans.append((start + words[-1][0], start + words[-1][1]) if words else (end, end))
        return found["ids"], spans

    # An unknown stretch may lie within a word; the other special tokens never do.
    starts_V = np.array([p.startswith(SPACE) or (i < NUM_SPECIAL and i != UNK) for i, p in enumerate(pieces)])
    tokenizer = common.Tokenizer("unigram", model, pieces, starts_V, processor.encode, decode, locate)
    return tokenizer._replace(document_pattern=common.UNUSUAL_SENTENCE_END)
