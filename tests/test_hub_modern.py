"""Models beyond BERT and RoBERTa, and heads for spans and choices: what theirs say, ours says; ours goes out as one.

Against the file that fixtures/hub_modern.py makes; where torch and transformers are installed, it is what they say.
"""

import dataclasses
import functools
import json
import re

import hub_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import hub_modern as theirs
from hub_folders import change_tensors, same_tensors
from safetensors.numpy import load
from small import get_refusal, load_arrays, mark_further

import mlm
from mlm.base import fields, types
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers import hub_model
from mlm.models.hub import hub
from mlm.objectives import heads
from mlm.training.run import initialization, pretrained_folder
from mlm.training.step import program

# Whose names of the parts that they use are another case's.
FURTHER = {f"{kind}-{head}" for kind in ("albert", "deberta-v2", "distilbert", "mpnet") for head in ("tag", "span")}
EVERY = pytest.mark.parametrize(
    "case", mark_further([(case,) for case in theirs.CASES], {(case,) for case in theirs.CASES if case not in FURTHER})
)


load_expected = functools.partial(load_arrays, theirs.PATH)


def write_case(plain, top, case, **settings):
    """The folder of a case below `top`, its config.json changed; None: without that field."""
    kind = theirs.CASES[case][0]
    tokenizer = plain.get(theirs.TOKENIZERS.get(kind))
    folder = hub_folders.write_case(top, load_expected(), case, tokenizer, theirs.draw_tensor, **settings)
    for key, content in load_expected().items():
        if tokenizer is None and key.startswith(f"{kind}/token"):
            (folder / key.partition("/")[2]).write_bytes(content.tobytes())
    return folder


@pytest.fixture(scope="module")
def folders(plain, tmp_path_factory):
    top = tmp_path_factory.mktemp("modern")
    return {case: write_case(plain, top, case) for case in theirs.CASES}


def make_batch(model, rows) -> types.Batch:
    """Rows with their numbers, as a batch of ours; order_V: of a tokenizer that numbers entries as theirs."""
    order_V = hub_model.get_original_ids(model.tokenizer)
    real_BxL = jnp.asarray(rows["real"])
    position_BxL = jnp.broadcast_to(jnp.arange(real_BxL.shape[1]), real_BxL.shape)
    text = types.Tokens(
        jnp.asarray(np.argsort(order_V)[rows["ids"]]), real_BxL, position_BxL, jnp.asarray(rows["types"])
    )
    return types.Batch(text, {}, jnp.arange(len(real_BxL)))


def compute(model, discriminator_head, params, batch):
    """(states_KxBxLxD or None, logits) of a batch."""
    objective, head = model.config.objective, params["objective"]
    if objective == "mlm" and not discriminator_head:
        h_KxBxLxD = heads.encode_all_layers(model.config, params, model.model, batch, None)
        number_V = np.argsort(hub_model.get_original_ids(model.tokenizer))
        return h_KxBxLxD, model.model.logits(params["model"], h_KxBxLxD[-1])[..., number_V]
    h_BxLxD = heads.read_features(model.config, params, model.model, batch, None)
    if discriminator_head:
        hidden_BxLxD = jax.nn.gelu(heads.apply_dense(discriminator_head["hidden"], h_BxLxD), approximate=False)
        return None, heads.apply_dense(discriminator_head["label"], hidden_BxLxD)[..., 0]
    if objective in ("tagging", "extractive_qa"):
        return None, heads.apply_word_head(model.config, head, h_BxLxD, None)
    logits_BxC = heads.apply_pooled_head(model.config, head, h_BxLxD, batch.text, None)
    return None, logits_BxC[:, 0][None] if objective == "multiple_choice" else logits_BxC


def answer(model, rows, discriminator_head=None):
    """`compute` of rows, and which tokens are real where the logits are those of tokens."""
    states_and_logits = jax.jit(functools.partial(compute, model, discriminator_head))
    states, logits = jax.device_get(states_and_logits(model.params, make_batch(model, rows)))
    asked = rows["real"] > 0 if logits.shape[:2] == rows["real"].shape else np.ones(logits.shape, bool)
    return states, logits, asked


@pytest.mark.exhaustive(
    but=(
        "modernbert",
        "modernbert-classify",
        "modernbert-tag",
        "modernbert-choice",
        "electra-generator",
        "electra-discriminator",
        "electra-span",
        "bert-span",
        "roberta-choice",
    )
)
@EVERY
def test_states_and_logits_are_theirs(folders, models, case):
    rows = {name: load_expected()[f"{theirs.CASES[case][0]}:{name}"] for name in ("ids", "types", "real")}
    found = pretrained_folder.read_folder(folders[case])
    states, logits, asked = answer(models[case], rows, found.read_discriminator_head())
    np.testing.assert_allclose(logits[asked], load_expected()[f"{case}:logits"][asked], rtol=0, atol=1e-5)
    if states is not None:
        np.testing.assert_allclose(states[:, asked], load_expected()[f"{case}:states"][:, asked], rtol=0, atol=1e-5)


@EVERY
def test_what_was_read_is_written_again_to_the_bit(folders, models, case, tmp_path):
    models[case].save_pretrained(str(tmp_path / "out"))
    same_tensors(folders[case], tmp_path / "out")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (folders[case], tmp_path / "out"))
    assert before == after


@pytest.mark.parametrize("kind", theirs.OWN_TOKENIZERS)
def test_texts_are_their_ids(models, kind):
    for (text, second), ids_L in zip(theirs.ROWS, load_expected()[f"{kind}:ids"], strict=True):
        found = models[kind].tokenize(text)[: -1 if second else None]  # behind it stands the second text
        assert found == ids_L[: len(found)].tolist()


# The class by which a model goes out that another computes too.
SAME = {"camembert": "roberta", "distilbert": "bert"}


@EVERY
def test_a_model_that_was_read_goes_out_as_its_class(models, case, tmp_path):
    model, kind = models[case], theirs.CASES[case][0]
    if kind == "neobert":  # of no class there
        return
    order_V = hub_model.get_original_ids(model.tokenizer)
    written = hub.build_config_json(model.config.model, order_V, pooler=model.config.finetune.pooler)
    assert written["model_type"] == SAME.get(case, kind)
    (tmp_path / "config.json").write_text(json.dumps(written))
    num_types = 1 if kind != SAME.get(case, kind) == "bert" else model.config.model.type_vocab_size  # all zeros
    assert hub.read_model_config(tmp_path) == dataclasses.replace(model.config.model, type_vocab_size=num_types)


@pytest.mark.parametrize("case", [case for case, (_, head, _) in theirs.CASES.items() if head == "MaskedLM"])
def test_each_tensor_is_needed(plain, folders, case, tmp_path):
    folder, names = write_case(plain, tmp_path, case), sorted(load((folders[case] / "model.safetensors").read_bytes()))
    missing = names[len(names) // 2]
    change_tensors(folder, lambda name, x: [(name, x)] * (name != missing))
    line = get_refusal(mlm.load, folder)
    assert re.search(f"expected {missing} among them$", line) and str(folder) in line


def test_mpnet_s_list_of_entries_is_its_tokenizer(folders, models, tmp_path):
    number, model = json.loads((folders["mpnet"] / "tokenizer.json").read_text())["model"]["vocab"], models["mpnet"]
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(number, key=number.get)))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    read = vocabulary.read_tokenizer(tmp_path)
    assert read.encode_batch([text for text, _ in theirs.ROWS]) == model.tokenizer.encode_batch(
        [text for text, _ in theirs.ROWS]
    )
    assert read.encode_masked("red [MASK]") == model.tokenizer.encode_masked("red [MASK]")
    assert hub_model.count_pair_separators(read) == hub_model.count_pair_separators(model.tokenizer) == 2


def test_neobert_s_code_is_that_of_its_repository(plain, tmp_path):
    mlm.load(write_case(plain, tmp_path, "neobert", auto_map={"AutoModel": "model.NeoBERT"})).save_pretrained(
        str(tmp_path / "out")
    )
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["auto_map"] == {"AutoModel": "chandar-lab/NeoBERT--model.NeoBERT"}
    assert not [*(tmp_path / "out").glob("*.py")]


def test_modernbert_s_special_tokens_stand_behind_its_vocabulary(models):
    model = models["modernbert"]
    assert len(model.vocab) == load_expected()["modernbert:logits"].shape[-1]
    assert [model.vocab[i] for i in model.tokenize("[MASK]")] == ["[CLS]", "[MASK]", "[SEP]"]


BAD = {
    "a window in the wrong layers": (
        {"layer_types": ["sliding_attention", "full_attention", "fulll_attention"]},
        "layer_types = .*: expected full_attention or sliding_attention for each of 3 layers",
    ),
    "scaled positions": (
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
        "rope_parameters = .*: expected rope_type default",
    ),
    "padding that is no padding there": ({"pad_token_id": 0}, "pad_token_id = 0: expected 1$"),
    "groups of layers": ({"num_hidden_groups": 2}, "num_hidden_groups = 2: expected 1$"),
    "embeddings as wide as the groups": (
        {"embedding_size": 16},
        "embedding_size = 16: expected another width than hid",
    ),
    "an older DeBERTa": ({"relative_attention": None}, "relative_attention = False: expected True$"),
    "half a DeBERTa": ({"pos_att_type": "c2p"}, "pos_att_type = 'c2p': expected c2p and p2c$"),
    "a new head": (
        {"architectures": ["NeoBERTForTokenClassification"]},
        "'NeoBERTForTokenClassification': expected a class that ends in ForSequenceClassification$",
    ),
    "a summary by the last token": ({"summary_type": "last"}, "summary_type = 'last': expected 'first'"),
}


@pytest.mark.parametrize(("case", "prefix"), [("modernbert", "model."), ("electra-generator", "electra.")])
def test_an_encoder_alone_is_read(plain, models, case, prefix, tmp_path):
    folder = change_tensors(
        write_case(plain, tmp_path, case),
        lambda name, x: [(name.removeprefix(prefix), x)] if name.startswith(prefix) else [],
    )
    found = pretrained_folder.read_folder(folder)
    assert not found.has_lm_head
    for name in found.params["model"].keys() - {"transform", "transform_norm", "bias"}:
        jax.tree.map(np.testing.assert_array_equal, found.params["model"][name], models[case].params["model"][name])


def test_a_window_is_half_of_it_on_each_side(plain, tmp_path):
    even, odd = (
        mlm.load(write_case(plain, tmp_path / str(size), "modernbert", local_attention=size)) for size in (4, 5)
    )
    assert odd.config.model == even.config.model and odd.config.model.local_window == 4
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "5" / "modernbert").eval()
    logits = odd.logits("a b c d e f g h i j k l")
    ids = torch.tensor([odd.tokenize("a b c d e f g h i j k l")])
    np.testing.assert_allclose(logits, peer(ids).logits[0].detach().numpy(), rtol=0, atol=1e-4)


@pytest.mark.exhaustive(but=("llg",))
@pytest.mark.parametrize("kinds", ["lgg", "glg", "llg", "ggl"])
def test_any_layers_may_see_all_tokens(plain, tmp_path, kinds):
    layer_types = [{"l": "sliding_attention", "g": "full_attention"}[kind] for kind in kinds]
    folder = write_case(plain, tmp_path, "modernbert", layer_types=layer_types, local_attention=4)
    model, text = mlm.load(folder), "a b c d e f g h i j k l"
    model.save_pretrained(str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"] == layer_types
    assert mlm.load(tmp_path / "out").config.model == model.config.model
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peer = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    logits = peer(torch.tensor([model.tokenize(text)])).logits[0].detach().numpy()
    np.testing.assert_allclose(model.logits(text), logits, rtol=0, atol=1e-4)


def test_a_tied_table_is_read_by_the_output_layer_s_name(plain, models, tmp_path):
    table = "model.embeddings.tok_embeddings.weight"
    folder = change_tensors(
        write_case(plain, tmp_path, "modernbert"), lambda name, x: [("decoder.weight" if name == table else name, x)]
    )
    np.testing.assert_array_equal(mlm.load(folder).logits("a b"), models["modernbert"].logits("a b"))


@pytest.mark.parametrize("case", BAD)
def test_what_ours_cannot_be_ends_in_one_line(plain, case, tmp_path):
    settings, said = BAD[case]
    words = {
        "summary": "electra-choice",
        "padding": "mpnet",
        "groups": "albert",
        "new": "neobert-classify",
        "DeBERTa": "deberta-v2",
    }
    name = next((name for word, name in words.items() if word in case), "")
    folder = write_case(plain, tmp_path, name or "modernbert", **settings)
    line = get_refusal(mlm.load, folder)
    assert re.search(said, line) and str(folder) in line


def test_the_names_of_transformers_4_are_read(plain, models, tmp_path):
    older = {"global_attn_every_n_layers": 2, "global_rope_theta": 20_000.0, "local_rope_theta": 500.0}
    folder = write_case(plain, tmp_path, "modernbert", layer_types=None, rope_parameters=None, **older)
    newer = dataclasses.replace(models["modernbert"].config.model, rope_theta=20_000.0, local_rope_theta=500.0)
    assert mlm.load(folder).config.model == newer


MODERN = {
    "model__positions": "rotary",
    "model__first_norm": False,
    "model__type_vocab_size": 0,
    "model__activation": "geglu",
    "model__bias": "output",
    "model__norm_placement": "pre",
    "model__norm_eps": 1e-5,
    "model__local_window": 4,
    "model__global_every": 2,
    "model__rope_theta": 160_000.0,
    "model__local_rope_theta": 10_000.0,
}


def ours(objective="mlm", **changes):
    """A small model of ours, with drawn parameters, over a WordPiece vocabulary."""
    from test_hub_heads import ours as fine_tuned

    if objective != "mlm":
        return fine_tuned(objective, **changes)
    from test_hub import ours as pretrained

    return pretrained("wordpiece", **changes)


def assert_equal_used(path, found, wanted):
    """Asserts that two leaves are equal, but for the first layer's norm before attention, which no ModernBERT has."""
    first = any(getattr(key, "key", None) == "attention_norm" for key in path)
    np.testing.assert_array_equal(found[int(first) :], wanted[int(first) :])


@pytest.mark.exhaustive(but=("local", "tagging"))
@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("mlm", {}),
        ("mlm", {"model__bias": "all", "model__activation": "swiglu", "model__local_window": 0}),
        ("classification", {"finetune__pooler": "modernbert", "finetune__pooling": "mean"}),
        ("tagging", {"finetune__pooler": "modernbert"}),
    ],
    ids=["local", "biases", "classification", "tagging"],
)
def test_ours_is_a_modernbert(objective, changes, tmp_path):
    model, folder = ours(objective, **MODERN | changes), tmp_path / "out"
    done = model.save_pretrained(str(folder))
    assert (done["model_type"], done["note"]) == ("modernbert", "")
    again = mlm.load(folder)
    unused = {"transform", "transform_norm", "bias"} if objective != "mlm" else set()
    found, wanted = (
        {name: x for name, x in one.params["model"].items() if name not in unused} for one in (again, model)
    )
    jax.tree_util.tree_map_with_path(assert_equal_used, found, wanted)
    jax.tree.map(np.testing.assert_array_equal, again.params["objective"], model.params["objective"])
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    auto = {"classification": "SequenceClassification", "tagging": "TokenClassification"}.get(objective, "MaskedLM")
    there = getattr(transformers, f"AutoModelFor{auto}").from_pretrained(folder).eval()
    ids = np.array([model.tokenize("the apple is red . the apple is green")])
    rows = {"ids": ids, "types": np.zeros_like(ids), "real": np.ones_like(ids)}
    with torch.no_grad():
        found = there(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(answer(model, rows)[1], found, rtol=0, atol=1e-5)


def test_replaced_token_detection_goes_out_as_a_pair(tmp_path):
    model, folder = ours("replaced_token_detection", model__embedding_dim=8), tmp_path / "out"
    assert model.save_pretrained(str(folder)) == {"written": str(folder), "model_type": "electra", "note": ""}
    discriminator, generator = (pretrained_folder.read_folder(one) for one in (folder, folder / "generator"))
    own = dict(model.params["objective"])
    jax.tree.map(np.testing.assert_array_equal, generator.params["model"], own.pop("generator"))
    jax.tree.map(np.testing.assert_array_equal, discriminator.read_discriminator_head(), own)
    encoder = model.params["model"].keys() - {"transform", "transform_norm", "bias"}
    for name in encoder:
        jax.tree.map(np.testing.assert_array_equal, discriminator.params["model"][name], model.params["model"][name])
    assert not discriminator.has_lm_head and generator.has_lm_head
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    ids = np.array([model.tokenize("the apple is red .")])
    rows = {"ids": ids, "types": np.zeros_like(ids), "real": np.ones_like(ids)}
    there = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    with torch.no_grad():
        found = there(torch.from_numpy(ids)).logits.numpy()
        generated = transformers.ElectraForMaskedLM.from_pretrained(folder / "generator").eval()(torch.from_numpy(ids))
    np.testing.assert_allclose(answer(model, rows, own)[1], found, rtol=0, atol=1e-5)
    wanted = mlm.load(folder / "generator").logits("the apple is red .")
    np.testing.assert_allclose(generated.logits[0].numpy(), wanted, rtol=0, atol=1e-5)


def start_from(folder, **changes):
    """(the folder, parameters that a run begins with): those that the folder lacks are 7."""
    source = pretrained_folder.read_folder(folder)
    changes = {name.replace("__", "."): value for name, value in changes.items()} | {"init.hub": str(folder)}
    cfg = fields.override(source.cfg, changes)
    info = pretrained_folder.make_dataset_info(cfg, source.tokenizer, ("bad", "good"))
    model, objective = program.build_model_and_objective(cfg, info)
    shapes = jax.eval_shape(
        lambda key: {"model": model.init(key), "objective": objective.init(key, model)}, jax.random.key(0)
    )
    seven = jax.tree.map(lambda x: np.full(x.shape, 7, np.float32), shapes)
    state, _ = initialization.init_from_source(cfg, types.TrainState(np.int32(0), seven, None), source.tokenizer)
    return source, state.params


def test_fine_tuning_starts_from_a_discriminator_and_detection_from_its_head(folders):
    label = {"objective": "classification", "data__labelled__scores": "accuracy", "finetune__pooling": "first"}
    source, params = start_from(folders["electra-discriminator"], finetune__pooler="electra", **label)
    for name in ("token", "embed_projection", "body"):
        jax.tree.map(np.testing.assert_array_equal, params["model"][name], source.params["model"][name])
    assert all(np.all(x == 7) for x in jax.tree.leaves(params["objective"]))  # ELECTRA has no pooler before
    source, params = start_from(folders["electra-discriminator"], objective="replaced_token_detection")
    head = source.read_discriminator_head()
    jax.tree.map(np.testing.assert_array_equal, {name: params["objective"][name] for name in head}, head)
    source, params = start_from(folders["modernbert"], finetune__pooler="modernbert", **label)
    for name, whose in (("pool", "transform"), ("pool_norm", "transform_norm")):
        jax.tree.map(np.testing.assert_array_equal, params["objective"][name], source.params["model"][whose])


CHOICES = {"data__labelled__choice_columns": "a,b", "data__labelled__format": "csv"}
ELECTRA = {"finetune__pooler": "electra", "model__embedding_dim": 8}
ALBERT = {"model__num_unique_layers": 1, "model__embedding_dim": 8}
DISTIL = {"finetune__pooler": "distilbert", "model__type_vocab_size": 0, "model__norm_eps": 1e-12}
MODERN_HEAD = MODERN | {"finetune__pooler": "modernbert"}


@pytest.mark.exhaustive(
    but=(
        "multiple_choice--BertForMultipleChoice",
        "classification--ElectraForSequenceClassification",
        "extractive_qa--ModernBertForQuestionAnswering",
    )
)
@pytest.mark.parametrize(
    ("objective", "changes", "name"),
    [
        ("extractive_qa", {}, "BertForQuestionAnswering"),
        ("multiple_choice", CHOICES, "BertForMultipleChoice"),
        ("classification", ELECTRA, "ElectraForSequenceClassification"),
        ("extractive_qa", ELECTRA, "ElectraForQuestionAnswering"),
        ("multiple_choice", ELECTRA | CHOICES, "ElectraForMultipleChoice"),
        ("classification", ALBERT, "AlbertForSequenceClassification"),
        ("classification", DISTIL, "DistilBertForSequenceClassification"),
        ("extractive_qa", MODERN_HEAD, "ModernBertForQuestionAnswering"),
        ("multiple_choice", MODERN_HEAD | CHOICES | {"finetune__pooling": "mean"}, "ModernBertForMultipleChoice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ours_with_a_head_is_theirs(objective, changes, name, tmp_path):
    model, folder = ours(objective, **changes), tmp_path / "out"
    assert model.save_pretrained(str(folder))["note"] == ""
    assert json.loads((folder / "config.json").read_text())["architectures"] == [name]
    again = pretrained_folder.read_folder(folder)
    jax.tree.map(np.testing.assert_array_equal, again.params["objective"], model.params["objective"])
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    ids = np.array([model.tokenize("the apple is red . the apple"), model.tokenize("the apple is green . the red")])
    rows = {"ids": ids, "types": np.zeros_like(ids), "real": np.ones_like(ids)}
    given, real = torch.from_numpy(ids), torch.ones(ids.shape, dtype=torch.long)
    with torch.no_grad():
        there = getattr(transformers, name).from_pretrained(folder).eval()
        said = there(given[None], real[None]) if objective == "multiple_choice" else there(given, real)
    if objective == "extractive_qa":
        found = torch.stack([said.start_logits, said.end_logits], -1).numpy()
    else:
        found = said.logits.numpy()
    np.testing.assert_allclose(answer(model, rows)[1], found, rtol=0, atol=1e-5)
