"""Ops of a reference that change no output: a softmax over one element, a clamp that always ends at its bound.

A candidate that computes what the reference computes may have kernels for them, so a task with such an op has no decoys.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernrl.verifier.base.nested import flatten
from kernrl.verifier.base.precision import policy_flags
from kernrl.verifier.judge.compare import differ
from kernrl.verifier.judge.decoys import idle_launches
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs

FACTORS = (1.0, 64.0, 2.0**-16)
"""By which inputs are scaled, each on top of the one before: at one size, a clamp may have no effect."""

FILLS = (0.0, 0.0115)
"""What stands in an op's result in its place."""

_BLANKS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "zeros_like", "ones_like", "full_like")
"""Memory, to be written by others: what it holds at first may well not matter."""


def has_idle_op(inputs: TaskInputs, draw: Draw) -> bool:
    """Whether the reference computes something that its outputs depend on in no way, though it is read on the way to them.

    What an op gives in one line of the reference is overwritten each time: the first turn of a loop may not matter where the
    others do. Tried on the draw, at several scales of it, with two numbers. Inputs and state are drawn anew, and inputs stay
    scaled afterwards.
    """
    inputs.draw(draw)
    seen = _Ops(inputs)
    read = 0
    for y in _run(inputs, seen):
        read |= seen.behind.get(_place(y), 0)
    calls = [call for call in range(len(seen.calls)) if read >> call & 1]

    def conditions() -> Iterator[tuple[float, bool]]:
        for factor in FACTORS:
            inputs.scale(factor)
            yield from ((fill, draw.own and factor == 1.0) for fill in FILLS)

    def outputs(overwritten: int = -1, fill: float = 0.0) -> list[Tensor]:
        return [y.clone() for y in _run(inputs, _Ops(inputs, overwritten, fill))]  # they may be state, which changes

    def unchanged(condition: tuple[float, bool], calls: list[int]) -> list[bool]:
        fill, own = condition
        whole = outputs()
        return [_same(whole, outputs(call, fill), inputs.precision, finite=not own) for call in calls]

    return bool(idle_launches(calls, conditions(), unchanged))


class _Ops(TorchDispatchMode):
    """Numbers the calls of ops that make a floating tensor of others; overwrites what one of them makes."""

    def __init__(self, inputs: TaskInputs, overwritten: int = -1, fill: float = 0.0):
        super().__init__()
        self._file = type(inputs.module).forward.__code__.co_filename
        self._overwritten, self._fill = overwritten, fill
        self.calls: dict[tuple[int, str], int] = {}
        """Line of the reference and op → its number."""
        self.behind: dict[int, int] = {}
        """Address of a tensor's memory → the calls that what it holds depends on, as bits. An address may be used again: then
        more calls count as read than are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [_place(x) for x in _tensors((args, kwargs))]
        result = func(*args, **(kwargs or {}))
        bits = 0
        for place in given:
            bits |= self.behind.get(place, 0)
        made = [y for y in _tensors(result) if _place(y) not in given]
        floats = [y for y in made if y.is_floating_point()]
        op = func.overloadpacket.__name__
        if given and floats and op not in _BLANKS:
            number = self.calls.setdefault((self._line(), op), len(self.calls))
            bits |= 1 << number
            if number == self._overwritten:
                for y in floats:
                    y.fill_(self._fill)
        for y in made:
            self.behind[_place(y)] = bits
        if not made:  # a view, or something written in place
            for place in given[:1]:
                self.behind[place] = self.behind.get(place, 0) | bits
        return result

    def _line(self) -> int:
        """The line of the reference that is run."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0


def _run(inputs: TaskInputs, ops: _Ops) -> list[Tensor]:
    """The reference's outputs, with the same random numbers each time."""
    with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []):
        torch.manual_seed(0)
        with torch.no_grad(), policy_flags(inputs.precision), ops:
            return [y for y in flatten(inputs.module(*inputs.arguments)) if isinstance(y, Tensor)]


def _same(whole: list[Tensor], other: list[Tensor], precision: str, *, finite: bool) -> bool:
    shapes = [y.shape for y in whole] == [y.shape for y in other]
    return shapes and not any(bool(differ(a, b, precision, finite=finite)) for a, b in zip(whole, other, strict=True))


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
