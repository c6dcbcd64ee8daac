"""Library calls and launches are priced as libraries and hardware work: layouts, tiles, the cache, and how operands lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.front import HEAD, dense, module, plan_of, spec

from kernrl.verifier.base.devices import device_for
from kernrl.verifier.interpret.issue_slots import exchange_slots, in_vectors
from kernrl.verifier.interpret.profile import profile_plan
from kernrl.verifier.plan.cache_contents import CacheContents
from kernrl.verifier.plan.launch_time import launch_us
from kernrl.verifier.plan.library_time import BANDWIDTH_SHARE, LAUNCH_US, cost_of, peak, product_us
from kernrl.verifier.plan.plan import AtenNode, TensorRef
from kernrl.verifier.plan.price import GRAPH_US, flops_of, least_modelled_us, physical_floor_us, price

torch.set_num_threads(1)

H200 = device_for("NVIDIA H200")
assert H200


def ref(shape: tuple[int, ...], stride: tuple[int, ...] | None = None, storage: int = 0) -> TensorRef:
    return TensorRef(storage, "float32", shape, stride or torch.empty(shape, device="meta").stride())


def convolution(deep: int, wide: int, *, groups: int = 1, innermost: bool = False) -> AtenNode:
    shape, made = (32, deep, 64, 64), (32, wide, 64, 64)
    order = torch.channels_last if innermost else torch.contiguous_format
    strides = [tuple(torch.empty(s, device="meta").to(memory_format=order).stride()) for s in (shape, made)]
    weight = ref((wide, deep // groups, 3, 3), storage=1)
    numbers = ((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    return AtenNode(
        "aten.convolution.default", (ref(shape, strides[0]), weight, None, *numbers), {}, (ref(made, strides[1], 2),)
    )


def test_a_convolution_turns_images_whose_channels_are_not_innermost() -> None:
    turned, innermost = (cost_of(convolution(64, 64, innermost=i), H200, "tf32") for i in (False, True))
    assert turned.extra_bytes == 2 * 2 * 4 * 32 * 64 * 64 * 64
    assert (innermost.extra_bytes, innermost.launches, turned.launches) == (0, 1, 3)
    assert innermost.us == turned.us


def test_few_channels_cost_as_many_as_a_tile_holds() -> None:
    costs = [cost_of(convolution(deep, wide), H200, "tf32").us for deep, wide in ((3, 8), (32, 32), (64, 32))]
    assert costs[0] == costs[1] < costs[2]
    grouped, whole = (cost_of(convolution(64, 64, groups=g, innermost=True), H200, "tf32").us for g in (2, 1))
    assert grouped > whole, "although it does half of the operations"


def test_float32_convolutions_pad_what_they_sum_and_their_channels_out() -> None:
    few, as_many, more = (cost_of(convolution(deep, wide), H200, "fp32").us for deep, wide in ((4, 8), (7, 32), (8, 32)))
    assert few == as_many < more, "9 taps of 4 and of 7 channels fill two blocks of 32, of 8 channels three"
    assert cost_of(convolution(64, 64, groups=2), H200, "fp32").us > 0


def test_a_call_that_makes_no_sense_costs_its_operands_alone() -> None:
    odd = AtenNode("aten.convolution.default", (ref((2, 2)), ref((2,), storage=1)), {}, (ref((2, 2), storage=2),))
    assert cost_of(odd, H200, "tf32").us == 0


def test_products_waste_what_fills_no_tile_and_no_round() -> None:
    assert product_us(1, 8192, 8192, 8192, H200, "tf32") < 1.3 * 2 * 8192**3 / peak(H200, "tf32")
    assert product_us(1, 129, 128, 4096, H200, "tf32") >= product_us(1, 128, 128, 4096, H200, "tf32")
    rows = [
        AtenNode("aten.mm.default", (ref((65536, k)), ref((k, 64), storage=1)), {}, (ref((65536, 64), storage=2),))
        for k in (32, 30)
    ]
    aligned, odd = (cost_of(node, H200, "tf32").us for node in rows)
    assert odd > 2 * aligned, "rows of 120 bytes miss the tensor cores"


def test_products_by_other_names_cost_what_products_cost() -> None:
    def us(op: str, *args: Any, made: tuple[int, ...]) -> float:
        return cost_of(AtenNode(f"aten.{op}.default", args, {}, (ref(made, storage=9),)), H200, "fp32").us

    a, b, out = ref((4096, 2048)), ref((2048, 1024), storage=1), (4096, 1024)
    usual = us("mm", a, b, made=out)
    weight = ref((1024, 2048), storage=1)
    assert us("linear", a, weight, made=out) == usual
    assert us("matmul", ref((4096, 2048)), ref((3, 2048, 1024), storage=1), made=(3, *out)) > 2.5 * usual
    assert us("_cdist_forward", a, weight, 2.0, None, made=out) > 0.8 * usual
    assert us("_cdist_forward", a, weight, 1.0, None, made=out) > 0.8 * usual
    keys = ref((1024, 2048), storage=1)
    assert us("_scaled_dot_product_efficient_attention", a, keys, keys, made=(4096, 2048)) > 1.8 * usual


def test_a_product_of_three_is_made_place_by_place() -> None:
    args = (ref((4096, 256)), ref((512, 256, 1), storage=1), ref((4096, 1), storage=2), (1, 3), (0,), (1, 2), (2, 3))
    cost = cost_of(AtenNode("aten._trilinear.default", args, {}, (ref((4096, 512), storage=3),)), H200, "tf32")
    assert cost.launches == 3 * 512
    assert cost.us > product_us(1, 4096, 512, 256, H200, "tf32")


def transform(op: str, shape: tuple[int, ...], made: tuple[int, ...], axes: tuple[int, ...], scaled: int = 0) -> AtenNode:
    """A Fourier transform with these shapes; the last argument counts only where it leads back to real numbers."""
    dtypes = {"_fft_r2c": ("float32", "complex64"), "_fft_c2c": ("complex64",) * 2, "_fft_c2r": ("complex64", "float32")}[op]
    x, y = (replace(ref(s, storage=i), dtype=d) for i, (s, d) in enumerate(zip((shape, made), dtypes, strict=True)))
    last = made[axes[-1]] if op == "_fft_c2r" else True
    return AtenNode(f"aten.{op}.default", (x, axes, scaled, last), {}, (y,))


def test_a_transform_goes_over_its_numbers_once_for_each_axis() -> None:
    rows, both = ((64, 1024, 1024), (2,)), ((64, 1024, 1024), (1, 2))
    one, two = (cost_of(transform("_fft_c2c", shape, shape, axes), H200, "fp32") for shape, axes in (rows, both))
    nbytes = 8 * 64 * 1024 * 1024
    assert (one.extra_bytes, one.launches) == (0, 1)
    assert (two.extra_bytes, two.launches) == (2 * nbytes, 2)
    assert two.us == pytest.approx(2 * one.us), "twice the levels"
    long = cost_of(transform("_fft_c2c", (64, 1 << 20), (64, 1 << 20), (1,)), H200, "fp32")
    assert (long.extra_bytes, long.launches) == (2 * nbytes, 2), "no block holds the axis"
    scaled = cost_of(transform("_fft_c2c", *(rows[0],) * 2, (2,), 1), H200, "fp32")
    assert scaled.extra_bytes == 2 * nbytes
    back = cost_of(transform("_fft_c2r", (64, 1024, 513), (64, 1024, 1024), (2,)), H200, "fp32")
    assert (back.extra_bytes, back.launches) == (2 * 8 * 64 * 1024 * 513, 2), "it overwrites a copy of its operand"
    assert back.us == pytest.approx(one.us / 2)
    real = cost_of(transform("_fft_r2c", (64, 1024, 1024), (64, 1024, 513), (2,)), H200, "fp32")
    assert (real.us, real.extra_bytes) == (pytest.approx(one.us / 2), 0)


@pytest.mark.parametrize("columns", [256, 255], ids=["aligned", "odd"])
def test_a_product_of_complex_numbers_is_four_of_real_ones(columns: int) -> None:
    def product(dtype: str) -> AtenNode:
        shapes = ((4096, 1024), (1024, columns), (4096, columns))
        a, b, c = (replace(ref(s, storage=i), dtype=dtype) for i, s in enumerate(shapes))
        return AtenNode("aten.mm.default", (a, b), {}, (c,))

    real, of_complex = product("float32"), product("complex64")
    assert flops_of("aten.mm.default", of_complex.args, of_complex.outputs) == 8 * 4096 * 1024 * columns
    if columns % 4 == 0:
        assert cost_of(of_complex, H200, "fp32").us == pytest.approx(4 * cost_of(real, H200, "fp32").us)
    assert cost_of(of_complex, H200, "fp32").us > 3 * cost_of(real, H200, "fp32").us


def bags(rows: int) -> str:
    return f"""{HEAD}
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag({rows}, 64)
    def forward(self, rows, starts):
        return launch(self.bag(rows, starts))
"""


def test_a_bag_reads_a_row_for_each_index_and_the_table_at_most() -> None:
    def moved(rows: int, indices: int) -> int:
        given = (dense(indices, dtype="int64"), dense(32, dtype="int64"))
        plan = plan_of(bags(rows), spec(*given, state={"bag.weight": dense(rows, 64)}))
        [bag] = [cost for cost in price(plan, H200).nodes if "bag" in cost.name]
        return bag.bytes_moved

    made, numbers = 4 * 32 * 64, 8 * (4096 + 32)
    assert moved(1_000_000, 4096) == made + numbers + 4 * 4096 * 64
    assert moved(100, 4096) == made + numbers + 4 * 100 * 64


def test_few_frequencies_may_be_wanted_of_a_transform() -> None:
    """So the shortest time that is believed is that of its bytes."""
    body = "z = torch.fft.rfft(x)\nfor _ in range(40): z = torch.fft.fft(z)\nreturn launch(z[:, :2].abs())"
    plan = plan_of(module(body), spec(dense(4096, 4096)))
    bytes_alone = GRAPH_US + physical_floor_us(plan, H200) / BANDWIDTH_SHARE + LAUNCH_US
    assert price(plan, H200).flops / peak(H200, "fp32") > 10 * bytes_alone
    assert least_modelled_us(plan, H200, "fp32") == pytest.approx(bytes_alone)


def test_the_cache_holds_what_was_touched_last() -> None:
    cache = CacheContents(H200)
    cache.touch(0, cache.capacity * 0.6)
    assert cache.share(0) == 1
    cache.touch(1, cache.capacity * 0.6)
    assert (cache.share(0), cache.share(1)) == (0, 1)
    cache.touch(2, cache.capacity * 2)
    assert cache.share(2) == 0


def test_single_accesses_and_collisions_are_seen() -> None:
    address = 4 * torch.arange(1024)[None, None]
    kept = torch.ones(1, 1, 1, dtype=torch.bool)
    assert in_vectors(address, kept, 4)
    assert not in_vectors(address * 2, kept, 4)
    assert not in_vectors(address + 4, kept, 4)
    assert not in_vectors(address, (torch.arange(1024) % 4 < 3)[None, None], 4)
    over = '"tt.reduce"(%1) <{{axis = {} : i32}}> (tensor<32x128xf32>) -> tensor<128xf32>'
    assert exchange_slots(over.format(0), 256) == 8 * exchange_slots(over.format(0), 64) / 2 > 0
    assert exchange_slots(over.format(0), 32) == exchange_slots(over.format(1), 256) == 0


ROWS = f"""{HEAD}
@triton.jit
def k(x, w, y, N: tl.constexpr):
    cols = tl.arange(0, N)
    value = tl.load(x + tl.program_id(0) * N + cols)
    for i in tl.static_range(8):
        value += tl.load(w + i * N + cols)
    tl.store(y + tl.program_id(0) * N + cols, value)
class ModelNew(nn.Module):
    def forward(self, x, w):
        y = torch.empty_like(x)
        k[(x.shape[0],)](x, w, y, N=1024, num_warps=4)
        return y
"""


def launch_us_of(source: str, *shapes: tuple[int, ...], sized: bool = True, **changes: Any) -> float:
    """Time of the only launch of a candidate; with other fields of the kernel if they are given."""
    plan = plan_of(source, spec(*(dense(*shape) for shape in shapes)))
    profile = next(iter(profile_plan(plan).values()))
    sizes = {storage: plan.storages[storage].nbytes for storage in profile.loaded_bytes}
    return launch_us(profile, replace(plan.kernels[0], **changes), 0.0, H200, sizes if sized else {})


def test_what_all_programs_load_of_small_storages_comes_from_the_first_level_cache() -> None:
    rows = (1 << 17, 1024)
    small, unsized = (launch_us_of(ROWS, rows, (8, 1024), sized=s) for s in (True, False))
    large = launch_us_of(ROWS, rows, (64, 1024))
    assert small < 0.5 * unsized
    assert large == pytest.approx(unsized)


def test_few_warps_issue_fewer_instructions() -> None:
    one_each = (H200.sm_count, 1024)
    times = [launch_us_of(WORK, one_each, num_warps=warps) for warps in (1, 4, 16)]
    assert times[0] > 1.5 * times[1] > 1.5 * 1.5 * times[2]


WORK = f"""{HEAD}
@triton.jit
def k(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + at)
    for i in range(200):
        value = tl.exp(value) / (value + 1.0)
    tl.store(y + at, value)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[(x.shape[0],)](x, y, N=1024, num_warps=4)
        return y
"""

AHEAD = f"""{HEAD}
@triton.jit
def k(x, y, N, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in LOOP(0, N, BLOCK STAGES):
        total += tl.load(x + (tl.program_id(0) * N + start + tl.arange(0, BLOCK)) * STRIDE)
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty((x.shape[0], 1024), device=x.device)
        k[(x.shape[0],)](x, y, x.shape[1] // 8, BLOCK=1024, num_warps=4)
        return y
"""


def test_loads_ahead_of_single_elements_are_slow() -> None:
    def slots(stages: str, stride: int) -> float:
        source = AHEAD.replace("LOOP", "tl.range" if stages else "range").replace(" STAGES", stages)
        plan = plan_of(source.replace("STRIDE", str(stride)), spec(dense(2048, 65536)))
        return next(iter(profile_plan(plan).values())).slots

    together, apart = ((slots("", stride), slots(", num_stages=3", stride)) for stride in (1, 2))
    assert together[0] == together[1]
    assert apart[1] > 2 * apart[0]


PRODUCT = f"""{HEAD}
@triton.jit
def k(x, w, y, K, A: tl.constexpr, B: tl.constexpr):
    m, n, d = tl.program_id(0) * 128 + tl.arange(0, 128), tl.arange(0, 128), tl.arange(0, 32)
    total = tl.zeros((128, 128), tl.float32)
    for s in range(0, K, 32):
        left = tl.load(x + m[:, None] * K + s + d[None, :])
        right = tl.load(w + (s + d[:, None]) * A + n[None, :] * B)
        total = tl.dot(left, right, total, input_precision="tf32")
    tl.store(y + m[:, None] * 128 + n[None, :], total)
class ModelNew(nn.Module):
    def forward(self, x, w):
        y = torch.empty((x.shape[0], 128), device=x.device)
        k[(x.shape[0] // 128,)](x, w, y, x.shape[1], A=STRIDES, num_warps=8)
        return y
"""


@pytest.mark.parametrize("lies", ["along", "across"])
def test_tf32_operands_that_lie_across_the_summed_axis_are_slow(lies: str) -> None:
    strides = "1, B=4096" if lies == "along" else "128, B=1"
    made = plan_of(PRODUCT.replace("STRIDES", strides), spec(dense(16384, 4096), dense(4096, 128)))
    profile = next(iter(profile_plan(made).values()))
    assert profile.dot_flops == {"tf32": 2 * 16384 * 4096 * 128}
    assert profile.turned_flops == ({} if lies == "along" else profile.dot_flops)
    floor = 2 * 16384 * 4096 * 128 / peak(H200, "tf32")
    assert (price(made, H200, profiles=profile_plan(made)).modelled_us > 5 * floor) == (lies == "across")
