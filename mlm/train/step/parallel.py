"""How the per-device step runs on many devices: the only file that names them."""
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from mlm.base import config, errors


class Parallel(NamedTuple):
    """The compiled steps and the way of values to and from the devices."""

    put_state: Callable    # state on this host -> state on all devices
    get_state: Callable    # and back: numpy copies, which stay as they are when the next step reuses the memory
    put_batch: Callable    # this process's rows -> the global batch
    train_step: Callable   # (state, batch, knobs) -> (state, metrics); gives the old state's memory away
    per_row: Callable      # (function, *fixed), compiled once: function(*fixed, params, batch, knobs) gives values by
                           # row; call the compiled one with (state, batch, knobs); it returns those of the whole
                           # global batch, numpy, on every process
    get_metrics: Callable  # metrics -> numpy scalars


def check(cfg: config.Config) -> None:
    """Raises ConfigError unless the batches divide among the devices there are."""
    devices = jax.device_count()
    parts = devices * cfg.train.accumulate
    errors.expect(cfg.train.batch_size % parts == 0, "config.train.batch_size", cfg.train.batch_size,
                  f"a multiple of {parts} ({devices} devices x config.train.accumulate = {cfg.train.accumulate})")
    check_evaluation(cfg)


def check_evaluation(cfg: config.Config) -> None:
    """As `check`, of the batches of evaluation alone."""
    devices = jax.device_count()
    errors.expect(cfg.eval.batch_size % devices == 0, "config.eval.batch_size", cfg.eval.batch_size,
                  f"a multiple of {devices}, the number of devices")


def over_mesh(train_step: Callable, devices=None, *, members: bool = False) -> Parallel:
    """jax.jit over a mesh of all devices of all processes, or of those given.

    members: every value of train_step has a leading axis of members, on every device, before that of rows.
    """
    devices = devices or jax.devices()
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    same, rows = jax.P(), jax.P(None, "data") if members else jax.P("data")

    def mapped(function, inputs, outputs):
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    @functools.cache
    def per_row(function, *fixed):
        compiled = jax.jit(mapped(functools.partial(function, *fixed), (same, rows, same), rows))
        return lambda state, batch, knobs: gather(compiled(state.params, batch, knobs))

    return Parallel(
        put_state=lambda state: jax.device_put(state, jax.NamedSharding(mesh, same)),
        get_state=lambda state: jax.tree.map(np.array, state),
        put_batch=lambda batch: jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(jax.NamedSharding(mesh, rows), x), batch),
        train_step=jax.jit(mapped(train_step, (same, rows, same), (same, same)), donate_argnums=0),
        per_row=per_row,
        get_metrics=jax.device_get,
    )


def over_pmap(train_step: Callable, devices=None) -> Parallel:
    """jax.pmap: every value carries a leading axis of this process's devices, or of those given."""
    count = len(devices or jax.local_devices())

    @functools.cache
    def per_row(function, *fixed):
        compiled = jax.pmap(functools.partial(function, *fixed), axis_name="data", in_axes=(0, 0, None),
                            devices=devices)
        return lambda state, batch, knobs: jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]), gather(compiled(state.params, batch, knobs)))

    def first(tree):
        return jax.tree.map(lambda x_Sx: np.array(x_Sx[0]), tree)

    return Parallel(
        put_state=lambda state: jax.tree.map(lambda x: np.broadcast_to(x, (count, *np.shape(x))), state),
        get_state=first,
        put_batch=lambda batch: jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch),
        train_step=jax.pmap(train_step, axis_name="data", in_axes=(0, 0, None), donate_argnums=0,
                            devices=devices),
        per_row=per_row,
        get_metrics=first,
    )


def gather(tree):
    """Values spread over the devices of all processes, whole and in order on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


MODES = {"jit": over_mesh, "pmap": over_pmap}
