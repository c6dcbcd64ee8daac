"""The ranges of a task's tensors, so that similar numbers can be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernrl.verifier.base.precision import is_float8


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Distribution of a tensor's numbers: uniform in [low, high]."""

    low: float
    high: float
    one_sided: bool = False
    """Whether the initial values are one number, or of one sign."""
    sparse: bool = False
    """Whether some of the initial values are zero, and others are not."""


ORDINARY = (-1.0, 1.0, 0.0, 0.5, 0.0, 0.0)
"""`_figures` of a weight of both signs."""


def _figures(tensor: Tensor) -> Tensor:
    """Of a floating tensor, without a sync: [lowest, highest, mean, standard deviation, whether there are only two values,
    share of zeros]."""
    x = tensor.double()
    lowest, highest = torch.aminmax(x)
    two = ((x == lowest) | (x == highest)).all().double()
    std, mean = torch.std_mean(x, correction=0)
    return torch.stack([lowest, highest, mean, std, two, (x == 0).double().mean()])


def value_ranges(tensors: Sequence[Tensor], trained: Sequence[bool] = ()) -> list[ValueRange | None]:
    """From which distribution each parameter, buffer or input is redrawn, given its initial values; None if it is kept.

    Constants (ones and zeros above all) would hide a candidate that ignores them, so they get a range: 1 → [0.5, 1.5],
    0 → [-0.5, 0.5]. Others keep mean and deviation; those of one sign keep their range (a running variance stays positive).
    Masks (two values, or not finite), float8 and empty tensors are kept as they are. Two values that are `trained`, such as an
    identity matrix or biases of zero and one, are no mask.
    """
    drawn = [
        i
        for i, tensor in enumerate(tensors)
        if tensor.numel() and tensor.dtype.is_floating_point and not is_float8(tensor.dtype)
    ]
    ranges: list[ValueRange | None] = [None] * len(tensors)
    if drawn:
        figures = torch.stack([_figures(tensors[i]) for i in drawn]).tolist()  # the only sync
        for i, row in zip(drawn, figures, strict=True):
            ranges[i] = _value_range(tensors[i].numel(), *row, trained=i < len(trained) and trained[i])
    return ranges


def _value_range(
    numel: int, low: float, high: float, mean: float, std: float, two_values: float, zeros: float, *, trained: bool
) -> ValueRange | None:
    """`value_ranges` of one tensor, from its `_figures`."""
    if not math.isfinite(mean):
        return None
    if low == high:
        half = 0.5 * abs(low) if low else 0.5
        return ValueRange(low - half, low + half, one_sided=True)
    if numel > 2 and two_values:
        if not trained:
            return None
        zeros = 0.0  # where they are zero is a start, no structure
        if not low or not high:
            low, high = low - 0.5 * (high - low), high + 0.5 * (high - low)
            return ValueRange(low, high, one_sided=True)
    sparse = zeros > 0.01 and numel > 2
    if low >= 0 or high <= 0:
        return ValueRange(low, high, one_sided=True, sparse=sparse)
    half = std * math.sqrt(3.0)
    return ValueRange(mean - half, mean + half, sparse=sparse)
