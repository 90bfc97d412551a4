"""Edge probes: the rows that bring words and their heads, and the loss on them by numpy."""

import itertools
import json
import math

import jax
import numpy as np
import pytest
from scipy.special import expit, softmax
from small import CLASSES, PLAIN, batch, make_dataset_info, make_task_fields, replace_text, small_config

from mlm.base import config, errors, fields, types
from mlm.base.estimates import Score, compute_score
from mlm.base.special import CLS, SEP
from mlm.data.language import tasks
from mlm.data.rows import labelled, pack, preprocessors
from mlm.data.tasks import splits
from mlm.data.tokenizers import kinds
from mlm.evaluation import predictions
from mlm.objectives import OBJECTIVES
from mlm.training.run import log, resolution
from mlm.training.validation import split_scores

LAYERS, ROWS, WIDTH = 3, 4, 5
H_KxBxLxD = np.random.default_rng(0).normal(size=(LAYERS + 1, ROWS, 16, WIDTH)).astype(np.float32)
SENTENCE = (("w1", "NOUN", 2, "nsubj"), ("abc", "VERB", 0, "root"), ("w3", "NOUN", 4, "amod"), ("cab", "X", 2, "obj"))


def make_config(depth=-1, layers=0, **changes):
    return small_config(
        objective="edge_probing",
        **{
            **PLAIN,
            "model__num_layers": LAYERS,
            "finetune__trainable_layers": layers,
            "finetune__max_layer": depth,
            **changes,
        },
    )


def model():
    return types.Model(("bidirectional",), WIDTH, dict, None, None, encode_layers=lambda *args, key_B: H_KxBxLxD)


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def plain(head, depth, rows):
    """logits_BxSxC, a span at a time."""
    h_BxLxD = head["mix"]["scale"] * np.tensordot(softmax(head["mix"]["logits"]), H_KxBxLxD[: depth + 1], 1)
    out = np.zeros((ROWS, 16, len(CLASSES)))
    for row, slot in np.ndindex(ROWS, 16):
        both = []
        for name, before in (("one", ""), ("other", "other_")):
            first, last = (rows.labels[f"{before}{end}_BxL"][row, slot] for end in ("from", "to"))
            x_TxP = dense(head[name]["project"], h_BxLxD[row, first : last + 1])
            both.append(softmax((x_TxP @ head[name]["attend"])[:, 0]) @ x_TxP)
        out[row, slot] = dense(head["label"], np.tanh(dense(head["hidden"], np.concatenate(both))))
    return out


@pytest.mark.parametrize("depth", [0, 2])
def test_a_probe_reads_a_mix_of_its_layers_a_span_at_a_time_and_asks_of_each_class(depth):
    full = batch(ROWS, labels=True)
    real = (np.arange(ROWS) < ROWS - 1)[:, None]  # the last row fills up
    rows = replace_text(full, segments_BxL=full.text.segments_BxL * real)
    rows.labels["to_BxL"][0], rows.labels["edge_BxL"][1, 9] = 5, 2  # a long span, and a slot on its own
    cfg, rng = make_config(depth), np.random.default_rng(1)
    of = OBJECTIVES["edge_probing"].build(cfg, make_dataset_info(cfg))
    shapes = jax.eval_shape(lambda key: of.init(key, model()), jax.random.key(0))
    head = jax.tree.map(lambda x: 0.3 * rng.normal(size=x.shape).astype(np.float32), shapes)
    evaluate = jax.jit(lambda head: of.loss({"model": {}, "objective": head}, model(), rows, None, None, train=False))
    found = jax.device_get(split_scores.name_sums(evaluate(head)))
    logits_BxSxC, edge_BxS = plain(head, depth, rows), rows.labels["edge_BxL"]
    asked_BxS, gold_BxSxC = (edge_BxS >= 0) & real, np.eye(len(CLASSES))[edge_BxS]
    nats_BxS = -np.where(gold_BxSxC > 0, np.log(expit(logits_BxSxC)), np.log(expit(-logits_BxSxC))).sum(-1)
    guess_BxSxC = (logits_BxSxC > 0) & asked_BxS[..., None]
    for name, value_B in {
        "edge_probing_nats": (nats_BxS * asked_BxS).sum(1),
        "edge_probing_weight": asked_BxS.sum(1),
        "predicted_positives": guess_BxSxC.sum((1, 2)),
        "true_positives": (guess_BxSxC * gold_BxSxC).sum((1, 2)),
        "correct": ((logits_BxSxC.argmax(-1) == edge_BxS) & asked_BxS).sum(1),
        "majority_correct": ((edge_BxS == 2) & asked_BxS).sum(1),
    }.items():
        np.testing.assert_allclose(found[name], value_B, rtol=1e-4, atol=1e-5, err_msg=name)
    score = {score.name: compute_score(score, found) for score in of.scores}
    right, wrong, missed = (
        ((guess_BxSxC == said) & ((gold_BxSxC > 0) == gold) & asked_BxS[..., None]).sum()
        for said, gold in ((1, True), (1, False), (0, True))
    )
    assert score["f1"][0] == pytest.approx(right / (right + (wrong + missed) / 2))
    assert score["majority_f1"][0] == pytest.approx((edge_BxS[asked_BxS] == 2).mean())
    by_hand = softmax(head["mix"]["logits"]) @ np.arange(depth + 1)
    np.testing.assert_allclose(score["gravity"], (by_hand, 0), atol=1e-5)


def write(folder, *sentences):
    lines = []
    for sentence in sentences:
        lines += [
            f"{n}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t_"
            for n, (word, tag, head, label) in enumerate(sentence, 1)
        ]
        lines += [""]
    for name in ("train", "dev"):
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    kinds.train_tokenizer(config.Tokenizer("wordpiece", 17), ["abcab cabca bca"] * 50).save(folder)
    return str(folder)


def make_task_config(folder, tokenizer, **changes):
    base = make_task_fields(folder, tokenizer, train="train", dev="dev", test="dev")
    base |= {"data.task": "ud_dep", "pack.seq_len": 16, "finetune.trainable_layers": 0}
    cfg = resolution.derive_fields(fields.override(config.Config(), base | changes))
    pack.check(cfg)
    return cfg


def test_words_are_asked_with_their_heads_and_those_that_do_not_fit_are_counted(tmp_path, pieces):
    far = tuple(("abc", "X", 20 if n == 1 else 1, "det") for n in range(1, 21))
    write(tmp_path, SENTENCE, far)
    known = kinds.load_tokenizer_folder("", pieces)
    for task, labels, heads in (
        ("ud_dep", ("nsubj", "", "amod", "obj"), (2, 2, 4, 2)),
        ("ud_pos", ("NOUN", "VERB", "NOUN", "X"), (1, 2, 3, 4)),
    ):
        cfg = make_task_config(tmp_path, pieces, **{"data.task": task})
        packed = pack.load_dataset(cfg)
        classes = packed.dataset_info.classes
        assert classes == (("amod", "det", "nsubj", "obj") if task == "ud_dep" else ("NOUN", "VERB", "X"))
        words = [known.encode(word) for word, *_ in SENTENCE]
        starts = np.cumsum([1, *map(len, words)])
        rows = packed.train
        assert rows["ids"][0, : starts[-1] + 1].tolist() == [CLS, *itertools.chain(*words), SEP]
        for at, (label, head) in enumerate(zip(labels, heads, strict=True)):
            if not label:
                assert rows["edge"][0, at] == -1
                continue
            assert classes[rows["edge"][0, at]] == label
            for before, word in (("", at), ("other_", head - 1)):
                assert rows[f"{before}from"][0, at] == starts[word]
                assert rows[f"{before}to"][0, at] == starts[word + 1] - 1
        assert (rows["edge"][0, 4:] == -1).all()
        fit = (16 - 2) // len(known.encode("abc"))  # words of a window
        # All words but the first depend on the first, which depends on the last: no window holds those that are apart.
        scored = range(1, fit) if task == "ud_dep" else range(20)
        (_, record) = labelled.read_examples(packed, "train")
        first_row = record["row"]
        assert ("heads" in record) == (task == "ud_dep")
        assert record["rows"] > 20 // fit and record["first_words"][:2] == [0, math.ceil(7 / len(known.encode("abc")))]
        placed = [
            (first + slot, rows["other_from"][row, slot] - rows["from"][row, slot])
            for row, first in enumerate(record["first_words"], first_row)
            for slot in np.flatnonzero(rows["edge"][row] >= 0).tolist()
        ]
        assert [word for word, _ in placed] == [*scored]
        if task == "ud_dep":
            assert [gap for _, gap in placed] == [-word * len(known.encode("abc")) for word in scored]
        assert packed.manifest["train"]["lost"] == 20 - len(scored)
        columns = {"predicted": rows["edge"] * (rows["edge"] >= 0), "score": np.zeros(rows["edge"].shape)}
        told = list(predictions.iterate_records(cfg, packed, "train", columns))
        assert [(one["word"], one["gold"]) for one in told[: sum(map(bool, labels))]] == [
            (at, label) for at, label in enumerate(labels) if label
        ]
        last = {one["word"]: one["predicted"] for one in told if one["id"] == "1"}
        assert [*last] == [*range(20)] and [word for word, said in last.items() if said is not None] == [*scored]
        assert all(one["predicted"] in (one["gold"], None) for one in json.loads(json.dumps(told)))
        sums = {"edge_probing_weight": (rows["edge"] >= 0).sum(1).astype(np.float32)}
        merged = (
            OBJECTIVES["edge_probing"]
            .build(cfg, packed.dataset_info)
            .host_metrics(sums, rows, labelled.read_examples(packed, "train"))
        )
        assert merged["unscored"].tolist()[:2] == [0, 20 - len(scored)]
        assert merged["edge_probing_weight"].tolist() == [
            sum(map(bool, labels)),
            len(scored),
            *[0] * (len(rows["ids"]) - 2),
        ]
        score = Score("share", "share", ("edge_probing_weight", "edge_probing_weight"), chart=True)
        line = log.format_evaluation(split_scores.summarize(merged, [score]), [score])
        assert line.endswith(f", {20 - len(scored)} labels not scored") == (task == "ud_dep")


@pytest.mark.parametrize(
    ("head", "task", "said"),
    [
        ("_", "ud_dep", r"train, line 1: head = '_': expected the number of a word, 1 to 4, or 0$"),
        ("5", "ud_dep", r"train, line 1: head = '5': expected the number of a word, 1 to 4, or 0$"),
        ("_", "ud_pos", ""),
    ],
)
def test_a_head_that_is_no_word_is_refused_where_it_is_read(tmp_path, pieces, head, task, said):
    write(tmp_path, (("w1", "NOUN", head, "nsubj"), *SENTENCE[1:]))
    cfg = make_task_config(tmp_path, pieces, **{"data.task": task})
    if not said:
        assert len(splits.list_classes(cfg)) == 3
        return
    with pytest.raises(errors.ConfigError, match=said):
        splits.list_classes(cfg)


def test_the_language_s_tags_are_labels_of_single_words(tmp_path):
    cfg = fields.override(
        config.Config(), {"data.task": "tag", "objective": "edge_probing", "tokenizer.path": "a", "pack.seq_len": 32}
    )
    pack.check(resolution.derive_fields(cfg))
    examples = list(tasks.TAG.generate_examples(cfg.data.language, "dev", 3))
    kinds.train_tokenizer(config.Tokenizer("words", 0), [one.texts[0] for one in examples]).save(tmp_path)
    classes, tokenizer = tasks.list_tags(cfg.data.language), kinds.load_tokenizer_folder("", str(tmp_path))
    for one, (row,) in zip(examples, preprocessors.encode_edges(examples, tokenizer, cfg, classes), strict=True):
        places = np.flatnonzero(row.labels["edge"] >= 0)
        assert [classes[row.labels["edge"][place]] for place in places] == [label for label in one.label if label]
        for name in ("from", "to", "other_from", "other_to"):
            assert [one.words[at - 1] for at in row.labels[name][places]] == [
                word for word, label in zip(one.words, one.label, strict=True) if label
            ]
