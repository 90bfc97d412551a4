"""Contrastive: InfoNCE by brute force, one gradient however a batch is cut, and a run from a table to its embeddings."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from small import batch, make_dataset_info, make_task_fields, params_of, small_config, train_config

import mlm
from mlm.base import config, errors, fields, types
from mlm.base.special import CLS, SEP
from mlm.data.rows import pack
from mlm.data.tokenizers import kinds
from mlm.evaluation import evaluation_tasks, sentence_similarity
from mlm.inference.forward_passes import compute_cosines
from mlm.objectives import contrastive
from mlm.training.run import resolution, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program, update
from mlm.training.validation import split_scores

ROWS = 8
draws = functools.partial(np.random.default_rng, 0)


@pytest.mark.parametrize("negatives", [0, 1])
@pytest.mark.parametrize("dims", [(), (2, 3)])
def test_the_loss_is_the_mean_of_infonce_over_the_dims_and_padding_is_nobody_s_negative(negatives, dims):
    embedding_NxTxD = draws().normal(size=(5, 2 + negatives, 6)).astype(np.float32)
    embedding_NxTxD[2, 1] = 3 * embedding_NxTxD[2, 0]  # the one that is right
    index_N, real_N = np.array([7, 3, 9, 4, 5]), np.array([1, 1, 1, 1, 0])
    others = embedding_NxTxD[:, 1:], index_N, real_N
    order = [1, 2, 0]  # a device's own examples, in an order of their own
    nats_B, correct = contrastive.find_pairs(embedding_NxTxD[order, 0], index_N[order], *others, 0.1, dims)
    assert {*correct} == {"correct", *(f"correct_{dim}" for dim in dims)}
    for place, row in enumerate(order):
        nats = []
        for dim in (*dims, 6):
            cut = embedding_NxTxD[:4, :, :dim] / np.linalg.norm(embedding_NxTxD[:4, :, :dim], axis=-1, keepdims=True)
            cosines = [cut[row, 0] @ cut[other, text] for text in range(1, 2 + negatives) for other in range(4)]
            nats.append(-log_softmax(np.array(cosines) / 0.1)[row])
            name = "correct" if dim == 6 else f"correct_{dim}"
            assert correct[name][place] == (np.argmax(cosines) == row)
        assert nats_B[place] == pytest.approx(np.mean(nats), rel=1e-4, abs=1e-5)
    assert correct["correct"][1]


def make_config(**changes):
    return small_config(
        **{
            "objective": "contrastive",
            "model__num_layers": 1,
            "model__dropout": 0.3,
            "train__batch_size": ROWS,
            "optim__clip_norm": 0.0,
            "contrastive__matryoshka_dims": (4,),
            **changes,
        }
    )


def make_batch():
    """Two texts a row; no text of a row is padding."""
    return batch(ROWS, seed=1)


@functools.cache
def compute_direct():
    """(The gradient of the whole batch's loss by JAX alone, that loss), and the parameters."""
    cfg = make_config()
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:1])
    hparams = program.make_train_hparams(cfg)
    params = params_of(made.init_state.eval_shape(hparams).params)
    key_B = update.make_example_keys(hparams.seed, 0, make_batch().index_B)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        losses = made.objective.loss(params, made.model, make_batch(), key_B, hparams, train=True)
        return losses.loss_B["contrastive"].mean()

    return params, jax.device_get(loss(params))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "devices", "parts"),
    [
        ("data_parallel", 4, 1),
        ("fsdp", 4, 2),
        pytest.param("data_parallel", 1, 4, marks=pytest.mark.exhaustive),
        pytest.param("pmap", 2, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_parts_and_devices_have_the_gradient_of_the_whole_batch(mode, devices, parts):
    """While dropout draws. The first moment of the optimizer is a tenth of the gradient."""
    cfg = make_config(parallel__mode=mode, train__grad_accum_steps=parts)
    params, (loss, grads) = compute_direct()
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])
    hparams, partitioner = program.make_train_hparams(cfg), made.partitioner
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), made.init_state.eval_shape(hparams))
    state = partitioner.put_state(zeros._replace(params=params))
    state, metrics = partitioner.train_step(state, partitioner.put_batch(make_batch()), hparams)
    metrics, state = partitioner.get_metrics(metrics), partitioner.get_state(state)
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-6)
    assert float(metrics["sums"].weight["contrastive"]) == ROWS
    (moments,) = (leaf for leaf in jax.tree.leaves(state.opt_state, is_leaf=is_adam) if is_adam(leaf))
    for name, moment in jax.tree_util.tree_leaves_with_path(moments.mu):
        grad = functools.reduce(lambda tree, key: tree[key.key], name, grads)
        np.testing.assert_allclose(10 * np.asarray(moment), grad, rtol=1e-5, atol=1e-6, err_msg=str(name))


def is_adam(leaf):
    return hasattr(leaf, "mu")


@pytest.mark.parametrize("pair", ["", "two"])
def test_dropout_alone_tells_a_text_from_itself_in_evaluation_too(pair):
    """Of a model whose states are its dropout's draws; a pair is evaluated without."""
    columns = {"data.labelled.text_column": "one", "data.labelled.text_pair_column": pair}
    cfg = fields.override(make_config(), columns)

    def encode(params, text, source, *, key_B):
        draw = lambda key: jax.random.normal(key, (text.ids_BxL.shape[1], 4))
        return (jnp.ones((*text.ids_BxL.shape, 4)) if key_B is None else jax.vmap(draw)(key_B),)

    model = types.Model(("both",), 4, dict, encode, None)
    objective, hparams = contrastive.build(cfg, make_dataset_info(cfg)), program.make_eval_hparams(cfg)
    key_B = update.make_eval_keys(hparams, make_batch().index_B)
    losses = objective.loss({"model": {}, "objective": {}}, model, make_batch(), key_B, hparams, train=False)
    embedding_BxTxD = np.asarray(losses.sums_B["embedding"])
    assert (embedding_BxTxD[:, 0] == embedding_BxTxD[:, 1]).all() == bool(pair)
    assert len(np.unique(embedding_BxTxD)) == (1 if pair else embedding_BxTxD.size)


def make_task(folder, tokenizer, **changes):
    labelled = {"format": "jsonl", "train": "train.jsonl", "dev": "train.jsonl", "text_column": "one"}
    base = make_task_fields(folder, tokenizer, **labelled)
    base |= {"objective": "contrastive", "model.dropout": 0.1, "pack.seq_len": 8}
    return config.Config(), base | {name.replace("__", "."): value for name, value in changes.items()}


PAIR, TRIPLE = {"data__labelled__text_pair_column": "two"}, {"data__labelled__negative_column": "three"}


@pytest.mark.parametrize(
    ("changes", "rows", "texts"),
    [
        ({}, (0, 1, 2), ("one", "one")),
        (PAIR | TRIPLE, (0, 1, 2), ("one", "two", "three")),
        (PAIR | {"data__labelled__label_column": "label", "data__labelled__labels": "yes"}, (0, 2), ("one", "two")),
    ],
    ids=["single texts", "triples", "pairs of a label"],
)
def test_each_text_is_a_sequence_of_its_own(tmp_path, tokenizer, changes, rows, texts):
    names, draw = ("one", "two", "three"), draws()
    table = [{name: " ".join(f"w{i}" for i in draw.integers(0, 40, 4)) for name in names} for _ in range(3)]
    table = [row | {"label": label} for row, label in zip(table, ("yes", "no", "yes"), strict=True)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    packed = pack.load_dataset(resolution.resolve(*make_task(tmp_path, tokenizer, **changes)))
    known = kinds.load_tokenizer_folder("", tokenizer)
    ids_NxTxL = np.array(packed.train["ids"]).reshape(len(rows), -1, 8)
    assert ids_NxTxL.shape[1] == len(texts) and packed.dataset_info.label_names == ()
    for row, ids_TxL in zip(rows, ids_NxTxL, strict=True):
        assert ids_TxL.tolist() == [[CLS, *known.encode(table[row][text]), SEP, 0, 0] for text in texts]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (TRIPLE, "negative_column = 'three': nothing reads it, since config.data.labelled.text_pair_column is ''"),
        (
            {"model__dropout": 0.0},
            "config.model.dropout = 0.0: expected above 0, since dropout alone tells a text from",
        ),
        (PAIR | {"data__labelled__labels": "yes"}, "labels = 'yes': expected to be set where .*label_column is"),
        (
            PAIR | {"contrastive__matryoshka_dims": (16, 128)},
            r"dims = \(16, 128\): expected different numbers below 128",
        ),
        (PAIR | {"finetune__trainable_layers": 0}, "trainable_layers = 0: expected another"),
        (
            PAIR | {"train__batch_warmup_fraction": 0.5, "train__grad_accum_steps": 2},
            "warmup_fraction = 0.5: expected 0",
        ),
    ],
)
def test_what_makes_no_pairs_is_refused(tmp_path, changes, said):
    with pytest.raises(errors.ConfigError, match=said):
        resolution.resolve(*make_task(tmp_path, "a", **changes))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, tokenizer):
    """A run that was trained on pairs: the second text has, for each word of the first one, that word's partner."""
    folder, draw, rows = tmp_path_factory.mktemp("contrastive"), draws(), []
    for _ in range(300):
        words = draw.permutation(24)[:3]
        rows.append({"one": " ".join(f"w{i}" for i in words), "two": " ".join(f"w{(i + 1) % 24}" for i in words)})
    for name, part in (("train", rows[:260]), ("dev", rows[260:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    changes = {
        "data__labelled__dev": "dev.jsonl",
        "model__family": "feedforward",
        "model__cell": "bag",
        "model__size": "micro",
        "model__num_layers": 1,
        "train__steps": 60,
        "train__batch_size": 32,
        "train__grad_accum_steps": 2,
        "train__log_every": 20,
        "optim__learning_rate": 0.03,
        "eval__batch_size": 16,
        "workdir": str(folder / "run"),
    }
    cfg = resolution.resolve(*make_task(folder, tokenizer, **PAIR, **changes))
    train_config(cfg)
    evaluation_tasks.finish_evaluations(cfg)
    return trained_run.load(cfg.workdir, {})


def test_texts_are_near_what_belongs_to_them_and_embeddings_are_those_that_were_trained(tuned):
    """The held-out cosines, those of `encode`, and those of an evaluation's embeddings are the same."""
    result = RunDirectory(tuned.cfg.workdir).read_result()
    assert result["evaluation"]["accuracy"] > 0.5 and result["evaluation"]["rows"] == 40
    packed, model = tuned.load_data(), mlm.load(tuned.cfg.workdir)
    texts = [example["texts"] for example in pack.read_examples(tuned.cfg, packed, "validation")]
    predicted = [line["predicted"] for line in RunDirectory(tuned.cfg.workdir).read_predictions("dev")]
    embedded, _ = sentence_similarity.embed_sentences(tuned, [text for pair in texts for text in pair])
    encoded = model.encode([text for pair in texts for text in pair])
    np.testing.assert_allclose(embedded["trained"][:, -1], encoded, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(compute_cosines(encoded[::2], encoded[1::2]), predicted, atol=1e-5)


def test_the_pooling_of_training_is_that_of_use_and_export(tuned, tmp_path):
    model = mlm.load(tuned.cfg.workdir)
    model = dataclasses.replace(model, config=fields.override(model.config, {"finetune.pooling": "last"}))
    text = "w1 w2 w3"
    np.testing.assert_array_equal(model.encode(text), model.encode(text, pooling="last"))
    np.testing.assert_allclose(model.encode(text), model.encode(text, pooling=None)[-1], rtol=1e-5)
    model.save_pretrained(tmp_path / "out", sentence_transformers=True)
    pooling = json.loads((tmp_path / "out/1_Pooling/config.json").read_text())
    assert [name for name, value in pooling.items() if value is True] == ["pooling_mode_lasttoken"]
    assert mlm.load(tmp_path / "out").default_pooling == "last"


def test_held_out_examples_meet_the_same_others_whatever_the_batches_and_no_neighbors(tuned, monkeypatch):
    monkeypatch.setattr(contrastive, "GROUP_SIZE", 8)
    columns = [
        split_scores.evaluate_split(
            fields.override(tuned.cfg, {"eval.batch_size": size}), tuned.program, tuned.state, tuned.load_data()
        )
        for size in (4, 16)
    ]
    for name, column in columns[0].items():
        np.testing.assert_allclose(column, columns[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
    twice = {
        "embedding": np.repeat(draws().normal(size=(8, 1, 4)), 2, 0).repeat(2, 1),
        "temperature": np.full(16, 0.05),
    }
    found = contrastive.compare_groups(twice | {"contrastive_weight": np.ones(16)})
    assert found["correct"].all() and not {*found} & {*twice}
