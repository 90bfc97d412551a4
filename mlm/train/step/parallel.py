"""How the per-device step runs on many devices: the only file that names them, and the processes they belong to."""
import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from mlm.base import config, errors
from mlm.train.step import fsdp


class Parallel(NamedTuple):
    """The compiled steps and the way of values to and from the devices."""

    initial: Callable      # a function (knobs) -> state, compiled
    put_state: Callable    # state as `initial` or this host has it -> state on all devices
    get_state: Callable    # and back: numpy copies, which stay as they are when the next step reuses the memory
    kept: Callable         # state on all devices -> what a checkpoint is to keep, which stays as it is too
    like: Callable         # shapes of a state -> what a checkpoint is to be read as
    put_batch: Callable    # this process's rows -> the global batch
    train_step: Callable   # (state, batch, knobs) -> (state, metrics); gives the old state's memory away
    per_row: Callable      # (function, *fixed), compiled once: function(*fixed, params, batch, knobs) gives values by
                           # row; call the compiled one with (state, batch, knobs); it returns those of the whole
                           # global batch, numpy, on every process. whole=True: it is handed all parameters at once,
                           # also those of split layers, as it must be where it reads layers outside a Stack
    get_metrics: Callable  # metrics -> numpy scalars


def check_mode(cfg: config.Config) -> None:
    """Raises ConfigError unless config.parallel.mode is one of MODES."""
    errors.require_one_of("config.parallel.mode", cfg.parallel.mode, list(MODES))


def check(cfg: config.Config) -> None:
    """Raises ConfigError unless the batches divide among the devices there are."""
    devices = jax.device_count()
    parts = devices * cfg.train.grad_accum_steps
    errors.require(cfg.train.batch_size % parts == 0, "config.train.batch_size", cfg.train.batch_size,
                   f"a multiple of {parts} ({devices} devices x config.train.grad_accum_steps = {cfg.train.grad_accum_steps})")
    check_evaluation(cfg)


def check_evaluation(cfg: config.Config) -> None:
    """As `check`, of the batches of evaluation alone."""
    devices = jax.device_count()
    errors.require(cfg.eval.batch_size % devices == 0, "config.eval.batch_size", cfg.eval.batch_size,
                  f"a multiple of {devices}, the number of devices")


def device_memory() -> int:
    """Bytes of memory of one device: an accelerator's own, or on a CPU what this process may have of the machine's."""
    device = jax.local_devices()[0]
    of_device = None if device.platform == "cpu" else (device.memory_stats() or {}).get("bytes_limit")
    return of_device or _ram()


def _ram():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # there is no limit, or no such file
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def is_primary() -> bool:
    """Whether this process keeps the run's files: the first of them does."""
    return jax.process_index() == 0


def is_multiprocess() -> bool:
    """Whether the run has more processes than this one."""
    return jax.process_count() > 1


def process_slice() -> dict[str, int]:
    """Which of the run's processes this one is, as the loader asks."""
    return {"process": jax.process_index(), "processes": jax.process_count()}


def is_local(rows: int) -> slice:
    """This process's part of `rows` rows in order."""
    part = rows // jax.process_count()
    return slice(jax.process_index() * part, (jax.process_index() + 1) * part)


def describe() -> dict:
    """The devices of the run, for its provenance."""
    return {"device": jax.devices()[0].device_kind, "devices": jax.device_count(), "processes": jax.process_count()}


def local() -> dict:
    """This process's own devices, which all processes of a run have alike."""
    return {"the number of devices": jax.local_device_count(), "the kind of device": jax.devices()[0].device_kind}


def counting():
    """A context that lowers for the CPU: the plugins of GPUs and TPUs count no FLOPs before they compile."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return contextlib.nullcontext()


def one_device(train_step: Callable) -> Parallel:
    """The step on this process's first device alone, as measurements and plans want it."""
    return over_mesh(train_step, jax.devices()[:1])


def total_over(devices: int) -> Callable:
    """Sums over the devices of what each has summed; those of one device are what they are, which XLA on CPU would copy
    all the same."""
    return (lambda tree: tree) if devices == 1 else functools.partial(jax.lax.psum, axis_name="data")


def over_mesh(train_step: Callable, devices=None, *, members: bool = False) -> Parallel:
    """jax.jit over a mesh of all devices of all processes, or of those given.

    train_step: (total, state, batch, knobs) -> (state, metrics), of which `total` sums over devices. members: every
    value of it has a leading axis of members, on every device, before that of rows.
    """
    devices = devices or jax.devices()
    mesh = mesh_of(devices)
    same, rows = jax.P(), jax.P(None, "data") if members else jax.P("data")
    step = functools.partial(train_step, total_over(len(devices)))

    def mapped(function, inputs, outputs):
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    @functools.cache
    def per_row(function, *fixed, whole=False):
        compiled = jax.jit(mapped(functools.partial(function, *fixed), (same, rows, same), rows))
        return lambda state, batch, knobs: gather(compiled(state.params, batch, knobs))

    return Parallel(
        initial=jax.jit,
        put_state=lambda state: jax.device_put(state, jax.NamedSharding(mesh, same)),
        get_state=copied,
        kept=copied,
        like=on_host,
        put_batch=lambda batch: jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(jax.NamedSharding(mesh, rows), x), batch),
        train_step=jax.jit(mapped(step, (same, rows, same), (same, same)), donate_argnums=0),
        per_row=per_row,
        get_metrics=jax.device_get,
    )


def over_pmap(train_step: Callable, devices=None) -> Parallel:
    """jax.pmap: every value carries a leading axis of this process's devices, or of those given."""
    count = len(devices or jax.local_devices())
    step = functools.partial(train_step, total_over(len(devices or jax.devices())))

    @functools.cache
    def per_row(function, *fixed, whole=False):
        compiled = jax.pmap(functools.partial(function, *fixed), axis_name="data", in_axes=(0, 0, None),
                            devices=devices)
        return lambda state, batch, knobs: jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]), gather(compiled(state.params, batch, knobs)))

    def first(tree):
        return jax.tree.map(lambda x_Sx: np.array(x_Sx[0]), tree)

    return Parallel(
        initial=jax.jit,
        put_state=lambda state: jax.tree.map(lambda x: np.broadcast_to(x, (count, *np.shape(x))), state),
        get_state=first,
        kept=first,
        like=on_host,
        put_batch=lambda batch: jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch),
        train_step=jax.pmap(step, axis_name="data", in_axes=(0, 0, None), donate_argnums=0, devices=devices),
        per_row=per_row,
        get_metrics=first,
    )


def over_shards(train_step: Callable, devices=None) -> Parallel:
    """As over_mesh, with each device's part of the state alone (step/sharded.py).

    train_step: (total, state, batch, knobs, spread), as update.train_step.
    """
    devices = devices or jax.devices()
    mesh = mesh_of(devices)
    rows, total = jax.NamedSharding(mesh, jax.P("data")), total_over(len(devices))

    def laid(tree):
        return jax.lax.with_sharding_constraint(tree, fsdp.shardings(tree, mesh))

    def step(state, batch, knobs):
        spread = functools.partial(fsdp.summed, mesh)
        state, metrics = train_step(total, state, batch, knobs, spread)
        return laid(state), metrics

    @functools.cache
    def per_row(function, *fixed, whole=False):
        if whole:  # gathered before it begins: its loops may end on each device with that one's rows
            return over_mesh(train_step, devices).per_row(function, *fixed)

        def of_rows(params, batch, knobs):
            inputs = fsdp.specs(params, mesh.size), jax.P("data"), jax.P()
            read = lambda whole, params, *more: function(*fixed, whole(params), *more)  # noqa: E731
            return fsdp.local(mesh, read, params, inputs, jax.P("data"))(params, batch, knobs)

        compiled = jax.jit(of_rows)
        return lambda state, batch, knobs: gather(compiled(state.params, batch, knobs))

    def put(x, sharding):
        if isinstance(x, jax.Array):
            return jax.device_put(x, sharding)
        return jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.asarray(x)[index])

    on_cpu = devices[0].platform == "cpu"  # where a checkpoint is written from the state's own memory
    return Parallel(
        initial=lambda function: jax.jit(lambda knobs: laid(function(knobs))),
        put_state=lambda state: jax.tree.map(put, state, fsdp.shardings(state, mesh)),
        get_state=lambda state: jax.tree.map(lambda x: np.array(gather(x)), state),
        kept=lambda state: jax.tree.map(jnp.copy, state) if on_cpu else state,
        like=lambda state: jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
                                        state, fsdp.shardings(state, mesh)),
        put_batch=lambda batch: jax.tree.map(lambda x: jax.make_array_from_process_local_data(rows, x), batch),
        train_step=jax.jit(step, donate_argnums=0),
        per_row=per_row,
        get_metrics=jax.device_get,
    )


def mesh_of(devices):
    return jax.make_mesh((len(devices),), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)


def copied(state):
    return jax.tree.map(np.array, state)


def on_host(state):
    return jax.tree.map(lambda x: np.empty(x.shape, x.dtype), state)


def gather(tree):
    """Values spread over the devices of all processes, whole and in order on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


MODES = {"jit": over_mesh, "pmap": over_pmap, "sharded": over_shards}
