"""What a task's own inputs have in common from draw to draw, so that other draws keep it.

A right kernel may rely on it: on the zeros of a triangular operand, on the equal halves of a table of angles, on
probabilities that sum to one. So regimes are functions of one element at a time, which leave zeros zero and equal elements
equal. Only tensors in which nothing is found are also changed in ways that look at more than one element.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from kernrl.verifier.base.precision import is_float8

LOOKED_AT = 4096
"""Elements among which equal ones are looked for: those of the smallest hash, so that equal elements are taken together."""

AT_ONCE = 1 << 23
"""Elements that are looked at together."""

_NEAR_ONE = 0.01
"""How far a sum may be from one."""

_MOST_EQUAL = 0.25
"""Share of elements that may equal another one, in both draws, by chance."""


ORDINARY = (0.0, -3.0, 3.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""`figures` of an input in which nothing is found."""


class Freedom(enum.IntEnum):
    """How far other draws of an input may differ from the task's own."""

    OWN = 0
    """Not at all: indices, masks, probabilities, tables that no chance enters into."""
    POINTWISE = 1
    """By functions of one element that keep zero: some elements are always zero, equal to one another, or in order."""
    FREE = 2
    ANEW = 3
    """Filled with one number, or made without chance in a task without any: drawn from a `ValueRange` beside the own values,
    since they would hide a candidate that ignores them."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Of one input tensor."""

    freedom: Freedom
    mean: float = 0.0
    std: float = 1.0
    """Over the elements that are not zero; 1 where there is no spread."""


def structures(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Structure]:
    """The structure of each input, from two of the task's own draws. Waits once for a GPU."""
    drawn = [i for i, x in enumerate(first) if x.is_floating_point() and x.numel()]
    found = [Structure(Freedom.OWN)] * len(first)
    if not drawn:
        return found
    rows = torch.stack([figures(first[i], second[i]) for i in drawn]).tolist()
    fixed = all(row[0] for row in rows)
    for i, row in zip(drawn, rows, strict=True):
        found[i] = _structure(row, fixed=fixed)
    return found


def _structure(row: Sequence[float], *, fixed: bool) -> Structure:
    same, low, high, mean, std, few, whole, bound, equal, ordered = row
    numbers = mean, std if std > 0 else 1.0
    if same and low == high:
        return Structure(Freedom.ANEW, *numbers)
    if mean != mean or few or whole or bound:
        return Structure(Freedom.OWN)
    if same:
        return Structure(Freedom.ANEW if fixed and equal <= _MOST_EQUAL else Freedom.OWN, *numbers)
    return Structure(Freedom.POINTWISE if equal > _MOST_EQUAL or ordered else Freedom.FREE, *numbers)


def figures(a: Tensor, b: Tensor) -> Tensor:
    """[Both draws are the same; lowest, highest; mean and deviation without zeros (NaN if not finite); two values only; whole
    numbers only; sums or squares along an axis are one; share of equal elements; rows in order].

    A part at a time: whole, it would take twenty times the input. Waits for a GPU only where there are several parts.
    """
    a, b = (x.float() if is_float8(x.dtype) else x for x in (a, b))
    parts = list(zip(*(x.reshape(-1).split(AT_ONCE) for x in (a, b)), strict=True))
    low, high = torch.aminmax(torch.stack([end for x, _ in parts for end in torch.aminmax(x)]).double())
    count = _total([(x != 0).sum() for x, _ in parts]).double().clamp_min(1.0)
    mean = _total(x.sum(dtype=torch.float64) for x, _ in parts) / count
    std = (_total(_squares(x.float(), mean.float()) for x, _ in parts) / count).sqrt()
    few = _every(((x == low) | (x == high)).all() for x, _ in parts) & (a.numel() > 2)
    whole, same = _every((x == x.round()).all() for x, _ in parts), _every((x == y).all() for x, y in parts)
    found = [same, low, high, mean, std, few, whole, _bound(a), _equal_share(parts), _ordered(a)]
    return torch.stack([part.double() for part in found])


def _squares(x: Tensor, mean: Tensor) -> Tensor:
    """Sum of the squared distances to a mean over what is not zero; in float32 up to the sum, which moves half as much."""
    return torch.linalg.vector_norm((x - mean).masked_fill_(x == 0, 0.0), dtype=torch.float64).square()


def _total(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _every(parts: Iterable[Tensor]) -> Tensor:
    """Whether all are true. One that is not spares those after it: of a large input the first part mostly decides."""
    found = None
    for part in parts:
        if found is not None and not found:
            break
        found = part
    assert found is not None
    return found


def _ordered(x: Tensor) -> Tensor:
    """Whether every row of the last axis ascends."""
    if not x.dim() or x.shape[-1] <= 2:
        return torch.zeros((), dtype=torch.bool, device=x.device)
    return _every((part[..., 1:] >= part[..., :-1]).all() for part in _along(x, x.dim() - 1))


def _along(x: Tensor, dim: int) -> Sequence[Tensor]:
    """Parts of x that are whole along an axis, if there is another one to split."""
    axis = next((i for i, n in enumerate(x.shape) if n > 1 and i != dim), dim)
    return x.split(max(1, AT_ONCE * x.shape[axis] // x.numel()), axis) if axis != dim else (x,)


def _bound(x: Tensor) -> Tensor:
    """Whether x holds probabilities, or vectors of length one: all its sums, or sums of squares, along some axis are one."""
    axes = [i for i, n in enumerate(x.shape) if n > 1]
    if not axes:
        return torch.zeros((), dtype=torch.bool, device=x.device)
    positive = _every((part >= 0).all() for part in x.reshape(-1).split(AT_ONCE))
    norm = torch.linalg.vector_norm
    ones = [_from_one(part.sum(dim, dtype=torch.float64) for part in _along(x, dim)) for dim in axes]
    units = [_from_one(norm(part, dim=dim, dtype=torch.float64).square() for part in _along(x, dim)) for dim in axes]
    near = torch.stack([*ones, *units]) < _NEAR_ONE
    return (positive & near[: len(axes)].any()) | near[len(axes) :].any()


def _from_one(sums: Iterable[Tensor]) -> Tensor:
    """How far any is from one. Parts that are near spare none of those after them, as in `_every`."""
    found = None
    for part in sums:
        if found is not None and not found < _NEAR_ONE:
            break
        found = torch.linalg.vector_norm(part - 1, ord=torch.inf)
    assert found is not None
    return found


def _equal_share(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Share of elements for which another has the same value in both draws. By chance that is rare; it is one in a table with
    equal halves or in a symmetric matrix.

    Of a large input two samples are looked at: pairs of some hashes, with all that equal them, and pairs anywhere, among which
    a value that fills much of the input, such as zero, occurs often.
    """
    if len(parts) == 1:
        return _share(_smallest(_hashes(*parts[0])))
    smallest = [_smallest(_hashes(a, b)) for a, b in _sampled(parts)]
    anywhere = [_hashes(*_scattered(a, b, LOOKED_AT // len(parts) + 1)) for a, b in parts]
    return torch.maximum(_share(_smallest(torch.cat(smallest))), _share(torch.cat(anywhere).sort().values))


def _share(hashes: Tensor) -> Tensor:
    """Of sorted hashes, how many equal a neighbour."""
    if hashes.numel() < 2:
        return torch.zeros((), dtype=torch.float64, device=hashes.device)
    same = hashes[1:] == hashes[:-1]
    shared = torch.zeros_like(hashes, dtype=torch.bool)
    shared[1:] |= same
    shared[:-1] |= same
    return shared.mean(dtype=torch.float64)


def _scattered(a: Tensor, b: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """So many pairs of a part, from places in no order."""
    places = torch.arange(min(count, a.numel()), device=a.device) * 2654435761 % a.numel()  # by a prime: no place twice
    return a[places], b[places]


def _sampled(parts: Sequence[tuple[Tensor, Tensor]]) -> Sequence[tuple[Tensor, Tensor]]:
    """Enough pairs of a large input, by a hash that takes few passes: equal pairs are among them together, or not at all. All
    of them, where those of one hash are too few or too many."""
    numel = sum(a.numel() for a, _ in parts)
    share = min(0.25, 16 * LOOKED_AT / numel)
    level, found = int(2.0**32 * share - 2.0**31), []
    for a, b in parts:
        bits = [x.float().view(torch.int32) for x in (a, b)]
        low = (bits[0] * -1640531535).add_(bits[1], alpha=-2048144777) < level
        places = low.nonzero().squeeze(1) if not low.is_meta else low.new_empty(int(share * a.numel()), dtype=torch.int64)
        found.append((a[places], b[places]))
    taken = [torch.cat(column) for column in zip(*found, strict=True)]
    return [(taken[0], taken[1])] if LOOKED_AT <= taken[0].numel() <= AT_ONCE else parts


def _hashes(a: Tensor, b: Tensor) -> Tensor:
    """Of each pair of elements."""
    bits = [x.float().reshape(-1).view(torch.int32).long() for x in (a, b)]
    mixed = (bits[0] * 0x9E3779B97F4A7C1 + bits[1] * 0x2545F4914F6CDD1) * 0x5851F42D4C957F2D
    return mixed ^ (mixed >> 29)


def _smallest(hashes: Tensor) -> Tensor:
    return torch.topk(hashes, min(LOOKED_AT, hashes.numel()), largest=False, sorted=True).values
