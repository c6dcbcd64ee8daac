"""Hints to the compiler, checked like accesses: `tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy`, `tl.assume`.

The compiler believes a hint and makes one wide access of several narrow ones, so a false hint reads and writes elsewhere on a
GPU, or gives a kernel that is right in the interpreter alone.

Elements that are smaller than the first of their tile are left out: with `(pid * BLOCK + tl.arange(0, BLOCK)) % M` the last
tile begins anew in the middle, as in many published matrix products, and what it loads there is not stored.
"""

from __future__ import annotations

import functools
import re

import torch
from torch import Tensor

_ATTRIBUTE = re.compile(r"tt\.(divisibility|contiguity|constancy) = dense<(\[[\d, ]+\]|\d+)> : tensor<(\d+)xi32>")
_NAMES = {"divisibility": "tl.multiple_of", "contiguity": "tl.max_contiguous", "constancy": "tl.max_constancy"}
_AT_THIS_SHAPE = "does not hold at this shape: leave it out, or pad the sizes so that it holds at every shape"


class FalseHint(RuntimeError):
    """A hint to the compiler does not hold."""


Hints = dict[str, tuple[int, ...]]


@functools.lru_cache(maxsize=1024)
def read(text: str) -> Hints:
    """The hints on an operation: `divisibility`, `contiguity`, `constancy` → a number for each axis."""
    found: Hints = {}
    for name, numbers, count in _ATTRIBUTE.findall(text):
        values = tuple(map(int, re.findall(r"\d+", numbers)))
        found[name] = values * int(count) if len(values) == 1 else values
    return found


def check(hint: Hints, value: Tensor, active: Tensor) -> None:
    """Raise FalseHint if a value [cases, programs, *tile] breaks a hint in an active program."""
    axes = value.dim() - 2
    value = value.long()
    lead = torch.broadcast_shapes(value.shape[:2], active.shape)
    value = value.expand(*lead, *value.shape[2:])[active.expand(lead)]
    if not value.numel():
        return
    contiguity, divisibility, constancy = (hint.get(k, ()) for k in ("contiguity", "divisibility", "constancy"))
    if not axes:
        if divisibility and (left := value % divisibility[0] != 0).any():
            _say("divisibility", divisibility[0], value[left][0])
        return
    for axis in range(axes):
        rows = value.movedim(axis + 1, -1).flatten(0, -2)
        group = contiguity[axis] if contiguity else 1
        for name, numbers, step in (("contiguity", contiguity, 1), ("constancy", constancy, 0)):
            if numbers and 1 < numbers[axis] <= rows.shape[1]:
                _check_groups(name, rows, numbers[axis], step)
        if divisibility and divisibility[axis] > 1:
            starts = rows[:, :: max(1, group)] if group <= rows.shape[1] else rows[:, :1]
            starts = starts if contiguity else starts[:, :1]
            left = (starts % divisibility[axis] != 0) & (starts >= rows[:, :1])
            if bool(left.any()):
                _say("divisibility", divisibility[axis], starts[left][0])


def _check_groups(name: str, rows: Tensor, size: int, step: int) -> None:
    """Neighbours in groups of `size` must differ by `step`."""
    groups = rows.unflatten(1, (-1, size))
    first = groups[..., :1]
    left = (groups != first + step * torch.arange(size)) & (groups >= rows[:, :1].unsqueeze(1))
    if bool(left.any()):
        _say(name, size, groups[left][0])


def _say(name: str, number: int, value: Tensor) -> None:
    raise FalseHint(f"{_NAMES[name]}(…, {number}) {_AT_THIS_SHAPE} (a value is {int(value)})")


def assume(condition: Tensor, active: Tensor) -> list[Tensor]:
    """Raise FalseHint if an active program breaks the condition [cases, programs]."""
    if bool((active & ~condition.bool()).any()):
        raise FalseHint(f"what tl.assume says {_AT_THIS_SHAPE}")
    return []
