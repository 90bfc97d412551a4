"""Vocabularies: the special ids, what comes back, how many entries a text can give."""

import collections
import hashlib
import itertools
import pathlib
import random
import re
import subprocess
import sys
import types
import unicodedata

import numpy as np
import pytest

from mlm.base import config, errors, special
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds, tokenizer
from mlm.inference import batching
from mlm.inference.language_model import LanguageModel

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data"
KINDS = list(kinds.KINDS)
SIZE = dict.fromkeys(KINDS, 150) | {"bpe": 400, "characters": 30}  # the bytes alone are 256


def sentences(count=600):
    draw = random.Random(0)
    stems = ["".join(draw.choices("abcdefghijklmnoprstuvwy", k=draw.randint(2, 5))) for _ in range(150)]
    words = [draw.choice(stems) + draw.choice(["", "ing", "ed", "s", "ness"]) for _ in range(400)]
    return [" ".join(draw.choices(words, k=12)) + " ." for _ in range(count)]


@pytest.fixture(scope="module", params=KINDS)
def trained(request):
    return kinds.train_tokenizer(config.Tokenizer(kind=request.param, vocab_size=SIZE[request.param]), sentences())


def test_a_text_s_vocabulary_is_that_of_the_tables():
    """Each version of SentencePiece may learn another one; figures on text are of the version that is required."""
    pieces = kinds.train_tokenizer(config.Tokenizer("unigram", 150), sentences()).pieces
    assert hashlib.sha256("\n".join(sorted(pieces)).encode()).hexdigest()[:12] == "030539dbd780"


def test_special_ids_and_size(trained):
    assert trained.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (special.PAD, special.UNK, special.CLS, special.SEP, special.MASK) == (0, 1, 2, 3, 4)
    assert trained.vocab_size == len(set(trained.pieces)) == SIZE[trained.kind]


@pytest.mark.parametrize("kind", KINDS)
def test_text_never_gives_a_special_id_but_unknown(kind):
    hostile = [f"{a}{s}{b} {s}" for s in special.SPECIAL_TOKENS for a in ("", "word") for b in ("", "word")]
    words = kinds.train_tokenizer(config.Tokenizer(kind=kind, vocab_size=SIZE[kind]), [*sentences(), *hostile * 200])
    for ids in words.encode_batch([*hostile, *special.SPECIAL_TOKENS, "<pad> <unk> <s> </s>"]):
        assert ids and all(i >= special.NUM_SPECIAL or i == special.UNK for i in ids)


def test_text_comes_back(trained):
    known = [s for s in sentences() if special.UNK not in trained.encode(s)]
    assert len(known) == 600 if trained.kind != "words" else True
    for sentence in known:
        assert trained.decode(trained.encode(sentence)) == sentence
    assert trained.decode([special.CLS, special.MASK]).replace(" ", "") == "[CLS][MASK]"


def test_starts_word_marks_one_piece_a_word(trained):
    for sentence in sentences(50):
        ids = trained.encode(sentence)
        unmarked = trained.kind == "characters"  # its words begin with the space before them, and the first has none
        assert trained.starts_word_V[ids].sum() == len(sentence.split()) - unmarked or special.UNK in ids
    assert trained.starts_word_V.dtype == bool and trained.starts_word_V.shape == (SIZE[trained.kind],)


def test_saved_is_the_same(trained, tmp_path):
    again = kinds.load_tokenizer(trained.save(tmp_path))
    assert again.pieces == trained.pieces and np.array_equal(again.starts_word_V, trained.starts_word_V)
    assert again.encode_batch(sentences(20)) == trained.encode_batch(sentences(20))


def digest_models() -> list[str]:
    """Of the vocabulary of each kind."""
    models = {
        kind: kinds.train_tokenizer(config.Tokenizer(kind=kind, vocab_size=size), sentences()).model
        for kind, size in SIZE.items()
    }
    return [f"{kind} {hashlib.sha256(model).hexdigest()}" for kind, model in models.items()]


def test_training_is_deterministic_across_processes():
    code = "import sys; sys.path[:0] = ['tests', '.']; import test_tokenizer as t; print(*t.digest_models(), sep='\\n')"
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True, text=True)
    here = digest_models()
    assert done.stdout.splitlines() == here and len(here) == len(KINDS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "characters"])
def test_more_characters_than_entries_leave_room_for_pieces(kind):
    rare = [f"{chr(0x4E00 + i)} {chr(0x4E00 + i + 1)}" for i in range(3000)]
    words = kinds.train_tokenizer(config.Tokenizer(kind=kind, vocab_size=1000), [*sentences(), *rare])
    assert words.vocab_size == 1000
    ids = [i for s in sentences() for i in words.encode(s)]
    assert special.UNK not in ids and len(set(ids)) > 100  # the frequent words kept their pieces


def test_an_alphabet_has_all_but_one_character_in_ten_thousand_and_at_most_half_of_the_entries():
    select = lambda entries, **counts: "".join(tokenizer.select_alphabet(collections.Counter(counts), entries))
    assert select(8, a=99_500, b=495, c=5) == "ab" and select(8, **dict.fromkeys("abcdefgh", 1)) == "abcd"
    assert select(24, a=99_500, b=495, c=5) == "abc"  # of which an eighth holds all


def test_words_come_most_frequent_first():
    texts = ["c b b a a a", "d d d d [MASK] [MASK] [MASK]"]
    words = kinds.train_tokenizer(config.Tokenizer(kind="words", vocab_size=8), texts)
    assert words.pieces[5:] == ["d", "a", "b"] and words.encode("a b c [MASK]") == [6, 7, 1, 1]
    every = kinds.train_tokenizer(config.Tokenizer(kind="words", vocab_size=0), [*texts, "Anna anna Anna"])
    assert every.pieces[5:] == ["d", "a", "Anna", "b", "anna", "c"]  # upper and lower case stay apart
    long = " ".join(random.Random(0).choices(["a", "bcd", "e" * 9], k=tokenizer.MAX_TRAINING_PIECE))
    assert {*kinds.train_tokenizer(config.Tokenizer("words", 0), [long]).pieces[5:]} == {*long.split()}


def test_a_large_corpus_is_sampled_evenly():
    assert max(map(len, kinds._sample_sentences(["a" * 5500], 10**6))) == tokenizer.MAX_TRAINING_PIECE
    sample = kinds._sample_sentences((str(i) for i in range(10_000)), 800)
    assert 300 < len("".join(sample)) <= 800 and 3500 < np.mean([int(s) for s in sample]) < 6500
    assert sample == kinds._sample_sentences((str(i) for i in range(10_000)), 800)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "udhr2").is_dir(), reason="needs ../shared/data/udhr2")
def test_one_vocabulary_over_338_languages():
    paths = sorted((SHARED / "udhr2").glob("*.txt"))
    texts = [s for path in paths for s in corpus.split_sentences(path.read_text(encoding="utf-8"))]
    words = kinds.train_tokenizer(config.Tokenizer(kind="unigram", vocab_size=100_000), texts)
    ids = words.encode_batch(texts)
    assert len(paths) == 338
    assert sum(i.count(special.UNK) for i in ids) < 0.005 * sum(map(len, ids))
    normal = [unicodedata.normalize("NFKC", text) for text in texts]
    exact = [words.decode(i).split() == text.split() for i, text in zip(ids, normal, strict=True)]
    assert np.mean(exact) > 0.99  # SentencePiece also drops some control characters


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
@pytest.mark.parametrize("latin", [False, True], ids=["chinese", "mixed"])
def test_the_size_that_an_error_advises_is_right_the_first_time(kind, latin):
    """Of characters that are words of their own, of which few take two entries."""
    draw = random.Random(0)
    letters = [chr(0x4E00 + i) for i in range(700)]
    text = ["".join(draw.choices(letters, [1 / (i + 1) for i in range(700)], k=15)) + "\u3002" for _ in range(300)]
    text += [" ".join(draw.choices(["alpha", "beta", "gamma", "the", "of"], k=8)) for _ in range(100 * latin)]
    with pytest.raises(errors.ConfigError, match=r"expected at most \d+,") as error:
        kinds.train_tokenizer(config.Tokenizer(kind, 5000), text)
    advised = int(re.search(r"at most (\d+)", str(error.value))[1])
    made = kinds.train_tokenizer(config.Tokenizer(kind, advised), text)
    assert made.vocab_size == advised
    assert not any(special.UNK in ids for ids in made.encode_batch(text))  # nothing more could be known
    for size in (advised - 1, advised // 2, 60):
        assert kinds.train_tokenizer(config.Tokenizer(kind, size), text).vocab_size == size


def test_a_piece_is_found_in_its_text(trained):
    text = "  The old\tmill  (of 1850), the\u00a0ﬁrst caf\u00e9 x\u0301 \u65e5\u672c [MASK] "
    ids, spans = trained.encode_with_offsets(text)
    assert ids == trained.encode(text) and len(spans) == len(ids)
    for i, (start, end) in zip(ids, spans, strict=True):
        assert 0 <= start <= end <= len(text) and text[start:end] == text[start:end].strip()
        piece = trained.pieces[i].replace("\u2581", "").removeprefix("##").strip()
        if i >= special.NUM_SPECIAL and text[start:end].isascii() and not piece.startswith("\\x"):  # a byte
            assert text[start:end] == piece
    assert all(a <= b for a, b in itertools.pairwise(spans))
    covered = set().union(*(range(*span) for span in spans))
    assert all(at in covered or letter.isspace() for at, letter in enumerate(text) if letter.isascii())


def test_a_given_tokenizer_is_that_of_its_folder(trained, tmp_path):
    trained.save(tmp_path)
    assert kinds.load_tokenizer_folder("x", str(tmp_path)).model == trained.model
    (tmp_path / "words.txt" if trained.kind != "words" else tmp_path / "wordpiece.txt").write_text("a")
    (tmp_path / "run" / "tokenizer").mkdir(parents=True)
    (tmp_path / "bad").mkdir()
    for content, words in ((b"", r"\[PAD\] \[UNK\]|cannot read"), (b"\xff\x00", "cannot read")):
        (tmp_path / "bad" / trained.save(tmp_path).name).write_bytes(content)
        with pytest.raises(errors.ConfigError, match=words):
            kinds.load_tokenizer_folder("x", str(tmp_path / "bad"))
    for folder, words in (
        ("", "it holds 2"),
        ("run", "it holds 0; did you mean '.*run/tokenizer'"),
        ("no", "a folder"),
        ("bad/none", "a folder"),
    ):
        with pytest.raises(errors.ConfigError, match=rf"^x = '.*{words}"):
            kinds.load_tokenizer_folder("x", str(tmp_path / folder))


def test_a_filled_token_is_read_as_it_was_predicted(trained):
    start = " ".join(sentences(1)[0].split()[:2])
    before, model = trained.encode(start), types.SimpleNamespace(tokenizer=trained)
    for token_id in range(special.NUM_SPECIAL, trained.vocab_size):
        filled = LanguageModel._fill(model, f"{start}[MASK] .", 0, token_id)
        text = batching.format_piece(trained.pieces[token_id])
        if not trained.starts_word_V[token_id]:
            assert filled == f"{start}{text} ."
        elif text.isalpha():
            assert trained.encode(filled)[: len(before) + 1] == [*before, token_id]


@pytest.mark.parametrize(("text", "lost"), [("x[MASK]y", "x y"), ("the [MASK].", "."), ("the [MASK] .", "")])
def test_what_a_masked_word_drops_is_named(trained, text, lost, caplog):
    batching.encode_text(trained, text, allow_mask=True)
    assert (f"{lost!r} is dropped" in caplog.text) == (trained.kind == "words" and lost != "")
