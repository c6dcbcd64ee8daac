"""Which work goes into one kernel: groups of points around one space of indices, with one set of reduced axes or none.

A group's space is a list of axes. A value of the group has a layout: for each of its dimensions, the axes that run along
it. Views only rearrange layouts; a view that splits a dimension splits the axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op, Program
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, over

Mode = Literal["fused", "stats", "unfused"]
"""As much as fits in one kernel; statistics apart from what uses them; or a kernel for each op of the Graph."""


class Axis:
    """One axis of a group's space."""

    __slots__ = ("size",)

    def __init__(self, size: Size) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"<{self.size[0]}>"


Layout = tuple[tuple[Axis, ...], ...]


@dataclass(eq=False)
class Group:
    """The work of one kernel."""

    axes: list[Axis]
    members: dict[str, Op] = field(default_factory=dict)
    """Value → the op that gives it."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    """Of members, and of outside values that lie along the space."""
    reduced: list[Axis] = field(default_factory=list)
    order: int = 0

    @property
    def kept(self) -> list[Axis]:
        """The axes that are not reduced."""
        return [a for a in self.axes if a not in self.reduced]

    @property
    def reductions(self) -> list[Op]:
        """Its reductions, in order."""
        return list({id(op): op for op in self.members.values() if op.kind == "reduce"}.values())

    def split(self, axis: Axis, outer: Size, inner: Size) -> tuple[Axis, Axis]:
        """Two axes in the place of one."""
        pair = (Axis(outer), Axis(inner))

        def swapped(axes: Iterable[Axis]) -> list[Axis]:
            return [part for a in axes for part in (pair if a is axis else (a,))]

        self.axes, self.reduced = swapped(self.axes), swapped(self.reduced)
        self.layouts = {v: tuple(tuple(swapped(dim)) for dim in layout) for v, layout in self.layouts.items()}
        return pair

    def regroup(self, layout: Sequence[Sequence[Axis]], shape: Shape) -> Layout | None:
        """The layout of a reshape to `shape`; None where its dimensions cut across axes."""
        rest = [a for dim in layout for a in dim]
        found: list[tuple[Axis, ...]] = []
        for size in reversed(shape):
            need, parts = size, []
            while not is_one(need):
                if not rest:
                    return None
                axis = rest.pop()
                left = over(need, axis.size)
                if left is None:
                    outer = over(axis.size, need)
                    if outer is None:
                        return None
                    above, axis = self.split(axis, outer, need)
                    rest.append(above)
                    left = (1,) * len(size)
                parts.insert(0, axis)
                need = left
            found.insert(0, tuple(parts))
        return None if rest else tuple(found)


@dataclass
class Plan:
    """The units of a Graph's work, in an order in which they can run."""

    program: Program
    mode: Mode
    units: list[Group | Op]
    giver: dict[str, Op]
    """Value → the op that gives it."""
    unit_of: dict[str, Group | Op]


def partition(program: Program, mode: Mode, apart: Collection[str] = (), by: type[Cutter] | None = None) -> Plan:
    """Cut the work into groups and library calls; the values `apart` have groups of their own."""
    plan = Plan(program, mode, [], {r: op for op in program.ops for r in op.results}, {})
    cutter = (by or Cutter)(plan, apart)
    for op in program.ops:
        if op.kind == "library":
            plan.units.append(op)
            plan.unit_of.update(dict.fromkeys(op.results, op))
        elif op.kind != "view":
            cutter.place(op)
    return plan


class Cutter:
    """Places ops one after the other."""

    def __init__(self, plan: Plan, apart: Collection[str]) -> None:
        self.plan, self.program, self.apart = plan, plan.program, apart

    def root(self, value: str) -> str:
        """The value that a chain of views looks at."""
        while (op := self.plan.giver.get(value)) and op.kind == "view":
            value = op.reads[0]
        return value

    def place(self, op: Op) -> None:
        """Put an op into a group that it fits, or a new one."""
        if op.kind == "point" and self.plan.mode != "unfused":
            self._unite(op)
        candidates = [u for u in reversed(self.plan.units) if isinstance(u, Group)]
        candidates = [g for g in candidates if not set(self.apart) & set(g.members)]
        if op.kind != "window" and op.value not in self.apart:
            # one that reduces already holds more to reuse
            for group in sorted(candidates, key=lambda g: not g.reduced):
                if self._joins(op, group):
                    return
        self._new(op)

    def _unite(self, op: Op) -> None:
        """Make one group of those that an op reads of, where they have the same space and none depends on another."""
        read_of: dict[Group, str] = {}
        for read in op.reads:
            unit = self.plan.unit_of.get(self.root(read))
            if isinstance(unit, Group):
                read_of.setdefault(unit, read)
        if not read_of:
            return
        last = max(read_of, key=self.plan.units.index)
        for group in read_of.keys() - {last}:
            same = self._same_axes(last, read_of[last], group, read_of[group])
            if same and not self._depends(last, group) and not self._depends(group, last):
                self._merge(last, group, same)

    def _same_axes(self, one: Group, value: str, other: Group, its: str) -> dict[Axis, Axis] | None:
        """The other group's axes → those of the one, by a value of each that spans it; None where they cannot be merged."""
        layout, theirs = self.layout(value, one), self.layout(its, other)
        if layout is None or theirs is None or len(layout) != len(theirs) or set(self.apart) & {*one.members, *other.members}:
            return None
        pairs = [(a, b) for mine, dim in zip(layout, theirs, strict=True) for a, b in zip(mine, dim, strict=False)]
        whole = all(len(mine) == len(dim) for mine, dim in zip(layout, theirs, strict=True))
        if not whole or any(a.size != b.size for a, b in pairs):
            return None
        same = {b: a for a, b in pairs}
        if set(same) != set(other.axes) or set(same.values()) != set(one.axes):
            return None
        for plain, reducing in ((one, other), (other, one)):
            alone = set(plain.members) & set(self.program.last) or any(op.kind == "window" for op in plain.members.values())
            if reducing.reduced and (alone or (plain.reduced and {same.get(a, a) for a in other.reduced} != set(one.reduced))):
                return None
        renamed = {v: _renamed(dims, same) for v, dims in other.layouts.items()}
        return same if all(one.layouts.get(v, dims) == dims for v, dims in renamed.items()) else None

    def _depends(self, group: Group, on: Group) -> bool:
        """Something in a group is made, at whatever distance, from what another one holds."""
        stack, seen = [self.root(r) for op in group.members.values() for r in op.reads], set[int]()
        while stack:
            unit = self.plan.unit_of.get(stack.pop())
            if unit is on:
                return True
            if unit is None or id(unit) in seen:
                continue
            seen.add(id(unit))
            ops = [unit] if isinstance(unit, Op) else unit.members.values()
            stack += [self.root(r) for op in ops for r in op.reads]
        return False

    def _merge(self, one: Group, other: Group, same: dict[Axis, Axis]) -> None:
        """Put all that another group holds into one."""
        members = {**other.members, **one.members}
        place = {op.value: i for i, op in enumerate(self.program.ops)}
        one.members = dict(sorted(members.items(), key=lambda member: place[member[1].value]))
        one.layouts |= {v: _renamed(dims, same) for v, dims in other.layouts.items()}
        reduced = {*one.reduced, *(same[a] for a in other.reduced)}
        one.reduced = [a for a in one.axes if a in reduced]
        self.plan.units.remove(other)
        self.plan.unit_of.update(dict.fromkeys(other.members, one))

    def _new(self, op: Op) -> None:
        of = op.reads[0] if op.kind == "reduce" else op.value
        layout = tuple(() if is_one(s) else (Axis(s),) for s in self.program.shapes[of])
        group = Group([a for dim in layout for a in dim], order=len(self.plan.units))
        group.layouts[of] = layout
        if op.kind == "point":
            for read in op.reads:  # so that what else reads it may join
                if self.program.shapes[read] == self.program.shapes[of]:
                    group.layouts[read] = layout
        self.plan.units.append(group)
        if op.kind == "reduce":
            self._reduce(op, group, layout)
        self._member(op, group)

    def _member(self, op: Op, group: Group) -> None:
        for result in op.results:
            group.members[result] = op
            self.plan.unit_of[result] = group

    def layout(self, value: str, group: Group) -> Layout | None:
        """Where a value, or a view of one, lies in a group's space."""
        if value in group.layouts:
            return group.layouts[value]
        op = self.plan.giver.get(value)
        if not op or op.kind != "view" or op.how not in ("reshape", "permute"):
            return None
        inner = self.layout(op.reads[0], group)
        if inner is None:
            return None
        if op.how == "permute":
            found: Layout | None = tuple(inner[d] for d in op.dims)
        else:
            found = group.regroup(inner, self.program.shapes[value])
        if found is not None:
            group.layouts[value] = found
        return found

    def _joins(self, op: Op, group: Group) -> bool:
        if self.plan.mode == "unfused" and any(m.node != op.node for m in group.members.values()):
            return False
        inside = [r for r in op.reads if self.layout(r, group) is not None]
        if not inside or self._cycle(op, group):
            return False
        if op.kind == "reduce":
            layout = self.layout(op.reads[0], group)
            assert layout is not None
            return self._reduction_joins(op, group, layout)
        layout = self._joint(op, group, inside)
        if layout is None:
            return False
        axes = {a for dim in layout for a in dim}
        if group.reduced and op.value in self.program.last:
            return False  # its programs hold pixels of one channel, and would write them far apart
        full, kept = axes == set(group.axes), bool(group.reduced) and axes == set(group.kept)
        if not full and not kept:
            return False
        if full and not kept and self.plan.mode == "stats" and self._after_reduction(op, group):
            return False
        group.layouts[op.value] = layout
        self._member(op, group)
        return True

    def _after_reduction(self, op: Op, group: Group) -> bool:
        """A full-size value would be made from what the group reduces."""
        if not group.reduced:
            return False
        stack = [self.root(r) for r in op.reads]
        while stack:
            member = group.members.get(stack.pop())
            if member and member.kind == "reduce":
                return True
            stack += [self.root(r) for r in member.reads] if member else []
        return False

    def _joint(self, op: Op, group: Group, inside: list[str]) -> Layout | None:
        """The layout of a point: its operands' own, which must agree."""
        shape = self.program.shapes[op.value]
        found: list[tuple[Axis, ...]] = []
        for back in range(len(shape), 0, -1):
            wide = set()
            for read in inside:
                layout = self.layout(read, group)
                if layout is not None and len(layout) >= back and layout[-back]:
                    wide.add(layout[-back])
            if len(wide) > 1 or (not wide and not is_one(shape[-back])):
                return None
            found.append(next(iter(wide), ()))
        axes = [a for dim in found for a in dim]
        return tuple(found) if len(axes) == len(set(axes)) else None  # a value beside itself turned spans one axis twice

    def _reduction_joins(self, op: Op, group: Group, layout: Layout) -> bool:
        if {a for dim in layout for a in dim} != set(group.axes):
            return False
        axes = {a for d in op.dims for a in layout[d]}
        if (group.reduced and axes != set(group.reduced)) or set(group.members) & set(self.program.last):
            return False
        if not group.reduced and any(m.kind == "window" for m in group.members.values()):
            return False
        if self.plan.mode == "stats" and self._after_reduction(op, group):
            return False
        self._reduce(op, group, layout)
        self._member(op, group)
        return True

    def _reduce(self, op: Op, group: Group, layout: Layout) -> None:
        axes = {a for d in op.dims for a in layout[d]}
        group.reduced = [a for a in group.axes if a in axes]
        for result in op.results:
            group.layouts[result] = tuple(() if d in op.dims else dim for d, dim in enumerate(layout))

    def _cycle(self, op: Op, group: Group) -> bool:
        """Something that the op reads from elsewhere depends on the group."""
        stack = [self.plan.unit_of.get(self.root(r)) for r in op.reads]
        seen: set[int] = set()
        while stack:
            unit = stack.pop()
            if unit is None or unit is group or id(unit) in seen:
                continue
            seen.add(id(unit))
            ops = [unit] if isinstance(unit, Op) else unit.members.values()
            below = [self.plan.unit_of.get(self.root(r)) for o in ops for r in o.reads]
            if any(b is group for b in below):
                return True
            stack += below
        return False


def _renamed(layout: Layout, names: dict[Axis, Axis]) -> Layout:
    return tuple(tuple(names[a] for a in dim) for dim in layout)
