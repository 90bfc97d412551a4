"""A teacher that knows the language, whose probabilities are the exact ones, and one that was trained."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import (
    PLAIN,
    VOCAB,
    batch,
    get_refusal,
    make_dataset_info,
    make_run_config,
    mark_further,
    params_of,
    small_config,
    state_of,
    stop_at,
    train_config,
)

from mlm.base import config, errors, fields
from mlm.base.special import CLS, MASK, NUM_SPECIAL, PAD, SEP
from mlm.data.language import grammar, hmm, posterior
from mlm.models import lm, transformer
from mlm.objectives import masking, token_prediction
from mlm.objectives import mlm as masked_lm
from mlm.training.run import checkpoint, initialization, pretrained_folder, resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program, update

pytestmark = pytest.mark.usefixtures("quick_to_compile")
LANGUAGE = dataclasses.replace(config.Language(), max_words=12)


def test_the_teacher_is_the_exact_posterior_in_a_vocabulary_of_any_order():
    built, rng = grammar.build_grammar(LANGUAGE), np.random.default_rng(0)
    words_BxP = hmm.sample_documents(built.hmm, LANGUAGE.max_words, 0, 0, 8)
    pieces = [*range(NUM_SPECIAL), *rng.permutation(len(built.words))]
    word_V = np.array([-1 if i < NUM_SPECIAL else word for i, word in enumerate(pieces)], np.int32)
    entry_W = np.argsort(word_V)[NUM_SPECIAL:]
    ids_BxL = np.where(words_BxP >= 0, entry_W[words_BxP], PAD)
    ids_BxL = np.pad(ids_BxL, ((0, 0), (1, 1)), constant_values=(CLS, SEP))
    masked_BxL = np.pad((words_BxP >= 0) & (rng.random(words_BxP.shape) < 0.4), ((0, 0), (1, 1)))
    known = posterior.compute_posterior(built.hmm, np.where(ids_BxL >= NUM_SPECIAL, word_V[ids_BxL], -1), masked_BxL)
    expected_KxW = np.exp(posterior.compute_log_probs(built.hmm, known))
    positions_BxK = np.broadcast_to(np.arange(ids_BxL.shape[1]), ids_BxL.shape)
    teacher = jax.jit(posterior.build_teacher(built.hmm, word_V))
    found_BxLxV = np.asarray(teacher(jnp.asarray(np.where(masked_BxL, MASK, ids_BxL)), jnp.asarray(positions_BxK)))
    np.testing.assert_allclose(found_BxLxV[masked_BxL][:, entry_W], expected_KxW, atol=1e-6)
    assert not found_BxLxV[masked_BxL][:, :NUM_SPECIAL].any()


def test_the_entropy_of_the_teacher_is_the_least_loss():
    rng = np.random.default_rng(0)
    prob_BxKxV = jnp.asarray(rng.dirichlet(np.ones(7), (2, 3)), jnp.float32)
    target_BxK, weight_BxK = jnp.zeros((2, 3), jnp.int32), jnp.array([[1, 1, 0], [1, 0, 0]], jnp.float32)

    class Logits:
        logits = staticmethod(lambda params, h: h)

    def loss(logits_BxKxV, prob_BxKxV=prob_BxKxV):
        arguments = {"model": {}}, Logits, logits_BxKxV, prob_BxKxV, target_BxK, weight_BxK
        return token_prediction.predict_distribution(*arguments)[0].sum()

    entropy = -(prob_BxKxV * jnp.log(prob_BxKxV)).sum(-1)
    assert float(loss(jnp.log(prob_BxKxV))) == pytest.approx(float((entropy * weight_BxK).sum()), abs=1e-5)
    assert float(abs(jax.grad(loss)(jnp.log(prob_BxKxV))).max()) < 1e-6
    unknown_BxKxV = jnp.where(weight_BxK[..., None] > 0, prob_BxKxV, jnp.nan)  # a teacher knows nothing of unused slots
    assert jnp.isfinite(jax.grad(loss)(rng.normal(size=(2, 3, 7)), unknown_BxKxV)).all()


def test_training_reads_the_teacher_and_evaluation_the_tokens():
    """The loss of training is linear in the teacher's probabilities."""
    cfg = small_config("feedforward", "bag", model__num_layers=1, mask__rate=0.4, **PLAIN)
    model, _ = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    params, rows = {"model": jax.jit(model.init)(jax.random.key(0)), "objective": {}}, batch()
    keys = update.make_example_keys(np.uint32(0), 0, rows.index_B)
    static = program.make_static_config(cfg)

    def measure(prob_V, *, train):
        teacher = lambda ids_BxL, positions_BxK: jnp.broadcast_to(prob_V, (*positions_BxK.shape, VOCAB))
        objective = masked_lm.build(static, make_dataset_info(cfg), teacher)
        hparams = (program.make_train_hparams if train else program.make_eval_hparams)(cfg)
        return jax.jit(lambda params: objective.loss(params, model, rows, keys, hparams, train=train))(params).loss_B[
            "mlm"
        ]

    one_V, other_V = np.eye(VOCAB, dtype=np.float32)[[7, 8]]
    one, other, half = (measure(prob_V, train=True) for prob_V in (one_V, other_V, (one_V + other_V) / 2))
    assert not np.allclose(one, other)
    np.testing.assert_allclose(half, (one + other) / 2, rtol=1e-5)
    np.testing.assert_array_equal(*(measure(prob_V, train=False) for prob_V in (one_V, other_V)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("data.corpus", "docstrings"), ("mask.mask_token_prob", 0.9), ("optim.z_loss", 1e-4), ("objective", "causal")],
)
def test_a_teacher_that_cannot_know_is_refused(name, value):
    changes = {"distillation.teacher": "posterior", "mask.mask_token_prob": 1.0, "mask.random_token_prob": 0.0}
    resolution.check(resolution.resolve(fields.override(config.Config(), changes)))
    with pytest.raises(errors.ConfigError, match=r"distillation\.teacher"):
        resolution.check(resolution.resolve(fields.override(config.Config(), changes | {name: value})))


TRAINED = {"distillation__teacher": "a run", "distillation__temperature": 2.0, "distillation__soft_weight": 5.0}
RELATED = PLAIN | {"model__num_layers": 1, "mask__rate": 0.4, "distillation__relation_heads": 8}


def draw_pair(cfg, teacher):
    """The parameters of a student and of its teacher, which are drawn alike."""
    model, _ = program.build_model_and_objective(cfg, make_dataset_info(cfg), teacher)
    student, taught = (
        params_of(jax.eval_shape(one.init, jax.random.key(0)))
        for one in (model, program.MODELS[teacher.family].build(teacher, VOCAB))
    )
    return {"model": student, "objective": {}, "teacher": taught}


def test_a_student_that_is_its_teacher_has_the_entropy_as_loss_and_no_gradient():
    """The teacher drops nothing, whatever its dropout: its entropy is that of plain logits."""
    cfg = small_config(**RELATED | TRAINED)
    teacher, info = dataclasses.replace(cfg.model, dropout=0.5, attention_dropout=0.5), make_dataset_info(cfg)
    model, objective = program.build_model_and_objective(cfg, info, teacher)
    params, rows, hparams = draw_pair(cfg, teacher), batch(), program.make_train_hparams(cfg)
    keys = update.make_example_keys(np.uint32(0), 0, rows.index_B)

    @jax.jit
    def measure(student):
        """The soft loss, those of the states and the relations, and their gradients."""

        def compute(student):
            loss_B = objective.loss(params | {"model": student}, model, rows, keys, hparams, train=True).loss_B
            return jnp.stack([loss_B[term].sum() for term in ("soft", "hidden", "relation")])

        return compute(student), jax.jacrev(compute)(student)

    masked, _ = masking.build_sampler(program.make_static_config(cfg), info)(rows, keys, hparams, train=True)
    (h_BxLxD,) = model.encode(params["model"], rows.text._replace(ids_BxL=masked.ids_BxL))
    h_BxKxD = jnp.take_along_axis(h_BxLxD, masked.positions_BxK[..., None], axis=1)
    log_BxKxV = jax.nn.log_softmax(model.logits(params["model"], h_BxKxD) / 2.0)
    entropy = -(jnp.exp(log_BxKxV) * log_BxKxV).sum(-1) * masked.weights_BxK
    losses, slopes = measure(params["model"])
    np.testing.assert_allclose(losses, [float(entropy.sum()), 0, 0], rtol=1e-5, atol=1e-4)
    assert max(float(abs(slope).max()) for slope in jax.tree.leaves(slopes)) < 1e-4
    assert (measure(jax.tree.map(lambda x: 1.1 * x + 0.01, params["model"]))[0] > losses + 1e-3).all()
    weights = objective.loss_weights(hparams)
    expected = {"mlm": 0.0, "soft": 20.0, "hidden": 0.0, "relation": 1.0}
    assert {name: float(weight) for name, weight in weights.items()} == expected


def project_alone(cfg, params, text, layer):
    """q, k and v of a layer, each BxLxD in float64, from what the layer reads and its parameters."""
    model = program.MODELS[cfg.family].build(cfg, VOCAB)
    x_BxLxD = np.asarray(jax.jit(model.encode_layers)(params, text)[layer - 1], np.float64)
    index = (layer - 1) % (cfg.num_unique_layers or cfg.num_layers)
    own = jax.tree.map(lambda leaf: np.float64(leaf[index]), params["body"]["stack"]["layers"]["layer"])
    norm, qkv = own["attention_norm"], own["attention"]["qkv"]
    spread_BxLx1 = np.sqrt(x_BxLxD.var(-1, keepdims=True) + cfg.norm_eps)
    y_BxLxD = (x_BxLxD - x_BxLxD.mean(-1, keepdims=True)) / spread_BxLx1 * norm["scale"] + norm["bias"]
    return np.split(y_BxLxD @ qkv["kernel"] + qkv["bias"], 3, -1)


def relate(x_TxD, num_heads):
    """The log-probabilities of one segment's tokens for each of them: RxTxT."""
    x_RxTxd = x_TxD.reshape(len(x_TxD), num_heads, -1).swapaxes(0, 1)
    score_RxTxT = x_RxTxd @ x_RxTxd.swapaxes(1, 2) / np.sqrt(x_RxTxd.shape[-1])
    return score_RxTxT - np.log(np.exp(score_RxTxT).sum(-1, keepdims=True))


def test_relations_are_those_of_each_segment_alone_whatever_the_heads_of_both_models():
    """The student is narrower and recomputes; the layers of its teacher share parameters. Both rotate what they relate."""
    changes = {"distillation__relation_layer": 2, "model__remat": True, "model__positions": "rotary"}
    cfg = small_config(**RELATED | TRAINED | changes)
    teacher = dataclasses.replace(cfg.model, width=24, num_heads=3, num_layers=3, num_unique_layers=1, dropout=0.5)
    model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg), teacher)
    params, rows, hparams = draw_pair(cfg, teacher), batch(), program.make_train_hparams(cfg)
    rows.text.ids_BxL[:, -3:] = 7, 8, 9  # padding: tokens that are alike have no divergence
    keys = update.make_example_keys(np.uint32(0), 0, rows.index_B)

    @jax.jit
    def measure(student, rows):
        losses = objective.loss(params | {"model": student}, model, rows, keys, hparams, train=True)
        return losses.loss_B["relation"].sum(), (losses.loss_B["relation"], losses.weight_B["relation"])

    (_, (nats_B, weight_B)), grads = jax.value_and_grad(measure, has_aux=True)(params["model"], rows)
    sample = masking.build_sampler(program.make_static_config(cfg), make_dataset_info(cfg))
    text = rows.text._replace(ids_BxL=sample(rows, keys, hparams, train=True)[0].ids_BxL)
    qkv = project_alone(cfg.model, params["model"], text, 1)
    teacher_qkv = project_alone(teacher, params["teacher"], text, 2)
    expected_B = np.zeros(len(nats_B))
    for example, segments_L in enumerate(rows.text.segments_BxL):
        for x_BxLxD, y_BxLxE in zip(qkv, teacher_qkv, strict=True):
            for segment in (1, 2):
                log_q, log_p = (relate(x[example, segments_L == segment], 8) for x in (x_BxLxD, y_BxLxE))
                expected_B[example] += (np.exp(log_p) * (log_p - log_q)).sum(-1).mean(0).sum()
    np.testing.assert_allclose(nats_B, expected_B, rtol=1e-4)
    np.testing.assert_array_equal(weight_B, (rows.text.segments_BxL > 0).sum(1))
    assert all(np.isfinite(grad).all() for grad in jax.tree.leaves(grads))
    layer = grads["body"]["stack"]["layers"]["layer"]
    assert abs(layer["attention"]["qkv"]["kernel"]).max() > 1e-3 and not layer["mlp"]["up"]["kernel"].any()


@pytest.mark.parametrize(("kernels", "dtype"), [("matmul", jnp.float32), ("reference", jnp.bfloat16)])
def test_the_projections_of_a_layer_are_those_that_its_attention_reads(kernels, dtype):
    """In bfloat16, with activations of either type, norms of the queries, and two layers that run twice, recomputed."""
    changes = {"dtype": "bfloat16", "qk_norm": True, "num_layers": 4, "num_unique_layers": 2, "remat": True}
    cfg, text = dataclasses.replace(small_config(**PLAIN).model, kernels=kernels, **changes), batch().text
    model, module = transformer.build(cfg, VOCAB), lm.EncoderLM(cfg, VOCAB, "learned", transformer.TransformerEncoder)

    def project(params):
        _, q_k_v = model.encode_projections(params, text, 3)
        return sum(x_BxLxD.astype(jnp.float32).sum() for x_BxLxD in q_k_v), q_k_v

    params = params_of(jax.eval_shape(model.init, jax.random.key(0)))
    read = {"mutable": ["intermediates"], "capture_intermediates": lambda _, name: name == "project"}
    _, captured = module.apply({"params": params}, text, None, method="encode", **read)
    _, second_run = captured["intermediates"]["body"]["stack"]["layers"]["layer"]["attention"]["project"]
    grads, q_k_v = jax.grad(project, has_aux=True)(params)
    for found_BxLxD, x_KxBxLxHxd in zip(q_k_v, second_run, strict=True):
        assert found_BxLxD.dtype == x_KxBxLxHxd.dtype == dtype
        expected_BxLxD = np.float32(x_KxBxLxHxd[0]).reshape(found_BxLxD.shape)
        np.testing.assert_allclose(np.float32(found_BxLxD), expected_BxLxD, atol=0.1)  # XLA rounds elsewhere
    kernel_KxDxE = grads["body"]["stack"]["layers"]["layer"]["attention"]["qkv"]["kernel"]
    assert np.isfinite(kernel_KxDxE).all() and all(map(np.any, kernel_KxDxE))


@pytest.mark.parametrize(
    ("taught", "student", "expected"),
    [
        ({}, {"relation_heads": 3}, "heads = 3: expected a divisor of config.model.width = 64"),
        ({"model__width": 12}, {}, "heads = 8: expected a divisor of 12, the width of a run"),
        ({}, {"relation_layer": 3}, "layer = 3: expected at most 2, the layers of a run"),
        ({"family": "rnn"}, {}, "heads = 8: expected 0, since a run is a model without attention"),
        ({}, {"family": "rnn"}, "heads = 8: nothing reads it, since config.model.family is 'rnn', not transformer"),
    ],
)
def test_relations_that_one_of_both_models_lacks_are_refused(monkeypatch, taught, student, expected):
    teacher, tokenizer = small_config(model__max_positions=512, **taught), types.SimpleNamespace(model="")
    source = pretrained_folder.PretrainedModel(teacher, tokenizer, None, {})
    monkeypatch.setattr(initialization, "read_source", lambda *_: source)
    monkeypatch.setattr(pretrained_folder, "is_pretrained_folder", lambda _: True)
    distillation = {"teacher": "a run", "relation_heads": 8} | student
    changes = {"model.size": "micro", "model.family": distillation.pop("family", "transformer")}
    changes |= {f"distillation.{name}": value for name, value in distillation.items()}

    def start():
        layers = resolution.make_layers(config.Config(), changes)
        initialization.load_teacher(resolution.merge_layers(layers).config, tokenizer)

    assert f"config.distillation.relation_{expected}" in get_refusal(start)


@pytest.mark.parametrize(
    ("mode", "devices"), mark_further([("fsdp", 4), ("data_parallel", 4), ("pmap", 2)], [("fsdp", 4)])
)
def test_each_way_over_devices_makes_the_same_step_and_leaves_the_teacher(mode, devices):
    weights = {"distillation__hard_weight": 2.0, "distillation__hidden_weight": 1.0}
    cfg = small_config(**RELATED | TRAINED | weights | {"train__batch_size": 4, "train__steps": 3})
    teacher, info = dataclasses.replace(cfg.model, num_layers=2, num_unique_layers=2), make_dataset_info(cfg)
    params, rows, states = draw_pair(cfg, teacher), batch(4), []
    for one, count in (("data_parallel", 1), (mode, devices)):
        own = fields.override(cfg, {"parallel.mode": one})
        made = program.build_program(own, info, jax.devices()[:count], teacher)
        hparams = program.make_train_hparams(own)
        drawn = state_of(made.init_state.eval_shape(hparams))
        state = made.partitioner.put_state(drawn._replace(params=params))
        for _ in range(2):
            state, _ = made.partitioner.train_step(state, made.partitioner.put_batch(rows), hparams)
        states.append(made.partitioner.get_state(state).params)
        jax.tree.map(np.testing.assert_array_equal, states[-1]["teacher"], params["teacher"])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), *states)
    assert not np.allclose(states[1]["model"]["bias"], params["model"]["bias"])


def test_a_run_with_a_teacher_continues_with_that_one_alone(tmp_path):
    make = lambda name, **changes: resolution.resolve(make_run_config(tmp_path / "cache", tmp_path / name, **changes))
    train_config(make("teacher"))
    taught = {"distillation__teacher": str(tmp_path / "teacher"), "distillation__temperature": 2.0}
    cfg = make("student", **taught)
    assert cfg.distillation.teacher_sha256 == checkpoint.read_newest_digest(RunDirectory(tmp_path / "teacher"))
    whole = train_config(make("whole", **taught))
    stop_at(cfg, 3)
    result = train_config(cfg)
    assert result["evaluation"]["loss"] == whole["evaluation"]["loss"]
    history, starts = RunDirectory(cfg.workdir).read_history(result), RunDirectory(cfg.workdir).read_provenance()
    expected = {"path": cfg.distillation.teacher, "sha256": cfg.distillation.teacher_sha256}
    assert history[0]["soft_loss"] > 0 and [start["teacher"] for start in starts] == [expected] * 2

    teach = lambda name: taught | {"distillation__teacher": str(tmp_path / name)}
    (tmp_path / "teacher").rename(tmp_path / "moved")
    done = make("student", **taught)  # which needs no teacher
    moved = make("student", **teach("moved"))
    assert train_config(done)["evaluation"] == train_config(moved)["evaluation"] == result["evaluation"]
    assert fields.fingerprint(moved) == fields.fingerprint(cfg)
    stop_at(make("later", **teach("moved")), 3)
    (tmp_path / "moved").rename(tmp_path / "teacher")
    gone = "config.distillation.teacher = .*moved': expected "
    with pytest.raises(errors.ConfigError, match=f"{gone}this run's teacher, which is there no more"):
        train_config(make("later", **teach("moved")))
    with pytest.raises(errors.ConfigError, match=f"{gone}posterior, the directory of a run"):
        make("new", **teach("moved"))
    assert train_config(make("later", **taught))["evaluation"] == result["evaluation"]

    other = make("other", seed=1, data__language__num_names=5)
    train_config(other)
    line = get_refusal(train_config, make("later", **teach("other")))
    assert "belongs to another config: config.distillation.teacher_sha256 = " in line
    assert "expected a model with the run's vocabulary" in get_refusal(train_config, make("words", **teach("other")))
    wide = make("wide", **taught, model__width=8, distillation__hidden_weight=1.0)
    assert "hidden_weight = 1.0: expected 0, since states of" in get_refusal(train_config, wide)
