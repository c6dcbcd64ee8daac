"""Atomic read-modify-writes on flat memory: all at once where nobody looks at the old values, else one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernrl.verifier.plan.ttir import TtirError

Operate = Callable[[Tensor, Tensor], Tensor]


def _sign(a: Tensor) -> int:
    return torch.iinfo(a.dtype).min


_OPERATIONS: dict[str, Operate] = {
    "add": torch.add,
    "fadd": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    # signless integers compare as unsigned once their sign bit is flipped
    "umax": lambda a, b: torch.maximum(a ^ _sign(a), b ^ _sign(b)) ^ _sign(a),
    "umin": lambda a, b: torch.minimum(a ^ _sign(a), b ^ _sign(b)) ^ _sign(a),
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "exch": lambda a, b: b,
}


def update(kind: str, whole: Tensor, position: Tensor, values: Tensor) -> None:
    """Update `whole` [n] at `position` [m] by `values` [m], in no particular order. Raises TtirError for an unknown kind."""
    if kind in ("add", "fadd"):
        whole.index_put_((position,), values, accumulate=True)
    elif kind in ("max", "min"):
        whole.scatter_reduce_(0, position, values, {"max": "amax", "min": "amin"}[kind])
    else:
        update_in_turn(kind, whole, position, values)


def update_in_turn(kind: str, whole: Tensor, position: Tensor, values: Tensor) -> Tensor:
    """The same one after another; returns the old values [m]. Updates of one place happen in random order."""
    if kind not in _OPERATIONS:
        raise TtirError(f"the atomic {kind}")
    return _in_turn(lambda old, chosen: _OPERATIONS[kind](old, values[chosen]), whole, position)


def compare_and_swap(whole: Tensor, position: Tensor, compared: Tensor, values: Tensor) -> Tensor:
    """Where the bits at `position` are those of `compared`, put `values`; returns the old values [m]."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[whole.element_size()]
    asked = compared.contiguous().view(bits)
    return _in_turn(lambda old, chosen: torch.where(old.view(bits) == asked[chosen], values[chosen], old), whole, position)


def _in_turn(operate: Operate, whole: Tensor, position: Tensor) -> Tensor:
    before = whole[position]
    shuffled = torch.randperm(len(position))
    places, order = position[shuffled].sort(stable=True)
    order = shuffled[order]
    if bool((places[1:] != places[:-1]).all()):
        whole[position] = operate(before, torch.arange(len(position)))
        return before
    count = torch.arange(len(places))
    first = torch.ones(len(places), dtype=torch.bool)
    first[1:] = places[1:] != places[:-1]
    turn = count - torch.where(first, count, 0).cummax(0).values
    for number in range(int(turn.max()) + 1):  # in each round no place occurs twice
        chosen = order[turn == number]
        old = whole[position[chosen]]
        before[chosen] = old
        whole[position[chosen]] = operate(old, chosen)
    return before
