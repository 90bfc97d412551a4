"""Plans by the compilers of devices that are not here: what is compiled for, and what it says."""

import re

import pytest
from small import small_config
from test_collectives import count_bytes

from mlm.base import errors
from mlm.launch.cluster.accelerators import ACCELERATORS, find_accelerator, split_count
from mlm.launch.sweep import plan, target_compiler
from mlm.training.step import program

pytestmark = pytest.mark.slow
# The loop of a program for TPUs: only its condition says how often it runs.
TPU_LOOP = """
%condition (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(12), metadata={}
  %p = (s32[]{:T(128)}, f32[8]{0:T(256)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[]{:T(128)}, f32[8]{0:T(256)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8]{0:T(256)} get-tuple-element(%p), index=1
  %sum = f32[8]{0:T(256)S(1)} all-reduce(%x), to_apply=%add
  ROOT %out = (s32[]{:T(128)}, f32[8]{0:T(256)}) tuple(%i, %sum)
}

ENTRY %main (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = (s32[]{:T(128)}, f32[8]{0:T(256)}) parameter(0)
  ROOT %loop = (s32[]{:T(128)}, f32[8]{0:T(256)}) while(%x), condition=%condition, body=%body
}
"""


def make_target(name, count=1):
    return target_compiler.make_target(name, ACCELERATORS[name], count)


def needs(name):
    target = make_target(name)
    reason = f"needs {target.module}: pip install 'mlm[{target.extra}]'"
    return pytest.mark.skipif(not target_compiler.is_installed(target), reason=reason)


def test_a_loop_of_a_tpu_program_counts_as_often_as_its_condition_says():
    assert count_bytes(TPU_LOOP)["all-reduce"] == 12 * 8 * 4
    with pytest.raises(ValueError, match="number of iterations is unknown"):
        count_bytes(TPU_LOOP.replace("direction=LT", "direction=NE"))


def test_topologies_have_one_device_a_chip_and_the_hosts_that_one_orders():
    assert make_target("v5e-16")[:3] == ("tpu", "v5e:4x4", ())
    assert make_target("v5e-8")[1:3] == ("v5e:2x4", (("chips_per_host_bounds", (2, 4, 1)),))
    assert make_target("v5e-1")[1:3] == ("v5e:1x1", (("chips_per_host_bounds", (1, 1, 1)),))
    assert make_target("v4-8")[1:3] == ("v4:2x2x1", (("chip_config_name", "megacore"),))
    assert make_target("H100-8", 4).topology == "1x4x8" and make_target("H200", 3).topology == "1x1x3"
    assert make_target("v5e-16", 2)[1:3] == ("v5e:4x4", (("num_slices", 2),))
    asked = ("2xv5e-16", "v5e:4x4", "H200:64", "h100:8", "A100:2", "H100:1")
    split = [(2, "v5e-16"), (1, "v5e:4x4"), (8, "H200-8"), (1, "h100-8"), (2, "A100"), (1, "H100")]
    assert [split_count(text) for text in asked] == split
    for wrong in ("H200:12", "H200:0", "H200:x"):  # of no whole hosts
        with pytest.raises(errors.ConfigError, match="expected one of"):
            find_accelerator("--accelerator", split_count(wrong)[1])
    for name in ACCELERATORS:
        assert make_target(name).memory > 0


def test_what_a_program_needs_is_read_from_the_compilers_error():
    message = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 23.45G of 15.75G hbm."
    assert target_compiler.read_needed_memory(message) == 23.45 * 2**30
    early = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (17.57G) exceeds"
    )
    assert target_compiler.read_needed_memory(early) == 17.57 * 2**30
    assert target_compiler.read_needed_memory("RESOURCE_EXHAUSTED") == float("inf")


def plan_point(name, cfg):
    options = plan.PlanOptions(ACCELERATORS[name], exact=True, target=make_target(name))
    with target_compiler.open_compiler(options.target) as compile_mesh:
        return plan.plan_point("a", cfg, options._replace(compile_mesh=compile_mesh))


@pytest.mark.exhaustive
@needs("v5e-4")
def test_libtpu_plans_what_fits_and_what_does_not():
    changes = {"tokenizer__vocab_size": 500, "data__path": "t.txt", "train__batch_size": 64, "model__dtype": "bfloat16"}
    row = plan_point("v5e-4", small_config("transformer", model__num_layers=1, **changes))
    assert row["verdict"].startswith("fits (") and row["memory_plain"] > 0
    gradients = 4 * row["parameters"] / 1e9
    assert row["attention"] == "plain" and row["traffic"] > 0  # of short examples
    all_reduced = float(re.search(r"all-reduce ([\d.e+-]+)", row["communicated"])[1])
    assert gradients <= all_reduced < 1.1 * gradients


@pytest.mark.exhaustive
@needs("H100-8")
def test_the_compiler_of_gpus_plans_too():
    changes = {"model__width": 128, "model__num_heads": 4, "model__dtype": "bfloat16", "pack__seq_len": 128}
    changes |= {"tokenizer__vocab_size": 500, "model__num_layers": 2, "train__batch_size": 64}
    with target_compiler.open_compiler(make_target("H100-8")) as compile_mesh:
        found = {}
        for rate in (0.0, 0.1):
            cfg = small_config("transformer", model__attention_dropout=rate, **changes)
            found[rate] = compile_mesh(program.make_static_config(cfg), 500)
    assert min(one.memory for one in found.values()) > 0
    assert [one.attention for one in found.values()] == ["cudnn_attention", "fused_attention"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v5e-16", "v5e-16"),
        ("v5e:4x4", "v5e-16"),
        ("v5e:16", "v5e-16"),
        ("v5p:4x4x4", "v5p-128"),
        ("v4:2x2x1", "v4-8"),
        ("h100", "H100"),
        ("H100:8", "H100-8"),
    ],
)
def test_an_accelerator_is_found_by_its_topology_or_count(text, name):
    assert find_accelerator("--accelerator", text) == name


def test_an_accelerator_that_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(errors.ConfigError, match=r"^--accelerator = 'v5p-129': .*did you mean 'v5p-512'"):
        find_accelerator("--accelerator", "v5p-129")
