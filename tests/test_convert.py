"""Pickled weights become a folder that opens, where torch reads them; what is no plain tensor is refused."""

import json
import pickle

import numpy as np
import pytest
from hub_folders import make_folders
from safetensors.numpy import load
from small import get_refusal

import mlm
from mlm.base import errors, files
from mlm.base.special import UNK
from mlm.cli import convert
from mlm.data.tokenizers import hub as vocabulary


@pytest.fixture
def hub_folders(tmp_path):
    return make_folders(tmp_path)


def refuse(*folders):
    return get_refusal(convert.main, ["convert", *map(str, folders)])


def test_a_folder_of_pickles_opens_once_converted(hub_folders, tmp_path):
    torch = pytest.importorskip("torch")
    folder, line = tmp_path / "bert", "the apple is [MASK]"
    wanted = mlm.load(folder).logits(line)
    tensors = load((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(x) for name, x in tensors.items()}, folder / "pytorch_model.bin")
    with pytest.raises(errors.ConfigError, match=r"mlm convert"):
        mlm.load(folder)
    convert.main(["convert", str(folder), str(tmp_path / "out")])
    np.testing.assert_array_equal(mlm.load(tmp_path / "out").logits(line), wanted)
    assert refuse(folder, tmp_path / "out") == f"OUT = '{tmp_path}/out': expected an empty or new folder"


def test_shards_are_whole_and_every_file_of_the_vocabulary_is_kept(hub_folders, tmp_path):
    torch = pytest.importorskip("torch")
    folder, line = tmp_path / "roberta", "the apple is [MASK]"
    wanted = mlm.load(folder).logits(line)
    made = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(made["vocab"]))
    (folder / "merges.txt").write_text("".join(f"{' '.join(pair)}\n" for pair in made["merges"]))
    (folder / "tokenizer.json").unlink()
    tensors = load((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    shards = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    index = {"weight_map": {name: shards[i % 2] for i, name in enumerate(tensors)}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for shard in shards:
        part = {name: torch.from_numpy(x) for name, x in tensors.items() if index["weight_map"][name] == shard}
        torch.save(part, folder / shard)
    convert.main(["convert", str(folder), str(tmp_path / "out")])
    np.testing.assert_array_equal(mlm.load(tmp_path / "out").logits(line), wanted)
    assert {"vocab.json", "merges.txt", "tokenizer_config.json"} <= {path.name for path in (tmp_path / "out").iterdir()}
    torch.save({}, folder / shards[1])
    assert refuse(folder, tmp_path / "none").endswith("expected a tensor of these files")
    (folder / shards[1]).unlink()
    assert refuse(folder, tmp_path / "none").endswith(f"weight_map = '{shards[1]}': expected a file of this folder")
    (folder / "pytorch_model.bin.index.json").unlink()
    assert "index.json: expected a file" in refuse(folder, tmp_path / "none") and not (tmp_path / "none").exists()


def test_tensors_of_any_layout_are_converted_or_refused_in_a_line(hub_folders, tmp_path):
    torch = pytest.importorskip("torch")
    path, x = tmp_path / "bert" / "pytorch_model.bin", torch.arange(6.0).reshape(2, 3)
    torch.save({"turned": x.T, "parameter": torch.nn.Parameter(x), "number": x[1, 2]}, path)
    convert.main(["convert", str(path.parent), str(tmp_path / "out")])
    found = load((tmp_path / "out" / "model.safetensors").read_bytes())
    np.testing.assert_array_equal(found["turned"], x.numpy().T)
    np.testing.assert_array_equal(found["parameter"], x.numpy())
    assert found["number"].shape == ()
    for tensors in ({"odd": x.to_sparse()}, {1: x}):
        torch.save(tensors, path)
        assert refuse(path.parent, tmp_path / "none").startswith(f"{path}")
        assert not (tmp_path / "none").exists()


class Hostile:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_code_in_a_pickle_is_not_run(hub_folders, tmp_path):
    folder = tmp_path / "bert"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    said = refuse(folder, tmp_path / "out")
    assert said.startswith(f"{folder}/pytorch_model.bin: expected t") and not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_converted_is_said(hub_folders, tmp_path):
    assert refuse(tmp_path / "bert").startswith("mlm convert: the following arguments are required")
    assert refuse(tmp_path / "bert", tmp_path / "out").endswith("expected a folder with pytorch_model*.bin")


@pytest.mark.parametrize(("word", "cased"), [("Red", True), ("red", False)])
def test_a_list_of_entries_says_itself_whether_it_is_cased(tmp_path, word, cased):
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", word, "apple"]
    (tmp_path / "vocab.txt").write_text("\n".join(entries))
    tokenizer = vocabulary.read_tokenizer(tmp_path)
    assert tokenizer.encode(f"{word} apple") == [5, 6] and (tokenizer.encode(word.lower()) == [UNK]) is cased


def test_a_folder_is_whole_or_not_there(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    with pytest.raises(ZeroDivisionError), files.atomic_folder(tmp_path / "out") as aside:
        (aside / "one.txt").write_text("one")
        1 / 0  # noqa: B018
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not [*(tmp_path / "out").iterdir()]
    monkeypatch.chdir(tmp_path / "out")
    for place in (".", tmp_path / "new" / "folder"):
        with files.atomic_folder(place) as aside:
            (aside / "one.txt").write_text("one")
    assert (tmp_path / "out/one.txt").exists() and (tmp_path / "new/folder/one.txt").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "new"}
