"""The loader: which rows a batch holds, for every seed, step and number of processes."""

import itertools

import jax
import numpy as np
import pytest

from mlm.data.rows import loader


def rows_of(count, length=4):
    ids_NxL = np.arange(count * length, dtype=np.uint16).reshape(count, length) + 5
    ones_NxL = np.ones((count, length), np.uint16)
    positions_NxL = np.tile(np.arange(length, dtype=np.uint16), (count, 1))
    return {
        "ids": ids_NxL,
        "segments": ones_NxL,
        "positions": positions_NxL,
        "types": np.zeros((count, length), np.uint8),
        "next": np.arange(count, dtype=np.uint8) % 2,
    }


def numbers(batch):
    return (batch.text.ids_BxL[:, 0] - 5) // 4


def train(rows, steps, **kwargs):
    return list(itertools.islice(loader.iterate_train_batches(rows, **{"seed": 0, "start_step": 0} | kwargs), steps))


@pytest.mark.parametrize("count, size", [(24, 8), (23, 8), (5, 8)])
def test_each_epoch_is_a_new_permutation(count, size):
    order = np.concatenate([numbers(b) for b in train(rows_of(count), -(-4 * count // size), batch_size=size)])
    epochs = order[: 4 * count].reshape(4, count)
    assert np.array_equal(np.sort(epochs, axis=1), np.tile(np.arange(count), (4, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 4 and tuple(range(count)) not in {tuple(e) for e in epochs}


@pytest.mark.parametrize("count, size", [(24, 8), (23, 8), (5, 8)])
def test_a_row_comes_with_its_number_and_epoch(count, size):
    for start in (0, 3):
        batches = train(rows_of(count), 9, batch_size=size, start_step=start)
        for batch in batches:
            assert np.array_equal(batch.split_index_B, numbers(batch))
            assert batch.split_index_B.dtype == batch.epoch_B.dtype == np.int32
        place = np.arange(start * size, (start + 9) * size)
        assert np.array_equal(np.concatenate([batch.epoch_B for batch in batches]), place // count)


def test_a_batch_follows_from_seed_and_step_alone():
    rows = rows_of(23)
    whole = train(rows, 12, batch_size=8)
    for start in (0, 1, 7):
        for a, b in zip(whole[start:], train(rows, 12 - start, batch_size=8, start_step=start), strict=True):
            assert all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))
    other = train(rows, 12, batch_size=8, seed=1)
    assert not all(np.array_equal(a.text.ids_BxL, b.text.ids_BxL) for a, b in zip(whole, other, strict=True))


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_same_global_batch(processes):
    rows = rows_of(23)
    whole = train(rows, 9, batch_size=8, start_step=2)
    shares = [train(rows, 9, batch_size=8, start_step=2, process=i, processes=processes) for i in range(processes)]
    for batch, *parts in zip(whole, *shares, strict=True):
        joined = jax.tree.map(lambda *each: np.concatenate(each), *parts)
        assert all(map(np.array_equal, jax.tree.leaves(batch), jax.tree.leaves(joined)))
        assert np.array_equal(batch.index_B, np.arange(8))


def test_a_batch_holds_the_rows_as_they_were_packed():
    rows = rows_of(23)
    batch = train(rows, 1, batch_size=8)[0]
    for array, name in zip((*batch.text, batch.labels["next_B"]), rows, strict=True):
        assert array.dtype == np.int32 and np.array_equal(array, rows[name][numbers(batch)])
    assert batch.index_B.dtype == np.int32
    plain = train({name: rows[name] for name in ("ids", "segments", "positions")}, 1, batch_size=8)[0]
    assert plain.labels == {} and not plain.text.types_BxL.any() and plain.text.types_BxL.shape == (8, 4)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("count, most", [(23, 0), (24, 0), (23, 10), (3, 0), (23, 99)])
def test_evaluation_sees_every_row_once_in_order(count, most, processes):
    rows = rows_of(count)
    parts = [
        list(loader.iterate_eval_batches(rows, batch_size=8, max_rows=most, process=i, processes=processes))
        for i in range(processes)
    ]
    batches = [jax.tree.map(lambda *each: np.concatenate(each), *shares) for shares in zip(*parts, strict=True)]
    whole = jax.tree.map(lambda *each: np.concatenate(each), *batches)
    ids, segments, label, index = (whole.text.ids_BxL, whole.text.segments_BxL, whole.labels["next_B"], whole.index_B)
    expected = min(count, most or count)
    assert len(ids) == -(-expected // 8) * 8 and np.array_equal(index, np.arange(len(ids)))
    assert np.array_equal(ids[:expected], rows["ids"][:expected]) and segments[:expected].all()
    assert not ids[expected:].any() and not segments[expected:].any() and not label[expected:].any()
    assert all(array.dtype == np.int32 for array in jax.tree.leaves(whole))
