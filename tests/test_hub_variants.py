"""Folders whose config.json differs from the usual one: other activations, token types, padded tables, no tied table.

Against the file that fixtures/hub_variants.py makes; where torch and transformers are installed, it is what they say.
"""

import functools
import json
import shutil

import jax
import numpy as np
import pytest
from fixtures import hub
from fixtures import hub_variants as theirs
from hub_folders import same_tensors, write_case
from safetensors.numpy import load, save_file
from small import load_arrays

import mlm
from mlm.base import config
from mlm.data.rows import pack
from mlm.data.tokenizers import kinds
from mlm.training.run import initialization, resolution
from mlm.training.step import program

EVERY = pytest.mark.parametrize("case", theirs.CASES)


load_outputs = functools.partial(load_arrays, theirs.PATH)


@pytest.fixture(scope="module")
def folders(plain, tmp_path_factory):
    """The folder of each case."""
    top = tmp_path_factory.mktemp("variants")
    return {case: write_case(top, load_outputs(), case, plain[name]) for case, (name, _) in theirs.CASES.items()}


@EVERY
def test_logits_are_theirs(models, case):
    model = models[case]
    np.testing.assert_allclose(model.logits(theirs.LINE), load_outputs()[f"{case}:logits"], rtol=0, atol=1e-5)
    assert len(model.vocab) == load_outputs()[f"{case}:logits"].shape[1]


@EVERY
def test_what_was_read_is_written_again_to_the_bit(folders, models, case, tmp_path):
    models[case].save_pretrained(str(tmp_path / "out"))
    same_tensors(folders[case], tmp_path / "out")
    before, after = (
        {key: value for key, value in json.loads((one / "config.json").read_text()).items() if key != "torch_dtype"}
        for one in (folders[case], tmp_path / "out")
    )
    assert before == after
    assert mlm.load(tmp_path / "out").tokenizer.model == models[case].tokenizer.model


def test_rows_beyond_the_vocabulary_are_entries_of_no_text(folders, models, tmp_path):
    words, size = models["bert-padded"].tokenizer, models["bert-padded"].tokenizer.vocab_size
    padding = [f"[padding {i}]" for i in range(size - theirs.PADDING, size)]
    assert words.pieces[-theirs.PADDING :] == padding
    assert max(map(max, words.encode_batch(["".join(padding), hub.LINES[1]]))) < size - theirs.PADDING
    words.save(tmp_path)
    assert kinds.load_tokenizer_folder("config.tokenizer.path", str(tmp_path)).pieces == words.pieces


def test_a_bias_of_transformers_4_is_read_and_written_by_both_names(folders, models, tmp_path):
    folder = shutil.copytree(folders["bert-untied"], tmp_path / "older")
    tensors = load((folder / "model.safetensors").read_bytes())
    tensors["cls.predictions.bias"] = tensors.pop("cls.predictions.decoder.bias")
    save_file(tensors, folder / "model.safetensors")
    found = mlm.load(folder)
    np.testing.assert_array_equal(found.logits(theirs.LINE), models["bert-untied"].logits(theirs.LINE))
    found.save_pretrained(str(tmp_path / "out"))
    written = load((tmp_path / "out/model.safetensors").read_bytes())
    for name in ("cls.predictions.bias", "cls.predictions.decoder.bias"):
        np.testing.assert_array_equal(written[name], tensors["cls.predictions.bias"])


@pytest.mark.parametrize("case", ["bert-untied", "roberta-padded", "bert-types", "bert-relu"])
def test_pretraining_goes_on_from_them(folders, models, tmp_path, case):
    (tmp_path / "texts.txt").write_text("".join(f"the apple {number} is red\n" for number in range(200)))
    asked = {
        "init.hub": str(folders[case]),
        "data.path": str(tmp_path / "texts.txt"),
        "data.document_boundary": "line",
        "data.cache_dir": str(tmp_path / "cache"),
        "pack.seq_len": 16,
    }
    cfg = resolution.resolve(config.Config(), asked)
    dataset = pack.load_dataset(cfg)
    built = program.build_program(cfg, dataset.dataset_info)
    shapes = jax.eval_shape(built.init_state, program.make_train_hparams(cfg))
    state, _ = initialization.init_from_source(
        cfg, jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes), dataset.tokenizer
    )
    jax.tree.map(np.testing.assert_array_equal, state.params["model"], jax.device_get(models[case].params["model"]))
    assert len(state.params["model"]["token"]["embedding"]) == len(models[case].vocab)
