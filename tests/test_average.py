"""A run that ends with the mean of its parameters at several moments: averaged checkpoints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlm.base import config
from mlm.training.step import optim

PARAMS = {"kernel": jnp.arange(1.0, 5.0), "bias": jnp.ones(3)}


class Knobs:
    learning_rate, weight_decay = 1e-2, 0.1


def run(steps, **fields):
    """The parameters after each update, and the states, of gradients that follow from the number."""
    update = optim.build_optimizer(config.Config(optim=config.Optim(**fields), train=config.Train(steps=steps)), Knobs)
    params, state = PARAMS, update.init(PARAMS)

    @jax.jit
    def step(number, params, state):
        gradient = jax.tree.map(lambda x: jnp.sin(number + jnp.arange(x.size)), params)
        updates, state = update.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    found = []
    for number in range(steps):
        params, state = step(number, params, state)
        found.append((params, state))
    return found


@pytest.mark.parametrize("count, every", [(3, 4), (2, 11), (12, 1)])
def test_a_run_ends_with_the_mean_of_what_it_was_at_those_moments(count, every):
    plain, mean = run(12), run(12, average_checkpoints=count, average_every=every)
    for (before, _), (after, _) in zip(plain[:-1], mean[:-1], strict=True):
        jax.tree.map(np.testing.assert_array_equal, before, after)
    moments = [plain[11 - every * back][0] for back in range(count)]
    wanted = jax.tree.map(lambda *those: np.mean(those, 0), *moments)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), mean[-1][0], wanted)
    assert not np.allclose(wanted["kernel"], plain[-1][0]["kernel"], rtol=1e-4)


def test_what_a_longer_run_shares_ends_before_the_first_of_them():
    same = optim.count_stable_steps(config.Optim(schedule="constant", average_checkpoints=3, average_every=4), 12)
    assert same == 3
    short = run(12, schedule="constant", warmup_fraction=0.0, average_checkpoints=3, average_every=4)
    long = run(20, schedule="constant", warmup_fraction=0.0, average_checkpoints=3, average_every=4)
    jax.tree.map(np.testing.assert_array_equal, short[same - 1], long[same - 1])
    assert not np.array_equal(short[same][1].mean["kernel"], long[same][1].mean["kernel"])
