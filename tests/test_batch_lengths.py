"""Rows of a task are cut to the longest of their batch: nothing but padding goes, and no number changes by it."""

import itertools
import random

import jax
import numpy as np
import pytest
from small import (
    FAMILY_CELLS,
    LABELLED,
    batch,
    mark_further,
    params_of,
    replace_text,
    small_config,
    small_program,
    state_of,
    train_config,
)

from mlm.base import fields
from mlm.data.rows import loader
from mlm.data.tokenizers import kinds
from mlm.training.run import vmapped_runs
from mlm.training.step import program, update
from mlm.training.validation import split_scores

LENGTH, CUT = 24, 16  # tokens of a row, and of a batch whose rows hold no more


def rows_of(count=29, stretches=1, length=64, longest=64):
    """Rows of one segment a stretch, most of them short."""
    rng = np.random.default_rng(0)
    used_NxE = rng.integers(2, 20, (count, stretches))
    used_NxE[7] = longest
    there = (np.arange(length) < used_NxE[..., None]).reshape(count, -1)
    ids_NxL = np.where(there, rng.integers(5, 50, there.shape), 0)
    return {
        "ids": ids_NxL,
        "segments": there.astype(np.uint16),
        "positions": np.zeros_like(ids_NxL),
        "label": np.arange(count),
        "tag": np.where(there, ids_NxL, -1),
        loader.NUM_TOKENS: used_NxE,
    }


def join(parts):
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def take_batches(rows, steps, **given):
    made = loader.iterate_train_batches(rows, **{"seed": 0, "batch_size": 4, "start_step": 0, "cut": False} | given)
    return list(itertools.islice(made, steps))


@pytest.mark.parametrize("stretches", [1, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_batch_holds_all_tokens_of_the_rows_it_would_hold_and_is_as_long_as_the_longest_asks(stretches, processes):
    rows, lengths = rows_of(stretches=stretches), set()
    short, plain = (
        map(
            join,
            zip(
                *(
                    take_batches(rows, 12, start_step=3, process=i, processes=processes, cut=cut)
                    for i in range(processes)
                ),
                strict=True,
            ),
        )
        for cut in (True, False)
    )
    for one, other in zip(short, plain, strict=True):
        length = one.text.ids_BxL.shape[1] // stretches
        assert length == next(x for x in (16, 24, 32, 48, 64) if x >= rows[loader.NUM_TOKENS][one.split_index_B].max())
        for kept_BxL, whole_BxL in (
            (one.text.ids_BxL, other.text.ids_BxL),
            (one.labels["tag_BxL"], other.labels["tag_BxL"]),
        ):
            of_stretch = whole_BxL.reshape(4, stretches, -1)
            np.testing.assert_array_equal(kept_BxL.reshape(4, stretches, -1), of_stretch[..., :length])
        assert not other.text.ids_BxL.reshape(4, stretches, -1)[..., length:].any() and "used_BxL" not in one.labels
        for name in ("split_index_B", "epoch_B", "index_B"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        lengths.add(length)
    assert lengths == {16, 24, 64} - ({16} if stretches > 1 else set())


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", [1, 2])
def test_rows_grouped_by_length_are_those_that_chance_chose_for_so_many_batches(processes):
    rows, window = rows_of(), loader.GROUP_BATCHES * 4
    steps = 3 * loader.GROUP_BATCHES
    chance = join(take_batches(rows, steps))
    each = [take_batches(rows, steps, grouped=True, process=i, processes=processes) for i in range(processes)]
    grouped = [join(parts) for parts in zip(*each, strict=True)]
    places = {name: np.concatenate([getattr(one, name) for one in grouped]) for name in ("split_index_B", "epoch_B")}
    for first in range(0, len(places["split_index_B"]), window):
        there = slice(first, first + window)
        pairs = [
            sorted(zip(of["split_index_B"][there], of["epoch_B"][there], strict=True))
            for of in (places, chance._asdict())
        ]
        assert pairs[0] == pairs[1]
        for epoch in {*places["epoch_B"][there]}:  # sorted, but for the order of the batches
            batches = [
                rows[loader.NUM_TOKENS][one.split_index_B[one.epoch_B == epoch], 0].tolist()
                for one in grouped[first // 4 :][: loader.GROUP_BATCHES]
            ]
            sizes = sorted(map(sorted, filter(None, batches)), key=lambda used_B: used_B[-1])
            dealt = list(itertools.chain.from_iterable(sizes))
            assert dealt == sorted(dealt) and batches != sizes
    for one in take_batches(rows_of(32), 40, grouped=True, batch_size=16):
        assert len({*one.split_index_B}) == 16  # no row beside itself, though a window holds four epochs
    for start in (1, loader.GROUP_BATCHES + 3):  # a step's batch follows from its number
        parts = take_batches(rows, 2, grouped=True, start_step=start)
        for one, other in zip(parts, grouped[start:], strict=False):
            assert all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def make_padded_batch(objective, length):
    """A batch whose rows hold no more than CUT tokens, or stretches of a quarter of them, as long as `length`."""
    made = batch(length=CUT, pad=3, labels=True)
    if objective == "multiple_choice":
        segments = np.tile(np.repeat([[1], [2], [3], [4]], 4, 1).reshape(-1), (3, 1)).astype(np.int32)
        made = replace_text(made, segments_BxL=segments, ids_BxL=np.maximum(made.text.ids_BxL, 5))
    stretches = {"multiple_choice": 4, "contrastive": 2}.get(objective, 1)

    def longer(x_BxL, fill=0):
        of_stretch = x_BxL.reshape(len(x_BxL), stretches, -1)
        more = ((0, 0), (0, 0), (0, (length - CUT) // stretches))
        return np.pad(of_stretch, more, constant_values=fill).reshape(len(x_BxL), -1)

    labels = {
        name: longer(x, -1 if name in ("tag_BxL", "edge_BxL") else 0) if name.endswith("xL") else x
        for name, x in made.labels.items()
        if name in LABELLED[objective]
    }
    return made._replace(text=type(made.text)(*map(longer, made.text)), labels=labels)


@pytest.mark.parametrize(
    ("objective", "family", "cell", "fast"),
    mark_further(
        [
            *(("classification", *member, fast) for member in FAMILY_CELLS for fast in (True, False)),
            *((name, "transformer", "", True) for name in LABELLED if name != "classification"),
            ("tagging", "rnn", "gru", True),
        ],
        [("classification", "rnn", "lstm", True), ("multiple_choice", "transformer", "", True)],
    ),
)
def test_padding_changes_neither_a_loss_nor_its_gradient_while_dropout_draws(objective, family, cell, fast):
    cfg = small_config(
        family,
        cell,
        objective=objective,
        model__num_layers=1,
        model__kernels="auto" if fast else "reference",
        model__dropout=0.3,
        **{"model__attention_dropout": 0.3} if family == "transformer" else {},
    )
    made = small_program(cfg)
    params = params_of(jax.eval_shape(made.init_state, program.make_train_hparams(cfg)).params)

    @jax.jit
    @jax.value_and_grad
    def loss(params, batch):
        key_B = update.make_example_keys(np.uint32(3), 5, batch.index_B)
        made_B = made.objective.loss(params, made.model, batch, key_B, program.make_train_hparams(cfg), train=True)
        return sum(x_B.sum() for x_B in made_B.loss_B.values())

    (one, gradient), (other, its) = (loss(params, make_padded_batch(objective, length)) for length in (CUT, LENGTH))
    assert one == pytest.approx(float(other), rel=1e-5) and float(one) > 0
    for leaf, of_its in zip(jax.tree.leaves(gradient), jax.tree.leaves(its), strict=True):
        np.testing.assert_allclose(leaf, of_its, atol=5e-5 * max(1, np.abs(of_its).max()))


def test_processes_that_judge_share_the_same_sorted_batches():
    rows = rows_of()
    given = {"batch_size": 4, "max_rows": 27, "order_N": loader.sort_by_length(rows, 27)}
    alone = list(loader.iterate_eval_batches(rows, **given))
    parts = zip(*(loader.iterate_eval_batches(rows, **given, process=i, processes=2) for i in (0, 1)), strict=True)
    for one, other in zip(alone, map(join, parts), strict=True):
        assert all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))
    lengths = [one.text.ids_BxL.shape[1] for one in alone]
    assert lengths == sorted(lengths, reverse=True) and len({*lengths}) == 3
    assert np.array_equal(np.concatenate([one.index_B for one in alone]), [*loader.sort_by_length(rows, 27), 27])


@pytest.mark.exhaustive(but=("tagging",))
@pytest.mark.parametrize("objective", ["classification", "tagging", "extractive_qa"])
def test_an_evaluation_gives_each_row_its_numbers_whatever_the_order_they_are_read_in(objective):
    cfg = small_config(
        objective=objective, model__num_layers=1, pack__seq_len=64, model__max_positions=64, eval__batch_size=4
    )
    cfg = fields.override(cfg, {"eval.max_examples": 26})
    made, rows = small_program(cfg), rows_of(longest=30)
    brought = {name.partition("_B")[0]: np.arange(29) % 3 for name in LABELLED[objective] if not name.endswith("xL")}
    rows = {name: column for name, column in rows.items() if name not in ("label", "tag")} | brought
    rows |= {"tag": np.where(rows["segments"] > 0, rows["ids"] % 3, -1)} if objective == "tagging" else {}
    state = state_of(jax.eval_shape(made.init_state, program.make_train_hparams(cfg)))
    cut, plain = (
        split_scores.collect_columns(cfg, made, state, each)
        for each in (rows, {name: rows[name] for name in rows if name != loader.NUM_TOKENS})
    )
    assert cut.keys() == plain.keys() and len({len(x_Nx) for x_Nx in cut.values()} | {26}) == 1
    for name, x_Nx in plain.items():
        np.testing.assert_allclose(cut[name], x_Nx, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.fixture
def configs(tmp_path):
    """Of two seeds of a task whose batches have several lengths, twice."""
    draw = random.Random(0)
    (tmp_path / "task").mkdir()
    for name, count in (("train", 40), ("dev", 8)):
        texts = [" ".join(draw.choices("abcd", k=draw.choice((5, 5, 5, 5, 5, 5, 28)))) for _ in range(count)]
        (tmp_path / "task" / f"{name}.tsv").write_text(
            "sentence\tlabel\n" + "".join(f"{text}\t{int(text < 'c')}\n" for text in texts)
        )
    kinds.train_tokenizer(kinds.config.Tokenizer("words", 9), ["a b c d"] * 9).save(tmp_path)
    return [
        small_config(
            data__task="sst2",
            data__task_path=str(tmp_path / "task"),
            tokenizer__path=str(tmp_path),
            data__cache_dir=str(tmp_path / "cache"),
            pack__seq_len=32,
            train__batch_size=4,
            train__steps=8,
            eval__batch_size=4,
            model__num_layers=1,
            model__attention_dropout=0.2,
            seed=seed,
            workdir=str(tmp_path / way / str(seed)),
        )
        for way in ("alone", "together")
        for seed in (0, 1)
    ]


@pytest.mark.exhaustive
def test_runs_side_by_side_whose_batches_are_of_several_lengths_are_what_they_are_alone(configs):
    alone = [train_config(cfg)["evaluation"] for cfg in configs[:2]]
    for result, wanted in zip(vmapped_runs.train_vmapped(configs[2:]).values(), alone, strict=True):
        assert result["evaluation"] == pytest.approx(wanted, rel=1e-4)
