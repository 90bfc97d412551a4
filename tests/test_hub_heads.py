"""Heads of labels of Hugging Face's folders: what they say, ours says; a fine-tuned model of ours is read there.

Against what fixtures/hub_heads.py kept of transformers; where that is installed, it is what it still says.
"""

import functools
import re

import jax
import numpy as np
import pytest
import tokenizers
from fixtures import hub
from fixtures import hub_heads as theirs
from hub_folders import load_head_outputs, make_head_folder, same_tensors
from small import get_refusal, small_config

import mlm
from mlm.base import errors
from mlm.base.special import SPECIAL_TOKENS
from mlm.data.rows.preprocessors import PREPROCESSORS
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers import hub_model, kinds
from mlm.inference import prediction, pretrained_io
from mlm.objectives import heads
from mlm.training.run import pretrained_folder as read

EVERY = pytest.mark.parametrize("case", theirs.CASES)
PAIRS = [("a red apple", "the sky is blue"), ("big", "un known")]


@pytest.fixture(scope="module")
def folders(plain, tmp_path_factory):
    top = tmp_path_factory.mktemp("heads")
    return {case: make_head_folder(plain, top, case) for case in theirs.CASES}


def get_texts(model) -> list:
    return theirs.WORDS if model.config.objective == "tagging" else theirs.TEXTS


def rows(model, examples) -> list:
    made = PREPROCESSORS[model.config.objective].encode(
        [prediction.make_example(model, one) for one in examples],
        model.tokenizer,
        model.config,
        model.dataset_info.classes,
    )
    return [row for (row,) in made]


def logits(model, examples) -> list[np.ndarray]:
    """logits_C of each text or pair, or logits_TxC of words."""
    made = rows(model, examples)
    ids_BxL = np.zeros((len(made), hub.PLACES), np.int32)
    for row, ids_L in zip(made, ids_BxL, strict=True):
        ids_L[: len(row.ids)] = row.ids
    answer = jax.jit(functools.partial(apply_head, model))
    found_Bx = np.asarray(answer(model.params, prediction.make_batch(model, ids_BxL, made)))
    tag = model.config.objective == "tagging"
    return [found_x[: len(row.ids)] if tag else found_x for row, found_x in zip(made, found_Bx, strict=True)]


def apply_head(model, params, batch):
    h_BxLxD, head = heads.read_features(model.config, params, model.model, batch, None), params["objective"]
    if model.config.objective == "tagging":
        return heads.apply_dense(head, h_BxLxD)
    return heads.apply_pooled_head(model.config, head, h_BxLxD, batch.text, None)


@EVERY
def test_rows_of_texts_pairs_and_words_are_theirs(models, case):
    model = models[case]
    order_V = hub_model.get_original_ids(model.tokenizer)
    for i, row in enumerate(rows(model, get_texts(model))):
        np.testing.assert_array_equal(order_V[row.ids], load_head_outputs()[f"{case}:ids:{i}"])
        is_pair = model.config.objective != "tagging" and len(get_texts(model)[i]) == 2
        has_types = case.startswith("bert")  # RoBERTa's pairs have one type
        assert (row.second_start < len(row.ids)) == (is_pair and has_types)


@EVERY
def test_logits_of_labels_are_theirs(models, case):
    for i, found in enumerate(logits(models[case], get_texts(models[case]))):
        np.testing.assert_allclose(found, load_head_outputs()[f"{case}:logits:{i}"], rtol=0, atol=1e-5)


@pytest.mark.exhaustive(but=("roberta-tag",))
@pytest.mark.parametrize("case", ["bert-classify", "roberta-tag", "xlm-roberta-regress"])
def test_predictions_are_the_likeliest_labels_of_theirs(models, case):
    model = models[case]
    for i, found in enumerate(model.predict(get_texts(model))):
        wanted_xC = load_head_outputs()[f"{case}:logits:{i}"]
        if model.config.objective == "regression":
            assert found.label == pytest.approx(wanted_xC[0], abs=1e-5) and found.probability is None
            continue
        share_xC = np.asarray(jax.nn.softmax(wanted_xC))
        if model.config.objective == "tagging":
            places = np.flatnonzero(np.array(rows(model, get_texts(model))[i].labels["tag"]) >= 0)
            assert len(places) == len(found) == len(theirs.WORDS[i])
            share_xC = share_xC[places]
        else:
            found, share_xC = [found], share_xC[None]
        assert [one.label for one in found] == [model.dataset_info.classes[best] for best in share_xC.argmax(-1)]
        np.testing.assert_allclose([one.probability for one in found], share_xC.max(-1), atol=1e-5)
    assert model.dataset_info.classes == (() if model.config.objective == "regression" else ("bad", "fair", "good"))


@EVERY
def test_what_was_read_is_written_again_to_the_bit(folders, models, case, tmp_path):
    models[case].save_pretrained(str(tmp_path / "out"))
    same_tensors(folders[case], tmp_path / "out")
    pipeline = "token" if case.endswith("tag") else "text"
    assert f"pipeline_tag: {pipeline}-classification" in (tmp_path / "out/README.md").read_text()


def test_a_text_is_embedded_and_nothing_filled_in(models):
    model = models["bert-classify"]
    assert model.encode("the apple").shape == (16,)
    with pytest.raises(
        errors.ConfigError, match=r"^fill_mask = 'classification': expected a run that was trained to predict"
    ):
        model.fill_mask("[MASK]")
    with pytest.raises(errors.ConfigError, match=r"^text = .*: expected one text or a pair of texts"):
        model.predict(("a", "b", "c"))


BAD = {
    "several labels at once": (
        {"problem_type": "multi_label_classification"},
        (),
        "problem_type = 'multi_label_classification': expected one of single_label",
    ),
    "one name twice": ({"id2label": {"0": "a", "1": "b", "2": "a"}}, (), "id2label = .*: expected names that differ"),
    "no classifier": ({}, ("classifier.bias",), "expected classifier.bias among them"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_broken_head_ends_in_one_line(plain, case, tmp_path):
    settings, drop, said = BAD[case]
    folder = make_head_folder(plain, tmp_path, "bert-classify", drop, **settings)
    line = get_refusal(mlm.load, folder)
    assert re.search(said, line) and len(line) < 600 and str(folder) in line, line


def ours(objective, vocabulary_of=None, **changes):
    """A small fine-tuned model of ours, over a vocabulary of its own or of a folder of theirs."""
    words = "\n".join([*SPECIAL_TOKENS, "the", "apple", "is", "red", "green", ".", "##s"]).encode()
    tokenizer = (
        vocabulary.read_tokenizer(vocabulary_of) if vocabulary_of else kinds.KINDS["wordpiece"].build_tokenizer(words)
    )
    scores = {"regression": "pearson", "extractive_qa": "f1"}.get(objective, "accuracy")
    cfg = small_config(
        objective=objective,
        pack__seq_len=hub.PLACES,
        model__norm_placement=changes.pop("model__norm_placement", "post"),
        data__labelled__scores=scores,
        **changes,
    )
    classes = () if objective in ("regression", "extractive_qa") else ("O", "B-X", "I-X")
    about = read.make_dataset_info(cfg, tokenizer, classes)
    blank = pretrained_io.build_language_model(cfg, tokenizer, {}, {}, about)
    draw = np.random.default_rng(0)

    def init(key):
        return {"model": blank.model.init(key), "objective": blank.objective.init(key, blank.model)}

    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.2 * draw.normal(size=x.shape).astype(np.float32),
        jax.eval_shape(init, jax.random.key(0)),
    )
    return pretrained_io.build_language_model(cfg, tokenizer, params["model"], params["objective"], about)


OUT = {
    "bert": ("classification", "bert", {}),
    "roberta": ("classification", "roberta", {"model__type_vocab_size": 1}),
    "roberta words": ("tagging", "roberta", {"model__type_vocab_size": 1}),
    "pre-norm": ("regression", "", {"model__norm_placement": "pre"}),
    "words": ("tagging", "", {}),
}
CALLED = {"roberta": "roberta", "roberta words": "roberta", "pre-norm": "roberta-prelayernorm"}


@pytest.mark.parametrize("case", OUT)
def test_ours_is_theirs(plain, case, tmp_path):
    objective, words, changes = OUT[case]
    model, folder = ours(objective, plain[words] if words else None, **changes), tmp_path / "out"
    kind = CALLED.get(case, "bert")
    assert model.save_pretrained(str(folder)) == {"written": str(folder), "model_type": kind, "note": ""}
    again = mlm.load(folder)
    assert again.dataset_info.classes == model.dataset_info.classes and again.config.objective == objective
    jax.tree.map(np.testing.assert_array_equal, again.params["objective"], model.params["objective"])
    for name in again.params["model"].keys() - {"transform", "transform_norm", "bias"}:
        jax.tree.map(np.testing.assert_array_equal, again.params["model"][name], model.params["model"][name])
    tag = objective == "tagging"
    given = theirs.WORDS if tag else [*PAIRS, ("the red apple",)]
    tool = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    order_V = hub_model.get_original_ids(model.tokenizer)
    for one, row in zip(given, rows(model, given), strict=True):
        said = tool.encode(one, is_pretokenized=True) if tag else tool.encode(*one)
        np.testing.assert_array_equal(said.ids, order_V[row.ids])
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    auto = transformers.AutoModelForTokenClassification if tag else transformers.AutoModelForSequenceClassification
    there = auto.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for one, wanted in zip(given, logits(model, given), strict=True):
        said = tokenizer(*([one] if tag else one), return_tensors="pt", is_split_into_words=tag)
        with torch.no_grad():
            found = there(**said).logits[0].numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.exhaustive(but=("bilstm",))
@pytest.mark.parametrize(
    ("objective", "changes", "why"),
    [
        (
            "tagging",
            {"finetune__head": "bilstm", "finetune__head_dim": 4},
            "config.finetune.head = 'bilstm': expected linear, which transformers' bert needs",
        ),
        (
            "regression",
            {"family": "rnn", "cell": "gru", "finetune__pooling": "mean"},
            "config.model.family = 'rnn': expected trans",
        ),
    ],
    ids=["bilstm", "gru"],
)
def test_what_no_class_of_theirs_is_predicts_from_our_config(objective, changes, why, tmp_path):
    changes = changes | ({"model__norm_placement": "pre"} if "family" in changes else {})
    model, folder = ours(objective, **changes), tmp_path / "out"
    done = model.save_pretrained(str(folder))
    assert done["model_type"] == "mlm" and done["note"].startswith(why) and "\n" not in done["note"]
    again = mlm.load(folder)
    given = theirs.WORDS if objective == "tagging" else ["the apple is red .", "green apples"]
    assert again.predict(given) == model.predict(given)
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
