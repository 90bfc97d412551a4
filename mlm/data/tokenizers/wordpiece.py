"""BERT's WordPiece vocabulary."""

import functools
import re

import numpy as np

from mlm.base.special import NUM_SPECIAL, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import tokenizer as common

PART = re.compile(r"[!-/:-@\[-`{-~]|[^!-/:-@\[-`{-~]+")  # ASCII's marks, each alone


def build_backend(entries=()):
    """The tokenizer of the library `tokenizers` with these entries, which keeps case and accents."""
    import tokenizers

    # Without added tokens: those are looked for in the text, and "[MASK]" would be found there.
    number = {entry: i for i, entry in enumerate(entries)}
    tool = tokenizers.Tokenizer(tokenizers.models.WordPiece(number, unk_token=SPECIAL_TOKENS[UNK]))
    tool.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tool.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tool.decoder = tokenizers.decoders.WordPiece()
    return tool


def train_model(vocab_size, sentences):
    """BERT's WordPiece (Devlin et al. 2019, arXiv:1810.04805), cased, as the tokenizers library learns it."""
    tool = build_backend()
    counts = common.count_characters(sentences, tool.normalizer.normalize_str)
    alphabet = common.select_alphabet(counts, (vocab_size - NUM_SPECIAL) // 2)
    first = _list_base_entries(tool, alphabet)
    if vocab_size < len(first):
        raise common.make_too_small_error(vocab_size, len(first))
    number = _learn(vocab_size, first, alphabet, sentences)
    if len(number) < vocab_size:  # room is left, which the rarer characters fill: with all of them, no text gives more
        rest, missing = common.sort_by_count(counts)[len(alphabet) :], vocab_size - len(number)
        while rest and missing > 0:
            alphabet.append(rest.pop(0))
            missing -= len(_list_base_entries(tool, alphabet[-1:])) - NUM_SPECIAL
        number = _learn(vocab_size, _list_base_entries(tool, alphabet)[:vocab_size], alphabet, sentences)
    if len(number) < vocab_size:
        raise common.VocabularyTooLarge(vocab_size, len(number))
    return "\n".join(sorted(number, key=number.__getitem__)).encode()


def _list_base_entries(tool, alphabet):
    """The first entries: each character takes two, one within words; one where it stands alone, as in Chinese."""
    inner = [c for c in sorted(alphabet) if len(tool.pre_tokenizer.pre_tokenize_str(f"a{c}a")) == 1]
    return [*SPECIAL_TOKENS, *sorted(alphabet), *(f"##{c}" for c in inner)]


def _learn(vocab_size, first, alphabet, sentences):
    """The number of each entry: `first`, and what is merged of them."""
    import tokenizers

    tool = build_backend()
    # The trainer numbers "##x" in the random order of a hash map, and its ties follow the numbers. Entries given as
    # special keep their place, which makes the vocabulary a function of the text.
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=first,
        initial_alphabet=sorted(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tool.train_from_iterator(iter(sentences), trainer)
    return tool.get_vocab()


def build_tokenizer(model):
    """The tokenizer of a serialized model: its entries, one a line."""
    pieces = model.decode().split("\n")
    tool = build_backend(pieces)

    def encode_batch(texts):
        return [encoding.ids for encoding in tool.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(ids):
        return " ".join(pieces[i] for i in ids).replace(" ##", "")

    starts_V = np.array([not (p.startswith("##") and len(p) > 2) for p in pieces])
    locate = functools.partial(common.encode_with_offsets, tool)
    tokenizer = common.Tokenizer("wordpiece", model, pieces, starts_V, encode_batch, decode, locate)
    pattern = common.UNUSUAL_SENTENCE_END
    return tokenizer._replace(splits_at_spaces=True, split_parts=PART.findall, document_pattern=pattern)
