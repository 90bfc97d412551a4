"""Choices: a row holds a context with each of its endings, and the model reads each as if it stood alone."""

import functools
import random
import re

import jax
import numpy as np
import pytest
from small import ENDINGS, PLAIN, batch, build, get_refusal, make_task_fields, replace_text, small_config

from mlm.base import config, fields, types
from mlm.base.special import CLS, SEP
from mlm.data.rows import labelled, pack
from mlm.data.tasks import splits
from mlm.data.tokenizers import kinds
from mlm.objectives import OBJECTIVES, classification
from mlm.training.run import resolution

WORDS = [f"w{i}" for i in range(40)]
HEADER = "sent1,sent2,ending0,ending1,ending2,label\n"
ROW = "w1,w2,w3,w4,w5,2\n"


def make_config(folder, tokenizer, **said):
    said = {
        "format": "csv",
        "train": "train",
        "dev": "dev",
        "text_column": "sent1",
        "text_pair_column": "sent2",
        "label_column": "label",
        "choice_columns": "ending0,ending1,ending2",
    } | said
    base = {"objective": "multiple_choice", "pack.seq_len": 12}
    return fields.override(config.Config(), base | make_task_fields(folder, tokenizer, **said))


def load(*args, **said):
    cfg = resolution.resolve(make_config(*args, **said))
    return pack.load_dataset(cfg)


def write(folder, text, *names):
    for name in names or ("train", "dev"):
        (folder / name).write_text(text)


def test_a_row_holds_a_stretch_for_each_ending(tmp_path, tokenizer, caplog):
    caplog.set_level("INFO")
    draw, known, cut = random.Random(0), kinds.load_tokenizer_folder("", tokenizer), []
    given = [[" ".join(draw.choices(WORDS, k=draw.randint(1, 7))) for _ in range(5)] for _ in range(30)]
    write(tmp_path, HEADER + "".join(f"{','.join(one)},{at % 3}\n" for at, one in enumerate(given)))
    packed = load(tmp_path, tokenizer)
    assert packed.dataset_info.seq_len == 36 and packed.dataset_info.label_names == ("label_B",)
    assert packed.dataset_info.classes == ("0", "1", "2")
    shapes = types.abstract_batch(4, packed.dataset_info)
    assert shapes.text.ids_BxL.shape == (4, 36)
    for at, (context, before, *endings) in enumerate(given):
        assert packed.train["label"][at] == at % 3
        lost = 0
        for number, ending in enumerate(endings):
            a, b = known.encode(context), known.encode(f"{before} {ending}")
            lost += max(0, len(a) + len(b) - 9)
            while len(a) + len(b) > 9:  # the longer one loses its last token
                (a if len(a) > len(b) else b).pop()
            row, there = [CLS, *a, SEP, *b, SEP], slice(12 * number, 12 * number + 12)
            empty = [0] * (12 - len(row))
            for name, wanted in (
                ("ids", row),
                ("segments", [number + 1] * len(row)),
                ("positions", range(len(row))),
                ("types", [0] * (len(a) + 2) + [1] * (len(b) + 1)),
            ):
                assert packed.train[name][at, there].tolist() == [*wanted, *empty], name
        cut.append(lost)
    said = packed.manifest["train"]
    assert (said["truncated"], said["lost"]) == (np.count_nonzero(cut), sum(cut)) and sum(cut) > 0
    assert "examples (" in caplog.text
    assert f"its context, longer than config.pack.seq_len = 12 tokens and was truncated; {sum(cut)}" in caplog.text
    assert packed.manifest["counts"] == {"0": 10, "1": 10, "2": 10}
    assert labelled.read_examples(packed, "validation")[1]["texts"] == [
        given[1][0],
        *(f"{given[1][1]} {ending}" for ending in given[1][2:]),
    ]


def test_endings_come_in_the_order_of_their_columns_and_labels_in_theirs(tmp_path, tokenizer):
    write(
        tmp_path,
        '{"q": "w1", "A": "w2", "B": "w3", "C": "w4", "key": "C"}\n{"q": "w1", "A": "w5", "B": "w6", "C": '
        '"w7", "key": "A"}\n',
    )
    said = {"format": "jsonl", "text_column": "q", "text_pair_column": "", "label_column": "key"}
    one = load(tmp_path, tokenizer, choice_columns="A,B,C", labels="A,B,C", **said)
    turned = load(tmp_path, tokenizer, choice_columns="C, A, B", labels="C, A, B", **said)
    stretch = one.train["ids"].reshape(2, 3, 12)
    np.testing.assert_array_equal(turned.train["ids"].reshape(2, 3, 12), stretch[:, [2, 0, 1]])
    assert one.train["label"].tolist() == [2, 0] and turned.train["label"].tolist() == [0, 1]
    assert turned.dataset_info.classes == ("C", "A", "B")
    write(tmp_path, "w1,w2,w3,w4,2\nw1,w5,w6,w7,0\n")
    by_number = load(
        tmp_path, tokenizer, text_column="0", choice_columns="1,2,3", label_column="4", text_pair_column=""
    )
    np.testing.assert_array_equal(by_number.train["ids"], one.train["ids"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            HEADER + ROW.replace("2\n", "3\n"),
            ", line 2: label = '3': expected a label of config.data.labelled.choice_columns, by number: 0, 1, 2",
        ),
        (HEADER + ROW.replace("w4", " "), ", line 2: ending1 = ' ': expected a text that is not blank"),
        (HEADER.replace("ending1", "ending"), ": no column 'ending1', expected one of .*; did you mean 'ending"),
        (HEADER + "w1,w2,w3,w4,2\n", ", line 2: columns = 5: expected 6, as the header has"),
    ],
)
def test_a_bad_row_ends_in_one_line(text, words, tmp_path, tokenizer):
    write(tmp_path, HEADER + ROW, "train")
    write(tmp_path, text, "dev")
    assert_refused(f"{re.escape(str(tmp_path))}/dev{words}", load, tmp_path, tokenizer)


def assert_refused(words, call, *args, **said):
    line = get_refusal(call, *args, **said)
    assert re.search(words, line), line


def test_fields_that_came_later_rename_no_rows_that_were_made_without_them(tmp_path):
    write(tmp_path, "sentence\tlabel\nw1\t0\nw2\t1\n")
    said = {"format": "tsv", "train": "train", "dev": "dev", "text_column": "sentence", "label_column": "label"}
    data = fields.override(
        config.Config(),
        {"data.task": "own", "data.task_path": str(tmp_path)}
        | {f"data.labelled.{name}": value for name, value in said.items()},
    ).data
    assert splits.hash_content(data).startswith("db1044289b5ec2bf")


@pytest.fixture(scope="module", params=["transformer", "rnn"])
def answers(request):
    """The compiled logits of a small model, with no parameter of a special value."""
    cfg = small_config(request.param, objective="multiple_choice", model__num_layers=1, **PLAIN)
    model, params, _ = build(cfg)
    head = OBJECTIVES["multiple_choice"].build(cfg, about()).init(jax.random.key(0), model)
    rng = np.random.default_rng(1)
    params = {"model": params, "objective": jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), head)}
    return jax.jit(
        functools.partial(
            classification.compute_choice_logits, cfg, params, model, key_B=None, num_choices=len(ENDINGS)
        )
    )


def about():
    return types.DatasetInfo(50, 16, ("label_B",), b"", ENDINGS)


def rows():
    """Endings of 2 to 4 tokens, at places of their own as rows have them."""
    real_BxL = np.arange(16) % 4 < np.random.default_rng(2).integers(2, 5, (3, 4)).repeat(4, 1)
    full = batch(3)
    return replace_text(
        full,
        ids_BxL=full.text.ids_BxL * real_BxL,
        segments_BxL=(np.arange(16) // 4 + 1) * real_BxL,
        positions_BxL=np.arange(16) % 4 * real_BxL,
    )


def reorder(x_BxL, order):
    return x_BxL.reshape(3, 4, 4)[:, order].reshape(3, 16)


def test_endings_in_another_order_have_their_logits_in_that_order(answers):
    order = [2, 0, 3, 1]
    given = rows()
    one, other = answers(given), answers(given._replace(text=types.Tokens(*(reorder(x, order) for x in given.text))))
    np.testing.assert_allclose(other, np.asarray(one)[:, order], rtol=1e-5, atol=1e-6)
    assert np.ptp(one) > 0.1


def test_no_ending_sees_another_and_one_that_is_not_there_is_never_chosen(answers):
    given = rows()
    ids_BxL = given.text.ids_BxL.copy()
    ids_BxL[:, 4:6] = 7
    one, other = (np.asarray(answers(replace_text(given, ids_BxL=ids))) for ids in (given.text.ids_BxL, ids_BxL))
    np.testing.assert_allclose(one[:, [0, 2, 3]], other[:, [0, 2, 3]], rtol=1e-6)
    assert (one[:, 1] != other[:, 1]).all()
    none = answers(replace_text(given, segments_BxL=given.text.segments_BxL * (np.arange(16) < 12)))
    assert (np.asarray(none)[:, 3] < -1e8).all()
    np.testing.assert_allclose(np.asarray(none)[:, :3], one[:, :3], rtol=1e-6)


def test_each_ending_has_a_draw_of_its_own_for_dropout():
    cfg = small_config(objective="multiple_choice", model__dropout=0.5)
    same = types.Model(("bidirectional",), 8, dict, lambda params, text, source, *, key_B: (np.ones((12, 4, 8)),), None)
    params = {"model": {}, "objective": OBJECTIVES["multiple_choice"].build(cfg, about()).init(jax.random.key(0), same)}
    keys = jax.random.split(jax.random.key(1), 3)
    dropped = np.asarray(classification.compute_choice_logits(cfg, params, same, rows(), keys, num_choices=4))
    assert len(np.unique(dropped)) > 6
