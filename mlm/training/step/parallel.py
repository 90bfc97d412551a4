"""How the per-device step runs on many devices. Training and evaluation ask JAX for devices here alone."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from mlm.base import config, errors, types
from mlm.training.step import sharding

DEFAULT_SETTINGS = config.Parallel()


class Partitioner(NamedTuple):
    """The compiled steps, and how values move to and from the devices."""

    put_state: Callable[..., Any]  # state on this host, or as jit_init returns it -> state on all devices
    get_state: Callable[..., Any]  # state on all devices -> numpy copies, which outlive the next step
    snapshot_state: Callable[..., Any]  # state on all devices -> what a checkpoint saves; it outlives the next step too
    put_batch: Callable[..., Any]  # this process's examples -> the global batch
    train_step: Any  # compiled: (state, batch, hparams) -> (state, metrics); donates the old state's memory
    # (function, *fixed) -> a compiled (state, batch, hparams) -> what function(*fixed, params, batch, hparams) gives
    # for each example of the global batch, as numpy, on every process. gather_params=True: the function gets all
    # parameters at once, even those of sharded layers. A function that reads layers outside a Stack needs this. Of the
    # same function and fixed values, which must be hashable, it is compiled once.
    jit_per_example: Callable[..., Any]
    jit_init: Callable[..., Any] = jax.jit  # compiles a function (hparams) -> state
    # Shapes of a state -> the target that orbax restores into.
    make_restore_target: Callable[..., Any] = functools.partial(jax.tree.map, lambda x: np.empty(x.shape, x.dtype))
    get_metrics: Callable[..., Any] = jax.device_get  # metrics -> numpy scalars
    list_whole_matrices: Callable[..., list[str]] = lambda params: []  # those that are not split, though others are


def check(cfg: config.Config) -> None:
    """Raises ConfigError unless the number of devices divides the batches, and that of slices the devices."""
    devices, steps = jax.device_count(), cfg.train.grad_accum_steps
    reported, num_slices = count_slices(jax.devices()), cfg.parallel.num_slices
    is_possible = num_slices in (0, reported) or (reported == 1 and devices % num_slices == 0)
    expected = f"{reported}, as the devices say" if reported > 1 else f"a divisor of the {devices} devices"
    errors.require_field(cfg, "parallel.num_slices", is_possible, expected)
    expected = f"a multiple of {devices * steps} ({devices} devices x config.train.grad_accum_steps = {steps})"
    errors.require_field(cfg, "train.batch_size", cfg.train.batch_size % (devices * steps) == 0, expected)
    check_evaluation(cfg)


def check_evaluation(cfg: config.Config) -> None:
    """Raises ConfigError unless the number of devices divides the batches of evaluation."""
    devices = jax.device_count()
    expected = f"a multiple of {devices}, the number of devices"
    errors.require_field(cfg, "eval.batch_size", cfg.eval.batch_size % devices == 0, expected)


def device_memory() -> int:
    """Bytes of memory of one device: an accelerator's own; on a CPU, what this process may use of the machine's."""
    device = jax.local_devices()[0]
    if device.platform != "cpu" and (limit := (device.memory_stats() or {}).get("bytes_limit")):
        return limit
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # there is no limit, or no such file
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def is_primary() -> bool:
    """Whether this process writes the run's files: the first one does."""
    return jax.process_index() == 0


def is_multiprocess() -> bool:
    """Whether the run has more processes than this one."""
    return jax.process_count() > 1


def get_process_position() -> dict[str, Any]:
    """The index of this process and the number of processes, as keyword arguments of the loader."""
    return {"process": jax.process_index(), "processes": jax.process_count()}


def process_slice(num_examples: int) -> slice:
    """This process's share of num_examples examples, in order."""
    share = num_examples // jax.process_count()
    return slice(jax.process_index() * share, (jax.process_index() + 1) * share)


def describe_devices() -> dict[str, Any]:
    """The devices of the run, for its provenance."""
    return {"device": jax.devices()[0].device_kind, "devices": jax.device_count(), "processes": jax.process_count()}


def describe_devices_by_process() -> list[dict[str, Any]]:
    """The devices of each process, which must be alike on all processes of a run."""
    processes = [[d for d in jax.devices() if d.process_index == i] for i in range(jax.process_count())]
    return [{"local_devices": len(devices), "device": devices[0].device_kind} for devices in processes]


def gather_texts(text: str) -> list[str]:
    """The texts of all processes, in order, on every process."""
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(data)])).reshape(-1)
    padded = multihost_utils.process_allgather(np.pad(data, (0, sizes.max() - len(data)))).reshape(len(sizes), -1)
    return [row[:size].tobytes().decode() for row, size in zip(padded, sizes, strict=True)]


def use_cpu_backend():
    """A context that lowers for the CPU: the plugins of GPUs and TPUs count no FLOPs before they compile."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return contextlib.nullcontext()


def build_single_device(train_step: Callable[..., Any]) -> Partitioner:
    """The step on this process's first device alone, for measurements and plans."""
    return build_data_parallel(train_step, jax.devices()[:1])


def build_data_parallel(
    train_step: Callable[..., Any],
    devices: Sequence[Any] | None = None,
    settings: config.Parallel = DEFAULT_SETTINGS,
    *,
    members: bool = False,
) -> Partitioner:
    """jax.jit of jax.shard_map over a mesh of all devices of all processes, or of the given ones.

    train_step: (sharding, state, batch, hparams) -> (state, metrics). members: whether every value has a leading axis
    of members, before that of examples. All devices hold all members.
    """
    devices = devices or jax.devices()
    mesh = make_mesh(devices, settings.num_slices)
    replicated, examples = jax.P(), sharding.make_example_spec(mesh)
    if members:
        examples = jax.P(None, *examples)
    step = functools.partial(train_step, sharding.Replicated(mesh.size, mesh.axis_names, settings.reduce_dtype))

    def map_shards(function: Callable[..., Any], out_specs: Any):
        return sharding.shard_map(function, mesh, (replicated, examples, replicated), out_specs)

    @functools.cache
    def jit_per_example(function: Callable[..., Any], *fixed: Any, gather_params: bool = False):
        compiled = jax.jit(map_shards(functools.partial(function, *fixed), examples))
        return lambda state, batch, hparams: gather_examples(mesh, compiled(state.params, batch, hparams))

    return Partitioner(
        put_state=lambda state: jax.device_put(state, jax.NamedSharding(mesh, replicated)),
        get_state=functools.partial(jax.tree.map, np.array),
        snapshot_state=functools.partial(jax.tree.map, np.array),
        put_batch=lambda batch: jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(jax.NamedSharding(mesh, examples), x), batch
        ),
        train_step=jax.jit(map_shards(step, (replicated, replicated)), donate_argnums=0),
        jit_per_example=jit_per_example,
    )


def build_pmap(train_step: Callable[..., Any], devices: Sequence[Any] | None, settings: config.Parallel) -> Partitioner:
    """jax.pmap: every value has a leading axis of this process's devices, or of the given ones."""
    num_devices = len(devices or jax.local_devices())
    replicated = sharding.Replicated(len(devices or jax.devices()), reduce_dtype=settings.reduce_dtype)
    step = functools.partial(train_step, replicated)

    @functools.cache
    def jit_per_example(function: Callable[..., Any], *fixed: Any, gather_params: bool = False):
        bound = functools.partial(function, *fixed)
        compiled = jax.pmap(bound, axis_name="data", in_axes=(0, 0, None), devices=devices)
        return lambda state, batch, hparams: jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]), gather_to_host(compiled(state.params, batch, hparams))
        )

    def get_first(tree: Any):
        return jax.tree.map(lambda x_Sx: np.array(x_Sx[0]), tree)

    return Partitioner(
        put_state=lambda state: jax.tree.map(lambda x: np.broadcast_to(x, (num_devices, *np.shape(x))), state),
        get_state=get_first,
        snapshot_state=get_first,
        put_batch=lambda batch: jax.tree.map(lambda x: x.reshape(num_devices, -1, *x.shape[1:]), batch),
        train_step=jax.pmap(step, axis_name="data", in_axes=(0, 0, None), donate_argnums=0, devices=devices),
        jit_per_example=jit_per_example,
        get_metrics=get_first,
    )


def build_fsdp(train_step: Callable[..., Any], devices: Sequence[Any] | None, settings: config.Parallel) -> Partitioner:
    """`build_data_parallel` where each device holds only its shard of the state (sharding.py)."""
    devices = devices or jax.devices()
    mesh, replicated = make_mesh(devices, settings.num_slices), build_data_parallel(train_step, devices, settings)

    def constrain(tree: Any):
        return jax.lax.with_sharding_constraint(tree, sharding.make_shardings(tree, mesh))

    def step(state: Any, batch: types.Batch, hparams: types.TracedHparams):
        state, metrics = train_step(sharding.FSDP(mesh, state.params, settings.reduce_dtype), state, batch, hparams)
        return constrain(state), metrics

    @functools.cache
    def jit_per_example(function: Callable[..., Any], *fixed: Any, gather_params: bool = False):
        if gather_params:  # before the function starts: its loops may end at different times on different devices
            return replicated.jit_per_example(function, *fixed)

        def call_on_shards(params: types.Params, batch: types.Batch, hparams: types.TracedHparams):
            sharding_strategy, examples = sharding.FSDP(mesh, params), sharding.make_example_spec(mesh)
            in_specs = sharding.make_partition_specs(params, mesh), examples, jax.P()

            def call(shards: types.Params, *values: Any):
                return function(*fixed, sharding_strategy.gather_params(shards), *values)

            return sharding.shard_map(call, mesh, in_specs, examples)(params, batch, hparams)

        compiled = jax.jit(call_on_shards)
        return lambda state, batch, hparams: gather_examples(mesh, compiled(state.params, batch, hparams))

    def put(x: types.Array, sharding: Any):
        if isinstance(x, jax.Array):
            return jax.device_put(x, sharding)
        return jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.asarray(x)[index])

    def make_target(x: types.Array, sharding: Any):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    on_cpu = devices[0].platform == "cpu"  # there a checkpoint is written from the state's own memory
    return replicated._replace(
        jit_init=lambda function: jax.jit(lambda hparams: constrain(function(hparams))),
        put_state=lambda state: jax.tree.map(put, state, sharding.make_shardings(state, mesh)),
        get_state=lambda state: jax.tree.map(lambda x: np.array(gather_to_host(x)), state),
        snapshot_state=lambda state: jax.tree.map(jnp.copy, state) if on_cpu else state,
        make_restore_target=lambda state: jax.tree.map(make_target, state, sharding.make_shardings(state, mesh)),
        train_step=jax.jit(step, donate_argnums=0),
        jit_per_example=jit_per_example,
        list_whole_matrices=functools.partial(sharding.list_whole_matrices, sharding.count_shards(mesh)),
    )


def make_mesh(devices: Sequence[Any], num_slices: int = 0):
    """A mesh of the devices: along one axis, "data"; of a TPU, along the axes of its torus; several slices before that.

    num_slices: groups of devices with fast links among them, in the order of the devices; 0: the slices that the
    devices say they are in.
    """
    num_slices = num_slices or count_slices(devices)
    devices = sorted(devices, key=find_place)  # others than TPUs keep their order
    sizes = find_torus(devices[: len(devices) // num_slices])
    names = ("data",) if len(sizes) == 1 else tuple(f"data_{axis}" for axis in "xyzc"[: len(sizes)])
    shape = sizes
    if num_slices > 1:
        shape, names = (num_slices, *sizes), (sharding.SLICE_AXIS, *names)
    grid = np.array(devices, dtype=object).reshape(shape)
    return jax.sharding.Mesh(grid, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))


def count_slices(devices: Sequence[Any]) -> int:
    """The number of slices of a TPU that the devices are in; 1 for other devices."""
    return len({get_slice(device) for device in devices})


def get_slice(device: Any) -> int:
    """The slice of a TPU that a device is in; 0 for other devices."""
    return getattr(device, "slice_index", 0) if device.platform == "tpu" else 0


def find_place(device: Any) -> tuple[int, ...]:
    """Where a device of a TPU is: its slice, its chip in the torus, its core; () for other devices."""
    return (get_slice(device), *device.coords, device.core_on_chip) if device.platform == "tpu" else ()


def find_torus(devices: Sequence[Any]) -> tuple[int, ...]:
    """The number of devices of a slice along each axis of its torus; all along one axis where they are none."""
    sizes = [len(set(axis)) for axis in zip(*map(find_place, devices), strict=True)]
    sizes = tuple(size for size in sizes if size > 1)
    return sizes if math.prod(sizes) == len(devices) and len(sizes) > 1 else (len(devices),)


def gather_examples(mesh: Any, tree: Any):
    """Arrays over a batch's examples, in its order, on every process; a TPU's mesh holds those of several in turn."""
    processes = [device.process_index for device in mesh.devices.flat]
    return jax.tree.map(functools.partial(order_by_process, processes), gather_to_host(tree))


def order_by_process(processes: Sequence[int], x_Bx: np.ndarray) -> np.ndarray:
    """Rows by process, from rows by device; processes: that of each device."""
    order = np.argsort(processes, kind="stable")
    if (order[:-1] < order[1:]).all():
        return x_Bx
    return x_Bx.reshape(len(order), -1, *x_Bx.shape[1:])[order].reshape(x_Bx.shape)


def gather_to_host(tree: Any):
    """Values split over the devices of all processes, complete and in order on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


class ParallelMode(NamedTuple):
    """A value of config.parallel.mode, and what the other packages need to know of it."""

    build: Callable[..., Partitioner]  # (train_step, devices, settings)
    shards_params: bool = False  # each device holds a part of the parameters
    vmaps_runs: bool = False  # runs of one program can be vmapped


MODES = {
    "data_parallel": ParallelMode(build_data_parallel, vmaps_runs=True),
    "pmap": ParallelMode(build_pmap),
    "fsdp": ParallelMode(build_fsdp, shards_params=True),
}
