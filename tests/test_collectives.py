"""Bytes moved between devices, counted in programs of which they are known by hand."""

import functools

import jax
import jax.numpy as jnp
import pytest

from mlm.training.compilation import data_movement

NONE = dict.fromkeys(data_movement.COLLECTIVES, 0)


def compile_text(function, *shapes) -> str:
    """The text of function on four devices, each with a part along the first axis."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"), check_vma=False)
    arrays = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P("data"))) for shape, dtype in shapes
    ]
    return jax.jit(mapped).lower(*arrays).compile().as_text()


def count_bytes(text: str) -> dict[str, int]:
    return data_movement.sum_bytes(data_movement.read_collectives(text))


gather = functools.partial(jax.lax.all_gather, axis_name="data", tiled=True)


def test_each_kind_counts_the_whole_array_that_it_is_about():
    def moves(x_8x6, y_4x4):
        whole_8x6 = gather(x_8x6)
        part_2x6 = jax.lax.psum_scatter(whole_8x6 * (1 + x_8x6[0]), "data", tiled=True)
        other_1x4 = jax.lax.all_to_all(y_4x4, "data", 1, 1, tiled=True)
        return part_2x6, jax.lax.ppermute(other_1x4, "data", [(0, 1), (1, 0)]), jax.lax.psum(part_2x6[:1, :5], "data")

    found = count_bytes(compile_text(moves, ((8, 6), jnp.float32), ((4, 4), jnp.float32)))
    assert found == {
        "all-gather": 8 * 6 * 4,
        "reduce-scatter": 8 * 6 * 4,
        "all-to-all": 4 * 4,
        "collective-permute": 4 * 4,
        "all-reduce": 5 * 4,
    }


def test_the_body_of_a_loop_counts_as_often_as_it_runs():
    def moves(x_8x16):
        def inner(sum_16, _):
            return jax.lax.psum(sum_16 * 0.5, "data"), None

        def outer(x_2x16, _):
            return gather(x_2x16)[:2] + jax.lax.scan(inner, x_2x16[0], length=3)[0], None

        return jax.lax.scan(outer, x_8x16, length=5)[0]

    assert count_bytes(compile_text(moves, ((8, 16), jnp.float32))) == NONE | {
        "all-gather": 5 * 8 * 16 * 4,
        "all-reduce": 5 * 3 * 16 * 4,
    }
    assert count_bytes(compile_text(lambda x: x + 1, ((8, 16), jnp.float32))) == NONE


STARTED = """HloModule started

%body (p: (s32[], bf16[64])) -> (s32[], bf16[64]) {
  %p = (s32[], bf16[64]{0:T(256)(128)(2,1)}) parameter(0)
  %x = bf16[64]{0:T(256)(128)(2,1)} get-tuple-element(%p), index=1
  %reduced = bf16[64]{0} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%sum
  %done = bf16[64]{0} all-reduce-done(%reduced)
  ROOT %t = (s32[], bf16[64]{0}) tuple(%done)
}

ENTRY %main (a: f32[8], b: pred[4,2]) -> f32[16] {
  %a = f32[8]{0} parameter(0)
  %b = pred[4,2]{1,0} parameter(1)
  %start = ((f32[8]{0}, pred[4,2]{1,0}), (f32[16]{0}, pred[8,2]{1,0})) all-gather-start(%a, /*index=1*/%b)
  %w = (s32[], bf16[64]{0}) while(%init), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %end = (f32[16]{0}, pred[8,2]{1,0}) all-gather-done(%start)
}
"""


def test_what_is_begun_and_ended_apart_counts_once_and_an_unknown_loop_is_refused():
    """As accelerators' compilers write it: collectives that run beside others, layouts by tiles."""
    assert count_bytes(STARTED) == NONE | {"all-gather": 16 * 4 + 8 * 2, "all-reduce": 3 * 64 * 2}
    with pytest.raises(ValueError, match="the loop w moves data"):
        count_bytes(STARTED.replace("known_trip_count", "other"))


GROUPS = {  # jax 0.10.2 writes the second and the fourth as 0.12.0 writes the one after each
    "[4,2]<=[2,4]T(1,0)": (0, 4),
    "mesh['axis_0'=1,'axis_1'=4,'axis_2'=2,'axis_3'=1], device_ids=([2,4]T(1,0)) {'axis_2'}": (0, 4),
    "mesh['axis_0'=2,'axis_1'=4] {'axis_0'}": (0, 4),
    "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,2,2]T(0,2,1)) {'axis_0':(2)2}": (0, 1),
    "mesh['a'=2,'b'=4] {'b':(2)2}": (0, 1),
    "mesh['a'=2,'b'=2,'a b'=2], device_ids=(1,0,2,3,7,6,5,4) {'a b','a'}": (1, 7, 0, 6),
}


def test_groups_are_read_in_each_form_that_a_compiler_writes():
    assert {
        text: data_movement.read_group(f"%x), replica_groups={text}, dimensions={{0}}") for text in GROUPS
    } == GROUPS


def test_a_sum_over_slices_of_a_tpu_counts_and_an_unknown_form_is_refused():
    sum_ = '_xla_megascale_target="{1,2,3}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"'
    send = f"(f32[16]{{0}}, u32[], token[]) send(%a), channel_id=3, frontend_attributes={{{sum_}}}"
    program = STARTED.replace("(f32[16]{0}, pred[8,2]{1,0}) all-gather-done(%start)", send)
    assert ("all-reduce", 8 * 4, 1, False, (0, 4, 8)) in data_movement.read_collectives(program)
    unknown = "ALL_REDUCE>ALL_GATHER all-reduce-start>collective-reduce-start ={{0,1}}>=groups(2) %body>body"
    for change in f"{unknown} %reduced>reduced (%x)>(bf16[64]{{0:T(256)}}%x) f32[8]>f32[<=8]".split():
        with pytest.raises(ValueError, match=r"unknown|<="):
            data_movement.read_collectives(program.replace(*change.split(">")))
