"""How the numbers of a task's tensors lie, so that others like them can be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a tensor's numbers lie: in [low, high] evenly, or normal with the mean and variance that this would have."""

    low: float
    high: float
    even: bool


def _figures(tensor: Tensor) -> Tensor:
    """[lowest, highest, mean, standard deviation, whether there are but two values] of a floating tensor, without a sync."""
    x = tensor.double()
    lowest, highest = torch.aminmax(x)
    two = ((x == lowest) | (x == highest)).all().double()
    std, mean = torch.std_mean(x, correction=0)
    return torch.stack([lowest, highest, mean, std, two])


def spreads_of(tensors: Sequence[Tensor]) -> list[Spread | None]:
    """How parameters, buffers or inputs are redrawn, from the values that the constructor or `get_inputs` gave them; None for
    those that are not.

    Constants (ones and zeros above all) would hide a candidate that ignores them, so they are spread: 1 → [0.5, 1.5],
    0 → [-0.5, 0.5]. Others keep mean and spread, one-signed ones their range (a running variance stays positive).
    Masks (two values, or not finite) and empty tensors are kept.
    """
    drawn = [i for i, tensor in enumerate(tensors) if tensor.numel() and tensor.dtype.is_floating_point]
    spreads: list[Spread | None] = [None] * len(tensors)
    if drawn:
        figures = torch.stack([_figures(tensors[i]) for i in drawn]).tolist()  # the only sync
        for i, row in zip(drawn, figures, strict=True):
            spreads[i] = _spread(tensors[i].numel(), *row)
    return spreads


def _spread(numel: int, low: float, high: float, mean: float, std: float, two_values: float) -> Spread | None:
    """`spreads_of` for one tensor's figures."""
    if not math.isfinite(mean):
        return None
    if low == high:
        half = 0.5 * abs(low) if low else 0.5
        return Spread(low - half, low + half, True)
    if numel > 2 and two_values:
        return None
    if low >= 0 or high <= 0:
        return Spread(low, high, True)
    half = std * math.sqrt(3.0)
    return Spread(mean - half, mean + half, max(high - mean, mean - low) < 1.1 * half)
