"""Kernels whose programs hold all that several reductions go over: one load, statistics along either side, one store."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from kernrl.tasks.solutions.from_graph.codegen.assembly import Assembly, Kernel, filled
from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Access, Flat, Sizes, address, wrapped
from kernrl.tasks.solutions.from_graph.codegen.layouts import Layout, power, total
from kernrl.tasks.solutions.from_graph.codegen.view_index import RestartError
from kernrl.tasks.solutions.from_graph.codegen.windows import NEUTRAL
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.fusion.tiles import MOST_HELD, reduced_axes
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Names

SIDES = "ijk"
LEAST_ACROSS = 8
"""Of neighbours in memory that belong to different sets, how many a program has at least: 32 bytes."""


@dataclass
class TileSides(Layout):
    """A tile of several sides: the kept one, which counts sets, and one for axes that are always reduced together."""

    sides: list[Flat] = field(default_factory=list)
    """In the order of the tile's dimensions; `kept` is among them."""

    @property
    def flats(self) -> list[Flat]:
        return self.sides

    def mask(self, axes: set[Axis]) -> str:
        """Bounds of the sides that are crossed."""
        crossed = [flat.variable for flat in self.sides if axes & set(flat.axes)]
        if len(crossed) == sum(bool(flat.axes) for flat in self.sides):
            return "mask"
        bounds = [f"{name} < @{name}@" for name in crossed]
        return bounds[0] if len(bounds) == 1 else " & ".join(f"({b})" for b in bounds)

    def reduction(self, how: str, text: str, axes: frozenset[Axis]) -> str:
        """A reduction over the sides that have these axes."""
        for at, flat in enumerate(self.sides):
            if axes & set(flat.axes):
                text = f"tl.{how}({text}, axis={at}, keep_dims=True)"
        return text


@dataclass
class TileSidesBody(Body):
    """A body in which each reduction has axes of its own."""

    def reduce(self, op: Op, value: str) -> str:
        assert isinstance(self.tile, TileSides)
        operand, index = op.reads[0], self.layout(op.value)
        x = self.at(operand, self.layout(operand))
        mask = self.tile.mask({a for dim in self.group.layouts[operand] for a in dim})
        text = self.tile.reduction(op.how, f"tl.where({mask}, {x}, {NEUTRAL[op.how]})", reduced_axes(op, self.group))
        variable = self.name(op.value)
        self.say(f"{variable} = {text}", 0)
        self.scopes[0][op.value, index] = variable
        return variable

    def single(self, pointer: str) -> str:
        """A reduction leaves a tile of one element, which no plain pointer takes."""
        return f"{pointer} + row"


def write_tile(schedule: Schedule, group: Group, names: Names, orders: dict[str, tuple[int, ...]], name: str) -> Kernel:
    """The kernel of a group whose reductions go over different axes.

    Raises:
        BarrierError: A value must be in memory.
        CannotWriteError: No program can hold it.
    """
    for _ in range(64):
        try:
            return _TileWriter(schedule, group, names, orders, name).write()
        except RestartError:
            continue
    raise CannotWriteError("axes were split for ever")


class _TileWriter:
    def __init__(self, schedule: Schedule, group: Group, names: Names, orders: dict[str, tuple[int, ...]], name: str) -> None:
        self.s, self.group, self.names, self.orders, self.name = schedule, group, names, orders, name
        self.sets = schedule.plan.program.sets
        self.outputs = [v for v in group.members if v in schedule.stored]

    def write(self) -> Kernel:
        """The kernel."""
        largest = self._largest()
        sides = self._sides(largest)
        held = prod(power(total(axes, self.sets)[0]) for axes in sides)
        kept = sorted(self.group.kept, key=lambda a: -largest.factors.get(a, (1 << 62,))[0])
        across = bool(kept) and _stride(kept, largest) < min((_stride(s, largest) for s in sides), default=1 << 62)
        sets = min(
            power(total(kept, self.sets)[0]),
            max(LEAST_ACROSS, min(32, 8192 // held)) if across else max(1, min(16, 1024 // held)),
        )
        if held * sets > MOST_HELD or len(sides) > len(SIDES):
            raise CannotWriteError("no program can hold what is reduced")
        row = Flat("row", kept)
        flats = [Flat(v, axes) for v, axes in zip(SIDES, sides, strict=False)]
        layout = TileSides(row, None, "", sides=[*flats, row] if across else [row, *flats])
        layout.reduced = set(self.group.reduced)
        layout.shape = f"[{', '.join('ROWS' if f is row else f'BLOCK_{f.variable.upper()}' for f in layout.sides)}]"
        body = self._body(layout)
        for output in self.outputs:
            body.store(output)
        return self._kernel(body, layout, sets, held * sets)

    def _body(self, layout: Layout) -> Body:
        used = {"x", "mask", "row", "pid", *SIDES}
        return TileSidesBody(self.s, self.group, layout, self.orders, used=used)

    def _largest(self) -> Access:
        """The access to the most elements."""
        sides = [Flat(v, [a]) for v, a in zip(range(len(self.group.axes)), self.group.axes, strict=True)]  # pyright: ignore[reportArgumentType]
        dry = self._body(TileSides(sides[0] if sides else Flat("row", []), None, "", sides=sides))
        for output in self.outputs:
            dry.store(output)
        return max(dry.accesses, key=lambda a: prod(x.size[0] for x in a.factors))

    def _sides(self, largest: Access) -> list[list[Axis]]:
        """Axes that are always reduced together, the outermost in memory first."""
        sets = list(dict.fromkeys(reduced_axes(op, self.group) for op in self.group.reductions))
        found: dict[tuple[bool, ...], list[Axis]] = {}
        for axis in self.group.reduced:
            found.setdefault(tuple(axis in s for s in sets), []).append(axis)
        sides = [sorted(axes, key=lambda a: -largest.factors.get(a, (1 << 62,))[0]) for axes in found.values()]
        return sorted(sides, key=lambda axes: -_stride(axes, largest))

    def _kernel(self, body: Body, layout: TileSides, sets: int, held: int) -> Kernel:
        rank = len(layout.sides)
        blocks, lines = {"ROWS": str(sets)}, list[str]()
        for at, flat in enumerate(layout.sides):
            spread = f"[{', '.join(':' if d == at else 'None' for d in range(rank))}]" if rank > 1 else ""
            if flat is layout.kept:
                lines.append(f"row = tl.program_id(0) * ROWS + tl.arange(0, ROWS){spread}")
                continue
            block = f"BLOCK_{flat.variable.upper()}"
            blocks[block] = f"triton.next_power_of_2({self.names.expression(total(flat.axes, self.sets))})"
            lines.append(f"{flat.variable} = tl.arange(0, {block}){spread}")
        lines.append("mask = " + " & ".join(f"({f.variable} < @{f.variable}@)" for f in layout.sides if f.axes))
        sizes = Sizes(self.names, body.used | body.named | set(body.pointers.values()) | set(blocks))
        marks = {f"@{f.variable}@": wrapped(sizes.text(total(f.axes, self.sets))) for f in layout.sides}
        marks |= {f"@size{i}@": sizes.text(size) for i, size in enumerate(body.sizes)}
        crossed = {a for access in body.accesses for a, f in access.factors.items() if any(f)} | body.pinned
        for flat in layout.sides:
            flat.merge(body.accesses, body.pinned)
            for axis in flat.axes if len(flat.runs) > 1 else ():
                sizes.text(axis.size)
            lines += flat.define(sizes, crossed)
        marks |= {f"@at{i}@": address(access, layout.sides, sizes) for i, access in enumerate(body.accesses)}
        for i, axis in enumerate(self.group.axes):
            for flat in layout.sides:
                if (run := flat.run_of(axis)) is not None:
                    marks[f"@axis{i}@"] = flat.variables[run]
        count = self.names.expression(total(layout.kept.axes, self.sets))
        grid = f"(triton.cdiv({count}, {sets}),)" if sets > 1 else f"({count},)"
        warps = max(4 if held >= 1024 else 1, min(32, held // (512 if held <= 8192 else 1024)))
        assembly = Assembly(self.names, self.name, self.outputs, self.group, ["tile"], self.sets, constant=True)
        made = assembly.kernel(body, sizes, filled([*lines, *body.lines[0]], marks), blocks, warps, grid, (1,) * self.sets)
        made.programs = -(-total(layout.kept.axes, self.sets)[0] // sets)
        made.elements = total(self.group.axes, self.sets)[0]
        return made


def _stride(axes: list[Axis], access: Access) -> int:
    """From one element to the next along the innermost of these axes."""
    return min((access.factors[a][0] for a in axes if a in access.factors), default=1 << 62)
