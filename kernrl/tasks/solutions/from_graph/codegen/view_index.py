"""Indices of a value's elements, and what they become under a view."""

from __future__ import annotations

from dataclasses import dataclass

from kernrl.tasks.graph.canonical.views import axis_groups
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op, Program
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, times


class RestartError(Exception):
    """An axis was split: what was written so far speaks of an axis that is gone."""


class BarrierError(Exception):
    """A value cannot be computed where it is read, and must be in memory."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


@dataclass(frozen=True, slots=True)
class Ix:
    """An index into one dimension: `step * (axes, row-major) + offset + variables of loops`."""

    parts: tuple[Axis, ...] = ()
    step: int = 1
    offset: Size | None = None
    extra: tuple[tuple[str, int], ...] = ()


Index = tuple[Ix, ...]


def index_through(op: Op, index: Index, program: Program, group: Group) -> Index:
    """The operand's index under a view's. Raises RestartError, and BarrierError where there is none."""
    x = op.reads[0]
    before, after = program.shapes[x], program.shapes[op.value]
    if op.how == "permute":
        found = [Ix()] * len(index)
        for d, i in zip(op.dims, index, strict=True):
            found[d] = i
        return tuple(found)
    if op.how == "expand":
        return tuple(Ix() if is_one(s) else i for i, s in zip(index, before, strict=True))
    if op.how == "slice":
        d = op.dims[0]
        i = index[d]
        start = tuple(a + op.step * b for a, b in zip(op.start or (), i.offset or (0,) * len(op.start or ()), strict=True))
        cut = Ix(i.parts, i.step * op.step, start if any(start) else None, tuple((n, by * op.step) for n, by in i.extra))
        return (*index[:d], cut, *index[d + 1 :])
    return _reshaped(x, before, after, index, program, group)


def _reshaped(x: str, before: Shape, after: Shape, index: Index, program: Program, group: Group) -> Index:
    found: list[Ix] = [Ix()] * len(before)
    full = [tuple(s[0] for s in shape) for shape in (before, after)]
    for ours, theirs in axis_groups(full[0], full[1]):
        if times((1,) * program.sets, *(before[d] for d in ours)) != times(*(after[d] for d in theirs)):
            raise BarrierError(x)
        if len(ours) == len(theirs) == 1:
            found[ours[0]] = index[theirs[0]]
            continue
        plain = all(_covers(index[d], after[d], program.sets) for d in theirs)
        count = len(group.axes)
        layout = group.regroup([index[d].parts for d in theirs], tuple(before[d] for d in ours)) if plain else None
        if len(group.axes) != count:
            raise RestartError
        if layout is None:
            raise BarrierError(x)
        for d, parts in zip(ours, layout, strict=True):
            found[d] = Ix(parts)
    return tuple(found)


def _covers(i: Ix, size: Size, sets: int) -> bool:
    """An index that counts through a whole dimension, and nothing else."""
    return i == Ix(i.parts) and times((1,) * sets, *(a.size for a in i.parts)) == size
