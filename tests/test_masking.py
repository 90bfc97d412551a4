"""Masking: how many tokens, which ones, and what they become."""

import jax
import numpy as np
import pytest
from scipy import stats

from mlm.base.special import MASK
from mlm.objectives import masking

VOCAB, ROWS, LENGTH = 40, 2000, 32
COUNTS = np.arange(VOCAB, dtype=np.float32)


def rows(seed=0):
    """Rows with 20 to 30 ordinary tokens between [CLS], [SEP] and padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    ends = rng.integers(21, 32, ROWS)
    ids[:, 0] = 2
    ids[np.arange(LENGTH) == ends[:, None]] = 3
    ids[np.arange(LENGTH) > ends[:, None]] = 0
    return ids


def corrupt(ids, rate, mask_share=1.0, random_share=0.0, uniform=False, max_rate=None, **knobs):
    slots = masking.count_slots(max_rate or rate, LENGTH)
    keys = jax.random.split(jax.random.key(0), len(ids))
    return jax.tree.map(
        np.asarray,
        jax.jit(
            lambda rate: masking.corrupt_tokens(
                keys,
                ids,
                rate=rate,
                mask_token_prob=mask_share,
                random_token_prob=random_share,
                num_slots=slots,
                cdf_V=masking.compute_random_token_cdf(COUNTS, uniform),
                **knobs,
            )
        )(rate),
    )


@pytest.mark.exhaustive(but=("0.01", "0.4"))
@pytest.mark.parametrize("rate", [0.01, 0.15, 0.4, 0.8, 0.99])
def test_the_count_is_floor_of_rate_times_eligible_plus_uniform(rate):
    ids = rows()
    out = corrupt(ids, rate)
    assert_within_one(out.weights_BxK.sum(1), rate * (ids >= 5).sum(1))
    np.testing.assert_array_equal(out.num_eligible_B, (ids >= 5).sum(1))


@pytest.mark.parametrize("settings", [{}, {"predict_rate": 0.1}], ids=["corrupted", "predicted"])
def test_every_ordinary_position_is_equally_likely(settings):
    ids = rows()
    ids[:] = np.where(ids >= 5, ids, 7)
    ids[:, 0], ids[:, -1] = 2, 3
    out = corrupt(ids, 0.4, **settings)
    hits = np.bincount(out.positions_BxK[out.weights_BxK > 0], minlength=LENGTH)[1:-1]
    assert stats.chisquare(hits).pvalue > 1e-4


@pytest.mark.parametrize("uniform", [False, True])
def test_shares_of_mask_random_and_same(uniform):
    ids = rows()
    out = corrupt(ids, 0.4, mask_share=0.5, random_share=0.3, uniform=uniform)
    used = out.weights_BxK > 0
    shown = np.take_along_axis(out.ids_BxL, out.positions_BxK, 1)[used]
    targets = out.targets_BxK[used]
    n = len(shown)
    masked, same = (shown == MASK).mean(), (shown == targets).mean()
    assert abs(masked - 0.5) < 4 * (0.25 / n) ** 0.5
    drawn = shown[(shown != MASK) & (shown != targets)]
    assert drawn.min() >= 5
    share = np.where(np.arange(VOCAB) >= 5, 1.0 if uniform else COUNTS, 0)
    share /= share.sum()
    chance = share[targets].mean()
    assert abs(same - (0.2 + 0.3 * chance)) < 4 * (0.2 / n) ** 0.5
    expected = share * np.array([(targets != token).mean() for token in range(VOCAB)])
    expected *= len(drawn) / expected.sum()
    observed = np.bincount(drawn, minlength=VOCAB)
    assert stats.chisquare(observed[5:], expected[5:]).pvalue > 1e-4


def test_the_rate_is_traced_and_slots_fit_the_largest():
    ids, traces = rows()[:8], []
    keys = jax.random.split(jax.random.key(0), 8)

    @jax.jit
    def counts(rate):
        traces.append(rate)
        return masking.corrupt_tokens(
            keys,
            ids,
            rate=rate,
            mask_token_prob=1.0,
            random_token_prob=0.0,
            num_slots=masking.count_slots(0.8, LENGTH),
            cdf_V=masking.compute_random_token_cdf(COUNTS, True),
        ).weights_BxK.sum(1)

    for rate in (0.15, 0.5, 0.8):
        wanted = rate * (ids >= 5).sum(1)
        assert (np.abs(counts(np.float32(rate)) - wanted) < 1).all()
    assert len(traces) == 1
    assert masking.count_slots(0.15, 128) == 20 and masking.count_slots(0.25, 128) == 32


def test_the_random_token_is_never_outside_the_vocabulary_however_large_the_counts():
    counts = 1e8 / np.arange(1, 30_523)
    cdf = masking.compute_random_token_cdf(counts, uniform=False)
    assert cdf[-1] == 1 and (np.diff(cdf) >= 0).all()
    assert np.searchsorted(cdf, np.float32(1 - 2**-24), side="right") < len(counts)


def every_view(ids, rate, views, **knobs):
    """What `corrupt` gives for each view of the same rows."""
    keys = jax.random.split(jax.random.key(0), len(ids))
    knobs = {
        "mask_token_prob": 1.0,
        "random_token_prob": 0.0,
        "num_slots": masking.count_slots(rate, LENGTH),
        "num_masks": views,
        "cdf_V": masking.compute_random_token_cdf(COUNTS, False),
    } | knobs
    out = jax.jit(jax.vmap(lambda view: masking.corrupt_tokens(keys, ids, rate=rate, mask_index=view, **knobs)))(
        np.arange(views)
    )
    return [jax.tree.map(lambda x, view=view: np.asarray(x[view]), out) for view in range(views)]


def assert_within_one(count, wanted):
    """Counts that are floor or ceiling of what is wanted, and that on average."""
    assert ((count == np.floor(wanted)) | (count == np.ceil(wanted))).all()
    assert abs((count - wanted).mean()) < 4 * 0.5 / ROWS**0.5


def test_less_than_is_corrupted_can_be_predicted():
    ids = rows()
    whole, part = corrupt(ids, 0.4), corrupt(ids, 0.4, predict_rate=0.1)
    np.testing.assert_array_equal(part.ids_BxL, whole.ids_BxL)
    assert_within_one(part.weights_BxK.sum(1), 0.1 * (ids >= 5).sum(1))
    assert (part.weights_BxK <= whole.weights_BxK).all()
    np.testing.assert_array_equal(part.num_corrupted_B, whole.weights_BxK.sum(1))


@pytest.mark.exhaustive(but=("0.3333333333333333-1.0-3",))
@pytest.mark.parametrize(("rate", "predict", "views"), [(0.2, 0.4, 2), (0.3, 0.4, 2), (1 / 3, 1.0, 3), (0.4, 0.4, 1)])
def test_views_of_a_row_hide_disjoint_tokens_and_together_predict_more_than_each_corrupts(rate, predict, views):
    ids = rows()
    found = every_view(ids, rate, views, predict_rate=predict)
    hidden = np.array([out.ids_BxL == MASK for out in found])
    assert (hidden.sum(0) <= 1).all()
    eligible = (ids >= 5).sum(1)
    for out, hidden_BxL in zip(found, hidden, strict=True):
        assert_within_one(hidden_BxL.sum(1), rate * eligible)
        assert_within_one(out.weights_BxK.sum(1), predict / views * eligible)
        np.testing.assert_array_equal(out.num_corrupted_B, hidden_BxL.sum(1))
        row_N, slot_N = np.nonzero(out.weights_BxK)
        assert hidden_BxL[row_N, out.positions_BxK[row_N, slot_N]].all()
        np.testing.assert_array_equal(out.targets_BxK[row_N, slot_N], ids[row_N, out.positions_BxK[row_N, slot_N]])
        np.testing.assert_array_equal(out.ids_BxL[~hidden_BxL], ids[~hidden_BxL])
    if predict == 1:
        np.testing.assert_array_equal(hidden.sum((0, 2)), eligible)


def test_replacements_of_two_views_are_drawn_apart():
    ids = rows()
    one, other = every_view(ids, 0.4, 2, mask_token_prob=0.0, random_token_prob=1.0)
    both = (one.weights_BxK > 0) & (other.weights_BxK > 0)
    shown = [np.take_along_axis(out.ids_BxL, out.positions_BxK, 1)[both] for out in (one, other)]
    assert (shown[0] == shown[1]).mean() < 0.1
