"""Folders of Hugging Face's: what they say, ours says; what was read is written again to the bit; ours is read there.

Against the folders of fixtures/hub.py, made by transformers; where that is installed, it is what it still says.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from fixtures import hub as theirs
from hub_folders import change_folder, change_tensors, load_outputs, same_tensors
from safetensors.numpy import load, save_file
from small import read_alone, small_config

import mlm
from mlm.base import errors, fields
from mlm.base.special import CLS, MASK, NUM_SPECIAL, PAD, SEP, SPECIAL_TOKENS
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers import hub_export, hub_model, kinds
from mlm.inference import batching, export, neighbors, pretrained_io
from mlm.models.hub import hub
from mlm.training.run.directory import RunDirectory

EVERY = pytest.mark.parametrize("name", theirs.FOLDERS)


@pytest.mark.exhaustive(but=("bert", "roberta-prelayernorm", "xlm-roberta"))
@EVERY
def test_logits_states_and_attentions_are_theirs(models, name):
    model = models[name]
    lines = [theirs.LINES[i] for i in theirs.ASKED]
    for i, logits_TxV in zip(theirs.ASKED, model.logits(lines), strict=True):
        np.testing.assert_allclose(logits_TxV, load_outputs()[f"{name}:logits:{i}"], rtol=0, atol=1e-5)
        found_KxHxTxT = model.attentions(theirs.LINES[i]).weights_KxHxTxT
        np.testing.assert_allclose(found_KxHxTxT, load_outputs()[f"{name}:attentions:{i}"], rtol=0, atol=1e-5)
    plain = theirs.ASKED[0]
    for layer, wanted_TxD in enumerate(load_outputs()[f"{name}:states:{plain}"]):
        np.testing.assert_allclose(
            model.encode(theirs.LINES[plain], layer, pooling=None), wanted_TxD, rtol=0, atol=1e-5
        )


@pytest.mark.exhaustive(but=("roberta",))
@EVERY
def test_a_mask_in_a_text_is_the_mask_in_every_method(models, name):
    model, text = models[name], "the [MASK] is red"
    ids = batching.encode_text(model.tokenizer, text, allow_mask=True)
    states, _ = read_alone(model.model, model.params["model"], ids, len(ids))
    assert MASK in ids and len(model.tokenize(text)) == len(ids)
    np.testing.assert_allclose(model.encode(text, pooling=None), states, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.similar(text, [text])[0].cosine, 1, atol=1e-5)
    assert len(model.attentions(text).tokens) == len(model.logits(text)) == len(ids)
    assert model.pseudo_log_likelihood("[MASK]") == 0
    assert not neighbors.find_words(model.tokenizer, text, 30)
    with pytest.raises(errors.ConfigError, match=r"expected one without \[MASK\]"):
        neighbors.find_neighbors(model, text, "red", ["the sky"])


@EVERY
def test_a_tied_table_is_read_by_either_name(folders, models, name, tmp_path):
    architecture = hub.ARCHITECTURES[json.loads((folders[name] / "config.json").read_text())["model_type"]]
    table = f"{architecture.prefix}.embeddings.word_embeddings.weight"
    folder = change_tensors(
        change_folder(folders, tmp_path, name),
        lambda had, x: [(f"{architecture.decoder}.weight" if had == table else had, x)],
    )
    line = theirs.LINES[theirs.ASKED[-1]]
    np.testing.assert_array_equal(mlm.load(folder).logits(line), models[name].logits(line))


@EVERY
def test_ids_are_the_folder_s_own(folders, models, name):
    model, i = models[name], theirs.ASKED[-1]
    line = theirs.LINES[i]
    ids, logits_TxV = load_outputs()[f"{name}:ids:{i}"], load_outputs()[f"{name}:logits:{i}"]
    assert model.tokenize([line, ""])[0] == model.tokenize(line) == ids.tolist()
    (mask,) = (json.loads((folders[name] / "tokenizer_config.json").read_text())["mask_token"],)
    tool = tokenizers.Tokenizer.from_file(str(folders[name] / "tokenizer.json"))
    (place,) = np.flatnonzero(ids == tool.token_to_id(mask))
    (best,) = model.fill_mask(line, top_k=model.tokenizer.vocab_size)
    assert sorted(one.token_id for one in best) == list(range(tool.get_vocab_size()))
    np.testing.assert_allclose(
        [logits_TxV[place, one.token_id] - logits_TxV[place].max() for one in best],
        np.log([one.probability / best[0].probability for one in best]),
        rtol=0,
        atol=1e-4,
    )
    assert [model.vocab[one.token_id] for one in best] == [one.token for one in best]
    number = tool.get_vocab()
    assert all(model.vocab[number[word]] == word for word in ("is", "red", "the") if name == "bert" and word in number)


def test_a_scrambled_vocabulary_keeps_its_numbers(folders, models, tmp_path):
    folder = change_folder(folders, tmp_path)
    said = json.loads((folder / "tokenizer.json").read_text())
    to_V = np.random.default_rng(0).permutation(len(said["model"]["vocab"])).tolist()
    said["model"]["vocab"] = {entry: to_V[i] for entry, i in said["model"]["vocab"].items()}
    for one in said["added_tokens"]:
        one["id"] = to_V[one["id"]]
    (folder / "tokenizer.json").write_text(json.dumps(said))
    by_entry = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
    change_tensors(folder, lambda name, x: [(name, x[np.argsort(to_V)] if name in by_entry else x)])
    found, line = mlm.load(folder), theirs.LINES[theirs.ASKED[-1]]
    np.testing.assert_allclose(found.logits(line)[:, to_V], models["bert"].logits(line), rtol=0, atol=1e-5)
    assert found.tokenize(line) == [to_V[i] for i in models["bert"].tokenize(line)]
    best, wanted = (model.fill_mask(line)[0] for model in (found, models["bert"]))
    assert [(one.token, one.token_id) for one in best] == [(one.token, to_V[one.token_id]) for one in wanted]


@EVERY
def test_texts_are_their_ids_and_special_tokens_are_text(models, name):
    words = models[name].tokenizer
    order_V = hub_model.get_original_ids(words)
    assert tuple(words.pieces[:NUM_SPECIAL]) == SPECIAL_TOKENS and sorted(order_V) == list(range(words.vocab_size))
    for i, line in enumerate(theirs.LINES):
        (row,) = batching.encode_truncated(words, [line], theirs.PLACES)
        if name == "xlm-roberta" and "</s>" in line:  # which theirs takes for the end, wherever it stands
            assert not {0, 2, 3, 4} & {*row[1:-1]}
            continue
        wanted = load_outputs()[f"{name}:ids:{i}"]
        whole = len(wanted) if len(wanted) < theirs.PLACES else -1
        np.testing.assert_array_equal(order_V[row][:whole], wanted[:whole], line)
        assert row.count(MASK) == line.count("[MASK]")
    plain = words.encode(f"a [MASK] <mask> <s> [PAD] {''.join(f'{hub_model.PLACEHOLDER}{i}' for i in range(5))}")
    assert not {PAD, CLS, SEP, MASK} & {*plain}


@EVERY
def test_a_vocabulary_is_kept_and_read_again(models, name, tmp_path):
    words = models[name].tokenizer
    words.save(tmp_path)
    again = kinds.load_tokenizer_folder("config.tokenizer.path", str(tmp_path))
    assert again.pieces == words.pieces and again.encode_batch(theirs.LINES) == words.encode_batch(theirs.LINES)
    np.testing.assert_array_equal(again.starts_word_V, words.starts_word_V)
    ids, spans = words.encode_with_offsets("the  red apple")
    assert ids == words.encode("the  red apple")
    assert "".join("the  red apple"[first:end] for first, end in spans) == "theredapple"


@EVERY
def test_what_was_read_is_written_again_to_the_bit(folders, models, name, tmp_path):
    models[name].save_pretrained(str(tmp_path / "out"))
    same_tensors(folders[name], tmp_path / "out")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1  # nobody is locked out
    again = mlm.load(tmp_path / "out")
    assert again.tokenizer.encode_batch(theirs.LINES) == models[name].tokenizer.encode_batch(theirs.LINES)


def test_older_names_bare_prefixes_and_copies_are_read(folders, models, tmp_path):
    def older(name, value):
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        yield old.removeprefix("bert."), value
        if "word_embeddings" in name:
            yield "cls.predictions.decoder.weight", value
            yield "embeddings.position_ids", np.arange(theirs.PLACES)[None]
        if name == "cls.predictions.bias":
            yield "cls.predictions.decoder.bias", value

    folder = change_tensors(change_folder(folders, tmp_path), older)
    line = theirs.LINES[1]
    found = mlm.load(folder)
    np.testing.assert_array_equal(found.logits(line), models["bert"].logits(line))
    found.save_pretrained(str(tmp_path / "out"))
    assert (
        load((tmp_path / "out/model.safetensors").read_bytes()).keys()
        == load((folders["bert"] / "model.safetensors").read_bytes()).keys()
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_widened(folders, tmp_path, dtype):
    folder = change_folder(folders, tmp_path, dtype=None, torch_dtype=dtype)
    change_tensors(folder, lambda name, x: [(name, x.astype(jnp.dtype(dtype)))])
    mlm.load(folder).save_pretrained(str(tmp_path / "out"))
    had, has = (load((one / "model.safetensors").read_bytes()) for one in (folders["bert"], tmp_path / "out"))
    assert dtype not in (tmp_path / "out/config.json").read_text()
    for name, value in had.items():
        assert has[name].dtype == np.float32
        np.testing.assert_array_equal(has[name], value.astype(jnp.dtype(dtype)).astype(np.float32))


def test_shards_are_one_model(folders, models, tmp_path):
    folder = change_folder(folders, tmp_path)
    whole = load((folder / "model.safetensors").read_bytes())
    digest = hub.compute_digest(folder)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": sorted(whole)[i::2] for i in range(2)}
    for part, names in parts.items():
        save_file({name: whole[name] for name in names}, folder / part)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: part for part, names in parts.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert mlm.load(folder).logits(theirs.LINES[0]).tolist() == models["bert"].logits(theirs.LINES[0]).tolist()
    assert hub.compute_digest(folder) != digest


def test_an_encoder_alone_embeds_and_keeps_its_pooler(folders, models, tmp_path):
    def bare(name, value):
        if name.startswith("bert."):
            yield name.removeprefix("bert."), value
        if name == "cls.predictions.transform.dense.weight":
            yield "pooler.dense.weight", value

    folder = change_tensors(change_folder(folders, tmp_path), bare)
    found, line = mlm.load(folder), theirs.LINES[1]
    np.testing.assert_array_equal(found.encode(line), models["bert"].encode(line))
    with pytest.raises(errors.ConfigError, match=r"^logits = '.*changed': expected a folder whose tensors have"):
        found.logits(line)
    found.save_pretrained(str(tmp_path / "out"))
    had, has = (load((one / "model.safetensors").read_bytes()) for one in (folder, tmp_path / "out"))
    assert {f"bert.{name}" for name in had} == {*has}
    np.testing.assert_array_equal(has["bert.pooler.dense.weight"], had["pooler.dense.weight"])


def test_a_list_of_entries_is_bert_s_tokenizer(folders, models, tmp_path):
    for name in ("bert", "bert_uncased"):
        folder = change_folder(folders, tmp_path / name, name, drop=["tokenizer.json"])
        number = json.loads((folders[name] / "tokenizer.json").read_text())["model"]["vocab"]
        (folder / "vocab.txt").write_text("\n".join(sorted(number, key=number.get)))
        read = vocabulary.read_tokenizer(folder)
        assert read.encode_batch(theirs.LINES) == models[name].tokenizer.encode_batch(theirs.LINES)
        told = [
            tokenizers.Tokenizer.from_str(hub_export.export_files(one, 64, 2)["tokenizer.json"]).encode("the", "apple")
            for one in (read, models[name].tokenizer)
        ]
        assert (told[0].ids, told[0].type_ids) == (told[1].ids, told[1].type_ids)  # [CLS] and [SEP] around


def test_padding_and_truncation_of_a_tokenizer_are_switched_off(folders, models, tmp_path):
    folder = change_folder(folders, tmp_path)
    tool = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tool.enable_padding(length=30)
    tool.enable_truncation(3)
    tool.save(str(folder / "tokenizer.json"))
    assert vocabulary.read_tokenizer(folder).encode_batch(theirs.LINES) == models["bert"].tokenizer.encode_batch(
        theirs.LINES
    )


def ours(kind, **changes):
    """A small model of ours and a vocabulary of `small.VOCAB` entries."""
    words = ["the", "apple", "is", "red", "green", "."]
    cfg = small_config(pack__seq_len=24, **changes)
    if kind in ("unigram", "bpe"):
        rng = np.random.default_rng(0)
        text = [" ".join(rng.choice([*words, "reddish", "apples", "greenish"], 8)) for _ in range(200)]
        model = kinds.KINDS[kind].train_model(28 if kind == "unigram" else 275, text)
    else:
        model = "\n".join([*SPECIAL_TOKENS, *words, "##s", "Zürich"]).encode()
    tokenizer = kinds.KINDS[kind].build_tokenizer(model)
    rng = np.random.default_rng(0)
    blank = pretrained_io.build_language_model(cfg, tokenizer, {}).model.init
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.2 * rng.normal(size=x.shape).astype(np.float32),
        jax.eval_shape(blank, jax.random.key(0)),
    )
    return pretrained_io.build_language_model(cfg, tokenizer, params)


SAID = ["the apple is red .", "the [MASK] is reds.", "[MASK]. the [MASK] unknown § is", " two  spaces\u3000red ", ""]
POST = {"model__norm_placement": "post"}
MODERN = {"model__first_norm": False, "model__positions": "rotary", "model__activation": "geglu", "model__bias": "none"}
OUT = {
    "wordpiece": ("wordpiece", POST | {"model__type_vocab_size": 2}, "bert"),
    "unigram": ("unigram", {"model__type_vocab_size": 2}, "roberta-prelayernorm"),
    "words": ("words", POST | {"model__type_vocab_size": 0}, "bert"),
    "bpe": ("bpe", POST | {"model__type_vocab_size": 0}, "bert"),
    "untied": ("wordpiece", POST | {"model__tie_embeddings": False}, "bert"),
    "relu": ("wordpiece", POST | {"model__activation": "relu", "model__lm_head_activation": "relu"}, "bert"),
    "tanh": ("wordpiece", POST | {"model__activation": "gelu_tanh", "model__type_vocab_size": 1}, "roberta"),
    "two": ("wordpiece", POST | {"model__activation": "relu"}, "mlm"),
    "modern": ("wordpiece", MODERN | {"model__type_vocab_size": 0, "model__tie_embeddings": False}, "modernbert"),
}


@pytest.mark.exhaustive(but=("wordpiece", "unigram", "words", "bpe", "untied", "tanh", "modern"))
@pytest.mark.parametrize("case", OUT)
def test_ours_is_theirs(case, tmp_path):
    (kind, changes, called), folder = OUT[case], tmp_path / "out"
    model = ours(kind, **changes)
    done = model.save_pretrained(str(folder))
    assert done["model_type"] == called and (done["note"] == "") == (called != "mlm")
    again = mlm.load(folder)
    said = [line for line in SAID if kind != "words" or "[MASK]" not in line]  # a word of which is "[MASK]."
    for mine, its in zip(model.logits(said), again.logits(said), strict=True):
        np.testing.assert_allclose(its, mine, rtol=0, atol=1e-5)
    tool = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [tool.encode(line).ids for line in said] == batching.encode_truncated(model.tokenizer, said, 24)
    if called == "mlm":
        return
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    there = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for line, mine in zip(said, model.logits(said), strict=True):
        with torch.no_grad():
            found = there(tokenizer(line, return_tensors="pt")["input_ids"]).logits[0].numpy()
        np.testing.assert_allclose(found, mine, rtol=0, atol=1e-5)


@pytest.mark.exhaustive(but=("gru",))
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"family": "rnn", "cell": "gru"},
            "config.model.family = 'rnn': expected transformer, which transformers needs",
        ),
        (
            {"model__positions": "rotary"},
            "config.model.first_norm = True: expected False, which transformers' modernbert needs",
        ),
        ({"objective": "causal"}, "config.model.embed_norm = True: expected False, which transformers' gpt2 needs"),
    ],
    ids=["gru", "rotary", "causal"],
)
def test_what_no_class_of_theirs_is_keeps_our_config(changes, why, tmp_path):
    model, folder = ours("wordpiece", **changes), tmp_path / "out"
    done = model.save_pretrained(str(folder))
    assert done["model_type"] == "mlm" and done["note"].startswith(why) and "\n" not in done["note"]
    again = mlm.load(folder)
    assert again.config.model == model.config.model and again.config.objective == model.config.objective
    np.testing.assert_array_equal(again.encode(SAID[0]), model.encode(SAID[0]))
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
    assert "by its modeling_mlm.py, as does `mlm.load`" in (folder / "README.md").read_text()


def test_the_card_has_scores_and_where_they_come_from(tmp_path, monkeypatch):
    model = ours("wordpiece", data__path="/home/someone/texts.txt", data__corpus="text")
    evaluation = {"rows": 80, "predictions": 400, "loss": 2.5, "loss_se": 0.125}
    start = {
        "commit": "0123abc",
        "changed_files": "",
        "time": "2026-01-01T00:00:00Z",
        "python": "3.12",
        "versions": {"jax": "0.11"},
    }
    monkeypatch.setattr(RunDirectory, "read_result", lambda self: {"evaluation": evaluation, "steps": 1000})
    monkeypatch.setattr(RunDirectory, "read_provenance", lambda self: [start, start])
    model.save_pretrained(str(tmp_path / "out"))
    card = (tmp_path / "out/README.md").read_text()
    for said in (
        "| loss | 2.5000 | 0.1250 |",
        "80 examples and 400 predictions",
        "after 1,000 updates",
        "commit 0123abc",
        "2 starts",
        "jax 0.11",
        '"data.path": "texts.txt"',
        "AutoModelForMaskedLM",
    ):
        assert said in card
    assert "someone" not in card
    cfg = fields.override(model.config, {"data.path": "", "data.sources": "/home/someone/corpus.toml"})
    hf_config = json.loads((tmp_path / "out/config.json").read_text())
    card = export.format_model_card(dataclasses.replace(model, config=cfg), hf_config)
    assert '"data.sources": "corpus.toml"' in card and "someone" not in card


def test_a_folder_that_holds_something_is_not_written_to(models, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(errors.ConfigError, match=r"^export = '.*': expected an empty or new folder"):
        models["bert"].save_pretrained(str(tmp_path))


def test_added_tokens_keep_their_numbers(folders, models, tmp_path):
    folder = change_folder(folders, tmp_path)
    tool = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    last = tool.get_vocab_size()
    tool.add_special_tokens(["[ENTITY]"])
    tool.add_tokens(["greenapple"])
    tool.save(str(folder / "tokenizer.json"))
    words = vocabulary.read_tokenizer(folder)
    number = {theirs: mine for mine, theirs in enumerate(hub_model.get_original_ids(words).tolist())}
    assert words.encode("greenapple") == [number[last + 1]] and words.pieces[number[last]] == "[ENTITY]"
    assert number[last] not in words.encode("the [ENTITY]") and words.encode_masked("[MASK] greenapple")[0][0] == MASK
