"""A tile of a matrix product: its index, its masks, and a body in which the product is a variable."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field

from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Flat
from kernrl.tasks.solutions.from_graph.codegen.layouts import Layout
from kernrl.tasks.solutions.from_graph.codegen.view_index import Index, index_through
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis

OWN_NAMES = (
    *("x", "m", "n", "ka", "kb", "acc", "mask", "start", "plane", "pid", "part", "row", "cols", "tiles_m", "tiles_n"),
    *("band", "height", "inside", "pid_m", "pid_n", "step", "chunks", "tap", "valid", "left", "right", "half"),
    *("steps", "share", "begin", "end", "first", "last", "empty"),
    *(f"{d}_{what}" for d in "zyx" for what in ("in", "at")),
    *(f"{what}_{d}" for d in "zyx" for what in ("tap", "first", "count")),
)
"""Variables of a product's loop."""


ASSIGNED = re.compile(r"(\w+) = (.*)$")
PLACE = re.compile(r"(\w+) \+ @at(\d+)@")
WORD = re.compile(r"[A-Za-z_]\w*")


class NoTailError(Exception):
    """The tail cannot be computed on a tile of the product."""


@dataclass
class TileLayout(Layout):
    """A tile of rows and columns, and while the loop runs the depth: `[m, ka]` of one operand, `[kb, n]` of the other."""

    sides: dict[str, Flat] = field(default_factory=dict)

    @property
    def flats(self) -> list[Flat]:
        return list(self.sides.values())

    def mask(self, axes: set[Axis]) -> str:
        """Bounds of the sides that are crossed."""
        crossed = [name for name, flat in self.sides.items() if name != "plane" and axes & set(flat.axes)]
        if crossed == ["m", "n"]:
            return "mask"
        bounds = [f"{name} < @{name}@" for name in crossed]
        return bounds[0] if len(bounds) == 1 else " & ".join(f"({b})" for b in bounds)


@dataclass
class TileBody(Body):
    """A body in which the product is a variable."""

    product: str = ""
    found: Index | None = None
    """Where the product is read."""

    def _memory(self, value: str) -> str | None:
        if value == self.product:
            return value
        root = super()._memory(value)
        return None if root == self.product else root

    def _load(self, value: str, root: str, index: Index) -> str:
        if value == self.product:
            if self.found not in (None, index):
                raise NoTailError("it reads the product at two places")
            self.found = index
            return "acc"
        return super()._load(value, root, index)

    def operand(self, value: str, index: Index) -> tuple[str, str, Index]:
        """(the tensor in memory that holds an operand, what of its views has all its elements in order, the index there)."""
        while (root := self._memory(value)) is None:
            op = self.schedule.plan.giver[value]
            if op.kind != "view" or value == self.product:
                raise NoTailError("an operand is no tensor in memory")
            value, index = op.reads[0], index_through(op, index, self.program, self.group)
        if root in self.group.members:
            raise NoTailError("an operand is no tensor in memory")
        return root, value, index

    def factor(self, value: str, index: Index) -> str:
        """A tile of an operand in its own type, zero outside."""
        variable = self.at(value, index)
        name, _, text = (self.lines[-1].pop() if self.lines[-1] else "").partition(" = ")
        if name != variable or not text.startswith("tl.load("):
            raise NoTailError("an operand is no tensor in memory")
        self.say(f"{name} = {text.removesuffix('.to(tl.float32)').removesuffix(')')}, other=0.0)")
        return variable


@dataclass(frozen=True, slots=True)
class Beside:
    """What a tail reads besides the product."""

    tiles: frozenset[str]
    """Tensors of the tile's shape."""
    spread: bool
    """A vector along the columns meets one of them before the product does.

    Triton then computes there in the layout of loads, and brings the accumulator into it as it is, in float32; what is read or
    stored alone is turned in its own type.
    """


def beside(body: TileBody, m: Set[Axis], n: Set[Axis]) -> Beside:
    """What the tail that a body holds reads besides the product, whose rows and columns are these axes."""
    values, of_product = {pointer: value for value, pointer in body.pointers.items()}, {"acc"}
    crossed: dict[str, set[Axis]] = {}  # name of what does not depend on the product → its axes
    vectors, tiles, spread = set[str](), set[str](), False
    for line in body.lines[0]:
        if (assigned := ASSIGNED.match(line)) is None:
            continue
        name, words = assigned[1], set(WORD.findall(assigned[2]))
        loads = [(values[pointer], set(body.accesses[int(at)].along)) for pointer, at in PLACE.findall(line)]
        tiles |= {value for value, axes in loads if axes & m and axes & n}
        if words & of_product:
            of_product.add(name)
            continue
        crossed[name] = {a for _, axes in loads for a in axes} | {a for w in words & set(crossed) for a in crossed[w]}
        if words & vectors or any(axes & n and not axes & m for _, axes in loads):
            vectors.add(name)
            spread |= bool(crossed[name] & m)
    return Beside(frozenset(tiles), spread)
