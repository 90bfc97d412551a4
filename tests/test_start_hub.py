"""A run that starts from a Hugging Face folder or from another run: its model, its words, its content, not its path."""

import contextlib
import dataclasses
import functools
import itertools
import json
import random
import re
import shutil
import sys
import types

import jax
import numpy as np
import pytest
from fixtures import gpt2
from fixtures import hub as theirs
from hub_folders import change_folder, change_tensors
from safetensors.numpy import load
from small import ONE_SIDED_MEMBERS, get_refusal, load_arrays, prepare_finetuning, small_config, train_config

import mlm
from mlm.base import config, errors, fields
from mlm.base.special import SEP
from mlm.base.types import Directionality
from mlm.data.rows import pack
from mlm.models import MODELS
from mlm.training.run import finetuning_recipe, inheritance, initialization, loop, resolution, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.run.initialization import load_teacher
from mlm.training.step import program

SHORT = {"pack.seq_len": 32, "train.batch_size": 8, "train.steps": 2, "eval.batch_size": 8, "eval.max_examples": 8}
PAIRS = {
    "format": "tsv",
    "train": "train.tsv",
    "dev": "dev.tsv",
    "text_column": "a",
    "text_pair_column": "b",
    "label_column": "label",
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with text, pairs of texts with labels, and the cache of both."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    lines = [" ".join(draw.choices(["the", "apple", "is", "red", "big", "sky"], k=6)) for _ in range(160)]
    (folder / "a.txt").write_text("\n".join(lines))
    for split in ("train", "dev"):
        rows = "".join(f"{draw.choice(lines)[:12]}\t{draw.choice(lines)[:9]}\t{draw.choice('ny')}\n" for _ in range(24))
        (folder / f"{split}.tsv").write_text(f"a\tb\tlabel\n{rows}")
    return folder


def make_text_fields(texts, **more) -> dict:
    return (
        SHORT
        | {
            "data.path": str(texts / "a.txt"),
            "data.document_boundary": "line",
            "data.cache_dir": str(texts / "cache"),
            "data.validation_fraction": 0.2,
        }
        | {name.replace("__", "."): value for name, value in more.items()}
    )


def make_pair_fields(texts, **more) -> dict:
    return (
        SHORT
        | {
            "data.task": "own",
            "data.task_path": str(texts),
            "data.cache_dir": str(texts / "cache"),
            **{f"data.labelled.{name}": value for name, value in PAIRS.items()},
        }
        | {name.replace("__", "."): value for name, value in more.items()}
    )


def resolve(place, texts, **more):
    return resolution.resolve(config.Config(), {"init.hub": str(place)}, make_text_fields(texts, **more))


def blank(cfg, packed):
    """The first state of a run, all of it one but for its shapes."""
    made = program.build_program(cfg, packed.dataset_info)
    return jax.tree.map(
        lambda x: np.ones(x.shape, x.dtype), jax.eval_shape(made.init_state, program.make_train_hparams(cfg))
    )


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_it_takes_the_model_the_words_and_the_parameters(folders, texts, name):
    cfg, opened = resolve(folders[name], texts), mlm.load(folders[name])
    assert dataclasses.replace(cfg.model, size="") == dataclasses.replace(opened.config.model, size="")
    assert cfg.model.size == "micro" and cfg.tokenizer.path == cfg.init.hub == str(folders[name])
    packed = pack.load_dataset(cfg)
    assert packed.tokenizer.model == opened.tokenizer.model
    begun, _ = initialization.init_from_source(cfg, blank(cfg, packed), packed.tokenizer)
    jax.tree.map(np.testing.assert_array_equal, begun.params["model"], jax.device_get(opened.params["model"]))


def test_a_gpt_2_goes_on_as_a_model_of_masked_tokens_that_sees_both_sides(texts, tmp_path, caplog):
    """The first step of LLM2Vec (BehnamGhader et al. 2024, arXiv 2404.05961), which draws no parameter."""
    for name, content in load_arrays(gpt2.PATH).items():
        if name.startswith("folder/"):
            (tmp_path / name.removeprefix("folder/")).write_bytes(content.tobytes())
    cfg = resolve(tmp_path, texts, objective="mlm", model__directionality="bidirectional", pack__seq_len=8)
    packed = pack.load_dataset(cfg)
    with caplog.at_level("INFO"):
        begun, provenance = initialization.init_from_source(cfg, blank(cfg, packed), packed.tokenizer)
    jax.tree.map(np.testing.assert_array_equal, begun.params["model"], mlm.load(tmp_path).params["model"])
    line = "config.model.directionality is 'causal' there and 'bidirectional' here"
    assert provenance["source"]["changes"] == [line]
    assert f"config.init.hub = '{tmp_path}': {line}" in caplog.messages


def test_a_folder_teaches_with_its_parameters_and_its_words(folders, texts):
    taught = lambda name, **more: resolution.resolve(
        config.Config(), make_text_fields(texts, distillation__teacher=str(folders[name]), model__size="micro", **more)
    )
    cfg, opened = taught("bert"), mlm.load(folders["bert"])
    words = pack.load_dataset(cfg).tokenizer
    assert cfg.tokenizer.path == str(folders["bert"]) and not cfg.init.hub and words.model == opened.tokenizer.model
    teacher = load_teacher(cfg, words)
    assert teacher.digest == cfg.distillation.teacher_sha256
    assert dataclasses.replace(teacher.cfg.model, size="", kernels="") == dataclasses.replace(
        opened.config.model, size="", kernels=""
    )
    jax.tree.map(np.testing.assert_array_equal, teacher.params["model"], jax.device_get(opened.params["model"]))
    assert "expected a model with the run's vocabulary" in get_refusal(load_teacher, taught("roberta"), words)
    long = fields.override(cfg, {"pack.seq_len": 64})
    assert get_refusal(load_teacher, long, words).startswith("config.pack.seq_len = 64: expected at most 32, as ")


def test_its_content_is_in_the_fingerprint_and_its_path_is_not(folders, texts, tmp_path):
    first = resolve(folders["bert"], texts)
    (shutil.copytree(folders["bert"], tmp_path / "moved") / "model.onnx").symlink_to("nowhere")
    prints = {fields.fingerprint(resolve(tmp_path / "moved", texts))}
    assert prints == {fields.fingerprint(first)}
    again = change_tensors(change_folder(folders, tmp_path / "weights"), lambda name, x: [(name, x + ("bias" in name))])
    prints.add(fields.fingerprint(resolve(again, texts)))
    prints.add(fields.fingerprint(resolve(change_folder(folders, tmp_path / "said", transformers_version="0"), texts)))
    other = shutil.copytree(folders["bert"], tmp_path / "words")
    said = json.loads((other / "tokenizer.json").read_text())
    vocab = said["model"]["vocab"]
    vocab["apple"], vocab["red"] = vocab["red"], vocab["apple"]
    (other / "tokenizer.json").write_text(json.dumps(said))
    prints.add(fields.fingerprint(resolve(other, texts)))
    assert len(prints) == 4
    packed = pack.load_dataset(first)
    shutil.copy(again / "model.safetensors", tmp_path / "moved")
    with pytest.raises(errors.ConfigError, match=r"^config.init.hub_sha256 = '\w+': expected what is in .*moved, \w+$"):
        initialization.init_from_source(
            fields.override(first, {"init.hub": str(tmp_path / "moved")}), blank(first, packed), packed.tokenizer
        )


@pytest.fixture(scope="module")
def run(folders, texts, tmp_path_factory):
    """A run that began from a folder that is gone: what started it, its config, and what it gave."""
    top = tmp_path_factory.mktemp("runs")
    shutil.copytree(folders["roberta"], top / "folder")
    asked = {"init.hub": str(top / "folder")} | make_text_fields(
        texts, workdir=str(top / "run"), optim__learning_rate=1e-9
    )
    cfg = resolution.resolve(config.Config(), asked)
    done = train_config(cfg)
    shutil.rmtree(top / "folder")
    return asked, cfg, done


@pytest.mark.slow
def test_it_goes_on_where_the_folder_stood_and_without_it(folders, run, tmp_path):
    asked, cfg, done = run
    again = resolution.resolve(config.Config(), asked)
    assert fields.fingerprint(again) == fields.fingerprint(cfg)
    again = fields.override(again, {"data.cache_dir": str(tmp_path / "cache")})
    shutil.copytree(cfg.workdir, tmp_path / "copy")
    assert train_config(again)["evaluation"] == done["evaluation"]
    line = "the sky is [MASK]."
    found, told = (mlm.load(place).logits(line) for place in (tmp_path / "copy", folders["roberta"]))
    np.testing.assert_allclose(found, told, rtol=0, atol=1e-4)
    assert (
        len(
            trained_run.load(str(tmp_path / "copy"), {"data.cache_dir": str(tmp_path / "cache")})
            .load_data()
            .train["ids"]
        )
        > 8
    )
    with pytest.raises(errors.ConfigError, match=r"^config.init.hub = '.*folder': expected a Hugging Face folder"):
        resolution.resolve(config.Config(), asked | {"workdir": str(tmp_path / "new")})
    assert mlm.load(tmp_path / "copy").save_pretrained(str(tmp_path / "out"))["model_type"] == "roberta"
    had, has = (load((place / "model.safetensors").read_bytes()) for place in (folders["roberta"], tmp_path / "out"))
    assert had.keys() == has.keys()
    for name, value in had.items():
        first = 2 * ("position" in name)  # what stands before the first token's is asked for by none
        np.testing.assert_allclose(has[name][first:], value[first:], rtol=0, atol=1e-6, err_msg=name)


REFUSED = {
    "another model": (
        {"model.num_heads": 4},
        r"^config.model.num_heads = 4: expected 2, as .*bert has it; leave it out",
    ),
    "a run beside it": ({"init.run": "runs/a"}, r"^config.init.hub = '.*bert': expected only one of config.init.ru"),
    "no folder": ({"init.hub": "runs/none"}, r"^config.init.hub = 'runs/none': expected a Hugging Face folder"),
    "left alone": (
        {"objective": "causal"},
        r"^config.model.directionality = 'bidirectional': expected causal or two_stack, since",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_differs_is_refused_in_one_line(folders, texts, case):
    changes, said = REFUSED[case]
    asked = {"init.hub": str(folders["bert"])} | make_text_fields(texts) | changes
    if not asked["data.path"]:
        del asked["data.validation_fraction"]
    assert re.search(said, get_refusal(resolution.resolve, config.Config(), asked))


def test_another_vocabulary_is_refused(folders, texts):
    cfg = resolve(folders["bert"], texts)
    words = pack.load_dataset(resolve(folders["bert_uncased"], texts)).tokenizer
    with pytest.raises(
        errors.ConfigError, match=r"^config.init.hub = .*: expected the vocabulary of the training data"
    ):
        initialization.init_from_source(cfg, blank(cfg, pack.load_dataset(cfg)), words)


def tuned(place, texts, tmp_path, **more):
    return prepare_finetuning(str(place), make_pair_fields(texts, workdir=str(tmp_path / "tuned"), **more))


@pytest.mark.parametrize(("name", "between"), [("bert", 1), ("roberta", 2)])
def test_pairs_are_packed_as_theirs_are(folders, texts, tmp_path, name, between):
    cfg, packed = tuned(folders[name], texts, tmp_path)
    assert cfg.optim.learning_rate == finetuning_recipe.LEARNING_RATES_BY_WIDTH[128][1] and cfg.model.dropout == 0.1
    row = packed.train["ids"][0]
    first = int(np.argmax(row == SEP))
    assert list(row[first : first + between + 1] == SEP) == [True] * between + [False]
    assert (row == SEP).sum() == between + 1
    assert ("types" in packed.train) == (name == "bert")


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_pooler_of_bert_s_is_taken_and_any_other_drawn(folders, texts, tmp_path, name):
    size, draw = theirs.SIZES["hidden_size"], np.random.default_rng(0)
    pooler = {"weight": draw.normal(size=(size, size)), "bias": draw.normal(size=size)}

    def more(own, value):
        if own.startswith(f"{name}."):  # an encoder alone
            yield own, value
        if own.endswith("word_embeddings.weight"):
            yield from ((f"{name}.pooler.dense.{leaf}", x.astype(np.float32)) for leaf, x in pooler.items())

    folder = change_tensors(change_folder(folders, tmp_path, name), more)
    for read in ("first", "mean"):
        cfg, packed = tuned(folder, texts, tmp_path, finetune__pooling=read)
        state = blank(cfg, packed)
        begun = initialization.init_from_source(cfg, state, packed.tokenizer)[0].params
        head = begun["objective"]
        assert (head["label"]["kernel"] == 1).all() and ("pool" in head) == (read == "first")
        if read == "first":
            for mine, its in (("kernel", pooler["weight"].T), ("bias", pooler["bias"])):
                np.testing.assert_array_equal(head["pool"][mine], its.astype(np.float32) if name == "bert" else 1)
        np.testing.assert_array_equal(begun["model"]["bias"], state.params["model"]["bias"])  # there is no output layer
        assert (begun["model"]["token"]["embedding"] != 1).all()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_fine_tuned_from_a_folder_it_predicts_without_it(folders, texts, tmp_path, monkeypatch):
    shutil.copytree(folders["roberta"], tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    cfg, packed = prepare_finetuning("theirs", make_pair_fields(texts))
    assert cfg.workdir == "runs/theirs/tasks/own"  # nothing is written into a folder of theirs
    loop.train(cfg, packed)
    shutil.rmtree("theirs")
    again, _ = prepare_finetuning("theirs", make_pair_fields(texts))
    assert (fields.fingerprint(again), again.workdir) == (fields.fingerprint(cfg), cfg.workdir)
    found = mlm.load(cfg.workdir).predict([("the apple", "is red"), ("the sky", "is big")])
    assert {one.label for one in found} <= {"n", "y"}


@pytest.mark.slow
def test_a_run_goes_on_from_another_on_text(run, texts, tmp_path):
    _, first, _ = run
    asked = {"init.run": first.workdir} | make_text_fields(texts, workdir=str(tmp_path / "b"), mask__rate=0.4)
    cfg = resolution.resolve(config.Config(), asked)
    assert cfg.model == first.model and cfg.init.run_sha256
    assert cfg.tokenizer.path == str(RunDirectory(first.workdir).tokenizer)
    assert fields.fingerprint(
        resolution.resolve(config.Config(), asked | {"init.run_sha256": "0"})
    ) != fields.fingerprint(cfg)
    packed = pack.load_dataset(cfg)
    begun, _ = initialization.init_from_source(cfg, blank(cfg, packed), packed.tokenizer)
    jax.tree.map(
        np.testing.assert_array_equal, begun.params["model"], jax.device_get(mlm.load(first.workdir).params["model"])
    )
    for changes, said in (
        ({"model.num_heads": 4}, "config.model.num_heads = 4: expected 2, as "),
        ({"model.positions": "rotary"}, "config.model.positions = 'rotary': expected 'learned', as "),
        ({"init.run": f"{first.workdir}s"}, "run '.*runs': expected the directory of a run; did yo"),
        ({"data.path": "", "data.document_boundary": "file"}, "config.data.path = '': expected text to train on"),
        ({"tokenizer.path": ""}, "config.tokenizer.path = '': expected the vocabulary of .*run; l"),
    ):
        with pytest.raises(errors.ConfigError, match=said):
            resolution.resolve(config.Config(), asked | changes)


class Library(types.ModuleType):
    """In the place of huggingface_hub."""

    def __init__(self, folder):
        super().__init__("huggingface_hub")
        self.folder, self.inputs = folder, []

    def snapshot_download(self, name, repo_type, revision, allow_patterns):
        self.inputs.append((name, revision))
        if self.folder is None:
            raise OSError("no\nnetwork")
        assert {"config.json", "model.safetensors", "tokenizer.json"} < {*allow_patterns}
        assert repo_type == "model" and not any(pattern.endswith((".bin", "*", ".py")) for pattern in allow_patterns)
        return str(self.folder)


def test_a_name_is_fetched_by_their_library(folders, texts, tmp_path, monkeypatch):
    library = Library(folders["bert"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    assert mlm.load("hf:org/bert@main").tokenizer.model == mlm.load(folders["bert"]).tokenizer.model
    cfg, named = resolve(folders["bert"], texts), resolve("hf:org/bert", texts)
    assert fields.fingerprint(cfg) == fields.fingerprint(named) and named.init.hub == "hf:org/bert"
    assert library.inputs == [("org/bert", "main"), ("org/bert", None)]
    packed = pack.load_dataset(named)
    assert (
        initialization.init_from_source(named, blank(named, packed), packed.tokenizer)[0].params["model"]["bias"] != 1
    ).any()
    for place in ("hf:org/bert@main", f"{folders['bert']}/.", str(folders["bert"])):
        assert finetuning_recipe.choose_finetuning_folder(place, "sst2") == (RunDirectory("runs/bert").tasks / "sst2")
    monkeypatch.setitem(sys.modules, "huggingface_hub", Library(None))
    with pytest.raises(
        errors.ConfigError, match=r"^hf:a/b: cannot be downloaded \(no network\); expected the name of a"
    ):
        mlm.load("hf:a/b")


def test_without_the_library_or_the_word_nothing_is_fetched(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = Library(None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    with pytest.raises(errors.ConfigError, match=r"^run 'bert-base': expected the directory of a run, or hf:bert-base"):
        mlm.load("bert-base")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match=r"; did you mean 'bert', or hf:bert-base for a model of"):
        mlm.load("bert-base")
    with pytest.raises(errors.ConfigError, match=r"^config.init.hub = 'org/bert': expected .*, or hf:ORG/NAME$"):
        resolve("org/bert", texts)
    assert not library.inputs
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(errors.ConfigError, match=r'^hf:a/b: expected the package huggingface_hub: .*\[hub\]"'):
        mlm.load("hf:a/b")


@pytest.mark.exhaustive(but=("transformer-",))
@ONE_SIDED_MEMBERS
def test_a_direction_is_free_exactly_where_the_parameters_are_the_same(family, cell):
    """But for a feedforward model, whose neighbors are others in each direction."""
    cfg = small_config(family, cell, pack__seq_len=16, model__num_layers=1, objective="classification")

    @functools.cache
    def describe(directionality):
        model = dataclasses.replace(cfg.model, directionality=directionality)
        init = MODELS[family].build(model, 9).init
        return jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(lambda: init(jax.random.key(0))))

    for old, new in itertools.permutations(Directionality, 2):
        source = fields.flatten(fields.override(cfg, {"model.directionality": old.value}))
        inherited = {field: value for field, value in source.items() if field.startswith("model.")}
        is_free = describe(old) == describe(new) and family != "feedforward"
        with (
            contextlib.nullcontext()
            if is_free
            else pytest.raises(errors.ConfigError, match="its parameters depend on it")
        ):
            inheritance.check_inherited_fields(fields.override(cfg, {"model.directionality": new.value}), inherited)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi", "relative", "disentangled"])
def test_windows_and_lengths_are_the_new_runs_but_for_a_table_of_positions(positions):
    cfg = small_config(model__positions=positions, model__local_window=4, model__max_positions=512)
    inherited = {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}
    for name, value in (
        *(("model.local_window", 0), ("model.global_every", 0), ("model.rope_theta", 5e4)),
        *(("model.max_positions", 1024), ("model.max_positions", 256)),
    ):
        is_refused = name == "model.max_positions" and positions == "learned"
        refusal = pytest.raises(
            errors.ConfigError, match=f"^config.{name} = {value}: expected 512, as .*leave it out: its param"
        )
        with refusal if is_refused else contextlib.nullcontext():
            inheritance.check_inherited_fields(fields.override(cfg, {name: value}), inherited)
