"""Schedules, the decay mask and the knobs of the optimiser."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import small_config

from mlm.base import config
from mlm.training.step import optim, program


def shares(**fields):
    shape = optim.build_schedule(config.Optim(**fields), 100)
    return np.array([float(shape(step)) for step in range(101)])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
def test_schedules_rise_to_the_peak_and_end_where_they_should(schedule):
    share = shares(schedule=schedule, warmup_fraction=0.1, decay_fraction=0.2, final_lr_fraction=0.05)
    np.testing.assert_allclose(share[:10], (np.arange(10) + 1) / 10, rtol=1e-5)
    assert share.max() == pytest.approx(1)
    assert (np.diff(share[10:]) <= 1e-6).all()
    assert share[100] == pytest.approx(1 if schedule == "constant" else 0.05)
    halfway = {"linear": 1 - 0.95 * 45 / 90, "cosine": 0.05 + 0.95 / 2, "wsd": 1, "constant": 1}
    assert share[55] == pytest.approx(halfway[schedule], rel=1e-5)
    if schedule == "wsd":
        np.testing.assert_allclose(share[80:101:10], [1, 0.525, 0.05], rtol=1e-5)


def test_the_inverse_square_root_is_that_of_the_updates_number():
    share = shares(schedule="inverse_sqrt", warmup_fraction=0.1)
    number = np.arange(1, 102)
    # Vaswani et al. 2017, equation 3, over its largest value.
    np.testing.assert_allclose(share, np.minimum(number**-0.5, number * 10**-1.5) * 10**0.5, rtol=1e-5)
    assert shares(schedule="inverse_sqrt", warmup_fraction=0.0)[3] == pytest.approx(0.5)


def test_one_minus_the_root_is_the_paper_s():
    """Hägele et al. 2024, section 4.1: 1 - sqrt((n - (N - N_decay)) / N_decay), here down to a rest."""
    share = shares(schedule="wsd", warmup_fraction=0.1, decay_fraction=0.2, decay_shape="one_minus_sqrt")
    np.testing.assert_allclose(share[80:], 1 - np.sqrt(np.arange(21) / 20), atol=1e-6)
    assert (share[10:80] == 1).all()
    rest = shares(schedule="wsd", decay_fraction=0.2, decay_shape="one_minus_sqrt", final_lr_fraction=0.05)
    np.testing.assert_allclose(rest[80:], 0.05 + 0.95 * (1 - np.sqrt(np.arange(21) / 20)), atol=1e-6)


def test_update_equals_adamw_with_clipping_and_takes_its_rate_from_the_knobs():
    cfg = small_config(optim__clip_norm=0.5, optim__weight_decay=0.1, optim__learning_rate=3e-3)
    knobs = program.make_train_hparams(cfg)
    params = {"kernel": jnp.arange(1.0, 5.0), "bias": jnp.ones(3)}
    gradient = {"kernel": jnp.array([1.0, -2.0, 3.0, 0.1]), "bias": jnp.array([0.2, 0.0, -1.0])}
    reference = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(
            lambda step: 3e-3 * optim.build_schedule(cfg.optim, 1000)(step),
            0.9,
            0.98,
            1e-6,
            weight_decay=0.1,
            mask={"kernel": True, "bias": False},
        ),
    )

    @jax.jit
    def ours(knobs, params, state, scale):
        scaled = jax.tree.map(lambda x: scale * x, gradient)
        updates, state = optim.build_optimizer(cfg, knobs).update(scaled, state, params)
        return optax.apply_updates(params, updates), state

    state = optim.build_optimizer(cfg, knobs).init(params)
    state_reference = reference.init(params)
    mine = theirs = params
    for scale in (1.0, 0.05, 0.3):  # the second is not clipped: Adam itself takes no notice of a common factor
        mine, state = ours(knobs, mine, state, scale)
        scaled = jax.tree.map(lambda x, scale=scale: scale * x, gradient)
        updates, state_reference = reference.update(scaled, state_reference, theirs)
        theirs = optax.apply_updates(theirs, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mine, theirs)
    still, _ = ours(knobs._replace(learning_rate=np.float32(0)), mine, state, 1.0)
    jax.tree.map(np.testing.assert_array_equal, still, mine)
    assert ours._cache_size() == 1
