"""Which values are written to memory, and which are computed again where they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from kernrl.tasks.solutions.from_graph.fusion.fuse import Group, Plan
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op

MOST_OPS = 12
"""Longest chain that is computed again rather than written and read."""

MOST_OPS_IN_TAPS = 2
"""The same, for what is computed again for each tap of a convolution."""

SMALL_SHARE = 8
"""A value of at most one in so many elements of the largest one is small: reading it is free."""


@dataclass
class Schedule:
    """What is written, and in which order kernels and library calls run."""

    plan: Plan
    stored: dict[str, None] = field(default_factory=dict)
    """Values that kernels write."""
    units: list[Group | Op] = field(default_factory=list)

    def in_memory(self, value: str) -> bool:
        """A tensor of `forward`: an input, a parameter, what a library call gives, or what a kernel writes."""
        op = self.plan.giver.get(value)
        return op is None or op.kind == "library" or value in self.stored


def schedule(plan: Plan, forced: set[str] | None = None, *, lean: bool = False) -> Schedule:
    """Decide what is written.

    Args:
        forced: What must be.
        lean: What comes of one load and statistics is computed again, and these are written in its place.
    """
    return _Scheduler(plan, forced or set(), lean).run()


class _Scheduler:
    def __init__(self, plan: Plan, forced: set[str], lean: bool) -> None:
        self.plan, self.program, self.lean = plan, plan.program, lean
        self.s = Schedule(plan)
        self.forced = forced
        self.readers: dict[str, int] = {}
        for op in self.program.ops:
            for read in dict.fromkeys(op.reads):
                self.readers[read] = self.readers.get(read, 0) + 1

    def run(self) -> Schedule:
        for output in self.program.outputs:
            if isinstance(output, str):
                self._host(output)
        live: list[Op] = []
        wanted = self._wanted_libraries()
        for op in reversed(self.program.ops):
            if op.kind == "library" and id(op) in wanted:
                live.append(op)
                for read in op.reads:
                    self._host(read)
        # what a kernel reads of another must be in memory, and so on down
        done: set[str] = set()
        while todo := [v for v in self.s.stored if v not in done]:
            for value in todo:
                done.add(value)
                self._demand(value)
        self._order(live)
        return self.s

    def _wanted_libraries(self) -> set[int]:
        """Library calls that some output needs."""
        stack = [o for o in self.program.outputs if isinstance(o, str)]
        seen: set[str] = set()
        found: set[int] = set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if op := self.plan.giver.get(value):
                if op.kind == "library":
                    found.add(id(op))
                stack += op.reads
        return found

    def _host(self, value: str) -> None:
        """Have a value, or what it is a view of, in memory."""
        base = value
        while (op := self.plan.giver.get(base)) and op.kind == "view":
            base = op.reads[0]
        op = self.plan.giver.get(base)
        if op and op.kind != "library":
            self.s.stored[base] = None

    def _demand(self, value: str) -> None:
        """Look at what the kernel that writes `value` reads."""
        op = self.plan.giver.get(value)
        home = self.plan.unit_of.get(value)
        seen: set[str] = set()

        def read(name: str, times: int = 1) -> None:
            if name in seen:
                return
            seen.add(name)
            giver = self.plan.giver.get(name)
            if giver is None or giver.kind == "library":
                return
            if giver.how == "taps":
                times *= prod(giver.window["kernel_size"])
            if giver.kind == "view":
                read(giver.reads[0], times)
            elif self.plan.unit_of[name] is home:
                for r in giver.reads if name not in self.s.stored else ():  # what is written is looked at by itself
                    read(r, times)
            elif name not in self.s.stored:
                if self._again(name, value, times):
                    for r in giver.reads:
                        read(r, times)
                else:
                    self.s.stored[name] = None

        for r in op.reads if op else [value]:
            read(r, prod(op.window["kernel_size"]) if op and op.how == "taps" else 1)

    def _again(self, name: str, reader: str, times: int = 1) -> bool:
        """Compute a value again where it is read, `times` for each element."""
        if name in self.forced:
            return False
        if self.plan.mode == "unfused":
            return self._from_parameters(name)
        giver = self.plan.giver[name]
        if giver.kind == "reduce" or (giver.kind == "window" and (self.readers.get(name, 0) > 1 or self._reduces(reader))):
            return False
        home, reading = self._numel(name), max(self._numel(reader), self._space(reader))
        small = home * SMALL_SHARE <= reading
        loads, ops, below = self._cost(name, reading, apart=times > 1, free=self.lean and not small)
        if times > 1 and (below or loads > 1 or ops > MOST_OPS_IN_TAPS):
            return False
        if small:
            return not below and ops <= 4
        if times == 1 and self._cut_up(name):
            return ops <= MOST_OPS
        spread = reading > home  # of a broadcast, each is computed several times
        if self.readers.get(name) == 1 and times == 1 and not spread and self._beside_taps(reader):
            return ops <= MOST_OPS  # nothing else reads it
        return loads <= 1 and ops <= (4 if spread else MOST_OPS)

    def _cut_up(self, name: str) -> bool:
        """A value is read through slices alone, no element through two of them, and each slice by one kernel: none is computed
        more often than once, and less is read than of a value that is written."""
        reading = [op for op in self.program.ops if name in op.reads]
        if name in self.program.outputs or not reading or any(op.kind != "view" for op in reading):
            return False
        if len(reading) == 1 and reading[0].how in ("reshape", "permute"):
            return self._cut_up(reading[0].value)
        if any(op.how != "slice" or op.dims != reading[0].dims for op in reading):
            return False
        axis, spans = reading[0].dims[0], list[tuple[int, int]]()
        for op in reading:
            readers = self._read_by(op.value)
            units = {id(self.plan.unit_of.get(v)) for v in readers}
            if any(self._space(v) > self._numel(op.value) for v in readers):
                return False  # it is broadcast
            start, count = (op.start or (0,))[0], self.program.shapes[op.value][axis][0]
            spans.append((start, start + (count - 1) * op.step))
            if len(units) > 1 or op.value in self.program.outputs:
                return False
        spans.sort()
        return len(spans) > 1 and all(end < start for (_, end), (start, _) in pairwise(spans))

    def _read_by(self, value: str) -> list[str]:
        """What is computed from a value, or from a view of it."""
        found: list[str] = []
        for op in self.program.ops:
            if value in op.reads:
                found += self._read_by(op.value) if op.kind == "view" else [op.value]
        return found

    def _beside_taps(self, value: str) -> bool:
        """The kernel that writes a value begins with a convolution, so that what was computed before could not join it."""
        unit = self.plan.unit_of.get(value)
        return isinstance(unit, Group) and any(op.how == "taps" for op in unit.members.values())

    def _from_parameters(self, name: str) -> bool:
        op = self.plan.giver.get(name)
        if op is None:
            return name.startswith("p")
        return op.kind in ("point", "view") and all(map(self._from_parameters, op.reads)) and self._numel(name) <= 1 << 16

    def _reduces(self, value: str) -> bool:
        unit = self.plan.unit_of.get(value)
        return isinstance(unit, Group) and bool(unit.reduced)

    def _space(self, value: str) -> int:
        unit = self.plan.unit_of.get(value)
        return prod(a.size[0] for a in unit.axes) if isinstance(unit, Group) else 0

    def _numel(self, value: str) -> int:
        return prod(s[0] for s in self.program.shapes[value])

    def _cost(self, name: str, reading: int, *, apart: bool, free: bool) -> tuple[int, int, bool]:
        """(large loads, ops, whether a reduction or pool lies below) of computing a value again.

        Args:
            apart: Slices of one tensor are loads of their own.
            free: What is small costs nothing.
        """
        loads, ops, below = 0, 0, False
        seen: set[tuple[str, str]] = set()
        stack = [(name, "")]
        while stack:
            value, part = stack.pop()
            if (value, part) in seen:
                continue
            seen.add((value, part))
            giver = self.plan.giver.get(value)
            if free and self._numel(value) * SMALL_SHARE <= reading:
                continue
            if giver is None or giver.kind == "library" or value in self.s.stored:
                loads += self._numel(value) * SMALL_SHARE > reading
            elif giver.kind == "reduce" or (giver.kind == "window" and value != name):
                below = True
                loads += self._numel(value) * SMALL_SHARE > reading
            else:
                ops += giver.kind == "point"
                part = value if apart and giver.how == "slice" else part
                stack += [(read, part) for read in giver.reads]
        return loads, ops, below

    def _order(self, libraries: list[Op]) -> None:
        """Units that write something, each after what it reads."""
        alive: list[Group | Op] = [
            u
            for u in self.plan.units
            if (isinstance(u, Group) and any(v in self.s.stored for v in u.members)) or any(u is op for op in libraries)
        ]
        done: set[int] = set()

        def visit(unit: Group | Op) -> None:
            if id(unit) in done:
                return
            done.add(id(unit))
            for below in self._below(unit):
                if any(below is u for u in alive):
                    visit(below)
            self.s.units.append(unit)

        for unit in alive:
            visit(unit)

    def _below(self, unit: Group | Op) -> list[Group | Op]:
        """The units whose memory a unit reads."""
        found: list[Group | Op] = []
        seen: set[str] = set()

        def read(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            giver = self.plan.giver.get(name)
            owner = self.plan.unit_of.get(name)
            if giver is None:
                return
            if giver.kind == "library" or (name in self.s.stored and owner is not unit):
                if owner is not None:
                    found.append(owner)
                return
            for r in giver.reads:
                read(r)

        if isinstance(unit, Op):
            for r in unit.reads:
                while (giver := self.plan.giver.get(r)) and giver.kind == "view":
                    r = giver.reads[0]
                if owner := self.plan.unit_of.get(r):
                    found.append(owner)
        else:
            for value, op in unit.members.items():
                if value in self.s.stored:
                    for r in op.reads:
                        read(r)
        return found
