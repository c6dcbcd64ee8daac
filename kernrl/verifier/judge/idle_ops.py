"""Ops of a reference that change no output: a softmax over one element, a clamp that always ends at its bound, a norm before
it, a second log-softmax, for which what the first one takes from all of a row does not matter.

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

FAR = (1000.0, -1000.0)
"""Each alone: where a bound that always holds comes later, an op's result may be anything beyond it."""

Fill = float | None
"""A number, or None for the op's operand: the op is left out."""

_BLANKS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "zeros_like", "ones_like", "full_like")
"""Memory, to be written by others: what it holds at first may well not matter."""

_COPIES = ("clone", "_to_copy", "copy", "lift_fresh_copy", "contiguous", "view_copy", "expand_copy", "slice_scatter")
"""What they are given may stand in for what they give, however much that matters."""


def has_idle_op(inputs: TaskInputs, draw: Draw) -> bool:
    """Whether the reference computes something that its outputs depend on in no way, though it is read on the way to them.

    What an op gives at one place of the reference is overwritten each time: the first turn of a loop may not matter where the
    others do. Tried on the draw, at several scales of it, with two numbers, and with what the op is given in place of what it
    gives; and with a number that is far off. Inputs and state are drawn anew, and inputs stay scaled afterwards.
    """
    if draw.bounded:  # another number could make it raise, and on a GPU end the process
        return False
    inputs.draw(draw)
    seen = _Ops(inputs)
    read = 0
    for y in _run(inputs, seen):
        read |= seen.behind.get(_place(y), 0)
    calls = [call for call in range(len(seen.calls)) if read >> call & 1]

    def conditions(fills: tuple[Fill, ...]) -> Iterator[tuple[Fill, bool]]:
        inputs.draw(draw)
        for factor in FACTORS:
            inputs.scale(factor)
            yield from ((fill, draw.own and factor == 1.0) for fill in fills)

    def outputs(overwritten: int = -1, fill: Fill = 0.0) -> list[Tensor]:
        return [y.clone() for y in _run(inputs, _Ops(inputs, overwritten, fill))]  # they may be state, which changes

    def unchanged(condition: tuple[Fill, bool], calls: list[int]) -> list[bool]:
        fill, own = condition
        whole = outputs()
        return [_same(whole, outputs(call, fill), inputs.precision, finite=not own) for call in calls]

    kinds: list[tuple[Fill, ...]] = [FILLS, (None,), *((far,) for far in FAR)]
    return any(idle_launches(calls, conditions(fills), unchanged) for fills in kinds)


class _Ops(TorchDispatchMode):
    """Numbers the calls of ops that make a floating tensor of others; overwrites what one of them makes."""

    def __init__(self, inputs: TaskInputs, overwritten: int = -1, fill: Fill = 0.0):
        super().__init__()
        self._file = type(inputs.module).forward.__code__.co_filename
        self._overwritten, self._fill = overwritten, fill
        self.calls: dict[tuple[str, int, str], int] = {}
        """Function of the reference, place in it and op → its number."""
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
            number = self.calls.setdefault((*self._place_in_reference(), op), len(self.calls))
            bits |= 1 << number
            if number == self._overwritten:
                alike = [x for x in _tensors((args, kwargs)) if x.shape == floats[0].shape and x.dtype == floats[0].dtype]
                if self._fill is None and alike and op not in _COPIES:
                    floats[0].copy_(alike[0])
                else:
                    for y in floats:
                        y.fill_(self._fill or 0.0)
        for y in made:
            self.behind[_place(y)] = bits
        if not made:  # a view, or something written in place
            for place in given[:1]:
                self.behind[place] = self.behind.get(place, 0) | bits
        return result

    def _place_in_reference(self) -> tuple[str, int]:
        """The function of the reference that runs, and its instruction: a line may call an op twice."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return (frame.f_code.co_qualname, frame.f_lasti) if frame else ("", 0)


def _run(inputs: TaskInputs, ops: _Ops) -> list[Tensor]:
    """The reference's outputs, with the same random numbers each time."""
    with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []):
        torch.manual_seed(0)
        with torch.no_grad(), policy_flags(inputs.precision), ops:
            found = [y for y in flatten(inputs.module(*inputs.arguments)) if isinstance(y, Tensor)]
    inputs.settle()
    return found


def _same(whole: list[Tensor], other: list[Tensor], precision: str, *, finite: bool) -> bool:
    shapes = [y.shape for y in whole] == [y.shape for y in other]
    return shapes and not any(bool(differ(a, b, precision, finite=finite)) for a, b in zip(whole, other, strict=True))


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
