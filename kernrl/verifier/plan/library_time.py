"""Modelled time of ATen calls: matrix products, convolutions, and PyTorch's own kernels that are bound by more than bytes.

What is modelled is how these libraries work, not single kernels of them. A product is cut into tiles, and what does not fill a
tile or a wave of multiprocessors is wasted. A convolution on tensor cores is a product over pixels, channels out, and channels
in times taps; it wants its channels innermost, and where they are not, cuDNN rearranges input and output. Norms and softmaxes
give a row or a channel to one block, which loads a little and waits. Shares of the peak were measured on an H200 under tf32
(`docs/notes/2026-11-24-prices.md`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kernrl.verifier.base.devices import Device
from kernrl.verifier.plan import aten
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, TensorRef, walk_refs, whole, whole_numbers

LAUNCH_US = 2.0
"""Device time between dependent nodes of a CUDA graph: an assumption, close to what Hopper GPUs show."""

LATENCY_US = 0.7
"""From asking device memory to the answer, as measured on Hopper GPUs."""

BANDWIDTH_SHARE = 0.9
"""What copies reach of the bandwidth in the data sheet."""

PRODUCT_TILES = ((256, 128, 0.82), (128, 128, 0.72), (128, 64, 0.55), (64, 64, 0.4), (64, 32, 0.25))
"""Rows and columns that a block of a product makes, and the share of the peak that it reaches."""
PRODUCT_FP32 = 0.7
"""Of that share, what a product outside the tensor cores reaches; 0.55 to 1 was measured on an H200."""
UNALIGNED_SHARE = 0.3
"""Of the rate outside the tensor cores, what a product of rows reaches that do not begin at 16 bytes."""
SPLIT_DEPTH = 256
"""A product of few tiles is cut along its depth, into parts of at least this."""

CONVOLUTION_TILES = ((128, 0.67), (64, 0.45), (32, 0.18))
"""Channels out that a block of a convolution makes, and the share of the peak that it reaches."""
CONVOLUTION_DEPTH = 32
"""Channels in that a block reads at once, of each tap; fewer are padded."""
STRIDED_TRANSPOSED = 1.5
"""By how much a transposed convolution with a stride is slower: its taps differ from pixel to pixel."""
CONVOLUTION_PIXELS = 128
"""That a block makes."""
CONVOLUTION_FP32, TRANSPOSED_FP32, GROUPED_FP32 = 0.35, 0.2, 0.22
"""Of the peak rate outside the tensor cores. In the first two, channels are padded; 0.26 to 0.48 and 0.15 to 0.34 were measured
on an H200. Those with groups were not measured apart."""
UNTURNED = 2.3
"""By how much cuDNN is slower with channels innermost in groups and volumes; the mean of 1.4 to 4.5 times on an H200."""
DEPTHWISE_SLOTS = 80
"""Lanes of a multiprocessor that are busy for one multiply-add of a convolution of one channel a group."""

FOURIER_LENGTH = 4096
"""The longest axis that a block transforms by itself, in shared memory: an assumption."""

FEW_ROWS = 25
"""Up to so many, torch makes no product of distances."""

BLOCK_BYTES = 2048
"""What a block of a norm asks memory for before it waits."""
WARPS = 64
"""That a multiprocessor holds."""


@dataclass(frozen=True, slots=True)
class LibraryCost:
    """What a call takes besides moving its operands once."""

    us: float
    """That its main launch takes at least."""
    extra_bytes: float = 0.0
    """Moved in other launches, before and after."""
    launches: int = 1


def cost_of(node: AtenNode, device: Device, unit: str) -> LibraryCost:
    """What a call takes, with operands of this unit (`half`, `tf32`, `fp32`); nothing where its operands make no sense."""
    try:
        cost = _product_cost if aten.base_name(node.op) in aten.LIBRARY else _own_kernel_cost
        return cost(node, device, unit)
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError):
        return LibraryCost(0.0)  # its bytes and operations still count


def _product_cost(node: AtenNode, device: Device, unit: str) -> LibraryCost:
    refs = [r for a in node.args for r in walk_refs(a)]
    out = next((r for r in node.outputs if r is not None), None)
    name = aten.base_name(node.op)
    if out is not None and refs and name in aten.FOURIER:
        return _fourier(node, refs[0], out, device)
    if out is None or len(refs) < 2:
        return LibraryCost(0.0)
    if name == "_trilinear":
        return _trilinear(node, out, device, unit)
    if "conv" in name:
        cost = _convolution(node, refs[0], refs[1], out, device, unit)
        if node.args[2] is None:
            return cost
        return replace(cost, extra_bytes=cost.extra_bytes + 2.0 * out.nbytes, launches=cost.launches + 1)  # adds the bias
    left, right = refs[1:3] if name.startswith(("add", "badd")) and len(refs) > 2 else refs[:2]
    if len(left.shape) < 2 or len(right.shape) < 2:
        return LibraryCost(0.0)
    # a weight of `linear` lies the other way round, and of `matmul` either side may have the batch
    rows, depth, columns = left.shape[-2], left.shape[-1], out.shape[-1]
    aligned = all(n * ITEM_BYTES[left.dtype] % 16 == 0 for n in (depth, right.shape[-1]))
    batch = math.prod(left.shape[:-2] if name == "addbmm" else out.shape[:-2])
    each = multiply_add_flops(out)
    if not aligned:  # no tensor core reads rows that do not begin at 16 bytes
        return LibraryCost(each * batch * rows * columns * depth / (UNALIGNED_SHARE * peak(device, "fp32")))
    return LibraryCost(each / 2 * product_us(batch, rows, columns, depth, device, unit))


def _trilinear(node: AtenNode, out: TensorRef, device: Device, unit: str) -> LibraryCost:
    """Two products and an addition for each place along the axis that torch walks along, one after the other."""
    times, first, second, between = pairs_of_three(node.args)
    us = multiply_add_flops(out) / 2 * sum(product_us(*sides, device, unit) for sides in (first, second))
    return LibraryCost(times * us, 2.0 * times * between * ITEM_BYTES[out.dtype], 3 * times)


Sides: TypeAlias = "tuple[int, int, int, int]"
"""Of a product: batch, rows, columns and depth."""


def pairs_of_three(args: Sequence[Any]) -> tuple[int, Sides, Sides, int]:
    """How torch multiplies three tensors: how often, two products each time, and how many numbers the first makes.

    Args:
        args: Of the call: the tensors, the axes that each of them lacks, those that are summed, and the one walked along.
    """
    lacking = [whole_numbers(axes) for axes in args[3:6]]
    left, right, third = (_with_axes(ref, axes) for ref, axes in zip(args[:3], lacking, strict=True))
    along = whole(args[7]) % len(left) if len(args) > 7 else 1
    times = max(left[along], right[along], third[along])
    for shape in (left, right, third):
        shape[along] = 1
    summed = set(whole_numbers(args[6])) - {along}
    early = summed & set(lacking[2])  # the third has no such axis
    first = _sides(left, right, early)
    made = [1 if axis in early else max(pair) for axis, pair in enumerate(zip(left, right, strict=True))]
    return times, first, _sides(made, third, summed - early), math.prod(made)


def _with_axes(ref: TensorRef, axes: Sequence[int]) -> list[int]:
    """A shape with these axes of one element put in."""
    shape = list(ref.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return shape


def _sides(left: Sequence[int], right: Sequence[int], summed: set[int]) -> Sides:
    batch = rows = columns = depth = 1
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        if axis in summed:
            depth *= max(a, b)
        elif a > 1 and b > 1:
            batch *= max(a, b)
        else:
            rows, columns = rows * a, columns * b
    return batch, rows, columns, depth


def multiply_add_flops(out: TensorRef) -> int:
    """Operations of one multiply and add, of what has this result."""
    return 8 if out.dtype.startswith("complex") else 2


def fourier_flops(x: TensorRef, out: TensorRef, args: Sequence[Any]) -> float:
    """Operations of a Fourier transform: 5·n·log₂ n for n complex numbers, half for real ones.

    Args:
        args: Of the call; the second are the axes.
    """
    most = max((x, out), key=lambda ref: ref.numel)
    points = math.prod(most.shape[axis] for axis in whole_numbers(args[1]))
    each = 5.0 if x.dtype == out.dtype else 2.5
    return each * most.numel * math.log2(max(points, 2))


def _fourier(node: AtenNode, x: TensorRef, out: TensorRef, device: Device) -> LibraryCost:
    """An axis is a pass over the numbers, a long one two. What begins with complex numbers and ends with real ones is copied
    first, since the transform overwrites it, and what is normalised is multiplied afterwards."""
    most = max(x.numel * ITEM_BYTES[x.dtype], out.numel * ITEM_BYTES[out.dtype])
    axes = whole_numbers(node.args[1])
    longest = max(x, out, key=lambda ref: ref.numel).shape
    passes = sum(1 + (longest[axis] > FOURIER_LENGTH) for axis in axes)
    copied = 2.0 * x.nbytes if aten.base_name(node.op) == "_fft_c2r" else 0.0
    scaled = 2.0 * out.nbytes if node.args[2] else 0.0
    us = fourier_flops(x, out, node.args) / peak(device, "fp32")
    return LibraryCost(us, 2.0 * most * (passes - 1) + copied + scaled, passes + bool(copied) + bool(scaled))


def product_us(batch: int, rows: int, columns: int, depth: int, device: Device, unit: str) -> float:
    """The best that tiles make of a product."""
    sides = ((rows, columns), (columns, rows))
    return min(_tiled_us(batch, a, b, depth, tile, device, unit) for a, b in sides for tile in PRODUCT_TILES)


def _tiled_us(
    batch: int, rows: int, columns: int, depth: int, tile: tuple[int, int, float], device: Device, unit: str
) -> float:
    tall, wide, share = tile
    share *= PRODUCT_FP32 if unit == "fp32" else 1.0
    tiles = batch * math.ceil(rows / tall) * math.ceil(columns / wide)
    parts = max(1, min(device.sm_count // max(1, tiles), depth // SPLIT_DEPTH))
    each = 2 * tall * wide * (depth / parts) / (share * peak(device, unit) / device.sm_count)
    return _waves(tiles * parts, device) * each + LATENCY_US * (1 + (parts > 1))


def peak(device: Device, unit: str) -> float:
    """Floating-point operations a microsecond."""
    return {"half": device.half_tflops, "tf32": device.tf32_tflops, "fp32": device.fp32_tflops}[unit] * 1e6


def channels_innermost(ref: TensorRef) -> bool:
    """Whether the channels of an image lie side by side."""
    return len(ref.shape) > 2 and ref.shape[1] > 1 and ref.stride[1] == 1


def _convolution(node: AtenNode, x: TensorRef, w: TensorRef, out: TensorRef, device: Device, unit: str) -> LibraryCost:
    stride, _, _, transposed, _, group_count = node.args[3:9]
    strided, groups = max(whole_numbers(stride), default=1) > 1, whole(group_count)
    dims = len(x.shape) - 2
    deep, wide = x.shape[1] // groups, out.shape[1] // groups
    taps = math.prod(w.shape[2:])
    # a strided transposed convolution of volumes has no kernel of its own: it meets every tap at every output
    places = x if transposed and (dims < 3 or not strided) else out
    pixels = places.numel / places.shape[1]
    innermost = channels_innermost(x)
    if deep == 1 and wide <= 2 and groups > 1:
        lanes = device.fp32_tflops * 1e6 / 2
        us = pixels * groups * wide * taps * DEPTHWISE_SLOTS / lanes
        return LibraryCost(us * (UNTURNED if innermost else 1.0))
    if unit == "fp32":
        return LibraryCost(
            _fp32_flops(x if transposed else out, groups, wide, deep, taps, bool(transposed)) / peak(device, unit)
        )
    depth = _ceil(deep, CONVOLUTION_DEPTH) * taps
    us = min(
        _windows_us(pixels, groups, wide, depth, tile, share * peak(device, unit), device) for tile, share in CONVOLUTION_TILES
    )
    us *= STRIDED_TRANSPOSED if transposed and strided else 1.0
    if innermost:
        return LibraryCost(us * (UNTURNED if dims == 3 or groups > 1 else 1.0))
    turned = (x.numel + out.numel) * ITEM_BYTES[x.dtype]
    return LibraryCost(us, extra_bytes=2.0 * turned, launches=3)


def _fp32_flops(places: TensorRef, groups: int, wide: int, deep: int, taps: int, transposed: bool) -> float:
    """Operations of a float32 convolution, over the share of the peak that it reaches."""
    pixels = places.numel / places.shape[1]
    if groups > 1:
        return 2 * pixels * groups * wide * deep * taps / (TRANSPOSED_FP32 if transposed else GROUPED_FP32)
    columns = _ceil(wide, CONVOLUTION_DEPTH)
    if transposed:  # channels in are padded for each tap
        return 2 * pixels * columns * _ceil(deep, CONVOLUTION_DEPTH) * taps / TRANSPOSED_FP32
    return 2 * pixels * columns * _ceil(deep * taps, CONVOLUTION_DEPTH) / CONVOLUTION_FP32


def _windows_us(pixels: float, groups: int, wide: int, depth: int, tile: int, rate: float, device: Device) -> float:
    """A convolution as a product, in blocks of some pixels and channels out."""
    blocks = math.ceil(pixels / CONVOLUTION_PIXELS) * groups * math.ceil(wide / tile)
    return _waves(blocks, device) * 2 * CONVOLUTION_PIXELS * tile * depth / (rate / device.sm_count) + LATENCY_US


def _waves(blocks: float, device: Device) -> float:
    """Rounds in which a device runs blocks that fill a multiprocessor; of many rounds, blocks end one by one."""
    waves = blocks / device.sm_count
    return math.ceil(waves) if waves < 4 else waves


def _ceil(number: int, step: int) -> int:
    return -(-number // step) * step


def _own_kernel_cost(node: AtenNode, device: Device, unit: str) -> LibraryCost:
    """PyTorch's own kernels for norms and softmaxes, whose blocks walk along a row or a channel."""
    refs = [r for a in node.args for r in walk_refs(a)]
    name = aten.base_name(node.op)
    if not refs or not refs[0].shape:
        return LibraryCost(0.0)
    x = refs[0]
    size = ITEM_BYTES[x.dtype]
    if name in aten.ATTENTION:
        queries, keys, wide, batch = x.shape[-2], refs[1].shape[-2], x.shape[-1], math.prod(x.shape[:-2])
        products = (keys, wide), (refs[2].shape[-1], keys)
        return LibraryCost(sum(product_us(batch, queries, columns, depth, device, unit) for columns, depth in products))
    if name in aten.DISTANCES:
        return _distances(node, x, refs[-1], device, unit)
    if name in ("native_layer_norm", "_fused_rms_norm", "rms_norm"):
        axes = next((a for a in node.args if isinstance(a, (tuple, list)) and a and isinstance(a[0], int)), (x.shape[-1],))
        row = math.prod(whole_numbers(axes))
        return LibraryCost(_blocks_us(x.numel / max(1, row), row * size, 4, device))
    if name in ("native_batch_norm", "cudnn_batch_norm") and any(a is True for a in node.args):
        channels = x.shape[1]
        return LibraryCost(_blocks_us(channels, x.numel * size / channels, 16, device, 0.4), extra_bytes=x.nbytes, launches=2)
    if name == "native_group_norm":
        numbers = [a for a in node.args if isinstance(a, int) and not isinstance(a, bool)]
        rows = numbers[0] * numbers[-1] if len(numbers) >= 4 else x.shape[0]
        return LibraryCost(_blocks_us(rows, x.numel * size / max(1, rows), 16, device, 0.4), extra_bytes=x.nbytes, launches=3)
    if name in ("_softmax", "_log_softmax"):
        return _softmax(node, x, device)
    if name == "logsumexp":  # maximum, difference, exponential, sum, and what mends them
        return LibraryCost(0.0, extra_bytes=6.0 * x.nbytes, launches=6)
    return LibraryCost(0.0)


def _distances(node: AtenNode, x: TensorRef, y: TensorRef, device: Device, unit: str) -> LibraryCost:
    """Of every row from every other. torch makes Euclidean ones of many rows by a product, and others number by number."""
    batch, rows, deep = math.prod(x.shape[:-2]), x.shape[-2], x.shape[-1]
    by_product = aten.base_name(node.op) == "_cdist_forward" and node.args[2] == 2 and node.args[3:4] != (2,)
    if by_product and max(rows, y.shape[-2]) > FEW_ROWS:
        return LibraryCost(product_us(batch, rows, y.shape[-2], deep + 2, device, unit), launches=6)
    made = sum(ref.numel for ref in node.outputs if ref is not None)
    return LibraryCost(3 * made * deep / peak(device, "fp32"))


def _softmax(node: AtenNode, x: TensorRef, device: Device) -> LibraryCost:
    axis = next((a for a in node.args if isinstance(a, int) and not isinstance(a, bool)), -1) % len(x.shape)
    length, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if inner == 1:
        return LibraryCost(0.0, extra_bytes=x.nbytes if length > 1024 else 0.0)
    # a thread goes down a column three times; of narrow columns, several threads share one
    threads = 1
    while inner <= 64 and length >= 64 and threads < min(length, 1024 // inner):
        threads *= 2
    waves = max(1.0, x.numel / length * threads / (device.sm_count * WARPS * 32))
    return LibraryCost(waves * 3 * length / threads * LATENCY_US / 2, extra_bytes=2.0 * x.nbytes)


def _blocks_us(blocks: float, nbytes: float, warps: int, device: Device, wait_us: float = LATENCY_US) -> float:
    """Blocks that each go through a row and wait for every part of it; a row costs four waits besides."""
    waves = max(1.0, blocks / (device.sm_count * (WARPS / warps)))
    return waves * (4 * LATENCY_US + nbytes / BLOCK_BYTES * wait_us)
