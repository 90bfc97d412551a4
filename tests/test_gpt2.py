"""GPT-2 folders: what transformers says of them and finds with them, ours says and finds; ours are written as theirs.

Against the file that fixtures/gpt2.py makes; where torch and transformers are installed, it is what they still say.
"""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers
from fixtures import gpt2 as theirs
from hub_folders import same_tensors
from safetensors.numpy import load, save_file
from small import load_arrays, read_alone

import mlm
from mlm.base import errors
from mlm.base.special import CLS, NUM_SPECIAL, PAD, SEP, SPECIAL_TOKENS
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers import hub_model
from mlm.inference import decoding, forward_passes
from mlm.models import transformer
from mlm.models.hub import hub

NORMS = {0.0: "none", 1.0: "mean"}  # of transformers' length_penalty
ORDER_V = np.array([theirs.V, theirs.V + 1, theirs.V + 2, theirs.V - 1, theirs.V + 3, *range(theirs.V - 1)])


load_outputs = functools.partial(load_arrays, theirs.PATH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("gpt2")
    for key, content in load_outputs().items():
        if key.startswith("folder/"):
            (top / key.removeprefix("folder/")).write_bytes(content.tobytes())
    return top


@pytest.fixture(scope="module")
def model(folder):
    return mlm.load(str(folder))


def compute_logits(model, ids_L):
    """logits_LxV of a row."""
    answer = jax.jit(
        lambda params, ids: model.model.logits(params, model.model.encode(params, forward_passes.make_tokens(ids))[0])
    )
    return np.asarray(answer(model.params["model"], np.array([ids_L], np.int32)))[0]


def test_logits_are_theirs(model):
    order_V = hub_model.get_original_ids(model.tokenizer)
    its_V = order_V < len(order_V) - NUM_SPECIAL + 1
    for i, line in enumerate(theirs.LINES):
        ids = [SEP, *model.tokenizer.encode(line)]
        np.testing.assert_array_equal(order_V[ids], load_outputs()[f"ids:{i}"], line)
        wanted = load_outputs()[f"logits:{i}"][:, order_V[its_V]]
        for first in (SEP, CLS):  # [CLS] begins a text as theirs does
            np.testing.assert_allclose(compute_logits(model, [first, *ids[1:]])[:, its_V], wanted, rtol=0, atol=1e-5)


def test_its_one_special_token_ends_a_text_and_ours_are_added(model):
    assert model.config.objective == "causal" and tuple(model.tokenizer.pieces[:NUM_SPECIAL]) == SPECIAL_TOKENS
    assert not {PAD, CLS, SEP} & {*model.tokenizer.encode("a <|endoftext|> [SEP] [PAD]")}
    assert model.tokenizer.decode(model.tokenizer.encode(" the red")) == "the red"


def test_entries_and_merges_are_read_without_the_library_s_file(folder, model, tmp_path):
    there = shutil.copytree(folder, tmp_path / "older")
    made = json.loads((there / "tokenizer.json").read_text())["model"]
    (there / "tokenizer.json").unlink()
    (there / "vocab.json").write_text(json.dumps(made["vocab"]))
    (there / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, made["merges"]), ""]))
    words = vocabulary.read_tokenizer(there)
    assert words.pieces == model.tokenizer.pieces
    assert words.encode_batch(theirs.LINES) == model.tokenizer.encode_batch(theirs.LINES)
    (there / "merges.txt").write_text("no pair")
    with pytest.raises(errors.ConfigError, match="expected entries, and pairs of them"):
        vocabulary.read_tokenizer(there)


def test_the_first_released_names_and_buffers_are_read(folder, model, tmp_path):
    there = shutil.copytree(folder, tmp_path / "older")
    from safetensors.numpy import load

    old = load((there / "model.safetensors").read_bytes())
    save_file(
        {name.removeprefix("transformer."): x for name, x in old.items()}
        | {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32), "lm_head.weight": old["transformer.wte.weight"]},
        there / "model.safetensors",
    )
    read = hub.read_folder(there, hub_model.get_original_ids(model.tokenizer)).params
    jax.tree.map(np.testing.assert_array_equal, read, jax.device_get(model.params["model"]))


@pytest.mark.exhaustive
def test_a_table_of_its_own_and_another_activation_are_taken(folder, model, tmp_path):
    there = shutil.copytree(folder, tmp_path / "untied")
    settings = json.loads((there / "config.json").read_text())
    settings |= {"tie_word_embeddings": False, "activation_function": "relu"}
    (there / "config.json").write_text(json.dumps(settings))
    tensors = load((there / "model.safetensors").read_bytes())
    table_VxD = np.flip(tensors["transformer.wte.weight"], 0).copy()
    save_file(tensors | {"lm_head.weight": table_VxD}, there / "model.safetensors")
    found = mlm.load(str(there))
    assert found.config.model.activation == "relu" and not found.config.model.tie_embeddings
    ids = [SEP, *found.tokenizer.encode(theirs.LINES[0])]
    h_LxD, _ = read_alone(found.model, found.params["model"], ids, len(ids))
    order_V = hub_model.get_original_ids(found.tokenizer)
    wanted_LxV = h_LxD @ table_VxD.T
    np.testing.assert_allclose(
        compute_logits(found, ids)[:, order_V < len(table_VxD)],
        wanted_LxV[:, order_V[order_V < len(table_VxD)]],
        atol=1e-5,
    )
    found.save_pretrained(str(tmp_path / "out"))
    written = load((tmp_path / "out/model.safetensors").read_bytes())
    np.testing.assert_array_equal(written["lm_head.weight"][: len(table_VxD)], table_VxD)
    again = mlm.load(str(tmp_path / "out"))
    jax.tree.map(np.testing.assert_array_equal, again.params, found.params)


def test_a_folder_is_written_with_all_special_tokens_and_read_again(model, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    assert model.save_pretrained(str(one))["model_type"] == "gpt2"
    again = mlm.load(str(one))
    jax.tree.map(np.testing.assert_array_equal, again.params["model"], model.params["model"])
    assert again.tokenizer.encode_batch(theirs.LINES) == model.tokenizer.encode_batch(theirs.LINES)
    model.save_pretrained(str(tmp_path / "embeds"), sentence_transformers=True)  # whose texts have them around
    tool = tokenizers.Tokenizer.from_file(str(tmp_path / "embeds/tokenizer.json"))
    assert tool.encode(theirs.LINES[0]).ids == model.tokenize(theirs.LINES[0])
    assert mlm.load(str(tmp_path / "embeds")).tokenize(theirs.LINES) == model.tokenize(theirs.LINES)
    ours = dataclasses.replace(again, source=None)  # as a run of this shape is written
    ours.save_pretrained(str(other))
    same_tensors(one, other)
    settings = json.loads((other / "config.json").read_text())
    assert settings["architectures"] == ["GPT2LMHeadModel"] and settings["vocab_size"] == again.tokenizer.vocab_size


@functools.cache
def drawn_model(number, top):
    """A random model of theirs as ours."""
    folder = top / str(number)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(theirs.settings()))
    save_file(
        {name: theirs.weight(number + 1, name, shape) for name, shape in theirs.shapes().items()},
        folder / "model.safetensors",
    )
    return hub.read_folder(folder, ORDER_V)


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    return tmp_path_factory.mktemp("drawn")


@pytest.mark.exhaustive(but=("exact", "greedy"))
@pytest.mark.parametrize("case", theirs.CASES)
def test_with_fifty_random_models_the_same_texts_are_found(case, top):
    how = theirs.CASES[case]
    ours_V = np.argsort(ORDER_V)
    read = [drawn_model(number, top) for number in range(theirs.MODELS)]
    made = transformer.build(read[0].model, len(ORDER_V))

    @jax.jit
    def generate(params, ids_BxL):
        given = made, {"model": params}, ids_BxL
        if not how:
            return decoding.continue_prompts(*given, cache_len=theirs.LENGTH).ids_BxT
        return decoding.decode_beams(
            *given, cache_len=theirs.LENGTH, num_beams=how["num_beams"], length_penalty=NORMS[how["length_penalty"]]
        ).ids_BxWxT[:, 0]

    for number, one in enumerate(read):
        prompt = ours_V[theirs.prompts(number)].astype(np.int32)
        ids_BxT = np.asarray(generate(one.params, prompt))[:, : theirs.LENGTH - theirs.PROMPT]
        its = ORDER_V[np.where(ids_BxT == PAD, SEP, ids_BxT)]
        np.testing.assert_array_equal(
            its, load_outputs()[f"found:{case}"][number, :, theirs.PROMPT :], f"model {number}"
        )
