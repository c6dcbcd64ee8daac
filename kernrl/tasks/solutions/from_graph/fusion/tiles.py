"""Groups whose reductions go over different axes: what all of them go over together is held by one program."""

from __future__ import annotations

from math import prod

from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Cutter, Group
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op

MOST_HELD = 32768
"""Elements that a program holds in registers."""


def reduced_axes(op: Op, group: Group) -> frozenset[Axis]:
    """The axes that a reduction of a group goes over."""
    return frozenset(a for d in op.dims for a in group.layouts[op.reads[0]][d])


def is_tile(group: Group) -> bool:
    """Whether the reductions of a group go over different axes."""
    return len({reduced_axes(op, group) for op in group.reductions}) > 1


class TileCutter(Cutter):
    """Puts a reduction into a group that reduces something else, where one program can hold both sets."""

    def _joins(self, op: Op, group: Group) -> bool:
        if _held(group.reduced) > MOST_HELD:
            return super()._joins(op, group)
        inside = [r for r in op.reads if self.layout(r, group) is not None]
        if not inside or self._cycle(op, group):
            return False
        if op.kind == "reduce":
            return self._reduces(op, group)
        layout = self._joint(op, group, inside)
        if layout is None or not set(group.kept) <= {a for dim in layout for a in dim}:
            return False
        if group.reduced and op.value in self.program.last:
            return False
        group.layouts[op.value] = layout
        self._member(op, group)
        return True

    def _reduces(self, op: Op, group: Group) -> bool:
        layout = self.layout(op.reads[0], group)
        assert layout is not None
        axes, held = {a for d in op.dims for a in layout[d]}, {a for dim in layout for a in dim}
        tile = [a for a in group.axes if a in axes or a in group.reduced]
        windows = any(m.kind == "window" for m in group.members.values())
        if windows or set(group.members) & set(self.program.last):
            return False
        if not set(group.axes) - set(tile) <= held or _held(tile) > MOST_HELD:
            return False
        group.reduced = tile
        for result in op.results:
            group.layouts[result] = tuple(() if d in op.dims else dim for d, dim in enumerate(layout))
        self._member(op, group)
        return True


def _held(axes: list[Axis]) -> int:
    """Elements of a set, at the full input set; derived ones may have somewhat more."""
    sizes = [prod(sizes) for sizes in zip(*(a.size for a in axes), strict=True)] or [1]
    return max(sizes[0], max(sizes) // 4)
