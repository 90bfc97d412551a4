"""Folders of Hugging Face's that cannot be opened end in one line that names the file and what was expected."""

import json
import os
import re
import struct

import numpy as np
import pytest
from hub_folders import change_folder, change_tensors
from small import get_refusal

import mlm
from mlm.base import errors
from mlm.data.tokenizers import kinds

WORDS = "bert.embeddings.word_embeddings.weight"


def write(name, content):
    def change(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return change


def drop_files(*files):
    def change(folder):
        for name in files:
            (folder / name).unlink()
        return folder

    return change


def put(name, value):
    """Another tensor in the place of one; None: none."""
    return lambda folder: change_tensors(
        folder, lambda had, x: [] if had == name and value is None else [(had, value(x) if had == name else x)]
    )


def header(claim):
    """A file whose header says so much of itself."""
    return write("model.safetensors", claim)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return folder


def rename_to_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


def pipe(name):
    def change(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        return folder

    return change


def untie(folder):
    rng = np.random.default_rng(0)
    return change_tensors(
        folder,
        lambda name, x: (
            [(name, x)]
            + [("cls.predictions.decoder.weight", rng.normal(size=x.shape).astype(np.float32))] * (name == WORDS)
        ),
    )


def tokenizer(change):
    def of(folder):
        said = json.loads((folder / "tokenizer.json").read_text())
        change(said)
        return write("tokenizer.json", json.dumps(said))(folder)

    return of


def no_mask(said):
    said["model"]["vocab"] = {("[MAKS]" if name == "[MASK]" else name): i for name, i in said["model"]["vocab"].items()}
    said["added_tokens"] = [one for one in said["added_tokens"] if one["content"] != "[MASK]"]


DEEP = "[" * 100_000 + "]" * 100_000
BROKEN = {  # a change of the folder or of its config.json, and what is said
    "no config.json": (drop_files("config.json"), "config.json: expected a file"),
    "not JSON": (write("config.json", "{"), "config.json: expected JSON"),
    "deep JSON": (write("config.json", f'{{"model_type": {DEEP}}}'), "config.json: expected JSON"),
    "another model": ({"model_type": "robert"}, "model_type = 'robert': expected one of .*; did you mean 'roberta'"),
    "another activation": ({"hidden_act": "silu"}, "hidden_act = 'silu': expected one of gelu, gelu_new"),
    "a size with a point": ({"hidden_size": 16.0}, "hidden_size = 16.0: expected an integer"),
    "a billion layers": ({"num_hidden_layers": 10**9}, "expected bert.encoder.layer.2.attention.self.query.weight"),
    "heads that do not divide": ({"num_attention_heads": 3}, "num_attention_heads = 3: expected a divisor of"),
    "another vocabulary": ({"vocab_size": 115}, "vocab_size = 115: expected 116, the size of the tokenizer"),
    "a missing tensor": (put("bert.encoder.layer.1.output.dense.bias", None), "layer.1.output.dense.bias among them"),
    "a wrong shape": (put(WORDS, lambda x: x.T), rf"{WORDS}, its shape = \(16, 116\): expected \(116, 16\)"),
    "a wrong dtype": (put(WORDS, lambda x: x.astype(np.int64)), f"{WORDS} = 'I64': expected F32 or F16 or BF16"),
    "an untied table": (untie, "decoder.weight = .*: expected the embeddings of the vocabulary, or tie_word_em"),
    "a header of 1 TB": (header(struct.pack("<Q", 10**12) + b"{}"), "model.safetensors: cannot be read"),
    "cut off": (cut, "model.safetensors: cannot be read"),
    "a pickle": (rename_to_pickle, "pytorch_model.bin: expected model.safetensors; .*mlm convert"),
    "a shard that is elsewhere": (
        lambda folder: write("model.safetensors.index.json", '{"weight_map": {"a": "../x.safetensors"}}')(
            drop_files("model.safetensors")(folder)
        ),
        "weight_map = .*: expected the name of a file of this folder",
    ),
    "a pipe for weights": (pipe("model.safetensors"), "model.safetensors: cannot be read"),
    "infinity": (put(WORDS, lambda x: np.where(x == x.max(), np.inf, x)), f"{WORDS} = 'NaN or infinite values'"),
    "no tokenizer": (drop_files("tokenizer.json"), "expected a folder with tokenizer.json, or vocab.txt"),
    "no [MASK]": (tokenizer(no_mask), r"mask_token = '\[MASK\]': expected an entry of the vocabulary"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_ends_in_one_line(folders, case, tmp_path):
    change, said = BROKEN[case]
    folder = (
        change_folder(folders, tmp_path, **change)
        if isinstance(change, dict)
        else change(change_folder(folders, tmp_path))
    )
    line = get_refusal(mlm.load, folder)
    assert re.search(said, line) and len(line) < 600 and str(folder) in line, line


@pytest.mark.parametrize("content", [b"{}", b"[]", b"{", b'{"special": [], "tokenizer": {}}'])
def test_a_broken_vocabulary_of_a_run_ends_in_one_line(tmp_path, content):
    (tmp_path / "hub.json").write_bytes(content)
    with pytest.raises(errors.ConfigError, match=r"^config.tokenizer.path = .*: cannot read hub.json \("):
        kinds.load_tokenizer_folder("config.tokenizer.path", str(tmp_path))
