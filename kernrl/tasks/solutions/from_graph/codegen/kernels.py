"""Kernels: how a group's programs are laid over its space, and the text that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernrl.tasks.solutions.from_graph.codegen.accumulate import accumulate, missing_parts, parts_of_tile, parts_text, settle
from kernrl.tasks.solutions.from_graph.codegen.assembly import Assembly, Kernel
from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Access, Flat
from kernrl.tasks.solutions.from_graph.codegen.layouts import (
    Layout,
    columns_layout,
    flat_layout,
    plane_layout,
    power,
    row_layout,
    rows_layout,
    total,
)
from kernrl.tasks.solutions.from_graph.codegen.row_chains import LEAST_STEPS, chain_layout, chain_lines, hoisted, rows_of
from kernrl.tasks.solutions.from_graph.codegen.view_index import RestartError
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op
from kernrl.tasks.solutions.from_graph.lowering.sizes import Names

__all__ = ["Choice", "Kernel", "write_kernel"]


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


class GroupWriter:
    """Writes the kernel of one group."""

    def __init__(
        self,
        schedule: Schedule,
        group: Group,
        names: Names,
        choice: Choice,
        orders: dict[str, tuple[int, ...]],
        name: str,
        parts: dict[str, int] | None = None,
    ):
        self.parts = parts or {}
        self.ahead = 0
        """How many steps ahead a walk loads."""
        self.s, self.group, self.names, self.choice, self.orders, self.name = schedule, group, names, choice, orders, name
        self.sets = schedule.plan.program.sets
        self.outputs = [v for v in group.members if v in schedule.stored]
        self.traits: list[str] = []
        self.assembly = Assembly(names, name, self.outputs, group, self.traits, self.sets, choice.persistent, choice.lean)

    def body(self, layout: Layout) -> Body:
        """An empty body on a tile."""
        used = {"x", "offs", "row", "cols", "mask", "start", "acc", *(["part"] if self.parts else [])}
        return Body(self.s, self.group, layout, self.orders, used=used, parts=self.parts)

    def write(self) -> list[Kernel]:
        """The kernel, or two where a reduction is split; axes are split until none has to be."""
        for _ in range(64):
            self.traits.clear()
            try:
                if not self.needed_reductions():
                    return [self._pointwise()]
                return self._split() or [self._reducing()]
            except RestartError:
                continue
        raise AssertionError("axes were split for ever")

    # what is needed

    def _root(self, value: str) -> str:
        while (op := self.s.plan.giver.get(value)) and op.kind == "view":
            value = op.reads[0]
        return value

    def needed_reductions(self) -> dict[str, int]:
        """Reductions that the outputs need → how many reductions deep each one lies."""
        levels: dict[str, int] = {}

        def level(value: str) -> int:
            value = self._root(value)
            op = self.group.members.get(value)
            if op is None:
                return 0
            if value not in levels:
                below = max((level(r) for r in op.reads), default=0)
                for result in op.results:
                    levels[result] = below + (op.kind == "reduce")
            return levels[value]

        for output in self.outputs:
            level(output)
        return {v: n for v, n in levels.items() if self.group.members[v].kind == "reduce"}

    # pointwise kernels

    def _pointwise(self) -> Kernel:
        axes = list(self.group.axes)
        body = self.body(flat_layout(axes))
        for output in self.outputs:
            body.store(output)
        order = _ordered(axes, [body.accesses[-1]])
        if plane := self._plane(body, order):
            return plane
        layout = flat_layout(order)
        persistent = self.choice.persistent
        start = "start" if persistent else "tl.program_id(0) * BLOCK"
        lines = ["@kept@", *body.lines[0]]
        if persistent:
            self.traits.append("persistent")
            loop = "for start in range(tl.program_id(0) * BLOCK, @total@, tl.num_programs(0) * BLOCK):"
            lines = [loop, *("    " + line for line in lines)]
        n = prod(a.size[0] for a in axes)
        block = min(self.choice.block, max(128, power(n)))
        return self.assembly.finish(body, layout, lines, {"BLOCK": str(block)}, start, 8 if block > 2048 else 4)

    def _plane(self, dry: Body, order: list[Axis]) -> Kernel | None:
        """A kernel that turns a tensor round on its way, where what it reads has another axis innermost."""
        stored = dry.accesses[-1]
        full = [a for a in dry.accesses if prod(x.size[0] for x in a.along) == prod(x.size[0] for x in order)]
        if dry.pinned and len(dry.accesses) > 2:
            return None  # a window with other reads around it, such as x - mean of x around it
        firsts = [min(a.along, key=lambda x: a.along[x][0], default=None) for a in full]
        turned = next((x for x in firsts if x is not None and x is not order[-1]), None)
        if turned is None or stored.factors[order[-1]][0] != 1:
            return None
        flat = Flat("offs", order)
        flat.merge(full, dry.pinned)
        loads, stores = next(run for run in flat.runs if turned in run), flat.runs[-1]
        if loads is stores or min(prod(a.size[0] for a in run) for run in (loads, stores)) < 8:
            return None
        rest = [a for a in order if a not in (*loads, *stores)]
        last = self.choice.lean and max(total(rest, self.sets)) <= 65535
        layout = plane_layout(rest, loads, stores, last=last)
        if prod(a.size[0] for a in stores) > 65535 * 32 or prod(a.size[0] for a in loads) > 65535 * 32:
            return None
        body = self.body(layout)
        body.used |= {"i", "j", "plane"}
        for output in self.outputs:
            body.store(output)
        self.traits.append("turned")
        wide = self._sides([prod(a.size[0] for a in run) for run in (loads, stores)])
        blocks = {"BLOCK_I": str(wide[0]), "BLOCK_J": str(wide[1])}
        warps = max(1, min(8, wide[0] * wide[1] // 256)) if self.choice.lean else 8
        return self.assembly.finish(body, layout, ["@kept@", *body.lines[0]], blocks, "", warps, "plane")

    def _sides(self, sizes: list[int]) -> list[int]:
        """The sides of a plane's tiles."""
        if self.choice.lean:  # the least that lies outside, then the largest, then the squarest
            most = [max(8, power(n)) for n in sizes]
            pairs = [(min(most[0], 4096 // n), min(most[1], n)) for n in (64, 32, 128, 16, 256)]
            return list(
                min(
                    pairs,
                    key=lambda pair: (prod(-(-n // side) * side for n, side in zip(sizes, pair, strict=True)), -prod(pair)),
                )
            )
        wide = [max(8, min(64, power(n))) for n in sizes]
        return [min(256, 4096 // wide[1]) if wide[1] < 64 else wide[0], min(256, 4096 // wide[0]) if wide[0] < 64 else wide[1]]

    # reductions

    def _inner(self, body: Body) -> bool:
        """The reduced elements of a set are neighbours in memory."""
        big = max((a for a in body.accesses), key=lambda a: (prod(x.size[0] for x in a.factors), a is body.accesses[0]))
        axis = min((a for a in big.factors), key=lambda a: big.factors[a][0], default=None)
        return axis is None or axis in self.group.reduced or not self.group.kept

    def _reducing(self) -> Kernel:
        kept, over = self.group.kept, list(self.group.reduced)
        dry = self.body(row_layout(kept, over, False))
        for output in self.outputs:
            dry.store(output)
        inner = self._inner(dry)
        reference = max(dry.accesses, key=lambda a: prod(x.size[0] for x in a.factors))
        kept, over = _ordered(kept, [reference]), _ordered(over, [reference])
        n, rows = prod(a.size[0] for a in over), prod(a.size[0] for a in kept)
        width = power(n)
        if inner and self.choice.stages and n <= self.choice.whole and (chain := self._chain(kept, over, dry)):
            return chain
        if inner:
            walk = n > self.choice.whole
            several = self.choice.several and width <= 1024 and rows > 1
            layout = (rows_layout if several else row_layout)(kept, over, walk)
            if several:
                self.traits.append("rows")
                blocks = {"ROWS": str(max(2, min(16, 4096 // width)))}
            else:
                blocks = {}
            if walk:
                block = min(4096 if n > 1 << 16 else 2048, max(256, width)) if not several else max(16, min(width, 256))
                blocks["BLOCK"], warps = str(block), 8 if block >= 2048 else 4
            else:
                blocks["BLOCK"], warps = "@width@", 16 if width >= 8192 else 8 if width >= 2048 else 4
            grid = "rows" if several else "each"
        else:
            walk = width > min(self.choice.whole, 256)
            layout = columns_layout(kept, over, walk)
            held = 32 if walk else width
            narrow = self.choice.several and held <= 64 and not walk  # each warp has sets of its own, and waits for no other
            across = max(8, min(32 if narrow else 128, power(rows), 4096 // held))
            blocks = {"ROWS": str(held) if walk else "@width@", "BLOCK": str(across)}
            warps, grid = max(1, held * across // 1024) if narrow else 4 if held * across <= 2048 else 8, "columns"
            self.traits += ["narrow"] if narrow else []
        self.traits.append("walk" if walk else "whole")
        body = self.body(layout)
        if walk:
            step = "BLOCK" if inner else "ROWS"
            self.ahead = self.choice.stages if n > LEAST_STEPS * int(blocks[step]) else 0
            self._walk(body, step)
            lines = ["@kept@", *body.lines[0]]
        else:
            for output in self.outputs:
                body.store(output)
            lines = ["@kept@", "@over@", *body.lines[0]]
        return self.assembly.finish(body, layout, lines, blocks, "", warps, grid)

    def _chain(self, kept: list[Axis], over: list[Axis], dry: Body) -> Kernel | None:
        """A program that takes row after row; None where there are too few rows."""
        n, count = (prod(a.size[0] for a in axes) for axes in (over, kept))
        wide = sum(set(kept) & set(a.factors) != set() and set(over) & set(a.factors) != set() for a in dry.accesses)
        wide -= sum(any(a in over for dim in self.group.layouts[v] for a in dim) for v in self.outputs)
        dealt = rows_of(power(n), count, wide, self.choice.stages)
        if dealt is None:
            return None
        several = dealt.rows > 1
        layout = chain_layout(kept, over, several)
        body = self.body(layout)
        for output in self.outputs:
            body.store(output)
        lines = chain_lines(body.lines[0], several, dealt.stages)
        self.traits.append("loop")
        blocks = {"ROWS": str(dealt.rows)} if several else {}
        made = self.assembly.finish(
            body, layout, lines, {**blocks, "BLOCK": "@width@"}, "", dealt.warps, "rows" if several else "each"
        )
        made.source = hoisted(made.source)
        made.grid = f"(min({dealt.programs}, {made.grid.removeprefix('(').removesuffix(',)')}),)"
        made.programs = min(dealt.programs, made.programs)
        return made

    def _walk(self, body: Body, step: str) -> None:
        """A loop over the set for each depth of reductions, and one for what is written of every element."""
        levels = self.needed_reductions()
        seen: set[int] = set()
        for level in range(1, max(levels.values()) + 1):
            ops = [self.group.members[v] for v, n in levels.items() if n == level]
            ops = [op for op in ops if not (id(op) in seen or seen.add(id(op)))]
            after: list[tuple[Op, list[str]]] = []
            body.open()
            for op in ops:
                after.append((op, accumulate(body, op, self.traits)))
            self._close(body, step)
            for op, accumulators in after:
                settle(body, op, accumulators)
        full = [v for v in self.outputs if any(a in body.group.reduced for dim in self.group.layouts[v] for a in dim)]
        for output in self.outputs:
            if output not in full:
                body.store(output)
        if full:
            body.open()
            for output in full:
                body.store(output)
            self._close(body, step)

    def _close(self, body: Body, step: str) -> None:
        span = f"tl.range(0, @over@, {step}, num_stages={self.ahead})" if self.ahead else f"range(0, @over@, {step})"
        body.close_into(f"for start in {span}:")

    # split reductions

    def _split(self) -> list[Kernel] | None:
        """Parts of each set by a program each, and a second kernel that puts them together; None where one will do."""
        levels = self.needed_reductions()
        n, rows = (prod(a.size[0] for a in axes) for axes in (self.group.reduced, self.group.kept))
        full = any(a in self.group.reduced for v in self.outputs for dim in self.group.layouts[v] for a in dim)
        if not self.choice.split or full or max(levels.values()) > 1:
            return None
        dry = self.body(row_layout(self.group.kept, list(self.group.reduced), False))
        for output in self.outputs:
            dry.store(output)
        reference = max(dry.accesses, key=lambda a: prod(x.size[0] for x in a.factors))
        kept, over = _ordered(self.group.kept, [reference]), _ordered(list(self.group.reduced), [reference])
        inner = self._inner(dry)
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
        made.writes, made.partials, made.programs = [], partials, made.programs * most
        made.name, made.source = f"{self.name}_parts", made.source.replace(f"def {self.name}(", f"def {self.name}_parts(")
        return [made, self.settled(ops, kept, over, count, most)]

    def _parts(self, ops: list[Op], kept: list[Axis], over: list[Axis], inner: bool, across: int, parts: int) -> Kernel:
        """Each program walks every `parts`-th chunk of its set and writes what came of it."""
        layout = (row_layout if inner else columns_layout)(kept, over, True)
        body, step = self.body(layout), "BLOCK" if inner else "ROWS"
        body.used.add("part")
        body.open()
        after = [(op, accumulate(body, op, self.traits)) for op in ops]
        stages = f", num_stages={self.choice.stages}" if self.choice.stages else ""
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
        block = {"BLOCK": "1024"} if inner else {"ROWS": str(max(16, 2048 // across)), "BLOCK": str(across)}
        made = self.assembly.finish(body, layout, lines, block, "", 4, "each" if inner else "columns")
        made.grid = f"{made.grid.removesuffix(')').removesuffix(',')}, {parts})"
        made.writes, made.partials, made.programs = [], partials, made.programs * parts
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
        for output in self.outputs:
            body.store(output)
        rows = prod(a.size[0] for a in kept)
        blocks = {"BLOCK": str(max(1, min(64, power(rows), max(1, 8192 // power(most)))))}
        if not exact:
            blocks |= {"PARTS": f"triton.next_power_of_2({count})", "COUNT": count}
        return self.assembly.finish(body, layout, ["@kept@", *body.lines[0]], blocks, "", 4, "columns" if kept else "each")


def _ordered(axes: list[Axis], accesses: Sequence[Access]) -> list[Axis]:
    """Axes from outermost to innermost in the memory that an access goes to; those that it does not cross first."""

    def stride(axis: Axis) -> int:
        return -max((a.factors.get(axis, (1 << 62,))[0] for a in accesses), default=0)

    return sorted(axes, key=stride)


def write_kernel(
    schedule: Schedule,
    group: Group,
    names: Names,
    choice: Choice,
    orders: dict[str, tuple[int, ...]],
    name: str,
    parts: dict[str, int] | None = None,
) -> list[Kernel]:
    """The kernel of a group, or the two that do its work one after the other.

    Args:
        parts: Values that lie in memory as so many parts, whose sum they are.

    Raises:
        BarrierError: A value must be in memory.
        CannotWriteError: There is no rule for it.
    """
    return GroupWriter(schedule, group, names, choice, orders, name, parts).write()
