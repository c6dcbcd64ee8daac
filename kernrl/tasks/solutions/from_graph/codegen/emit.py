"""The body of a kernel: a group's values as lines of Triton, each computed at the index where it is read.

An index is known for each dimension as axes of the group's space, so a view costs nothing: it only changes the index. Where
an element lies in memory is written last, when it is known which axes every access crosses together (`index_text.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kernrl.tasks.solutions.from_graph.codegen.index_text import Access, place_moves
from kernrl.tasks.solutions.from_graph.codegen.view_index import BarrierError, Index, Ix, index_through
from kernrl.tasks.solutions.from_graph.codegen.windows import NEUTRAL, padded, window
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import COMPUTED, Count, Op, Operand, Varies
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import literal
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, times


class Tile(Protocol):
    """What the body must know of how a program is laid over the space."""

    reduced: set[Axis]
    shape: str
    """Of an accumulator."""

    def mask(self, axes: set[Axis]) -> str:
        """The mask of elements that vary along these axes; empty where there is none."""
        ...

    def fold(self, op: str, text: str) -> str:
        """A reduction over the tile's reduced side."""
        ...


@dataclass
class Body:
    """Lines of a kernel as they grow."""

    schedule: Schedule
    group: Group
    tile: Tile
    orders: dict[str, tuple[int, ...]]
    """Value → its dimensions from outermost to innermost in memory, where that is not their own order."""
    scopes: list[dict[tuple[str, Index], str]] = field(default_factory=lambda: [{}])
    lines: list[list[str]] = field(default_factory=lambda: [[]])
    accesses: list[Access] = field(default_factory=list)
    pinned: set[Axis] = field(default_factory=set)
    """Axes whose own index is read."""
    pointers: dict[str, str] = field(default_factory=dict)
    """Value in memory → its pointer."""
    descriptors: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Parameter that is a tensor descriptor → the value in memory that it describes, and Python that makes it."""
    sizes: list[Size] = field(default_factory=list)
    """Sizes that are read as numbers."""
    numbers: dict[tuple[float, ...], str] = field(default_factory=dict)
    """Numbers that differ between the sets → the argument that brings them."""
    used: set[str] = field(default_factory=set)
    outside: list[set[str]] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    """Names that stay taken behind a loop: accumulators."""
    named: set[str] = field(default_factory=set)
    """Every name that was ever given, in loops that are closed too: none of them may be an index of the program."""
    unrolled: int = 1
    """Turns of the loops around what is said, of those that are unrolled."""
    parts: dict[str, int] = field(default_factory=dict)
    """Values that lie in memory as so many parts, whose sum they are."""
    inside: list[str] = field(default_factory=list)
    """Further masks of loads: inside of a padded image."""
    reach: dict[Axis, int] = field(default_factory=dict)
    """Axes along which windows lie → the number of neighbours that are read."""
    places: dict[str, Ix] = field(default_factory=dict)
    """Variables that hold an index into a padded dimension → the index that they follow but for the edge."""

    @property
    def program(self):
        return self.schedule.plan.program

    def open(self) -> None:
        """Begin the body of a loop."""
        self.scopes.append({})
        self.lines.append([])
        self.outside.append(set(self.used))

    def close(self) -> list[str]:
        """End the body of a loop; returns its lines. Names of the loop are free again, what was said in front of it stays."""
        self.scopes.pop()
        self.used = self.outside.pop() | {v for scope in self.scopes for v in scope.values()} | self.fixed
        return self.lines.pop()

    def close_into(self, head: str) -> None:
        """End the body of a loop over the reduced elements, and put the loop in front."""
        inner = self.close()
        self.say(head, 0)
        self.say("    @over@", 0)
        for line in inner:
            self.say("    " + line, 0)

    def say(self, line: str, scope: int = -1) -> None:
        self.lines[scope].append(line)

    def name(self, value: str) -> str:
        """A variable for a value: its own name, numbered where that is taken."""
        base = value.removesuffix("_keep").removesuffix("_view")
        name, number = base, 1
        while name in self.used:
            number += 1
            name = f"{base}_{number}"
        self.used.add(name)
        self.named.add(name)
        return name

    def layout(self, value: str) -> Index:
        return tuple(Ix(dim) for dim in self.group.layouts[value])

    def at(self, value: str, index: Index) -> str:
        """The variable that holds a value at an index."""
        for scope in reversed(self.scopes):
            if (value, index) in scope:
                return scope[value, index]
        op = self.schedule.plan.giver.get(value)
        own = value in self.group.members and index == self.layout(value)
        root = None if own else self._memory(value)
        if root and root not in self.group.members:  # what this very kernel writes is not yet there to be read
            return self._load(value, root, index)
        assert op is not None
        if op.kind == "view":
            return self.at(op.reads[0], index_through(op, index, self.program, self.group))
        if op.kind == "reduce":
            if not own:
                raise BarrierError(value)
            return self.reduce(op, value)
        if op.kind == "window":
            return padded(self, op, index) if op.how.startswith("pad") else window(self, op, index)
        return self._keep(value, index, self.text(op, index))

    def text(self, op: Op, index: Index) -> str:
        """A point's expression."""
        shape = self.program.shapes[op.value]
        return op.text.format(*(self._operand(o, index, shape) for o in op.operands))

    def _operand(self, operand: Operand, index: Index, shape: Shape) -> str:
        if isinstance(operand, str):
            own = self.program.shapes[operand]
            gap = len(shape) - len(own)
            return self.at(operand, tuple(Ix() if is_one(s) else index[d + gap] for d, s in enumerate(own)))
        if isinstance(operand, Count):
            return self.size(operand.size)
        if isinstance(operand, Varies):
            return self.numbers.setdefault(operand.values, f"number{len(self.numbers) or ''}")
        return literal(operand)

    def size(self, size: Size) -> str:
        """A size as a number."""
        self.sizes.append(size)
        return f"@size{len(self.sizes) - 1}@"

    def _scope(self, index: Index) -> int:
        """Where a value belongs: in front of the loops, unless it changes in them."""
        changes = any(i.extra for i in index) or any(a in self.tile.reduced for i in index for a in i.parts)
        return len(self.scopes) - 1 if changes else 0

    def _keep(self, value: str, index: Index, text: str) -> str:
        scope = self._scope(index)
        if text.isidentifier():
            variable = text
        else:
            variable = self.name(value)
            self.say(f"{variable} = {text}", scope)
        self.scopes[scope][value, index] = variable
        return variable

    # memory

    def _memory(self, value: str) -> str | None:
        """The tensor in memory of which a value is all elements in order."""
        name = value
        while not self.schedule.in_memory(name):
            op = self.schedule.plan.giver[name]
            if op.kind != "view" or op.how != "reshape":
                return None
            name = op.reads[0]
        return None if name != value and name in self.orders else name

    def place(self, shape: Shape, order: Sequence[int], index: Index) -> str:
        """A mark for the place of an element in a tensor of this shape, its dimensions in this order in memory."""
        strides: dict[int, Size] = {}
        stride: Size = (1,) * self.program.sets
        for d in reversed(order):
            strides[d], stride = stride, times(stride, shape[d])
        factors: dict[Axis, Size] = {}
        constants: list[tuple[Size, Size]] = []
        extra: list[tuple[str, Size]] = []
        follows: dict[Axis, Size] = {}
        for d, i in enumerate(index):
            _add(factors, i, strides[d])
            if i.offset:
                constants.append((i.offset, strides[d]))
            for name, by in i.extra:
                extra.append((name, tuple(n * by for n in strides[d])))
                if name in self.places:
                    _add(follows, self.places[name], extra[-1][1])
        apart = {i.parts[0] for i in index if i.step != 1 and i.parts}
        self.accesses.append(Access(factors, tuple(constants), tuple(extra), apart, follows))
        return f"@at{len(self.accesses) - 1}@"

    def pointer(self, value: str) -> str:
        """The parameter that points to a tensor."""
        return self.pointers.setdefault(value, f"{value}_ptr")

    def _load(self, value: str, root: str, index: Index) -> str:
        shape = self.program.shapes[value]
        order = self.orders.get(value, range(len(shape))) if value == root else range(len(shape))
        place = self.place(shape, list(order), index)
        inside = self.inside if self._scope(index) else []  # what is read in front of a loop knows nothing of its variables
        masks = list(dict.fromkeys(m for m in (self.tile.mask({a for i in index for a in i.parts}), *inside) if m))
        if len(masks) > 1:
            masks = [m if m.isidentifier() or m.startswith("(") else f"({m})" for m in masks]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if root in self.parts:
            return self._sum(value, root, index, place, mask)
        pointer = self.pointer(root)
        cast = ".to(tl.float32)" if self.program.dtypes[value] in COMPUTED else ""  # others would lose digits
        target = f"{pointer} + {place}" if place_moves(self.accesses[-1]) else pointer
        return self._keep(value, index, f"tl.load({target}{mask}){cast}")

    def _sum(self, value: str, root: str, index: Index, place: str, mask: str) -> str:
        """A value of which memory has parts."""
        scope, pointer = self._scope(index), self.pointer(f"{root}_parts")
        size = self.size(times((1,) * self.program.sets, *self.program.shapes[root]))
        variable = self._keep(value, index, f"tl.load({pointer} + {place}{mask})")
        self.say(f"for part in tl.static_range(1, {self.parts[root]}):", scope)
        self.say(f"    {variable} += tl.load({pointer} + part * {size} + {place}{mask})", scope)
        return variable

    def store(self, value: str) -> None:
        """Write a member of the group."""
        index = self.layout(value)
        variable = self.at(value, index)
        shape = self.program.shapes[value]
        place = self.place(shape, list(self.orders.get(value, range(len(shape)))), index)
        mask = self.tile.mask({a for i in index for a in i.parts})
        pointer = self.pointer(value)
        target = f"{pointer} + {place}" if place_moves(self.accesses[-1]) else self.single(pointer)
        self.say(f"tl.store({target}, {variable}{f', mask={mask}' if mask else ''})")

    def single(self, pointer: str) -> str:
        """Where the only element of a tensor is stored."""
        return pointer

    # windows

    def coordinate(self, i: Ix) -> str:
        """An index as text."""
        text = ""
        for axis in i.parts:
            self.pinned.add(axis)
            mark = f"@axis{self.group.axes.index(axis)}@"
            text = mark if not text else f"({text}) * {self.size(axis.size)} + {mark}"
        text = f"({text})" if len(i.parts) > 1 and i.step != 1 else text or "0"
        if i.step != 1:
            text = f"{text} * {i.step}"
        for name, by in i.extra:
            text += f" + {name}" if by == 1 else f" + {name} * {by}"
        if i.offset:
            n = i.offset[0]
            text += f" - {-n}" if n < 0 else f" + {self.size(i.offset)}"
        return text

    # reductions

    def reduce(self, op: Op, value: str) -> str:
        """A reduction over a tile that holds all of it."""
        operand = op.reads[0]
        x = self.at(operand, self.layout(operand))
        mask = self.tile.mask(set(self.group.axes))

        def kept(result: int, text: str) -> str:
            variable = self.name(op.results[result])
            self.say(f"{variable} = {text}", 0)
            self.scopes[0][op.results[result], self.layout(op.results[result])] = variable
            return variable

        def masked(text: str, other: str) -> str:
            return f"tl.where({mask}, {text}, {other})" if mask else text

        if op.how in ("sum", "max", "min"):
            kept(0, self.tile.fold(op.how, masked(x, NEUTRAL[op.how])))
        elif op.how == "expsum":
            top = kept(0, self.tile.fold("max", masked(x, NEUTRAL["max"])))
            kept(1, self.tile.fold("sum", masked(f"tl.exp({x} - {top})", "0.0")))
        else:
            n = self.size(times((1,) * self.program.sets, *(a.size for a in self.group.reduced)))
            mean = kept(0, f"{self.tile.fold('sum', masked(x, '0.0'))} / {n}")
            d = self._keep(f"{op.value}_off", self.layout(operand), masked(f"{x} - {mean}", "0.0"))
            kept(1, self.tile.fold("sum", f"{d} * {d}"))
        return self.scopes[0][value, self.layout(value)]


def _add(factors: dict[Axis, Size], i: Ix, stride: Size) -> None:
    """Add how far the axes of an index go along a dimension with this stride."""
    inner = tuple(n * i.step for n in stride)
    for axis in reversed(i.parts):
        factors[axis] = tuple(a + b for a, b in zip(factors.get(axis, (0,) * len(inner)), inner, strict=True))
        inner = times(inner, axis.size)
