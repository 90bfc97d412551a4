"""BERT's WordPiece vocabulary."""
import numpy as np

from mlm.base.special import NUM_SPECIAL, SPECIAL, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer, alphabet, characters, too_few, too_many


def _wordpiece(entries=()):
    import tokenizers
    # Without added tokens: those are looked for in the text, and "[MASK]" would be found there.
    wordpiece = tokenizers.models.WordPiece({entry: i for i, entry in enumerate(entries)}, unk_token=SPECIAL[UNK])
    tool = tokenizers.Tokenizer(wordpiece)
    tool.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tool.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tool


def train(vocab_size, sentences):
    """BERT's WordPiece (Devlin et al. 2019, arXiv:1810.04805), cased, as the tokenizers library learns it."""
    import tokenizers
    tool = _wordpiece()
    counts = characters(sentences, tool.normalizer.normalize_str)
    kept = sorted(alphabet(counts, (vocab_size - NUM_SPECIAL) // 2))  # each takes two entries, one within words
    inner = [c for c in kept if len(tool.pre_tokenizer.pre_tokenize_str(f"a{c}a")) == 1]
    # The trainer numbers "##x" in the random order of a hash map, and its ties follow the numbers. Entries given as
    # special keep their place, which makes the vocabulary a function of the text.
    first = [*SPECIAL, *kept, *(f"##{c}" for c in inner)]
    if vocab_size < len(first):
        raise too_few(vocab_size, len(first))
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=first, initial_alphabet=kept, limit_alphabet=len(kept),
        show_progress=False)
    tool.train_from_iterator(iter(sentences), trainer)
    number = tool.get_vocab()
    if len(number) < vocab_size:
        raise too_many(vocab_size, len(number))
    return "\n".join(sorted(number, key=number.get)).encode()


def restore(model):
    pieces = model.decode().split("\n")
    tool = _wordpiece(pieces)

    def encode_batch(texts):
        return [encoding.ids for encoding in tool.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(ids):
        return " ".join(pieces[i] for i in ids).replace(" ##", "")

    starts_V = np.array([not (p.startswith("##") and len(p) > 2) for p in pieces])
    return Tokenizer("wordpiece", model, pieces, starts_V, encode_batch, decode)
