"""Hints to the compiler, checked like accesses: `tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy`, `tl.assume`.

The compiler believes a hint and makes one wide access of several narrow ones, so a false hint reads and writes elsewhere on a
GPU, or gives a kernel that is right in the interpreter alone.

With `(pid * BLOCK + tl.arange(0, BLOCK)) % M` or `tl.where(i < M, i, 0)` a tile begins anew where the rows end, as in many
published matrix products: what it loads there is not stored. So from where a tile falls back on, elements that break a hint
become another element of their tile, and whoever stores what is made of them stores wrong numbers.
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


def check(hint: Hints, value: Tensor, active: Tensor) -> Tensor:
    """A value [cases, programs, *tile] as it may be on a GPU, where its tiles begin anew. Raises FalseHint if it breaks a hint
    in an active program elsewhere."""
    lead = torch.broadcast_shapes(value.shape[:2], active.shape)
    chosen = active.expand(lead)
    whole = value.expand(*lead, *value.shape[2:])
    tiles = whole[chosen].long()
    if not tiles.numel():
        return value
    contiguity, divisibility, constancy = (hint.get(k, ()) for k in ("contiguity", "divisibility", "constancy"))
    if tiles.dim() == 1:
        if divisibility and (left := tiles % divisibility[0] != 0).any():
            _say("divisibility", divisibility[0], tiles[left][0])
        return value
    spoiled = torch.zeros_like(tiles, dtype=torch.bool)
    for axis in range(tiles.dim() - 1):
        rows = tiles.movedim(axis + 1, -1)
        anew = (rows < rows.cummax(-1).values).cummax(-1).values
        for name, numbers, step in (("contiguity", contiguity, 1), ("constancy", constancy, 0)):
            if numbers and 1 < numbers[axis] <= rows.shape[-1]:
                broken = _broken(rows, numbers[axis], step)
                if bool((broken & ~anew).any()):
                    _say(name, numbers[axis], rows[broken & ~anew][0])
                spoiled |= broken.movedim(-1, axis + 1)
        if divisibility and divisibility[axis] > 1:
            group = contiguity[axis] if contiguity else rows.shape[-1]
            group = max(1, min(group, rows.shape[-1]))
            left = (rows % divisibility[axis] != 0)[..., ::group]
            if bool((seen := left & ~anew[..., ::group]).any()):
                _say("divisibility", divisibility[axis], rows[..., ::group][seen][0])
            spoiled |= left.repeat_interleave(group, -1).movedim(-1, axis + 1)
    if not bool(spoiled.any()):
        return value
    largest = tiles.flatten(1).max(1).values.reshape(-1, *[1] * (tiles.dim() - 1))
    whole = whole.clone()
    whole[chosen] = torch.where(spoiled, largest, tiles).to(value.dtype)
    return whole


def _broken(rows: Tensor, size: int, step: int) -> Tensor:
    """Where neighbours in groups of `size` do not differ by `step` from the one before, bool of the same shape."""
    groups = rows.unflatten(-1, (-1, size))
    return (groups != groups[..., :1] + step * torch.arange(size)).flatten(-2)


def _say(name: str, number: int, value: Tensor) -> None:
    raise FalseHint(f"{_NAMES[name]}(…, {number}) {_AT_THIS_SHAPE} (a value is {int(value)})")


def assume(condition: Tensor, active: Tensor) -> list[Tensor]:
    """Raise FalseHint if an active program breaks the condition [cases, programs]."""
    if bool((active & ~condition.bool()).any()):
        raise FalseHint(f"what tl.assume says {_AT_THIS_SHAPE}")
    return []
