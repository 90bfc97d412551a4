"""A trained model, opened and used: what it fills in, embeds, finds likely and predicts is what its run would say."""

import csv
import dataclasses
import inspect
import io
import itertools
import json
import math
import random
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from small import get_refusal, prepare_finetuning, read_alone, small_config, train_config

import mlm
from mlm.base import config, errors
from mlm.base.special import CLS, MASK, SEP, UNK
from mlm.cli import use
from mlm.data.rows import loader
from mlm.data.tasks import task_file
from mlm.evaluation import predictions
from mlm.inference import batching
from mlm.training.run import inheritance, loop, trained_run
from mlm.training.validation import split_scores

WORDS = ["red", "green", "blue", "reddish", "greenish", "apple", "tree", "apples", "sky", "is", "the", "."]
MEMBERS = {
    "unigram": ("transformer", "", 30),
    "wordpiece": ("rnn", "lstm", 60),
    "words": ("feedforward", "bag", 17),
    "bpe": ("feedforward", "bag", 290),
}


def sentence(draw, most=9) -> str:
    return " ".join(draw.choices(WORDS[:-1], k=draw.randint(3, most))) + " ."


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    (folder / "texts.txt").write_text("\n".join(sentence(draw) for _ in range(300)))
    for name, count in (("train", 64), ("dev", 24)):
        lines = [(sentence(draw, 5), sentence(draw, 5)) for _ in range(count)]  # pairs of one length of batches
        (folder / f"{name}.tsv").write_text("a\tb\tlabel\n" + "".join(f"{a}\t{b}\t{a < b}\n" for a, b in lines))
        (folder / f"{name}.conll").write_text(
            "".join(
                "".join(f"{word} {'B-C' if word.startswith(('r', 'g', 'b')) else 'O'}\n" for word in a.split()) + "\n"
                for a in (sentence(draw) for _ in lines)
            )
        )
    return folder


class Made(dict):
    """What a function makes of each key that is asked for, once."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, key):
        return self.setdefault(key, self.make(key))


@pytest.fixture(scope="module")
def runs(texts):
    """A run of each kind of vocabulary and family, by the kind."""

    def train(kind):
        family, cell, size = MEMBERS[kind]
        cfg = small_config(
            family,
            cell,
            data__path=str(texts / "texts.txt"),
            data__document_boundary="line",
            data__cache_dir=str(texts / "cache"),
            tokenizer__kind=kind,
            tokenizer__vocab_size=size,
            workdir=str(texts / kind),
            train__steps=2,
            train__batch_size=8,
            eval__batch_size=8,
            eval__max_examples=8,
            pack__seq_len=24,
        )
        train_config(cfg)
        return cfg

    return Made(train)


@pytest.fixture(scope="module")
def models(runs):
    return Made(lambda kind: mlm.load(runs[kind].workdir))


KINDS = pytest.mark.parametrize("kind", MEMBERS)


@pytest.mark.exhaustive
def test_to_open_a_run_leaves_what_its_trainer_is_writing(runs):
    begun = Path(runs["words"].workdir, "checkpoints", "9.orbax-checkpoint-tmp")
    begun.mkdir()
    try:
        mlm.load(runs["words"].workdir)
        assert begun.exists()
    finally:
        begun.rmdir()


def test_a_start_is_known_before_processes_join(runs, monkeypatch):
    wanted = trained_run.load(runs["words"].workdir, {}).digest
    monkeypatch.setattr("orbax.checkpoint.CheckpointManager", None)  # it asks for devices, and then none can join
    assert inheritance.read_source_fields(runs["words"].workdir, config.Config())["init.run_sha256"] == wanted


@pytest.mark.exhaustive(but=("words",))
@KINDS
def test_a_hidden_word_leaves_the_rest_of_the_row_as_it_is(models, kind):
    words = models[kind].tokenizer
    whole = batching.encode_text(words, "the apple is red .", allow_mask=True)
    assert whole == [CLS, *words.encode("the apple is red ."), SEP]
    for word in ("the", "apple", "is", "red"):
        row = batching.encode_text(words, "the apple is red .".replace(word, "[MASK]"), allow_mask=True)
        before, _, after = "the apple is red .".partition(word)
        assert row == [CLS, *words.encode(before.rstrip()), MASK, *words.encode(after), SEP]
        assert UNK not in row and batching.encode_text(words, f"{word} [MASK]").count(MASK) == 0
    assert batching.encode_text(words, "the [MASK] [MASK] .", allow_mask=True).count(MASK) == 2


@pytest.mark.exhaustive(but=("words",))
@KINDS
def test_fillings_are_the_likeliest_of_a_row_that_is_asked_alone(models, kind):
    model, texts = models[kind], ["the [MASK] is red .", "[MASK]", "the apple is [MASK] the [MASK] tree ."]
    found = model.fill_mask(texts, top_k=4)
    assert [len(one) for one in found] == [1, 1, 2]
    for one, alone in zip(found[2], model.fill_mask(texts[2], top_k=4), strict=True):
        assert [filling.text for filling in one] == [filling.text for filling in alone]
    for text, masks in zip(texts, found, strict=True):
        logits_TxV = model.logits(text)
        share_TxV = np.asarray(jax.nn.softmax(logits_TxV))
        places = [
            i for i, token in enumerate(batching.encode_text(model.tokenizer, text, allow_mask=True)) if token == MASK
        ]
        for place, fillings in zip(places, masks, strict=True):
            best = np.argsort(-share_TxV[place])[:4]
            assert [one.token for one in fillings] == [model.tokenizer.pieces[i] for i in best]
            np.testing.assert_allclose([one.probability for one in fillings], share_TxV[place, best], rtol=1e-4)
    first = model.fill_mask("the apple is [MASK].", top_k=model.tokenizer.vocab_size)[0]
    said = {one.token: one.text for one in first}
    assert said["red" if kind in ("wordpiece", "words") else "\u2581red"] == "the apple is red."
    assert sum(one.probability for one in first) == pytest.approx(1, abs=1e-5)


@pytest.mark.exhaustive(but=("words",))
@KINDS
def test_embeddings_are_in_the_order_of_the_texts_and_those_of_each_text_alone(models, kind):
    model, draw = models[kind], random.Random(1)
    texts = [sentence(draw) for _ in range(11)]
    layers = model.config.model.num_layers
    for layer in (0, 1, -1):
        states = model.encode(texts, layer=layer, pooling=None)
        for pool, read in (("mean", lambda h_TxD: h_TxD.mean(0)), ("first", lambda h_TxD: h_TxD[0])):
            np.testing.assert_allclose(model.encode(texts, layer, pool), [*map(read, states)], atol=1e-5)
    np.testing.assert_allclose(model.encode(texts[3]), model.encode(texts)[3], atol=1e-5)
    np.testing.assert_array_equal(model.encode(texts[3], layers), model.encode(texts[3], -1))
    assert [len(one) for one in states] == [min(24, len(model.tokenizer.encode(text)) + 2) for text in texts]
    assert model.encode([]).shape == (0, states[0].shape[1]) == model.encode([], layer=0, normalize=True).shape
    assert model.encode([], pooling=None) == model.similar([], texts) == model.fill_mask([]) == []
    assert model.similar("red", []) == []
    near = model.similar(texts[:2], texts, top_k=3)
    assert [one[0].index for one in near] == [0, 1] and near[0][0].cosine == pytest.approx(1, abs=1e-5)


def test_few_shapes_are_compiled_and_every_text_is_in_one():
    lengths = random.Random(2).choices(range(2, 128), k=500)
    made = list(batching.iterate_batches([[1] * length for length in lengths], 128, 8))
    assert sorted(np.concatenate([mine for mine, _ in made])) == list(range(500))
    assert len({ids_BxL.shape for _, ids_BxL in made}) <= 1 + len(loader.list_bucket_lengths(128))
    there, rows = sum(lengths), sum(ids_BxL.size for _, ids_BxL in made)
    assert rows < 1.5 * there + 128 * 8  # little of it is padding
    for whole, count in ((False, 4), (True, 40)):
        assert [
            ids_BxL.shape for _, ids_BxL in batching.iterate_batches([[1] * 20] * 3, 128, 8, full_batches=whole)
        ] == [(count, 24)]
    for mine, ids_BxL in made:
        np.testing.assert_array_equal((ids_BxL[: len(mine)] > 0).sum(-1), [lengths[number] for number in mine])


@pytest.mark.parametrize("program_tokens", [0, 1, 50, 400, 3000, 10**6])
def test_the_lengths_are_those_of_the_least_cost(program_tokens):
    """Against every set of lengths; every second one costs a program, the others two."""
    rng = random.Random(program_tokens)
    counts, lengths = [rng.randint(2, 70) for _ in range(60)], loader.list_bucket_lengths(100)

    def cost(chosen):
        programs = sum(
            program_tokens * (1 if (len(lengths) - lengths.index(length)) % 2 == 1 else 2) for length in chosen
        )
        return programs + sum(min(length for length in chosen if length >= count) for count in counts)

    sets = [[length for i, length in enumerate(lengths) if bits >> i & 1] for bits in range(1, 2 ** len(lengths))]
    least = min(cost(chosen) for chosen in sets if chosen[-1] >= max(counts))
    assert cost(batching.choose_lengths(counts, 100, program_tokens)) == least
    made = [
        ids_BxL.shape
        for _, ids_BxL in batching.iterate_batches(
            [[1] * count for count in counts], 100, 2, program_tokens=program_tokens
        )
    ]
    assert program_tokens < 10**6 or len(set(made)) == 1
    assert batching.choose_lengths([], 100, program_tokens) == lengths


def test_scores_hide_each_token_alone(models):
    model, text = models["words"], "the apple is red ."
    ids = batching.encode_text(model.tokenizer, text)
    plain = 0.0
    for place in range(1, len(ids) - 1):
        row = [*ids[:place], MASK, *ids[place + 1 :]]
        _, logits_TxV = read_alone(model.model, model.params["model"], row, len(row))
        plain += float(jax.nn.log_softmax(logits_TxV[place])[ids[place]])
    assert model.pseudo_log_likelihood(text) == pytest.approx(plain, rel=1e-4)
    assert model.pseudo_log_likelihood([text, "the sky ."]).shape == (2,)


@pytest.mark.exhaustive(but=("classification",))
@pytest.mark.parametrize("objective", ["classification", "tagging"])
def test_predictions_are_those_of_the_dev_split(runs, texts, objective, caplog):
    labelled = {
        "train": "train.tsv",
        "dev": "dev.tsv",
        "format": "tsv",
        "text_column": "a",
        "text_pair_column": "b",
        "label_column": "label",
    }
    if objective == "tagging":
        labelled = {
            "train": "train.conll",
            "dev": "dev.conll",
            "format": "conll",
            "text_column": "0",
            "label_column": "1",
            "scheme": "bio",
        }
    run = runs["unigram" if objective == "tagging" else "words"].workdir  # tags are of words of several tokens
    given = {
        "train.steps": 3,
        "train.batch_size": 8,
        "eval.batch_size": 8,
        "data.cache_dir": str(texts / "cache"),
        "pack.seq_len": 16,
    }
    file = texts / f"{objective}.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in labelled.items()))
    name, task_fields, *_ = task_file.read_task_file("--task", str(file))
    file.unlink()  # the run has recorded what it said
    cfg, packed = prepare_finetuning(run, given | task_fields, name=name)
    assert cfg.workdir == f"{run}/tasks/{objective}"
    loop.train(cfg, packed)
    model = mlm.load(cfg.workdir)
    caplog.clear()
    long = [("the zzz .", "sky " * 20), ("the sky .", "red")] if objective == "classification" else ["sky " * 50, "sky"]
    model.predict(long)
    parts = "1 truncated to 16 tokens, the length of its training sequences; 1 with words" if len(long[0]) == 2 else ""
    assert [parts in record.getMessage() for record in caplog.records] == ([True] if parts else [])
    run = trained_run.load(cfg.workdir, {})
    columns = split_scores.evaluate_split(run.cfg, run.program, run.state, packed)
    told = list(predictions.iterate_records(run.cfg, packed, "validation", columns))
    if objective == "classification":
        lines = (texts / "dev.tsv").read_text().splitlines()[1:]
        found = model.predict([line.split("\t")[:2] for line in lines])
        assert model.predict(tuple(lines[0].split("\t")[:2])) == pytest.approx(found[0])
        for wrong in ("one text", ("a", "b", "c")):
            with pytest.raises(errors.ConfigError, match=r"^text = .*: expected a pair of texts"):
                model.predict(wrong)
    else:
        blocks = (texts / "dev.conll").read_text().strip().split("\n\n")
        given = [[line.split()[0] for line in block.splitlines()] for block in blocks]
        by_sentence = model.predict(given)
        assert list(map(len, by_sentence)) == list(map(len, given)) and len(packed.validation["ids"]) > len(given)
        found = [one for each in by_sentence for one in each]
        one = model.predict(" ".join(given[0]))  # words apart by spaces
        assert [word.label for word in one] == [word.label for word in model.predict(given)[0]]
    assert [one.label for one in found] == [one["predicted"] for one in told]
    np.testing.assert_allclose(np.log([one.probability for one in found]), [one["score"] for one in told], atol=1e-4)
    for wrong in (None, 5, [None], [5], [("a", 5)]):
        with pytest.raises(errors.ConfigError, match=r"^text = "):
            model.predict(wrong)
    with pytest.raises(errors.ConfigError, match=r"^fill_mask = '.*': expected a run that was trained to predict"):
        model.fill_mask("the [MASK]")


BAD = {
    "no mask": (
        lambda model: model.fill_mask("the apple"),
        r"^text = 'the apple': expected a text with \[MASK\] in it",
    ),
    "a layer too many": (lambda model: model.encode("a", layer=3), "^layer = 3: expected -3 <= value <= 2"),
    "no classes": (lambda model: model.predict(["a"]), "^predict = 'mlm': expected a run that was fine-tuned"),
    "no attention": (lambda model: model.attentions("a"), "^attentions = 'bag': expected a Transformer"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_asked_is_refused_in_one_line(models, case):
    ask, said = BAD[case]
    assert re.search(said, get_refusal(ask, models["words"]))


RIGHT = {"text": "the [MASK]", "prompt": "[MASK]", "source": "a", "candidates": ["a"]}
WRONG = (None, -1, 0, 1.5, "x", b"x", [1], ("a", "b", "c"), math.nan)


def test_a_wrong_argument_of_any_method_is_refused_in_one_line(models):
    model, refused = models["words"], set()
    for name in sorted(vars(mlm.LanguageModel)):
        method = getattr(model, name)
        if name.startswith("_") or name == "save_pretrained" or not inspect.ismethod(method):
            continue
        parameters = inspect.signature(method).parameters
        right = {key: value for key, value in RIGHT.items() if key in parameters}
        for parameter, wrong in itertools.product(parameters, WRONG):
            try:
                method(**right | {parameter: wrong})
            except errors.ConfigError as error:
                assert "\n" not in str(error)
                refused.add((name, parameter, repr(wrong)))
    for name in ("fill_mask", "encode", "logits", "pseudo_log_likelihood", "surprisal"):
        assert {(name, "batch_size", wrong) for wrong in ("-1", "0", "1.5")} <= refused


def test_the_command_prints_what_python_gives(models, runs, tmp_path, monkeypatch, capsys):
    run, model = runs["words"].workdir, models["words"]
    typed = io.BytesIO(b"the [MASK] is red .\n\n[MASK] the [MASK]\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(typed))
    use.main(["fill", run, "--json", "--top_k=2"])
    given = ["the [MASK] is red .", "[MASK] the [MASK]"]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"prompt": text, "mask": mask, "rank": rank, **dataclasses.asdict(one)}
        for text, masks in zip(given, model.fill_mask(given, top_k=2), strict=True)
        for mask, best in enumerate(masks, 1)
        for rank, one in enumerate(best, 1)
    ]
    (tmp_path / "texts.txt").write_text("the apple .\nthe sky is red .\n")
    use.main(["embed", run, f"--file={tmp_path}/texts.txt", f"--out={tmp_path}/vectors.npy", "--pooling=first"])
    assert "vectors.npy" in capsys.readouterr().out
    np.testing.assert_array_equal(
        np.load(tmp_path / "vectors.npy"), model.encode(["the apple .", "the sky is red ."], pooling="first")
    )


def test_bad_arguments_of_the_command_are_refused_before_work(tmp_path, runs):
    (tmp_path / "a.npy").mkdir()
    for out in (tmp_path / "none" / "a.npy", tmp_path / "a.npy"):
        with pytest.raises(errors.ConfigError, match=r"--out = .*a.npy.: expected a file in a folder that is there"):
            use.main(["embed", runs["words"].workdir, "a", f"--out={out}"])
    with pytest.raises(errors.ConfigError, match="text = '': expected a text"):
        use.main(["predict", runs["words"].workdir, ""])
    with pytest.raises(errors.ConfigError, match=r"--out = 'a.txt': expected .* FILE.csv or FILE.jsonl"):
        use.main(["fill", runs["words"].workdir, "a [MASK]", "--out=a.txt"])
    with pytest.raises(errors.ConfigError, match="--out"):
        use.main(["export", runs["words"].workdir, str(tmp_path / "folder"), "--out=a.csv"])


def test_answers_are_written_to_a_file(runs, tmp_path, capsys):
    text = 'the "red", [MASK] .'
    written = {}
    for name in ("a.csv", "a.jsonl"):
        use.main(["fill", runs["words"].workdir, text, "--top_k=2", f"--out={tmp_path / name}"])
        assert str(tmp_path / name) in capsys.readouterr().out
    with (tmp_path / "a.csv").open() as file:
        written["csv"] = list(csv.DictReader(file))
    written["jsonl"] = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [{name: str(value) for name, value in record.items()} for record in written["jsonl"]] == written["csv"]
    assert [record["prompt"] for record in written["jsonl"]] == [text] * 2
    use.main(["fill", runs["words"].workdir, text, "--top_k=2", "--json"])
    assert capsys.readouterr().out == (tmp_path / "a.jsonl").read_text()
