"""Kneser-Ney models: against the formulas as they stand in the paper, against KenLM, and beside a run's loss."""

import itertools
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from small import drawn_config, small_config

from mlm.base.estimates import compute_score
from mlm.base.special import CLS, MASK, NUM_SPECIAL, PAD, SEP, UNK
from mlm.data.rows import ngram, pack
from mlm.training.step import program
from mlm.training.validation import references

V = 9
WORDS = [w for w in range(V) if w not in (PAD, CLS, MASK)]
# -log P of each held-out sentence with its end, by KenLM's lmplz (4cb443e, --discount_fallback) of the text below. In
# the counts of counts lmplz takes the last n-gram of each order by how often it stands there: here that is no other.
KENLM = {
    2: (15.1658, 35.7822, 9.7849, 6.6858, 6.1262, 19.8814, 8.6262, 5.9772, 15.6528, 7.2522, 10.3201, 12.5311),
    3: (15.0899, 37.3419, 10.3592, 7.3094, 6.8633, 22.2332, 9.4609, 8.4746, 14.2201, 6.9816, 10.0073, 13.8388),
    5: (16.7055, 40.1387, 11.0969, 7.4640, 5.7851, 24.5280, 9.3057, 7.7724, 15.5600, 7.8908, 9.7347, 13.1627),
}


def text(seed=0, rows=60, length=18):
    """Rows of two segments, the first behind [CLS], and padding: few words, so that every count is among them."""
    rng = np.random.default_rng(seed)
    ids_NxL, segments_NxL = np.zeros((rows, length), np.uint16), np.zeros((rows, length), np.uint16)
    for ids_L, segments_L in zip(ids_NxL, segments_NxL, strict=True):
        first, second = sorted(rng.integers(3, length + 1, 2))
        ids_L[:second] = rng.choice([UNK, 5, 6, 7, 8], second, p=[0.02, 0.5, 0.3, 0.13, 0.05])
        ids_L[0], ids_L[first - 1], ids_L[second - 1] = CLS, SEP, SEP
        segments_L[:first], segments_L[first:second] = 1, 2
    return {"ids": ids_NxL, "segments": segments_NxL}


def segments(rows):
    return [
        ids_L[segments_L == s].tolist()
        for ids_L, segments_L in zip(rows["ids"], rows["segments"], strict=True)
        for s in (1, 2)
        if (segments_L == s).any()
    ]


def slow(rows, order):
    """P(word | context) by the equations of Chen & Goodman 1999, one n-gram at a time."""
    count, before = defaultdict(Counter), defaultdict(set)
    for ids in segments(rows):
        for n, end in itertools.product(range(1, order + 1), range(1, len(ids))):
            if end + 1 >= n:
                gram = tuple(ids[end + 1 - n : end + 1])
                count[n][gram] += 1
                before[gram].add(ids[end - n] if end >= n else "start")
    for n in range(1, order):
        count[n] = Counter({gram: times if gram[0] == CLS else len(before[gram]) for gram, times in count[n].items()})
    less = {}
    for n in count:
        n1, n2, n3, n4 = (sum(times == i for times in count[n].values()) for i in range(1, 5))
        less[n] = [-1]
        if n1 * n2 * n3:
            y = n1 / (n1 + 2 * n2)
            less[n] = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        if min(less[n]) < 0:
            less[n] = [0, 0.5, 1, 1.5]

    def probability(word, context):
        n = len(context) + 1
        lower = probability(word, context[1:]) if context else 1 / len(WORDS)
        follow = {w: count[n][*context, w] for w in WORDS if count[n][*context, w]}
        total = sum(follow.values())
        if not total:
            return lower
        taken = sum(less[n][min(times, 3)] for times in follow.values())
        own = follow.get(word, 0)
        return (own - less[n][min(own, 3)] + taken * lower) / total

    return probability


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_every_probability_is_that_of_the_paper_s_equations(order):
    train, held_out = text(), text(seed=1, rows=20)
    model = ngram.smooth_counts(ngram.count_ngrams(train, V, 5), order)
    nats_N, count_N = ngram.compute_nats(model, held_out, 15)
    probability = slow(train, order)
    for row, (ids_L, segments_L) in enumerate(zip(held_out["ids"][:15], held_out["segments"], strict=False)):
        there = segments({"ids": ids_L[None], "segments": segments_L[None]})
        nats = [
            -np.log(probability(ids[i], tuple(ids[max(0, i + 1 - order) : i])))
            for ids in there
            for i in range(1, len(ids))
        ]
        assert nats_N[row] == pytest.approx(sum(nats), rel=1e-12) and count_N[row] == len(nats)
    used = {
        round(float(less), 6)
        for n, grams in enumerate(ngram.count_ngrams(train, V, 5), 1)
        for less in ngram.estimate_discounts(grams.count_G if n == 5 else grams.num_predecessors_G)
    }
    assert len(used) > 6  # not all of them those of too small a text


def test_counts_do_not_depend_on_how_many_rows_are_read_at_a_time(monkeypatch):
    whole = ngram.count_ngrams(text(), V, 4)
    monkeypatch.setattr(ngram, "BLOCK_TOKENS", 40)
    for one, other in zip(whole, ngram.count_ngrams(text(), V, 4), strict=True):
        for a_G, b_G in zip(one, other, strict=True):
            np.testing.assert_array_equal(a_G, b_G)
    assert (np.diff(whole[3].key_G) > 0).all() and whole[3].count_G.sum() == sum(
        max(0, len(ids) - 3) for ids in segments(text())
    )


def sentences():
    """80 sentences to learn from and 12 that are held out, in which two words are unknown."""
    draw = random.Random(11)
    stems = [f"w{i}" for i in range(14)]
    made = []
    for _ in range(92):
        words = [stems[0]]
        while len(words) < 4 or draw.random() < 0.8:
            words.append(stems[(stems.index(words[-1]) * 3 + int(draw.random() ** 2 * 5)) % 14])
        made.append(words)
    made[-1][1] = made[-2][3] = "unknown"
    return made[:80], made[80:]


def encode_words(lines):
    known = {word: i for i, word in enumerate(sorted({word for line in sentences()[0] for word in line}), 5)}
    ids_NxL = np.zeros((len(lines), max(map(len, lines)) + 2), np.uint16)
    for ids_L, line in zip(ids_NxL, lines, strict=True):
        ids_L[: len(line) + 2] = [CLS, *(known.get(word, UNK) for word in line), SEP]
    return {"ids": ids_NxL, "segments": (ids_NxL > 0).astype(np.uint16)}, len(known) + 5


@pytest.mark.parametrize("order", [2, 3, 5])
def test_sentences_have_kenlm_s_probabilities(order):
    """To the digits above. [CLS] stands for <s>, [SEP] for </s>."""
    (train, vocab_size), (held_out, _) = map(encode_words, sentences())
    model = ngram.smooth_counts(ngram.count_ngrams(train, vocab_size, 5), order)
    np.testing.assert_allclose(ngram.compute_nats(model, held_out, 12)[0], KENLM[order], atol=6e-5)


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    return drawn_config(
        tmp_path_factory.mktemp("cache"), objective="causal", eval__ngram_order=3, eval__max_examples=50
    )


def test_a_causal_run_has_the_models_loss_beside_its_own_on_the_same_tokens(cfg):
    packed = pack.load_dataset(cfg)
    made = program.build_program(cfg, packed.dataset_info)
    found = references.compute_references(cfg, made, packed)
    asked_N = references.compute_eval_mask(cfg, made, packed).sum(1)
    loss = made.objective.scores[0]
    columns = found.add_columns({loss.columns[0]: np.zeros(50), loss.columns[1]: asked_N})
    assert [(score.name, score.reference_for, score.reference) for score in found.scores if "ngram" in score.name] == [
        ("ngram2_loss", "loss", "Kneser-Ney, order 2"),
        ("ngram2_perplexity", "perplexity", "Kneser-Ney, order 2"),
        ("ngram3_loss", "loss", "Kneser-Ney, order 3"),
        ("ngram3_perplexity", "perplexity", "Kneser-Ney, order 3"),
    ]
    floor, two, three = (columns[f"{name}_nats"].sum() for name in ("floor", "ngram2", "ngram3"))
    assert floor < min(two, three) < max(two, three) < asked_N.sum() * np.log(packed.dataset_info.vocab_size)
    with pytest.raises(ValueError, match="other masks"):
        found.add_columns({loss.columns[0]: np.zeros(50), loss.columns[1]: asked_N - 1})


def test_losses_by_the_word_stand_beside_those_by_the_piece(tmp_path):
    """A word of several pieces counts once, and so does the end of a text."""
    texts = [f"{a}{b} {b}{a} {a}." for a in ("ping", "pong", "kling") for b in ("song", "king", "ling", "thing")]
    (tmp_path / "a.txt").write_text("\n".join(texts * 9))
    (tmp_path / "b.txt").write_text("\n".join(" ".join(reversed(text[:-1].split())) + "." for text in texts[:5]))
    cfg = small_config(
        objective="causal",
        eval__ngram_order=2,
        data__corpus="text",
        data__path=f"{tmp_path}/a.txt",
        data__validation_path=f"{tmp_path}/b.txt",
        data__document_boundary="line",
        tokenizer__vocab_size=264,
        tokenizer__kind="bpe",
        pack__mode="doc_sentences",
        pack__seq_len=32,
        data__cache_dir=str(tmp_path / "cache"),
    )
    packed = pack.load_dataset(cfg)
    made = program.build_program(cfg, packed.dataset_info)
    found, (nats, weight) = references.compute_references(cfg, made, packed), made.objective.scores[0].columns
    asked_N = references.compute_eval_mask(cfg, made, packed).sum(1)
    columns = found.add_columns({nats: 2.0 * asked_N, weight: asked_N, "unigram_nats": 3.0 * asked_N})
    by_word = {score.name: compute_score(score, columns)[0] for score in found.scores if score.unit == "nats per word"}
    assert columns["words"].tolist() == [4] * 5  # three words, the full stop with the last, and the end
    assert (asked_N > 8).all()
    assert by_word["word_loss"] == pytest.approx(2 * asked_N.sum() / 20)
    assert by_word["unigram_word_loss"] == pytest.approx(3 * asked_N.sum() / 20)
    assert by_word["ngram2_word_loss"] == pytest.approx(columns["ngram2_nats"].sum() / 20)
    (bits,) = (score for score in found.scores if score.unit == "bits per byte")
    held_out = sum(len(line) for line in (tmp_path / "b.txt").read_bytes().splitlines())
    assert compute_score(bits, columns)[0] == pytest.approx(2 * asked_N.sum() / math.log(2) / held_out)


@pytest.mark.parametrize("vocabulary", [{"kind": "characters", "vocab_size": 0}, {"kind": "bpe", "vocab_size": 290}])
def test_bits_per_byte_of_masked_tokens_are_those_of_all_tokens_at_their_mean_loss(tmp_path, vocabulary):
    lines = [f"{a}{b} {b}\u00fc{a} {a}." for a in ("ping", "pong", "kling") for b in ("song", "king", "ling", "thing")]
    (tmp_path / "a.txt").write_text("\n".join(lines * 9))
    unknown = "#" if vocabulary["kind"] == "characters" else ""  # neither masked nor counted
    (tmp_path / "b.txt").write_text("\n".join(line.replace("n", f"{unknown}n", 1) for line in lines[:5]))
    settings = {f"tokenizer__{name}": value for name, value in vocabulary.items()}
    settings |= {"data__path": f"{tmp_path}/a.txt", "data__validation_path": f"{tmp_path}/b.txt"}
    settings |= {"data__document_boundary": "line", "data__cache_dir": str(tmp_path / "cache"), "pack__seq_len": 32}
    cfg = small_config(data__corpus="text", pack__mode="doc_sentences", **settings)
    packed = pack.load_dataset(cfg)
    made = program.build_program(cfg, packed.dataset_info)
    found, (nats, weight) = references.compute_references(cfg, made, packed), made.objective.scores[0].columns
    tokens_N = (np.asarray(packed.validation["ids"]) >= NUM_SPECIAL).sum(1)  # as if each were masked
    columns = found.add_columns({nats: 2.0 * tokens_N, weight: tokens_N, "unigram_nats": 0 * tokens_N})
    (bits,) = (score for score in found.scores if score.unit == "bits per byte")
    held_out = sum(len(line) for line in (tmp_path / "b.txt").read_bytes().replace(b"#", b"").splitlines())
    assert compute_score(bits, columns)[0] == pytest.approx(2 * tokens_N.sum() / math.log(2) / held_out)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bpe", "words", "characters"])
def test_bits_per_byte_are_of_vocabularies_that_give_a_text_back_as_long_as_it_was(tmp_path, kind):
    line = "ping-pong, king (song) kling's long thing."
    (tmp_path / "a.txt").write_text(f"{line}\n" * 30)
    (tmp_path / "b.txt").write_text(" ".join(line.split()[::-1]))
    settings = {"data__path": f"{tmp_path}/a.txt", "data__validation_path": f"{tmp_path}/b.txt"}
    settings |= {"data__document_boundary": "line", "data__cache_dir": str(tmp_path / "cache"), "pack__seq_len": 64}
    size = {"unigram": 24, "wordpiece": 42, "bpe": 270, "words": 11}.get(kind, 0)
    cfg = small_config(data__corpus="text", tokenizer__kind=kind, tokenizer__vocab_size=size, **settings)
    packed = pack.load_dataset(cfg)
    found = references.compute_references(cfg, program.build_program(cfg, packed.dataset_info), packed)
    gives_back = packed.tokenizer.decode(packed.tokenizer.encode(line)) == line
    assert [score.name for score in found.scores] == ["bits_per_byte"] * gives_back
    assert gives_back == (kind != "wordpiece")
