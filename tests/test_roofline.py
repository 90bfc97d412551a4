"""What a plan reads from compiled programs: bytes of memory, what overlaps, the bound that follows; by hand."""

import pytest

from mlm.launch.cluster.accelerators import Accelerator
from mlm.launch.sweep import plan, target_compiler
from mlm.training.compilation import cost, data_movement

# A loop of four trips. In each, a kernel reads one layer of a stack and writes one row of another, and an all-gather
# that libtpu splits into three runs beside a product. Rows go through fast memory. One more all-gather waits for itself.
PROGRAM = """
%condition (p: (s32[], f32[4,8,128])) -> pred[] {
  %bound = s32[]{:T(128)} constant(4)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%start (x: f32[8,8]) -> f32[16,8] {
  %x = f32[8,8]{1,0} parameter(0)
  ROOT %all-gather.1 = f32[16,8]{1,0} all-gather(%x), channel_id=7, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}
}

%async_collective_fusion.2 (x: f32[8,8], y: f32[8,128]) -> f32[8,128] {
  %x = f32[8,8]{1,0} parameter(0)
  %y = f32[8,128]{1,0} parameter(1)
  %all-gather.2 = f32[16,8]{1,0} all-gather(%x), channel_id=7, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}
  ROOT %add = f32[8,128]{1,0} add(%y, %y)
}

%done (x: f32[8,8]) -> f32[16,8] {
  %x = f32[8,8]{1,0} parameter(0)
  ROOT %all-gather.3 = f32[16,8]{1,0} all-gather(%x), channel_id=7, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}
}

%select (stack: f32[4,8,128]) -> f32[1,8,128] {
  %stack = f32[4,8,128]{2,1,0} parameter(0)
  ROOT %layer = f32[1,8,128]{2,1,0} slice(%stack), slice={[0:1], [0:8], [0:128]}
}

%slices (stack: f32[4,8,128], out: f32[4,128], i: s32[]) -> f32[4,128] {
  %stack = f32[4,8,128]{2,1,0} parameter(0)
  %out = f32[4,128]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %layer = f32[1,8,128]{2,1,0} fusion(%stack), kind=kLoop, calls=%select
  %row = f32[1,128]{1,0:S(1)} reduce(%layer), dimensions={1}
  ROOT %put = f32[4,128]{1,0} dynamic-update-slice(%out, %row, %i)
}

%body (p: (s32[], f32[4,8,128])) -> (s32[], f32[4,8,128]) {
  %p = (s32[]{:T(128)}, f32[4,8,128]{2,1,0}, f32[4,128]{1,0}, f32[8,8]{1,0:S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %stack = f32[4,8,128]{2,1,0} get-tuple-element(%p), index=1
  %out = f32[4,128]{1,0} get-tuple-element(%p), index=2
  %x = f32[8,8]{1,0:S(1)} get-tuple-element(%p), index=3
  %layer = f32[8,128]{1,0:S(1)} get-tuple-element(%p), index=4
  %put = f32[4,128]{1,0} fusion(%stack, %out, %i), kind=kLoop, calls=%slices
  %async-collective-start.1 = f32[16,8]{1,0:S(1)} fusion(%x), kind=kCustom, calls=%start
  %fusion.9 = f32[8,128]{1,0:S(1)} fusion(%x, %layer), kind=kOutput, calls=%async_collective_fusion.2
  %async-collective-done.1 = f32[16,8]{1,0:S(1)} fusion(%x), kind=kCustom, calls=%done
  %slice-start = ((f32[4,128]{1,0}), f32[1,128]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%out), slice={[0:1], [0:128]}
  %row = f32[1,128]{1,0:S(1)} slice-done(%slice-start)
  %new = f32[8,128]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %rows = f32[8,128]{1,0} dynamic-update-slice(%new, %row, %i, %i)
  %copy-start = (f32[8,128]{1,0:S(1)}, f32[8,128]{1,0}, u32[]{:S(2)}) copy-start(%rows)
  ROOT %next = (s32[], f32[4,8,128]) tuple(%i, %stack)
}

ENTRY %main (x: f32[8,8]) -> f32[16,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %loop = (s32[]{:T(128)}, f32[4,8,128]{2,1,0}) while(%x), condition=%condition, body=%body
  ROOT %all-gather.4 = f32[16,8]{1,0} all-gather(%x), channel_id=8, replica_groups={{0,1},{2,3}}, dimensions={0}
}
"""


def test_a_collective_that_libtpu_splits_counts_once_and_is_overlapped():
    exposed, hidden = data_movement.read_collectives(PROGRAM)
    assert hidden == ("all-gather", 16 * 8 * 4, 4, True, (0, 2))
    assert exposed == ("all-gather", 16 * 8 * 4, 1, False, (0, 1))


def test_memory_counts_slices_of_stacks_and_nothing_that_stays_in_fast_memory():
    layer, row, staged = 8 * 128 * 4, 128 * 4, (1 + 1 + 8) * 128 * 4
    assert data_movement.count_bytes(PROGRAM) == 4 * (layer + row + staged) + (8 * 8 + 16 * 8) * 4
    assert data_movement.count_bytes(PROGRAM.replace("direction=LT", "direction=NE")) is None
    start = "((f32[4,8,128], f32[4,128], s32[]), f32[4,128], u32[]) fusion-start(%stack"  # GPUs', since jax 0.12
    started = PROGRAM.replace("f32[4,128]{1,0} fusion(%stack", start)
    assert start in started and data_movement.count_bytes(started) == data_movement.count_bytes(PROGRAM)


# A kernel that splits queries from one product with keys and values, and rotates them: halves of a slice of a sum.
SPLIT = """
%split (product: bf16[64,96], bias: bf16[96]) -> bf16[64,32] {
  %product = bf16[64,96]{1,0} parameter(0)
  %bias = bf16[96]{0} parameter(1)
  %biases = bf16[64,96]{1,0} broadcast(%bias), dimensions={1}
  %sum = bf16[64,96]{1,0} add(%product, %biases)
  %queries = bf16[64,32]{1,0} slice(%sum), slice={[0:64], [0:32]}
  %left = bf16[64,16]{1,0} slice(%queries), slice={[0:64], [0:16]}
  %right = bf16[64,16]{1,0} slice(%queries), slice={[0:64], [16:32]}
  %negative = bf16[64,16]{1,0} negate(%right)
  ROOT %turned = bf16[64,32]{1,0} concatenate(%negative, %left), dimensions={1}
}

ENTRY %main (product: bf16[64,96], bias: bf16[96]) -> bf16[64,32] {
  %product = bf16[64,96]{1,0} parameter(0)
  %bias = bf16[96]{0} parameter(1)
  ROOT %fusion = bf16[64,32]{1,0} fusion(%product, %bias), kind=kLoop, calls=%split
}
"""


def test_of_an_array_the_entries_count_that_a_kernel_needs():
    """A third of the product, twice: read and written; both slices of it, not one of them and not all of it."""
    assert data_movement.count_bytes(SPLIT) == 2 * 64 * 32 * 2 + 96 * 2
    same_half = SPLIT.replace("slice={[0:64], [16:32]}", "slice={[0:64], [0:16]}")
    assert data_movement.count_bytes(same_half) == (64 * 16 + 64 * 32) * 2 + 96 * 2
    unsliced = SPLIT.replace("slice(%sum), slice", "reverse(%sum), slice")
    assert data_movement.count_bytes(unsliced) == (64 * 96 + 64 * 32) * 2 + 96 * 2


def test_a_step_takes_the_longest_of_its_bounds_and_then_what_nothing_overlaps():
    """Two slices of two devices: the first collective leaves its slice, the second does not."""
    chips = Accelerator(1e12, 1e9, 2, "", bandwidth=1e9, link_bandwidth=1e6, network_bandwidth=1e3)
    step = cost.StepCost(0, {}, transfers=tuple(data_movement.read_collectives(PROGRAM)), traffic=3e9)
    bound = target_compiler.bound_step(step, 8e12, chips, 4)
    assert bound is not None
    assert bound[:3] == pytest.approx((2, 3, 4 * 512 / 2 / 1e3)) and bound.exposed == pytest.approx(512 / 2 / 1e6)
    assert bound.total == pytest.approx(3 + bound.exposed)
    all_reduce = data_movement.Collective("all-reduce", 1000, 1, False, ())
    assert target_compiler.bound_collective(all_reduce, chips, 4, 4) == pytest.approx(2 * 3 / 4 * 1000 / 1e6)
    assert target_compiler.bound_step(step._replace(traffic=None), 8e12, chips, 4) is None


@pytest.mark.parametrize("start", [1, 7, 500])
@pytest.mark.parametrize("limit", [0.5, 1, 99, 1000, 1001])
def test_the_largest_batch_is_found_in_few_tries(start, limit):
    tried = []

    def compute_memory(size):
        tried.append(size)
        return 0.25 * size + 0.001 * size**1.5

    found = plan.find_largest(compute_memory, limit, start)
    largest = max((size for size in range(1, 5000) if compute_memory(size) <= limit), default=0)
    num_tried = len(tried) - 4999
    assert largest - max(1, largest // 32) <= found <= largest and num_tried <= 14
