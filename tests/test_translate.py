"""Translations of a run: each beside its own source, whatever the batches; BLEU as sacrebleu has it, with its error."""

import dataclasses
import sys
import types as python

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm.base import config, errors, fields, types
from mlm.base.special import CLS
from mlm.data.rows import parallel_text as rows
from mlm.data.tokenizers import kinds
from mlm.evaluation import evaluation_tasks, translation_scores
from mlm.evaluation.evaluations import EvaluationCase
from mlm.training.run import resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

WORDS = [f"w{i}" for i in range(30)]
LENGTH = 10


def start_copy(params, text, source, room):
    """The cache of a model that says the source's tokens, from one place on."""
    ids_BxS = source.ids_BxL
    return {"ids": ids_BxS[None], "place": jnp.zeros((1, len(ids_BxS)), jnp.int32)}


def copy_step(params, cache, ids_B):
    ids_BxS, place_B = cache["ids"][0], cache["place"][0]
    next_B = jnp.take_along_axis(ids_BxS, place_B[:, None], 1)[:, 0]
    return 20.0 * jax.nn.one_hot(next_B, params["vocab"].shape[0]), {**cache, "place": place_B[None] + 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    cfg = config.Config(
        data=config.Data(corpus="parallel"),
        pack=config.Pack(seq_len=LENGTH + 2, source_len=LENGTH + 1),
        eval=config.Eval(batch_size=4),
        workdir=str(tmp_path_factory.mktemp("run")),
    )
    tokenizer = kinds.train_tokenizer(config.Tokenizer(kind="words"), [" ".join(WORDS)])
    model = types.Model(
        directions=("left",), width=1, init=None, encode=None, logits=None, init_cache=start_copy, decode_step=copy_step
    )
    runs = parallel.build_single_device(lambda *_: None)
    state = types.TrainState(jnp.int32(3), {"model": {"vocab": jnp.zeros(tokenizer.vocab_size)}}, ())
    program = python.SimpleNamespace(model=model, partitioner=runs)
    dataset_info = types.DatasetInfo(tokenizer.vocab_size, LENGTH + 2, (), b"")
    return TrainedRun(cfg, 3, tokenizer, program, runs.put_state(state), "", dataset_info)


def sentences(count, longest):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest + 1))) for _ in range(count)]


@pytest.mark.parametrize(("width", "norm"), [(1, "none"), (2, "mean")])
def test_each_text_is_translated_beside_itself_and_cut_where_it_is_too_long(run, width, norm):
    texts = [*sentences(9, LENGTH), " ".join(WORDS[: LENGTH + 3])]
    found, cut = translation_scores.translate_texts(run, texts, width, norm)
    assert found == [*texts[:-1], " ".join(WORDS[:LENGTH])] and cut == 1


def test_sources_stand_alone_in_their_rows(run):
    columns, cut = rows.encode_sources(run.tokenizer, ["w1 w2", "w3"], 6)
    assert cut == 0 and columns["source_segments"].tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert columns["source_positions"][0].tolist() == [0, 1, 2, 0, 0, 0] and CLS not in columns["source_ids"]


def test_a_run_is_asked_once_a_beam_and_norm_of_test_where_there_is_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", python.SimpleNamespace(metrics=python.SimpleNamespace(BLEU=dict)))
    cfg = config.Config(data=config.Data(corpus="parallel"))
    assert [part.name for part in translation_scores.list_split_cases(cfg, (1, 4))] == [
        "dev-beam1",
        "dev-beam4-mean",
        "dev-beam4-none",
    ]
    with_test = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, parallel=config.ParallelText(test="test")))
    assert [part.name for part in translation_scores.list_split_cases(with_test, (2,))] == [
        "test-beam2-mean",
        "test-beam2-none",
    ]
    asked = fields.override(cfg, {"eval.beams": (1, 8), "objective": "causal"})
    assert [part.inputs["num_beams"] for part in evaluation_tasks.list_due_cases(asked)] == [1, 8, 8]
    assert all(isinstance(part.inputs["num_beams"], int) for part in evaluation_tasks.list_due_cases(asked))
    assert translation_scores.list_split_cases(cfg, ()) == [] and not translation_scores.get_unsupported_reason(cfg)
    assert translation_scores.get_unsupported_reason(config.Config()) == "config.data.corpus is auto, not parallel"
    pairs = [translation_scores.list_cases("own", {"pairs": [["a", side]]}, (1,), "13a")[0].sha256 for side in "bc"]
    assert len({*pairs, translation_scores.list_split_cases(cfg, (1,))[0].sha256}) == 3


def test_bleu_is_sacrebleus_and_its_interval_that_of_other_pairs():
    bleu = pytest.importorskip("sacrebleu").metrics.BLEU()
    references = sentences(200, 20)
    rng = np.random.default_rng(1)
    texts = [" ".join(word if rng.random() < 0.8 else "other" for word in f"{text} .".split()) for text in references]
    found = translation_scores.compute_scores(texts, references, seed=0)
    whole = bleu.corpus_score(texts, [references])
    assert found["bleu"] == whole.score and found["brevity"] == whole.sys_len / whole.ref_len > 1.05
    assert found["chrf"] == pytest.importorskip("sacrebleu").CHRF().corpus_score(texts, [references]).score
    assert found["signature"] == "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" + str(
        bleu.get_signature().info["version"]
    )
    drawn = [
        bleu.corpus_score([texts[i] for i in some], [[references[i] for i in some]]).score
        for some in rng.integers(0, 200, (60, 200))
    ]
    assert found["bleu_se"] == pytest.approx(np.std(drawn), rel=0.3)
    assert found["bleu_high"] - found["bleu_low"] == pytest.approx(2 * 1.96 * found["bleu_se"], rel=0.08)
    assert found["bleu_low"] < whole.score - found["bleu_se"] and whole.score + found["bleu_se"] < found["bleu_high"]


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_perfect_translation_has_100_whatever_the_tokenizer_writes(kind, monkeypatch):
    """References of WordPiece come back as "doesn ' t"; of unigram with letters that NFKC changed."""
    metrics = pytest.importorskip("sacrebleu").metrics
    references = ["It doesn't matter -- (really) 3.5% of O'Neil's well-read cats, ﬁnd x½ \u2460 .", *sentences(20, 8)]
    size = {"unigram": 53, "wordpiece": 130, "bpe": 300, "words": 0, "characters": 0}[kind]
    tokenizer = kinds.train_tokenizer(config.Tokenizer(kind, size), references * 3)
    perfect = [tokenizer.decode(ids) for ids in tokenizer.encode_batch(references)]
    targets, rewritten = translation_scores.decode_references(tokenizer, references)
    assert translation_scores.compute_scores(perfect, targets, 0)["bleu"] == pytest.approx(100)
    assert targets[1:] == references[1:] and rewritten == (targets[0] != references[0])
    assert rewritten == (perfect[0].split() != references[0].split())  # lossless: as published scores are computed
    if not rewritten:
        assert metrics.BLEU().corpus_score(perfect, [references]).score == pytest.approx(100)


def test_an_unknown_word_is_no_translation():
    tokenizer = kinds.train_tokenizer(config.Tokenizer("words"), ["a b c d e"])
    targets, rewritten = translation_scores.decode_references(tokenizer, ["a b c d other"])
    assert rewritten == 1 and "[UNK]" not in targets[0]


def test_scores_of_text_without_spaces_need_their_own_tokenizer(run, caplog):
    pytest.importorskip("sacrebleu")
    texts = ["東京は日本の首都です。", "猫はパンを食べた。"]
    assert translation_scores.compute_scores(texts, texts[::-1], 0, "char")["bleu"] > 0 and not caplog.records
    translation_scores.compute_scores(texts, texts, 0)
    assert "config.eval.bleu_tokenizer = '13a'" in caplog.text
    parts = [translation_scores.list_cases("own", {"pairs": [["a", "b"]]}, (1,), name)[0] for name in ("13a", "zh")]
    assert parts[0].sha256 != parts[1].sha256 and [part.name for part in parts] == ["own-beam1", "own-beam1-zh"]
    for changes in ({"eval.bleu_tokenizer": "zhh"}, {"eval.bleu_tokenizer": "zhh", "eval.beams": (1,)}):
        with pytest.raises(errors.ConfigError, match=r"^config.eval.bleu_tokenizer = 'zhh': expected one of 13a, zh"):
            resolution.check(fields.override(run.cfg, changes))


def test_the_answer_is_kept_with_what_was_found(run):
    pytest.importorskip("sacrebleu")
    pairs = {"pairs": [["w1 w2 w3 w4 w5", "w1 w2 w3 w4 w5"], ["w6 w7 w8 w9", "w6 w7 w8 w1"]]}
    (part,) = translation_scores.list_cases("own", pairs, (1,), "13a")
    found = translation_scores.evaluate(run, part, lambda share: None)
    assert found["pairs"] == 2 and found["truncated"] == 0 and 50 < found["bleu"] < 100
    assert RunDirectory(run.cfg.workdir).read_predictions("own-beam1")[1] == {
        "source": "w6 w7 w8 w9",
        "target": "w6 w7 w8 w1",
        "translation": "w6 w7 w8 w9",
    }
    assert isinstance(part, EvaluationCase) and part.metadata == {
        "pairs_name": "own",
        "num_beams": 1,
        "length_penalty": "none",
    }
