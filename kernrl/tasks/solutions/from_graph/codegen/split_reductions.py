"""Reductions of sets that several programs share: parts of each set, and a second kernel that puts them together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernrl.tasks.solutions.from_graph.codegen.accumulate import accumulate, missing_parts, parts_of_tile, parts_text, settle
from kernrl.tasks.solutions.from_graph.codegen.assembly import Assembly, Kernel
from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Access
from kernrl.tasks.solutions.from_graph.codegen.layouts import Layout, columns_layout, power, row_layout, total
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import MULTIPROCESSORS, steps_ahead
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op
from kernrl.tasks.solutions.from_graph.lowering.sizes import Names


@dataclass(frozen=True, slots=True)
class Choice:
    """How kernels are laid out; a kernel that cannot follow takes the nearest that it can."""

    whole: int = 16384
    """Longest reduced set that is held in registers; longer ones are walked."""
    several: bool = False
    """Several rows a program, where rows are short."""
    persistent: bool = False
    """Pointwise kernels of a fixed number of programs."""
    block: int = 1024
    stages: int = 0
    """Loops load so many steps ahead, and rows are taken one after the other by programs that stay; 0: neither."""
    split: int = 0
    """In how many parts long reductions are cut; 0: in none."""
    lean: bool = False
    """Parts of reductions are held in registers, and tiles waste nothing: for speed alone."""


PART, MOST_PARTS = 8192, 8192
"""Elements that a program has in registers of a set that is cut, and into how many such parts."""
WANTED_PROGRAMS = 1056
"""How many programs a reduction is cut into where its sets are few."""
FILLING_PROGRAMS = 2 * MULTIPROCESSORS
"""With fewer programs a reduction that walks over memory does not reach its bandwidth."""
LEAST_ACROSS = 16
"""Of neighbours in memory that belong to different sets, how many a program that walks has at least: 64 bytes."""


class SplitWriter(ABC):
    """Writes the two kernels of reductions that are cut."""

    group: Group
    names: Names
    choice: Choice
    name: str
    sets: int
    outputs: list[str]
    traits: list[str]
    assembly: Assembly

    @abstractmethod
    def body(self, layout: Layout) -> Body:
        """An empty body on a tile."""

    @abstractmethod
    def depths(self) -> dict[str, int]:
        """The members that the outputs need → how many reductions deep each one lies."""

    @abstractmethod
    def needed_reductions(self) -> dict[str, int]:
        """The reductions among them."""

    def full_outputs(self) -> list[str]:
        """What is written of every element that is reduced."""
        return [v for v in self.outputs if any(a in self.group.reduced for dim in self.group.layouts[v] for a in dim)]

    def inner(self, body: Body) -> bool:
        """The reduced elements of a set are neighbours in memory."""
        big = max((a for a in body.accesses), key=lambda a: (prod(x.size[0] for x in a.factors), a is body.accesses[0]))
        axis = min((a for a in big.factors), key=lambda a: big.factors[a][0], default=None)
        return axis is None or axis in self.group.reduced or not self.group.kept

    def steps_ahead(self, body: Body, over: list[Axis], blocks: dict[str, str]) -> int:
        """How many stages a walk has, whose body this is: as many as are wanted, or as what a step loads leaves room for."""
        loads = sum(bool(set(over) & set(a.along)) for a in body.accesses) - len(self.full_outputs())
        return steps_ahead(self.choice.stages, 4 * loads * prod(map(int, blocks.values())))

    def across(self, rows: int, most: int) -> int:
        """How many sets side by side a program walks over, so that there are enough programs."""
        across = most
        while across > LEAST_ACROSS and -(-rows // across) < FILLING_PROGRAMS:
            across //= 2
        return across

    def split(self) -> list[Kernel] | None:
        """Parts of each set by a program each, and a second kernel that puts them together; None where one will do.

        What is written of every element is written by the first, unless it needs what the second one makes."""
        levels = self.needed_reductions()
        n, rows = (prod(a.size[0] for a in axes) for axes in (self.group.reduced, self.group.kept))
        depths, cut = self.depths(), self.choice.split or self.choice.lean
        if not cut or max(levels.values()) > 1 or any(depths[v] for v in self.full_outputs()):
            return None
        dry = self.body(row_layout(self.group.kept, list(self.group.reduced), False))
        for output in self.outputs:
            dry.store(output)
        reference = max(dry.accesses, key=lambda a: prod(x.size[0] for x in a.factors))
        kept, over = ordered(self.group.kept, [reference]), ordered(list(self.group.reduced), [reference])
        inner = self.inner(dry)
        if not self.choice.split and (inner or rows >= FILLING_PROGRAMS * LEAST_ACROSS):
            return None
        across = 1 if inner else max(8, min(64, power(rows)))
        # eight programs for each of some 132 multiprocessors, and four chunks or more for each program
        if self.choice.lean:
            return self._tiled_parts(kept, over, inner, n, rows)
        wanted = WANTED_PROGRAMS * across // rows
        most = n // (4 * (1024 if inner else max(16, 2048 // across)))
        parts = 1 << (min(self.choice.split, wanted, most).bit_length() - 1) if wanted and most else 0
        if parts < 4:
            return None
        self.traits.append(f"split{parts}")
        ops = list({id(op): op for op in (self.group.members[v] for v in levels)}.values())
        return [self._parts(ops, kept, over, inner, across, parts), self.settled(ops, kept, over, str(parts), parts)]

    def _tiled_parts(self, kept: list[Axis], over: list[Axis], inner: bool, n: int, rows: int) -> list[Kernel] | None:
        """Each program has a chunk of its set in registers."""
        across = 1 if inner else max(8, min(32, power(rows)))
        step = PART // across
        if n < 2 * step:
            return None
        ops = list({id(op): op for op in (self.group.members[v] for v in self.needed_reductions())}.values())
        layout = (row_layout if inner else columns_layout)(kept, over, True)
        body = self.body(layout)
        body.used.add("part")
        most = max(-(-size // step) for size in total(over, self.sets))
        if most > MOST_PARTS:
            return None
        self.traits.append("parts")
        partials: dict[str, str] = {}
        count, sets = (
            f"triton.cdiv({self.names.expression(total(over, self.sets))}, {step})",
            self.names.expression(total(kept, self.sets)),
        )
        index, mask = ("row", "") if inner else ("cols", ", mask=cols < @total@")
        for op in ops:
            for i, text in enumerate(parts_of_tile(body, op)):
                name = f"{op.value}_part{i or ''}"
                partials[name] = f"({count}, {sets})"
                body.say(f"tl.store({body.pointer(name)} + part * @rows@ + {index}, {text}{mask})")
        for output in self.full_outputs():
            body.store(output)
        lines = [
            "@kept@",
            "part = tl.program_id(1)",
            f"start = part * {'BLOCK' if inner else 'ROWS'}",
            "@over@",
            *body.lines[0],
        ]
        blocks = {"BLOCK": str(step)} if inner else {"ROWS": str(step), "BLOCK": str(across)}
        made = self.assembly.finish(body, layout, lines, blocks, "", 8, "each" if inner else "columns")
        made.grid = f"{made.grid.removesuffix(')').removesuffix(',')}, {count})"
        made.writes, made.partials, made.programs = self.full_outputs(), partials, made.programs * most
        made.name, made.source = f"{self.name}_parts", made.source.replace(f"def {self.name}(", f"def {self.name}_parts(")
        return [made, self.settled(ops, kept, over, count, most)]

    def _parts(self, ops: list[Op], kept: list[Axis], over: list[Axis], inner: bool, across: int, parts: int) -> Kernel:
        """Each program walks every `parts`-th chunk of its set and writes what came of it."""
        layout = (row_layout if inner else columns_layout)(kept, over, True)
        body, step = self.body(layout), "BLOCK" if inner else "ROWS"
        body.used.add("part")
        body.open()
        after = [(op, accumulate(body, op, self.traits)) for op in ops]
        for output in self.full_outputs():
            body.store(output)
        block = {"BLOCK": "1024"} if inner else {"ROWS": str(max(16, 2048 // across)), "BLOCK": str(across)}
        ahead = self.steps_ahead(body, over, block)
        stages = f", num_stages={ahead}" if ahead else ""
        loop = "tl.range" if stages else "range"
        body.close_into(f"for start in {loop}(part * {step}, @over@, {parts} * {step}{stages}):")
        index, mask = ("row", "") if inner else ("cols", ", mask=cols < @total@")
        partials: dict[str, str] = {}
        rows = self.names.expression(total(kept, self.sets))
        for op, names in after:
            for i, text in enumerate(parts_text(op, names, layout.fold)):
                name = f"{op.value}_part{i or ''}"
                partials[name] = f"({parts}, {rows})"
                body.say(f"tl.store({body.pointer(name)} + part * @rows@ + {index}, {text}{mask})", 0)
        lines = ["@kept@", "part = tl.program_id(1)", *body.lines[0]]
        made = self.assembly.finish(body, layout, lines, block, "", 4, "each" if inner else "columns")
        made.grid = f"{made.grid.removesuffix(')').removesuffix(',')}, {parts})"
        made.writes, made.partials, made.programs = self.full_outputs(), partials, made.programs * parts
        made.name, made.source = f"{self.name}_parts", made.source.replace(f"def {self.name}(", f"def {self.name}_parts(")
        return made

    def settled(self, ops: list[Op], kept: list[Axis], over: list[Axis], count: str, most: int) -> Kernel:
        """One value of each set's parts, and what follows from it.

        Args:
            count: Python of how many parts there are; a number where they fill a power of two.
            most: How many there are at most.
        """
        layout = (columns_layout if kept else row_layout)(kept, over, False)
        body = self.body(layout)
        body.used.add("part")
        exact = count.isdigit()
        width, bound = (count, count) if exact else ("PARTS", "COUNT")
        body.say(f"part = tl.arange(0, {width}){'[:, None]' if kept else ''}", 0)
        place = f"part * @rows@ + cols, mask=(part < {bound}) & (cols < @total@)" if kept else "part"
        if not kept and not exact:
            place += f", mask=part < {bound}"
        for op in ops:
            loaded = []
            for i, missing in enumerate(missing_parts(op)):
                pointer, name = body.pointer(f"{op.value}_part{i or ''}"), body.name(f"{op.value}_part{i or ''}")
                other = "" if exact else f", other={missing}"
                body.say(f"{name} = tl.load({pointer} + {place}{other})", 0)
                loaded.append(name)
            settle(body, op, loaded)
        small = [v for v in self.outputs if v not in self.full_outputs()]
        for output in small:
            body.store(output)
        rows = prod(a.size[0] for a in kept)
        blocks = {"BLOCK": str(max(1, min(64, power(rows), max(1, 8192 // power(most)))))}
        if not exact:
            blocks |= {"PARTS": f"triton.next_power_of_2({count})", "COUNT": count}
        made = self.assembly.finish(body, layout, ["@kept@", *body.lines[0]], blocks, "", 4, "columns" if kept else "each")
        made.writes = small
        return made


def ordered(axes: list[Axis], accesses: Sequence[Access]) -> list[Axis]:
    """Axes from outermost to innermost in the memory that an access goes to; those that it does not cross first."""

    def stride(axis: Axis) -> int:
        return -max((a.factors.get(axis, (1 << 62,))[0] for a in accesses), default=0)

    return sorted(axes, key=stride)
