"""Convolutions in float64 as matrix products, which a GPU computes many times faster than cuDNN its own."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

UNFOLD_BYTES = 2 << 30
"""Largest unfolded block of a float64 convolution; it takes as many samples at a time as fit."""


def convolution(x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    """N-dimensional cross-correlation as matrix products over unfolded windows: of some samples at a time, or of a part of one.

    x [N, C, *spatial], w [O, C/groups, *kernel] → [N, O, *out]. On an H200, cuDNN's float64 convolutions run 10 to 170
    times slower than its float32 ones, while a float64 matrix product keeps pace with float32.
    """
    dims, kernel = x.dim() - 2, w.shape[2:]
    pad = [p for size in reversed(padding) for p in (size, size)]
    sizes = [x.shape[2 + i] + 2 * padding[i] for i in range(dims)]
    out = [(sizes[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(dims)]
    columns, places = w[0].numel(), math.prod(out)
    weight = w.reshape(groups, w.shape[0] // groups, columns)
    y = x.new_empty(x.shape[0], groups, w.shape[0] // groups, *out)
    unfolded = x.shape[1] * math.prod(kernel) * places
    lines = max(1, UNFOLD_BYTES * out[0] // max(unfolded * x.element_size(), 1))
    for part, into in _samples(x, y, unfolded):
        part = torch.nn.functional.pad(part, pad) if any(pad) else part.contiguous()
        step = part.stride()[2:]
        windows = part.as_strided(
            (*part.shape[:2], *kernel, *out),
            (
                *part.stride()[:2],
                *(s * d for s, d in zip(step, dilation, strict=True)),
                *(s * t for s, t in zip(step, stride, strict=True)),
            ),
        )
        for some, where in zip(windows.split(lines, 2 + dims), into.split(lines, 3), strict=True):
            product = torch.matmul(weight, some.reshape(part.shape[0], groups, columns, -1))
            where.copy_(product.reshape(where.shape))
    return y.reshape(x.shape[0], w.shape[0], *out)


def _samples(x: Tensor, y: Tensor, unfolded: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples of x and of y as many at a time as unfold to `UNFOLD_BYTES`, at `unfolded` elements a sample."""
    at_once = max(1, UNFOLD_BYTES // max(unfolded * x.element_size(), 1))
    return zip(x.split(at_once), y.split(at_once), strict=True)


def transposed_convolution(
    x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], output_padding: list[int], groups: int
) -> Tensor:
    """The transpose of `convolution`: zeros between the inputs, then a plain one with the kernel mirrored.

    x [N, C, *spatial], w [C, O/groups, *kernel] → [N, O, *out].
    """
    dims, kernel = x.dim() - 2, w.shape[2:]
    full = [dilation[i] * (kernel[i] - 1) for i in range(dims)]
    mirrored = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
    mirrored = mirrored.reshape(groups * w.shape[1], w.shape[0] // groups, *kernel).flip(tuple(range(2, 2 + dims)))
    spread = [(x.shape[2 + i] - 1) * stride[i] + 1 for i in range(dims)]
    out = [spread[i] + full[i] - 2 * padding[i] + output_padding[i] for i in range(dims)]
    y = x.new_empty(x.shape[0], mirrored.shape[0], *out)
    for part, into in _samples(x, y, x.shape[1] * math.prod(kernel) * math.prod(out)):
        padded = part.new_zeros(
            *part.shape[:2], *(spread[i] + 2 * max(full[i] - padding[i], 0) + output_padding[i] for i in range(dims))
        )
        inner = padded
        for i in range(dims):
            inner = inner.narrow(2 + i, max(full[i] - padding[i], 0), spread[i])
        inner[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = part
        for i in range(dims):  # a padding beyond the kernel's reach crops
            crop = max(padding[i] - full[i], 0)
            padded = padded.narrow(2 + i, crop, padded.shape[2 + i] - 2 * crop)
        into.copy_(convolution(padded, mirrored, [1] * dims, [0] * dims, dilation, groups))
    return y
