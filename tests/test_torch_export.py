"""A model that no class of transformers computes goes out with classes of its own, whose logits are ours."""

import ast
import dataclasses
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import CLASSES, FAMILY_CELLS, VOCAB, params_of, small_config

import mlm
from mlm import objectives
from mlm.base import fields, types
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES
from mlm.base.special import CLS, SPECIAL_TOKENS
from mlm.data.tokenizers import hub, kinds
from mlm.inference import export, pretrained_io
from mlm.models import MODELS, layers
from mlm.models.hub import settings
from mlm.objectives import heads
from mlm.training.run import pretrained_folder, resolution

LENGTH, LENGTHS = 24, (24, 17, 5)  # tokens of a row, and of those that are no padding
OBJECTIVES = {"mlm": ("bidirectional", "causal", "mixed"), "causal": ("causal", "two_stack"), "hybrid": ("mixed",)}
BLOCKS = {
    "embedding_dim": (0, 0, 8),
    "norm": fields.DECLARATIONS["model.norm"].choices,
    "norm_placement": ("pre", "post", "sandwich"),
    "norm_eps": (1e-6, 1e-5),
    "first_norm": (True, False),
    "embed_norm": (True, True, False),
    "bias": ("all", "norms", "output", "none"),
    "activation": fields.DECLARATIONS["model.activation"].choices,
    "layer_scale": (0.0, 0.5),
    "qk_norm": (False, True),
    "attention_gate": (False, True),
    "lm_head": ("bert", "bert", "linear"),
    "lm_head_activation": ("gelu", "gelu_tanh", "relu"),
    "tie_embeddings": (True, False),
    "positions": fields.DECLARATIONS["model.positions"].choices,
    "position_buckets": (8,),
    "local_window": (0, 4, 8),
    "global_every": (0, 1, 2),
    "global_layers": ((), (2,)),
    "local_rope_theta": (0.0, 50.0),
    "num_heads": (1, 2, 4),
    "window": (1, 3),
    "type_vocab_size": (0, 2),
    "relative_bias": (False, True),
    "num_unique_layers": (0, 1),
    "rope_scaling": ("", "linear", "ntk", "yarn"),
    "rope_factor": (4.0,),
    "rope_original_len": (16,),
}  # fields of config.model and the values that are drawn
ENDS = {
    "mlm": ["ForMaskedLM"],
    "causal": ["ForCausalLM"],
    "hybrid": ["ForCausalLM", "ForMaskedLM"],
}  # of the names of classes


def draw_config(number):
    """A config with blocks by chance, of the family that is next: half of all are Transformers."""
    rng = random.Random(number)
    others = [member for member in FAMILY_CELLS if member != ("transformer", "")]
    family, cell = others[number // 2 % len(others)] if number % 2 else ("transformer", "")
    objective = rng.choice([*OBJECTIVES])
    changes = {f"model__{name}": rng.choice(values) for name, values in BLOCKS.items()}
    changes["model__directionality"] = rng.choice(OBJECTIVES[objective])
    if changes["model__global_every"] == 1 and not changes["model__global_layers"]:  # no layer would be local
        changes["model__local_window"] = 0
    if cell == "fnet":
        objective, changes["model__directionality"] = "mlm", "bidirectional"
    if cell == "gmlp" and changes["model__activation"] in layers.GATES:
        changes["model__activation"] = "gelu"
    cfg = small_config(family, cell, objective=objective, pack__seq_len=LENGTH, model__scan_unroll=1, **changes)
    resolution.check(cfg)
    return cfg


def build_model(cfg, tokenizer=None, classes=()):
    """A model of a config with parameters of no special values, over a vocabulary of words where none is given."""
    words = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(VOCAB - len(SPECIAL_TOKENS)))]
    tokenizer = tokenizer or kinds.KINDS["words"].build_tokenizer("\n".join(words).encode())
    info = pretrained_folder.make_dataset_info(cfg, tokenizer, classes)
    blank = pretrained_io.build_language_model(cfg, tokenizer, {}, {}, info)
    init = lambda key: (blank.model.init(key), blank.objective.init(key, blank.model))
    return pretrained_io.build_language_model(cfg, tokenizer, *params_of(jax.eval_shape(init, jax.random.key(0))), info)


def draw_rows(cfg):
    """Rows of several lengths, padded; of two types where the model has them."""
    rng = np.random.default_rng(0)
    real_BxL = (np.arange(LENGTH) < np.array(LENGTHS)[:, None]).astype(np.int32)
    draw = lambda low, high: rng.integers(low, high, real_BxL.shape).astype(np.int32) * real_BxL
    num_types = max(cfg.model.type_vocab_size, 1)
    return types.Tokens(draw(5, VOCAB), real_BxL, np.arange(LENGTH, dtype=np.int32) * real_BxL, draw(0, num_types))


def pad_before(rows):
    """The same rows with their padding before the text."""
    shifts = (rows.segments_BxL == 0).sum(1)
    return types.Tokens(*(np.stack([np.roll(*pair) for pair in zip(x_BxL, shifts, strict=True)]) for x_BxL in rows))


@pytest.fixture
def load_torch(tmp_path_factory, monkeypatch):
    """A function of a folder and the end of a class's name: the model in torch."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    modules = str(tmp_path_factory.getbasetemp() / "modules")  # one for all: Python has it as a package
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)

    def load(folder, end, **kwargs):
        return getattr(transformers, f"AutoModel{end}").from_pretrained(folder, trust_remote_code=True, **kwargs).eval()

    return load


def run_torch(model, rows):
    """What a model in torch computes of rows."""
    import torch

    names = {"input_ids": rows.ids_BxL, "attention_mask": rows.segments_BxL, "token_type_ids": rows.types_BxL}
    inputs = {name: torch.from_numpy(x).long() for name, x in names.items()}
    with torch.no_grad():
        if type(model).__name__ == "MLMForMultipleChoice":  # a row is a choice
            return model(**{name: x[None] for name, x in inputs.items()}).logits[0, :, None]
        output = model(**inputs)
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits if "logits" in output else output.last_hidden_state


def compute_logits(model, end, rows):
    """The same by ours: the states, or the logits of the head that a class has by the end of its name."""
    cfg, params, left = model.config, model.params, {}
    of = objectives.shift_states(cfg, model.model) if end == "ForMaskedLM" else model.model
    if end == "ForCausalLM" and cfg.model.directionality == "mixed":
        left = {"left_B": np.ones(len(rows.ids_BxL), bool)}

    @jax.jit
    def compute(params, rows):
        states = of.encode(params["model"], rows, **left)
        if end in ("ForMaskedLM", "ForCausalLM"):
            return of.logits(params["model"], states[0])
        if not end:
            return jnp.concatenate(states, -1)
        h_BxLxD = heads.read_features(cfg, params, of, types.Batch(rows, {}, np.arange(len(rows.ids_BxL))), None)
        if end in ("ForTokenClassification", "ForQuestionAnswering"):
            return heads.apply_word_head(cfg, params["objective"], h_BxLxD, None)
        return heads.apply_pooled_head(cfg, params["objective"], h_BxLxD, rows, None)

    return compute(params, rows)


def assert_torch_computes_ours(model, folder, load_torch, ends):
    model.save_pretrained(str(folder))
    rows = draw_rows(model.config)
    for end in ends:
        there, expected = load_torch(folder, end), np.asarray(compute_logits(model, end, rows))
        for padded in (rows, pad_before(rows)):
            found = run_torch(there, padded).numpy()
            has_tokens = found.shape[:2] == rows.ids_BxL.shape
            ours, theirs = ((x.segments_BxL > 0) if has_tokens else slice(None) for x in (rows, padded))
            np.testing.assert_allclose(found[theirs], expected[ours], rtol=0, atol=1e-5, err_msg=end)


IN_SUITE = (0, 1, 17)  # 17 is an ssd


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n in IN_SUITE else pytest.mark.exhaustive) for n in range(64)]
)
def test_torch_computes_our_states_and_logits(number, tmp_path, load_torch):
    cfg = draw_config(number)
    assert_torch_computes_ours(build_model(cfg), tmp_path / "out", load_torch, ["", *ENDS[cfg.objective]])


FILES = {"activation": "layers", "norm": "layers", "positions": "encoders", "mixer": "encoders", "rnn": "recurrence"}


@pytest.mark.parametrize("name", FILES)
def test_the_files_of_torch_have_what_a_config_can_choose_and_name_what_they_lack(name):
    """Where a config can choose what they lack, the message is this test's failure."""
    pytest.importorskip("torch")
    from mlm.models.hub import encoders_mlm

    family, field = (name, "cell") if name in MODELS else ("transformer", name)
    model = dataclasses.replace(small_config(family, (*MODELS[family].cells, "")[0]).model, positions="none")
    for choice in MODELS[family].cells if field == "cell" else fields.DECLARATIONS[f"model.{field}"].choices:
        encoders_mlm.Encoder(dataclasses.replace(model, **{field: choice}))
    expected = rf"^model.{field} = 'own': {FILES[name]}_mlm.py has no such entry, only \w+, "
    with pytest.raises(NotImplementedError, match=expected):
        encoders_mlm.Encoder(dataclasses.replace(model, **{field: "own"}))


SUM4, CONCAT4 = ({"finetune__layer_features": name, "model__num_layers": 4} for name in ("sum4", "concat4"))
LABELLED = {
    "first": ("classification", "transformer", "", {}),
    "two stacks": ("regression", "rnn", "lstm", {"model__directionality": "two_stack", "finetune__pooling": "last"}),
    "mean": ("classification", "feedforward", "window", {}),
    "words": ("tagging", "transformer", "", {}),
    "answers": ("extractive_qa", "transformer", "", {}),
    "choices": ("multiple_choice", "rnn", "gru", {"data__labelled__choice_columns": "a,b,c"}),
    "mix": ("classification", "transformer", "", {"finetune__layer_features": "mix", "finetune__pooler": "electra"}),
    "mean of four": ("regression", "mixer", "conv", SUM4 | {"finetune__pooling": "mean"}),
    "four": (
        "classification",
        "rnn",
        "lstm",
        CONCAT4 | {"model__directionality": "two_stack", "finetune__pooling": "last", "finetune__pooler": "distilbert"},
    ),
    "embeddings of words": ("tagging", "transformer", "", {"finetune__layer_features": "0"}),
    "words of four": ("tagging", "transformer", "", CONCAT4),
    "mixed answers": ("extractive_qa", "transformer", "", {"finetune__layer_features": "mix"}),
}
SCORES = {"regression": "pearson", "extractive_qa": "f1"}  # of others accuracy


def build_labelled(case):
    objective, family, cell, changes = LABELLED[case]
    changes = {"model__positions": "rotary", "data__labelled__scores": SCORES.get(objective, "accuracy"), **changes}
    cfg = small_config(family, cell, objective=objective, pack__seq_len=LENGTH, **changes)
    return build_model(cfg, classes=() if objective in SCORES else CLASSES)


@pytest.mark.exhaustive(but=("first", "answers", "choices", "mix", "four"))
@pytest.mark.parametrize("case", LABELLED)
def test_torch_computes_our_labels(case, tmp_path, load_torch):
    end = LABELLED_OBJECTIVES[LABELLED[case][0]].hub_class
    assert_torch_computes_ours(build_labelled(case), tmp_path / "out", load_torch, ["", end])


@pytest.mark.exhaustive(but=("words",))
@pytest.mark.parametrize("case", [*ENDS, "words"])
def test_a_folder_names_its_classes_and_is_read_again(case, tmp_path):
    changes = {"objective": case, "pack__seq_len": LENGTH, "model__positions": "rotary"}
    model = build_model(small_config(**changes)) if case in ENDS else build_labelled(case)
    done, folder = model.save_pretrained(str(tmp_path / "out")), tmp_path / "out"
    assert "trust_remote_code=True" in done["note"] and "trust_remote_code=True" in (folder / "README.md").read_text()
    config_json = json.loads((folder / "config.json").read_text())
    heads = [*settings.LABEL_HEADS, *ENDS[case]] if case in ENDS else ["ForTokenClassification"]
    ends = {"": "MLMModel"} | {end: f"MLM{end}" for end in heads}
    assert config_json["auto_map"] == {"AutoConfig": "modeling_mlm.MLMConfig"} | {
        f"AutoModel{end}": f"modeling_mlm.{name}" for end, name in ends.items()
    }
    tree = ast.parse((folder / "modeling_mlm.py").read_text())
    assert {*ends.values()} < {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    allowed = {"functools", "torch", "transformers", "types", "encoders_mlm", "layers_mlm", "recurrence_mlm"}
    for name in settings.TORCH_FILES[:-1]:
        nodes = [node for node in ast.walk(ast.parse((folder / name).read_text())) if isinstance(node, ast.ImportFrom)]
        assert {node.module.split(".")[0] for node in nodes} <= allowed
    again = mlm.load(folder)
    assert again.config.objective == model.config.objective
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


def build_translator(number):
    """A model that translates, with blocks by chance; every second one is recurrent."""
    rng = random.Random(number)
    unread = ("first_norm", "embed_norm", "lm_head", "lm_head_activation", "type_vocab_size")
    changes = {f"model__{name}": rng.choice(values) for name, values in BLOCKS.items() if name not in unread}
    changes["model__local_window"] *= changes["model__global_every"] != 1 or bool(changes["model__global_layers"])
    sizes = {"pack__seq_len": LENGTH, "pack__source_len": LENGTH, "data__corpus": "parallel"}
    cell = ("transformer", "gru")[number % 2]
    return build_model(small_config("encoder_decoder", cell, objective="causal", **sizes, **changes))


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.exhaustive if n >= 2 else ()) for n in range(24)])
def test_torch_computes_our_logits_of_translations(number, tmp_path, load_torch):
    """And a loss that is the mean of the labels' surprisals."""
    import torch

    model, folder = build_translator(number), tmp_path / "out"
    model.save_pretrained(str(folder))
    there, text, of = load_torch(folder, "ForSeq2SeqLM"), draw_rows(model.config), model.model
    source = types.Tokens(*(x[::-1] for x in text))
    compute = jax.jit(lambda params, text, source: of.logits(params, of.encode(params, text, source)[0]))
    logits_BxLxV = compute(model.params["model"], text, source)
    ids_BxL, source_BxS, real_BxS = (torch.from_numpy(x.copy()).long() for x in (text.ids_BxL, *source[:2]))
    inputs, real = {"input_ids": source_BxS, "attention_mask": real_BxS}, text.segments_BxL > 0
    found = there(**inputs, decoder_input_ids=ids_BxL).logits.detach().numpy()
    np.testing.assert_allclose(found[real], np.asarray(logits_BxLxV)[real], rtol=0, atol=1e-5)
    start_BxL = torch.cat([torch.full((len(ids_BxL), 1), CLS), ids_BxL[:, :-1]], 1)
    nats = -there(**inputs, decoder_input_ids=start_BxL).logits.log_softmax(-1).gather(-1, ids_BxL[..., None])[..., 0]
    loss = there(**inputs, labels=ids_BxL.masked_fill(ids_BxL == 0, -100)).loss
    torch.testing.assert_close(loss, nats[ids_BxL > 0].mean())


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_torch_translates_as_we_do(number, tmp_path, load_torch):
    model, folder = build_translator(number), tmp_path / "out"
    model.save_pretrained(str(folder))
    again, texts = mlm.load(folder), ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
    ours = [found[0].text for found in again.translate(texts, num_beams=1)]
    there = load_torch(folder, "ForSeq2SeqLM")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids_BxL = there.generate(**tokenizer(texts, padding=True, return_tensors="pt"))
    assert tokenizer.batch_decode(ids_BxL, skip_special_tokens=True) == ours and any(ours)


def test_tokens_have_the_numbers_of_the_vocabulary_s_own_folder(plain, tmp_path, request):
    model = build_model(small_config("rnn", "gru", pack__seq_len=LENGTH), hub.read_tokenizer(plain["roberta"]))
    folder, text = tmp_path / "out", "the apple is red ."
    model.save_pretrained(str(folder))
    np.testing.assert_array_equal(mlm.load(folder).logits(text), model.logits(text))
    load_torch = request.getfixturevalue("load_torch")
    from transformers import AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)(text, return_tensors="pt")
    found = load_torch(folder, "ForMaskedLM")(**inputs).logits[0].detach().numpy()
    np.testing.assert_allclose(found, model.logits(text), rtol=0, atol=1e-5)


def test_torch_generates_and_trains_and_what_it_saves_is_read(tmp_path, load_torch):
    import torch

    cfg = draw_config(7)
    model, folder = build_model(cfg), tmp_path / "out"
    model.save_pretrained(str(folder))
    there, rows = load_torch(folder, "ForCausalLM"), draw_rows(cfg)
    ids_BxL = there.generate(torch.from_numpy(rows.ids_BxL[:, :5]).long(), max_new_tokens=4, do_sample=False).numpy()
    blank = np.zeros_like(ids_BxL)
    logits_BxLxV = compute_logits(model, "ForCausalLM", types.Tokens(ids_BxL, blank + 1, blank.cumsum(1), blank))
    np.testing.assert_array_equal(np.asarray(logits_BxLxV).argmax(-1)[:, 4:-1], ids_BxL[:, 5:])
    ids = torch.from_numpy(ids_BxL)
    there(ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in there.parameters())
    with torch.no_grad():
        there.bias += 1
    there.save_pretrained(folder)
    np.testing.assert_allclose(mlm.load(folder).params["model"]["bias"], model.params["model"]["bias"] + 1, rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, 7])
def test_torch_changes_types_trains_and_saves_as_other_models_do(number, tmp_path, load_torch):
    import torch

    (cfg, folder), rows = (draw_config(number), tmp_path / "out"), draw_rows(draw_config(number))
    build_model(cfg).save_pretrained(str(folder))
    load = lambda **kwargs: load_torch(folder, "ForCausalLM", **kwargs)
    logits = run_torch(load(attn_implementation="eager"), rows)
    torch.testing.assert_close(run_torch(load(attn_implementation="sdpa"), rows), logits, rtol=0, atol=1e-5)
    for dtype, error in ((torch.float16, 0.02), (torch.bfloat16, 0.2)):
        torch.testing.assert_close(run_torch(load().type(dtype), rows).float(), logits, rtol=0, atol=error)
    ids_BxL, types_BxL = torch.from_numpy(rows.ids_BxL).long(), torch.from_numpy(rows.types_BxL).long()
    labels_BxL, grads = ids_BxL.masked_fill(ids_BxL == 0, -100), []
    for options in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        there = load().train()
        if options:
            there.gradient_checkpointing_enable(options)
        torch.manual_seed(0)  # of the dropout
        there(ids_BxL, labels=labels_BxL).loss.backward()
        grads.append([parameter.grad for parameter in there.parameters()])
    torch.testing.assert_close(grads[1:], [grads[0]] * 2)
    nats = -logits.log_softmax(-1)[:, :-1].gather(-1, ids_BxL[:, 1:, None])[..., 0]
    loss = load()(ids_BxL, ids_BxL > 0, types_BxL, labels_BxL).loss
    torch.testing.assert_close(loss, nats[ids_BxL[:, 1:] > 0].mean())
    for end in settings.LABEL_HEADS:  # new ones, which are saved and read with the files of the classes
        there = load_torch(folder, end, num_labels=3)
        there.save_pretrained(tmp_path / end)
        torch.testing.assert_close(run_torch(load_torch(tmp_path / end, end), rows), run_torch(there, rows))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(a model, its folder, with one milestone)."""
    model, folder = build_model(small_config(pack__seq_len=LENGTH)), tmp_path_factory.mktemp("export") / "out"
    milestone = dataclasses.replace(model, milestone=4, params=jax.tree.map(lambda x: x + 1, model.params))
    export.save_pretrained(model, str(folder), sentence_transformers=True, milestones=[milestone])
    return model, folder


@pytest.mark.exhaustive
def test_a_milestone_has_a_folder_of_its_own(exported):
    model, folder = exported
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y + 1), mlm.load(folder / "step4").params, model.params)
    assert "after 4 updates" in (folder / "step4/README.md").read_text()
    assert {path.name for path in folder.iterdir()} - {path.name for path in (folder / "step4").iterdir()} == {"step4"}


def test_a_folder_for_sentence_transformers_encodes_as_we_do(exported, request):
    model, folder = exported
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"] and (folder / "1_Pooling/config.json").exists()
    sentence_transformers, texts = pytest.importorskip("sentence_transformers"), ["w1 w2 w3", "w4", "w5 w6 w7 " * 20]
    request.getfixturevalue("load_torch")
    there = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(there.encode(texts), model.encode(texts), rtol=0, atol=1e-5)
