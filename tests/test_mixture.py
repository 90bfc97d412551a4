"""Sources with weights and phases: exact shares, batches that follow from seed and step, runs that go on as if unbroken."""

import itertools
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import grain
import jax
import numpy as np
import pytest
from small import stop_at, train_config

from mlm.base import config, errors, fields, phases
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.rows import loader, mixture, pack
from mlm.evaluation import evaluated_run
from mlm.experiment import recipes
from mlm.launch.sweep import budget, plan, runner
from mlm.training.run import extension, loop, resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.step import parallel

FILE = """
[[sources]]
name = "letters"
path = "letters.txt"
document_boundary = "line"
weight = 3

[[sources]]
name = "digits"
path = "digits.jsonl"
weight = 1
"""
PHASES = """
[[phases]]
share = 0.5
seq_len = 8
batch_size = 8
mask_rate = 0.3
learning_rate = 0.002
rope_theta = 1e4

[[phases]]
share = 0.5
seq_len = 16
batch_size = 4
mask_rate = 0.15
learning_rate = 0.001
rope_theta = 1.6e5
weights = {digits = 1, letters = 1}
"""


def write_corpus(folder: Path, content: str) -> str:
    folder.mkdir(exist_ok=True)
    rng = random.Random(0)
    texts = [
        [" ".join(rng.choices(letters, k=12)) for _ in range(count)]
        for letters, count in (("abcdefgh", 90), ("0123456789", 40))
    ]
    (folder / "letters.txt").write_text("\n".join(texts[0]))
    (folder / "digits.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts[1]))
    (folder / "corpus.toml").write_text(content)
    return str(folder / "corpus.toml")


def make_config(folder: Path, workdir="run", content=FILE + PHASES, **changes) -> config.Config:
    base = {"data.sources": write_corpus(folder, content), "data.cache_dir": str(folder / "cache")}
    base |= {"tokenizer.kind": "words", "tokenizer.vocab_size": 23, "workdir": str(folder / workdir)}
    base |= {"model.width": 16, "model.mlp_dim": 24, "model.num_layers": 1}
    base |= {"train.steps": 8, "train.log_every": 2, "train.checkpoint_every": 3, "train.trackers": ""}
    base |= {"data.validation_fraction": 0.2, "optim.schedule": "constant"}
    base |= {} if "model__family" in changes else {"model.num_heads": 2}
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return resolution.resolve(config.Config(), base | changes)


def test_each_source_has_its_share_after_every_row():
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    for parts in [(1,), (3, 1), *(tuple(rng.randrange(1, 60) for _ in range(rng.randrange(2, 9))) for _ in range(30))]:
        source_M, rank_M = loader.interleave(parts)
        count_SxM = np.cumsum(source_M == np.arange(len(parts))[:, None], axis=1)
        shares = np.array(parts)[:, None] / sum(parts) * np.arange(1, sum(parts) + 1)
        assert (abs(count_SxM - shares) < 1).all() and tuple(count_SxM[:, -1]) == parts
        assert (rank_M == count_SxM[source_M, np.arange(sum(parts))] - 1).all()
        rows = rng.randrange(3 * sum(parts))
        whole = np.bincount(np.tile(source_M, 3)[:rows], minlength=len(parts))
        assert np.array_equal(loader.count_rows(parts, rows), whole)


def test_weights_become_whole_parts():
    assert loader.divide([3, 1]) == loader.divide([0.75, 0.25]) == (3, 1) and loader.divide([0.0, 2.0]) == (0, 1)
    parts = loader.divide([1e-9, *np.random.default_rng(0).random(9)])
    assert parts[0] == 1 and abs(sum(parts) - loader.MAX_PARTS) < 10


def rows_of(counts, length=4):
    ids_NxL = np.arange(sum(counts) * length, dtype=np.uint16).reshape(-1, length)
    return dict.fromkeys(("ids", "segments", "positions"), ids_NxL)


def read_batches(rows, steps, **settings):
    settings = {"seed": 5, "batch_size": 8, "start_step": 0} | settings
    return list(itertools.islice(loader.iterate_train_batches(rows, **settings), steps))


def make_sources(counts, *phase_parts):
    return [
        loader.Source(str(i), n, 1, parts)
        for i, (n, parts) in enumerate(zip(counts, zip(*phase_parts, strict=True), strict=True))
    ]


def test_one_source_gives_the_batches_of_the_corpus_alone():
    draw = loader.draw_from_sources(make_sources([23], (7,)), 0, 5)
    for own, alone in zip(read_batches(rows_of([23]), 9, draw=draw), read_batches(rows_of([23]), 9), strict=True):
        jax.tree.map(np.testing.assert_array_equal, own, alone)


def test_batches_follow_from_the_step_and_each_source_from_its_own_permutations():
    counts, parts = [11, 30, 7], (5, 2, 1)
    made = make_sources(counts, (1, 1, 1), parts)
    offset_S = np.array([4, 4, 4])
    draw = loader.draw_from_sources(made, 1, 5, offset_S)
    settings = {"draw": draw, "first_step": 100}
    whole = read_batches(rows_of(counts), 12, start_step=100, **settings)
    for step, processes in itertools.product((0, 5), (1, 2, 4)):
        shares = [
            read_batches(rows_of(counts), 1, start_step=100 + step, process=i, processes=processes, **settings)[0]
            for i in range(processes)
        ]
        joined = jax.tree.map(lambda *parts: np.concatenate(parts), *shares)
        jax.tree.map(np.testing.assert_array_equal, joined, whole[step])
    index_N = np.concatenate([batch.split_index_B for batch in whole])
    bounds, source_N = np.cumsum([0, *counts]), np.searchsorted(np.cumsum(counts), index_N, side="right")
    assert np.array_equal(np.bincount(source_N, minlength=3), loader.count_rows(parts, 96))
    for i, count in enumerate(counts):
        order = (index_N - bounds[i])[source_N == i]
        shuffled = grain.MapDataset.range(count).seed(5).shuffle().repeat()
        assert order.tolist() == [shuffled[4 + j] for j in range(len(order))]
        epochs = np.concatenate([batch.epoch_B for batch in whole])[source_N == i]
        assert np.array_equal(epochs, (4 + np.arange(len(order))) // count)


def test_a_chain_of_columns_is_their_concatenation():
    parts = [np.arange(n * 3).reshape(n, 3) + n for n in (4, 1, 6)]
    chain, whole = mixture.chain_columns(parts), np.concatenate(parts)
    for rows in (slice(3, 9), slice(None, None, -2), slice(0, 0), np.array([9, 0, 4, 4])):
        assert np.array_equal(chain[rows], whole[rows])
    assert np.array_equal(chain, whole) and len(chain) == 11


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "digits"', 'name = "letters"', "name = 'letters': expected a name of one source"),
        ("weight = 1", "wieght = 1", "source 'digits': no key 'wieght', expected.*did you mean 'weight'"),
        ("weight = 1", "weight = -1", "source 'digits': weight = -1: expected a number, at least 0"),
        ("weight = 1", "", "source 'digits': weight = None: expected a number, or alpha"),
        ("weight = 1", "weight = 1\ntfds_name = 'x'", "source 'digits': tfds_name = 'x': expected no such key, since"),
        ("weight = 1", "weight = 1\ntext_column = 3", "source 'digits': text_column = 3: expected a value of type str"),
        ("digits.jsonl", "digit.jsonl", "source 'digits': path = .*did you mean .*digits.jsonl"),
        (
            "weight = 1",
            "weight = 1\nmax_epochs = 0.01",
            r"source 'digits': max_epochs = 0.01: reached after step \d of config.train.steps = 8",
        ),
        ("{digits = 1, ", "{digit = 1, ", "phase 2: weights = 'digit': expected one of letters, digits; did you mean"),
        ("{digits = 1, letters = 1}", "{digits = 0}", "phase 2: weights = .*: expected one above 0"),
        (
            "share = 0.5\nseq_len = 16",
            "share = 0.6\nseq_len = 16",
            r"share = \[0.5, 0.6\]: expected shares that add up",
        ),
        ("seq_len = 16", "", "phase 2: seq_len = None: expected a value"),
        ("seq_len = 16", "seq_len = 4", "phase 2: seq_len = 4: expected 8 <= value"),
        ("[[phases]]", "[[phase]]", "no key 'phase', expected .*did you mean 'phases'"),
        ("\n[[sources]]", "temperature = 2\n[[sources]]", "no key 'temperature', expected one of sources, alpha"),
    ],
)
def test_a_wrong_corpus_file_is_one_line(tmp_path, old, new, expected):
    with pytest.raises(errors.ConfigError, match=expected) as caught:
        cfg = make_config(tmp_path, content=(FILE + PHASES).replace(old, new, 1))
        loop.check(cfg)
        pack.list_segments(cfg, pack.load_dataset(cfg))
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(tmp_path / "corpus.toml"))


def test_phases_give_the_run_the_fields_of_the_last(tmp_path):
    cfg = make_config(tmp_path)
    assert (cfg.pack.seq_len, cfg.train.batch_size, cfg.mask.rate, cfg.mask.max_rate) == (16, 4, 0.15, 0.15)
    first, last = phases.list_phases(cfg)
    assert (first.cfg.pack.seq_len, first.cfg.mask.max_rate, first.end_step, last.end_step) == (8, 0.3, 4, 8)
    assert [phase.cfg.model.rope_theta for phase in (first, last)] == [1e4, cfg.model.rope_theta] == [1e4, 1.6e5]
    with pytest.raises(
        errors.ConfigError, match=r"phases.rope_theta = .*: expected none, since config.model.positions"
    ):
        make_config(tmp_path, model__positions="learned")
    assert phases.list_phases(last.cfg)[0].cfg is last.cfg
    assert plan.list_repetitions([cfg]) == [
        "run: letters 66.7% of examples, 0.263 epochs, digits 33.3% of examples, 0.375 epochs"
    ]
    with pytest.raises(errors.ConfigError, match=r"pack.seq_len = 64: expected 16, the last of config.phases.seq_len"):
        make_config(tmp_path, pack__seq_len=64)
    with pytest.raises(errors.ConfigError, match=r"phases, phase 1: config.pack.seq_len = 1024: expected at most"):
        make_config(tmp_path, content=FILE, phases__shares=(0.9, 0.1), phases__seq_len=(1024, 64))
    assert [name for name, _ in plan.list_phase_points({"a": cfg})] == ["a, phase 1", "a, phase 2"]
    assert runner.choose_vmap_runs("tpu", cfg)[0] == 1 and extension.count_stable_steps(cfg) == 4
    each = [budget.compute_step_flops(phase.cfg) for phase in (first, last)]
    assert budget.compute_step_flops(cfg) == pytest.approx(sum(each) / 2)


def test_a_phase_of_the_same_length_goes_on_where_the_one_before_ended(tmp_path):
    cfg = make_config(tmp_path, content=FILE, phases__shares=(0.5, 0.5), phases__batch_size=(8, 4), pack__seq_len=16)
    first, second = pack.list_segments(cfg, pack.load_dataset(cfg))
    assert second.packed is first.packed and first.count_rows(8).tolist() == second.offset_S.tolist() == [24, 8]
    assert mixture.count_drawn([first, second], 6)[0].tolist() == [30, 10]
    rates = make_config(tmp_path, content=FILE, phases__shares=(0.5, 0.5), phases__mask_rate=(0.4, 0.2))
    assert phases.count_work(rates, range(2, 7)) == 5 and phases.count_work(cfg, range(3, 5)) == 3


def test_the_order_of_sources_is_a_part_of_what_a_run_is_trained_on(tmp_path):
    rows, first = FILE.replace("weight = 3", "weight = 1").split("\n\n"), []
    for number, content in enumerate(("\n\n".join(rows), "\n".join(rows[::-1]))):
        packed = pack.load_dataset(make_config(tmp_path / str(number), content=content, tokenizer__vocab_size=14))
        first.append(packed.manifest["inputs"])
        ids_NxL = packed.train["ids"][:]
        is_unknown_NxL, is_piece_NxL = ids_NxL == UNK, ids_NxL >= NUM_SPECIAL
        share = is_unknown_NxL.sum() / (is_unknown_NxL | is_piece_NxL).sum()
        assert packed.manifest["train"]["unknown"] == pytest.approx(share) and share > 0.1
    assert first[0] != first[1]


def test_sizes_to_a_power_are_weights(tmp_path):
    content = "alpha = 0.3\n" + FILE.replace("weight = 3", "").replace("weight = 1", "")
    packed = pack.load_dataset(make_config(tmp_path, content=content, pack__seq_len=16))
    bound = packed.sources[0].num_train
    tokens = [(packed.train["segments"][rows] > 0).sum() for rows in (slice(bound), slice(bound, None))]
    share = (tokens[0] / sum(tokens)) ** 0.3 / sum((n / sum(tokens)) ** 0.3 for n in tokens)
    parts = [source.parts[0] for source in packed.sources]
    assert tokens[0] != tokens[1] and parts[0] / sum(parts) == pytest.approx(share, abs=1e-4)


def test_a_run_of_sources_and_phases_has_the_same_batches_on_one_process_and_on_two(tmp_path, monkeypatch):
    cfg = make_config(tmp_path)
    segments = pack.list_segments(cfg, pack.load_dataset(cfg))

    def read(start_step, process, processes):
        monkeypatch.setattr(parallel, "get_process_position", lambda: {"process": process, "processes": processes})
        log = SimpleNamespace(write_message=lambda text: None)
        run = SimpleNamespace(cfg=cfg, segments=segments, start_step=start_step, log=log)
        return list(loop.TrainingRun.iterate_batches(run, True))  # type: ignore[arg-type]

    whole = read(0, 0, 1)
    assert [batch.text.ids_BxL.shape for batch in whole] == [(8, 8)] * 4 + [(4, 16)] * 4
    for start_step in (0, 2, 5):
        for batch, *shares in zip(whole[start_step:], read(start_step, 0, 2), read(start_step, 1, 2), strict=True):
            joined = jax.tree.map(lambda *parts: np.concatenate(parts), *shares)
            jax.tree.map(np.testing.assert_array_equal, joined, batch)


@pytest.mark.slow
def test_a_run_that_is_stopped_in_each_phase_is_the_unbroken_one(tmp_path):
    content = FILE + re.sub("rope_theta.*", "", PHASES)
    changes = {"content": content, "model__family": "feedforward", "model__cell": "bag"}
    cfg, broken = (make_config(tmp_path, name, **changes) for name in ("run", "broken"))
    result = train_config(cfg)
    for step in (2, 4, 7):
        stop_at(broken, step)
    assert read_values(train_config(broken)) == read_values(result)
    assert result["sources"]["letters"]["share"] == pytest.approx((24 + 8) / 48)
    directory = RunDirectory(cfg.workdir)
    held_out = directory.read_held_out(directory.read_result())
    both = [held_out[f"mlm_nats_{name}"] for name in ("letters", "digits")]
    np.testing.assert_allclose(sum(both), held_out["mlm_nats"])
    assert {"loss_letters", "loss_digits"} <= result["evaluation"].keys()
    records = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    peaks = {record["step"]: record["learning_rate"] for record in records if "learning_rate" in record}
    assert peaks == pytest.approx({step: 0.002 if step <= 4 else 0.001 for step in peaks}) and {4, 8} <= peaks.keys()
    epochs = [record["digits_epochs"] for record in records if "digits_epochs" in record]
    assert epochs == sorted(epochs) and epochs[-1] == result["sources"]["digits"]["epochs"]


def read_values(result):
    return {name: result[name] for name in ("evaluation", "sources", "tokens", "predictions", "flops")}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_extended_run_with_phases_is_the_longer_one(tmp_path):
    cfg = make_config(tmp_path)
    train_config(cfg)
    longer, scratch = (make_config(tmp_path, workdir, train__steps=12) for workdir in ("run", "scratch"))
    extended = evaluated_run.extend(longer, pack.load_dataset(longer))
    assert read_values(train_config(extended)) == read_values(train_config(scratch))


def test_phases_of_recipes_are_those_of_their_papers():
    def count_tokens(name):
        runs = phases.list_phases(fields.override(config.Config(), recipes.RECIPES[name].fields))
        return [(one.end_step - one.first_step) * one.cfg.train.batch_size * one.cfg.pack.seq_len for one in runs]

    assert count_tokens("bert") == [900_000 * 256 * 128, 100_000 * 256 * 512]
    assert count_tokens("neobert") == [1_000_000 * 2**21, 50_000 * 2**21]
    short, long = count_tokens("modernbert")  # the batch of 1,720B tokens grows, from a sixth, over the first 50B
    steps = recipes.MODERN_BERT_STEPS["batch_warmup"]
    assert short - steps * 4608 * 1024 * 5 / 12 == pytest.approx(1.72e12, rel=1e-3)
    assert long == pytest.approx(300e9, rel=1e-3)
