"""Parameters split over devices: the numbers of the whole ones, from parts alone, however many devices they lie on."""

import dataclasses
import functools
import signal

import jax
import numpy as np
import pytest
import test_run
from small import VOCAB, build, make_dataset_info, small_config, state_of
from test_step import uneven

from mlm.base import files, types
from mlm.base.special import NUM_SPECIAL, SEP
from mlm.data.rows import pack
from mlm.data.tokenizers import kinds
from mlm.evaluation import translation_scores
from mlm.training.compilation import cost
from mlm.training.run import checkpoint, directory, loop
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel, program, sharding, update
from mlm.training.validation import split_scores

pytestmark = pytest.mark.slow

STEPS = 20
DATA = {"rows": "the same"}


def member(mode="data_parallel", **changes):
    """Clipped at less than gradients' norms, with dropout."""
    return small_config(
        **{
            "mask__rate": 0.3,
            "train__batch_size": 8,
            "train__steps": STEPS,
            "parallel__mode": mode,
            "model__dropout": 0.2,
            "model__attention_dropout": 0.0,
            "model__scan_unroll": 1,
            "optim__clip_norm": 0.3,
        }
        | changes
    )


def train(cfg, devices, first=None):
    """The losses and norms of some updates, from the beginning or a state; the state halfway and at their end, as it is
    kept; and a call for what rows lose by it."""
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])
    knobs = program.make_train_hparams(cfg)
    state = made.partitioner.put_state(state_of(made.init_state.eval_shape(knobs)) if first is None else first)
    seen, half = [], None
    for number in range(int(state.step), STEPS):
        if number == STEPS // 2:
            half = made.partitioner.snapshot_state(state)
        state, metrics = made.partitioner.train_step(state, made.partitioner.put_batch(uneven(8, number % 2)), knobs)
        metrics = made.partitioner.get_metrics(metrics)
        seen.append([metrics[name] for name in ("loss", "gradient_norm", "parameter_norm")])
    judged = lambda: split_scores.name_sums(
        made.partitioner.jit_per_example(update.eval_step, made.model, made.objective)(
            state, made.partitioner.put_batch(uneven(8)), program.make_eval_hparams(cfg)
        )
    )["mlm_nats"]
    return np.array(seen), half, made.partitioner.snapshot_state(state), judged


def same(found, expected, since=0):
    np.testing.assert_allclose(found[0], expected[0][since:], rtol=1e-5)


@pytest.fixture(scope="module")
def whole():
    found = train(member(), 1)
    assert (found[0][:, 1] > 0.3).any()  # some are clipped
    return found


@pytest.fixture(scope="module")
def four(whole):
    return train(member("fsdp"), 4)


@pytest.mark.exhaustive
def test_two_slices_train_as_one_device_and_gather_within_each(whole):
    """Two groups of two devices: each holds all parameters; gradients add up over both."""
    cfg = member("fsdp", parallel__num_slices=2)
    found = train(cfg, 4)
    same(found, whole)
    embedding = found[2].params["model"]["token"]["embedding"]
    assert embedding.sharding.spec == jax.P("data") and dict(embedding.sharding.mesh.shape) == SLICES
    moved = {(one.kind, one.group) for one in cost.compile_step(program.make_static_config(cfg), VOCAB).transfers}
    within = {("all-gather", (0, 1)), ("reduce-scatter", (0, 1)), ("all-reduce", (0, 1))}
    assert moved == within | {("all-reduce", (0, 2)), ("all-reduce", (0, 1, 2, 3))}


@dataclasses.dataclass(frozen=True)
class Chip:
    coords: tuple
    platform: str = "tpu"
    slice_index: int = 0
    core_on_chip: int = 0


SLICES = {"slice": 2, "data": 2}


@pytest.mark.exhaustive
def test_gradients_are_sent_in_half_the_bytes_if_the_config_says_so(whole):
    found = [train(member(mode, parallel__reduce_dtype="bfloat16"), 4)[0] for mode in ("fsdp", "data_parallel")]
    for losses in found:
        np.testing.assert_allclose(losses, whole[0], rtol=0.02)
        assert np.abs(losses / whole[0] - 1).max() > 1e-5
    texts = [cost.lower_step(member(parallel__reduce_dtype=name), VOCAB).as_text() for name in ("bfloat16", "float32")]
    assert ["xbf16>) -> tensor" in text for text in texts] == [True, False]


def test_rows_of_a_torus_are_in_the_order_of_their_processes():
    """Of a TPU v5e-16, whose hosts take turns along each axis."""
    rows = np.arange(32)
    places = [(x, y) for y in (0, 2) for x in (0, 2)]  # of a host's first chip
    devices = [Chip(coords=(x + i, y + j, 0)) for x, y in places for j in range(2) for i in range(2)]
    mesh = parallel.make_mesh(devices)
    assert dict(mesh.shape) == {"data_x": 4, "data_y": 4}
    process = {id(device): number // 4 for number, device in enumerate(devices)}
    processes = [process[id(device)] for device in mesh.devices.flat]
    by_device = np.concatenate([rows.reshape(4, 4, 2)[p][processes[:i].count(p)] for i, p in enumerate(processes)])
    assert (by_device != rows).any() and (parallel.order_by_process(processes, by_device) == rows).all()


def save_state(folder, cfg, state):
    """A checkpoint of a state, closed again."""
    checkpoints = checkpoint.open_manager(folder / "checkpoints")
    checkpoint.save(checkpoints, cfg, DATA, checkpoint.Snapshot(state, {}))
    checkpoints.close()


def load_state(folder, cfg, devices):
    """The state of a folder's checkpoint, as a program on so many devices has it."""
    checkpoints = checkpoint.open_manager(folder / "checkpoints")
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])
    state = checkpoint.restore_or_init(checkpoints, cfg, DATA, made).state
    checkpoints.close()
    return state


def test_four_devices_train_as_one_that_has_all(whole, four):
    same(four, whole)
    np.testing.assert_allclose(four[3](), whole[3](), rtol=1e-4)


def test_each_device_has_its_part_and_no_more(four):
    for path, leaf in jax.tree_util.tree_leaves_with_path(four[2]):
        (part,) = {shard.data.size for shard in leaf.addressable_shards}
        matrix = leaf.ndim - sharding.is_stacked(path) > 1
        assert part == leaf.size / 4 if matrix else part == leaf.size, path


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({"family": "rnn", "cell": "lstm"}, 4),
        (
            {
                "family": "feedforward",
                "cell": "bag",
                "finetune__trainable_layers": 1,
                "finetune__layerwise_lr_decay": 0.8,
                "train__grad_accum_steps": 2,
                "mask__predict_rate": 0.5,
            },
            2,
        ),
        (
            {
                "family": "feedforward",
                "cell": "bag",
                "model__num_unique_layers": 1,
                "optim__optimizer": "muon",
                "optim__ema_decay": 0.9,
            },
            4,
        ),
        (
            {
                "family": "feedforward",
                "cell": "bag",
                "optim__optimizer": "stable_adamw",
                "optim__loss_reduction": "sequence",
                "train__grad_accum_steps": 2,
                "train__batch_warmup_fraction": 0.5,
            },
            2,
        ),
    ],
    ids=[
        "lstm",
        "bag, half of it frozen, in parts and views",
        "a layer that loops, muon, averaged",
        "stable_adamw, batches that grow",
    ],
)
def test_members_and_parts_of_batches_are_those_of_one_device(changes, devices):
    """The first on one device, as it is; split, each layer is computed again as well."""
    cfg = member("fsdp", **changes, model__remat=True)
    same(train(cfg, devices), train(member(**changes), 1))


@pytest.mark.exhaustive
def test_each_tree_s_layers_are_gathered_along_their_own_axes():
    """A generator's up are split along their first axis, the model's, of the same path, along their second."""

    def evaluate(mode, devices):
        cfg = member(
            mode,
            family="feedforward",
            cell="bag",
            model__num_layers=1,
            objective="replaced_token_detection",
            replaced_token_detection__generator_size=0.375,
        )
        made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])
        rng = np.random.default_rng(0)
        params = jax.tree.map(
            lambda x: rng.normal(size=x.shape).astype(np.float32),
            jax.eval_shape(made.init_state, program.make_train_hparams(cfg)).params,
        )
        state = made.partitioner.put_state(types.TrainState(np.int32(0), params, ()))
        for tree, spec in (
            (state.params["model"], (None, None, "data")),
            (state.params["objective"]["generator"], (None, "data")),
        ):
            kernel = tree["body"]["stack"]["layers"]["layer"]["mlp"]["up"]["kernel"]
            assert devices == 1 or kernel.sharding.spec == jax.P(*spec)
        found = made.partitioner.jit_per_example(update.eval_step, made.model, made.objective)(
            state, made.partitioner.put_batch(uneven(8)), program.make_eval_hparams(cfg)
        )
        return found.loss_B

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4), evaluate("fsdp", 2), evaluate("data_parallel", 1)
    )


@pytest.mark.exhaustive
def test_rows_that_end_at_different_tokens_are_translated_as_by_a_device_that_has_all():
    """A loop that ends on each device with its own rows."""
    words = [f"w{number}" for number in range(VOCAB - NUM_SPECIAL)]
    tokenizer = kinds.train_tokenizer(small_config(tokenizer__kind="words").tokenizer, [" ".join(words)])
    texts = [" ".join(np.random.default_rng(number).choice(words, 1 + number % 3)) for number in range(8)]

    def translations(mode, devices):
        cfg = small_config(
            "encoder_decoder",
            objective="causal",
            data__corpus="parallel",
            pack__seq_len=8,
            pack__source_len=8,
            eval__batch_size=8,
            parallel__mode=mode,
            model__num_layers=1,
        )
        model, params, _ = build(cfg)
        params = params | {"bias": params["bias"] + 3 * (np.arange(VOCAB) == SEP)}
        made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])._replace(model=model)
        state = made.partitioner.put_state(types.TrainState(np.int32(0), {"model": params, "objective": {}}, ()))
        run = TrainedRun(cfg, 0, tokenizer, made, state, "", make_dataset_info(cfg))
        return translation_scores.translate_texts(run, texts, 1, "none")[0]

    found = translations("data_parallel", 1)
    assert {len(text.split()) for text in found} == {0, 1, 7}
    assert translations("fsdp", 2) == found


@pytest.mark.exhaustive(but=("data_parallel-1",))
@pytest.mark.parametrize(("mode", "devices"), [("data_parallel", 1), ("fsdp", 2)])
def test_a_checkpoint_of_four_devices_goes_on_on_fewer_and_whole(whole, four, tmp_path, mode, devices):
    save_state(tmp_path, member("fsdp"), four[1])
    same(train(member(mode), devices, load_state(tmp_path, member(mode), devices)), whole, STEPS // 2)


def test_one_of_a_device_that_has_all_is_split_and_its_digest_is_the_same(whole, tmp_path):
    cfg = member("fsdp")
    save_state(tmp_path, cfg, whole[1])
    state = load_state(tmp_path, cfg, 4)
    assert state.params["model"]["token"]["embedding"].sharding.spec == jax.P(None, "data")
    assert (
        checkpoint.compute_digest(state)
        == checkpoint.compute_digest(whole[1])
        == checkpoint.read_newest_digest(directory.RunDirectory(tmp_path))
    )
    jax.tree.map(np.testing.assert_array_equal, state, whole[1])
    assert checkpoint.compute_digest(state._replace(step=np.int32(3))) != checkpoint.compute_digest(state)


@pytest.mark.exhaustive
def test_a_step_gathers_each_parameter_and_a_layer_s_again_for_the_backward_pass():
    """By hand, from shapes: gathered to be read, scattered as gradients; vectors, and sums, are added up."""
    changes = {"model__num_layers": 6, "model__max_positions": 16, "train__batch_size": 32, "model__dropout": 0.0}
    cfgs = [
        program.make_static_config(member(mode, **changes, model__remat=remat))
        for mode, remat in (("data_parallel", False), ("fsdp", False), ("fsdp", True))
    ]
    params = jax.tree_util.tree_leaves_with_path(cost.make_abstract_state(cfgs[0], VOCAB).params)
    matrices = sum(4 * x.size for path, x in params if x.ndim - sharding.is_stacked(path) > 1)
    layers = sum(4 * x.size for path, x in params if x.ndim > 2)
    vectors = sum(4 * x.size for _, x in params) - matrices
    found = [cost.compile_step(cfg, VOCAB) for cfg in cfgs]
    few = 4 * 100  # weights, losses and norms
    assert matrices + vectors < found[0].collective_bytes.pop("all-reduce") < matrices + vectors + few
    assert not any(found[0].collective_bytes.values())
    for one in found[1:]:
        assert one.collective_bytes["all-gather"] == matrices + layers
        assert one.collective_bytes["reduce-scatter"] == matrices
        assert vectors < one.collective_bytes["all-reduce"] < vectors + few
        assert one.collective_bytes["all-to-all"] == one.collective_bytes["collective-permute"] == 0
    state = 3 * 3 / 4 * matrices  # three quarters of parameters and moments
    assert found[1].memory < found[0].memory - 0.7 * state and found[2].memory < 0.7 * found[1].memory


def continue_run(cfg, count):
    """The step at which a run is taken up in this process, and its next losses."""
    with loop.open_run(directory.RunDirectory(cfg.workdir), cfg, pack.load_dataset(cfg)) as (run, state):
        steps = loop.SingleRun(run, state)
        return run.start_step, [float(steps.make_step({0: next(run.batches)})(0)["loss"]) for _ in range(count)]


@pytest.mark.exhaustive
def test_two_processes_write_their_parts_of_one_step_when_one_is_asked_to_stop_and_one_process_goes_on(tmp_path):
    """SIGTERM as a cluster sends it, to the second of them."""
    (tmp_path / "text.txt").write_text("\n".join(f"w{n % 7} w{n % 11} w{n % 13} w{n % 5} ." for n in range(400)))
    said = {
        "data.path": str(tmp_path / "text.txt"),
        "data.document_boundary": "line",
        "data.cache_dir": str(tmp_path / "cache"),
        "tokenizer.kind": "words",
        "tokenizer.vocab_size": 16,
        "pack.seq_len": 16,
        "model.num_layers": 1,
        "model.width": 16,
        "model.mlp_dim": 16,
        "model.num_heads": 2,
        "train.steps": 100_000,
        "train.batch_size": 8,
        "train.checkpoint_every": 100_000,
        "train.log_every": 1,
        "eval.batch_size": 8,
    }
    pair = tmp_path / "pair"
    both = test_run.start_pair(said | {"parallel.mode": "fsdp"}, pair)
    test_run.wait_for(pair, both[0], 5)
    both[1].send_signal(signal.SIGTERM)
    for process in both:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGTERM and "stopped at step" in out, out
    (step,) = (int(path.name) for path in (pair / "checkpoints").iterdir())
    assert all(any((pair / "checkpoints" / str(step) / "state" / f"ocdbt.process_{n}" / "d").iterdir()) for n in (0, 1))
    losses = [record["loss"] for record in files.read_records(pair / "metrics.jsonl") if "loss" in record]
    begun = continue_run(test_run.resolve(said, tmp_path / "alone"), 5)
    assert len(losses) == step and begun[0] == 0
    np.testing.assert_allclose(losses[:5], begun[1], rtol=1e-5)
    split, whole = (
        continue_run(test_run.resolve(said | {"parallel.mode": mode}, pair), 5) for mode in ("fsdp", "data_parallel")
    )
    assert split[0] == whole[0] == step
    np.testing.assert_allclose(split[1], whole[1], rtol=1e-5)


def test_arrays_are_split_along_their_largest_axis_that_divides_but_never_along_the_layers():
    def axis(name, *shape, devices=4):
        ((path, _),) = jax.tree_util.tree_leaves_with_path({"model": {name: 0}})
        return sharding.choose_axis(path, shape, devices)

    assert axis("embedding", 250_000, 1024) == 0 and axis("embedding", 250_002, 1024) == 1
    assert axis("layers", 24, 8, 12) == 2 and axis("layers", 24, 6, 6) == sharding.REPLICATED
    assert axis("kernel", 5, 7) == axis("kernel", 8, 8, devices=1) == axis("bias", 1024) == sharding.REPLICATED
    assert axis("layers", 24, 1024) == sharding.REPLICATED
