"""Kernels: how a group's programs are laid over its space, and the text that comes of it."""

from __future__ import annotations

from math import prod

from kernrl.tasks.solutions.from_graph.codegen.accumulate import accumulate, settle
from kernrl.tasks.solutions.from_graph.codegen.assembly import Assembly, Kernel
from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Flat
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
from kernrl.tasks.solutions.from_graph.codegen.split_reductions import FILLING_PROGRAMS, Choice, SplitWriter, ordered
from kernrl.tasks.solutions.from_graph.codegen.view_index import RestartError
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Names

__all__ = ["Choice", "Kernel", "write_kernel"]

MOST_STEPS = 512
"""Into one element of an accumulator so many numbers are added at most: more, and a mean is off by what a strict check sees."""


class GroupWriter(SplitWriter):
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
                return self.split() or [self._reducing()]
            except RestartError:
                continue
        raise AssertionError("axes were split for ever")

    # what is needed

    def innermost(self, value: str) -> int | None:
        """The dimension of a value that is written along which the largest load has its neighbours in memory."""
        for _ in range(64):
            kept, over = self.group.kept, list(self.group.reduced)
            dry = self.body(row_layout(kept, over, False) if over else flat_layout(kept))
            try:
                dry.store(value)
            except RestartError:
                continue
            largest = max(dry.accesses[:-1], key=lambda a: prod(x.size[0] for x in a.along), default=None)
            axis = min(largest.along, key=lambda a: largest.along[a][0], default=None) if largest else None
            return next((d for d, parts in enumerate(self.group.layouts[value]) if parts and parts[-1] is axis), None)
        raise AssertionError("axes were split for ever")

    def _root(self, value: str) -> str:
        while (op := self.s.plan.giver.get(value)) and op.kind == "view":
            value = op.reads[0]
        return value

    def depths(self) -> dict[str, int]:
        """The members that the outputs need → how many reductions deep each one lies."""
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
        return levels

    def needed_reductions(self) -> dict[str, int]:
        """The reductions among them."""
        return {v: n for v, n in self.depths().items() if self.group.members[v].kind == "reduce"}

    # pointwise kernels

    def _pointwise(self) -> Kernel:
        axes = list(self.group.axes)
        body = self.body(flat_layout(axes))
        for output in self.outputs:
            body.store(output)
        order = ordered(axes, [body.accesses[-1]])
        if plane := self._plane(body, order) or self._columns_of_windows(body, order):
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
        if dry.pinned and not self.choice.lean:
            return None
        firsts = [min(a.along, key=lambda x: a.along[x][0], default=None) for a in full]
        turned = next((x for x in firsts if x is not None and x is not order[-1]), None)
        if turned is None or stored.factors[order[-1]][0] != 1:
            return None
        flat = Flat("offs", order)
        flat.merge(full, dry.pinned)
        loads, stores = next(run for run in flat.runs if turned in run), flat.runs[-1]
        if loads is stores or min(prod(a.size[0] for a in run) for run in (loads, stores)) < 8:
            return None
        return self._on_planes(order, loads, stores, "turned")

    def _columns_of_windows(self, dry: Body, order: list[Axis]) -> Kernel | None:
        """A kernel whose programs hold columns of what windows go along, where neighbours in memory belong to other windows.

        A vector of neighbours in memory would share few of the elements that its windows read.
        """
        reach = [a for a in order if dry.reach.get(a, 1) > 1]
        if not self.choice.lean or not reach or order[-1] in reach:
            return None
        flat = Flat("offs", order)
        flat.merge(dry.accesses, {*dry.pinned, *reach})
        inner, along = flat.runs[-1], [reach[-1]]
        if prod(a.size[0] for a in inner) * (dry.reach[reach[-1]] - 1) < self.choice.block:
            return None
        return self._on_planes(order, inner, along, "columns")

    def _on_planes(self, order: list[Axis], loads: list[Axis], stores: list[Axis], trait: str) -> Kernel | None:
        rest = [a for a in order if a not in (*loads, *stores)]
        last = self.choice.lean and max(total(rest, self.sets)) <= 65535
        layout = plane_layout(rest, loads, stores, last=last)
        if prod(a.size[0] for a in stores) > 65535 * 32 or prod(a.size[0] for a in loads) > 65535 * 32:
            return None
        body = self.body(layout)
        body.used |= {"i", "j", "plane"}
        for output in self.outputs:
            body.store(output)
        self.traits.append(trait)
        wide = self._sides([prod(a.size[0] for a in run) for run in (loads, stores)])
        blocks = {"BLOCK_I": str(wide[0]), "BLOCK_J": str(wide[1])}
        warps = max(1, min(8, wide[0] * wide[1] // 256))
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
        if max(wide) < 64:  # a tile is the whole plane
            return wide
        return [min(256, 4096 // wide[1]) if wide[1] < 64 else wide[0], min(256, 4096 // wide[0]) if wide[0] < 64 else wide[1]]

    # reductions

    def _reducing(self) -> Kernel:
        kept, over = self.group.kept, list(self.group.reduced)
        dry = self.body(row_layout(kept, over, False))
        for output in self.outputs:
            dry.store(output)
        inner = self.inner(dry)
        reference = max(dry.accesses, key=lambda a: prod(x.size[0] for x in a.factors))
        kept, over = ordered(kept, [reference]), ordered(over, [reference])
        if inner and self.choice.lean:  # sets that read the same of it lie side by side
            kept = sorted(kept, key=lambda a: a not in reference.factors)
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
                blocks = {"ROWS": str(self._rows(width, rows))}
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
            if walk and self.choice.lean and -(-rows // across) < FILLING_PROGRAMS:
                across = self.across(rows, across)
                held = 4096 // across
            while walk and not self.choice.lean and n > MOST_STEPS * held and across > 8:
                held, across = 2 * held, across // 2
            if walk and n > MOST_STEPS * held and any(op.how == "sum" for op in self.group.reductions):
                raise CannotWriteError("a sum of so many numbers, one after another, loses digits")
            blocks = {"ROWS": str(held) if walk else "@width@", "BLOCK": str(across)}
            warps, grid = max(1, held * across // 1024) if narrow else 4 if held * across <= 2048 else 8, "columns"
            self.traits += ["narrow"] if narrow else []
        self.traits.append("walk" if walk else "whole")
        body = self.body(layout)
        if walk:
            step = "BLOCK" if inner else "ROWS"
            self.ahead = self.steps_ahead(dry, over, blocks) if n > LEAST_STEPS * int(blocks[step]) else 0
            self._walk(body, step)
            lines = ["@kept@", *body.lines[0]]
        else:
            for output in self.outputs:
                body.store(output)
            lines = ["@kept@", "@over@", *body.lines[0]]
        return self.assembly.finish(body, layout, lines, blocks, "", warps, grid)

    def _rows(self, width: int, count: int) -> int:
        """How many sets a program has, each a row of a matrix."""
        rows = max(2, min(16, 4096 // width))
        if self.choice.lean:  # a program is worth its start, if enough of them remain
            while rows * width < 2048 and count >= 2 * rows * FILLING_PROGRAMS:
                rows *= 2
        return rows

    def _chain(self, kept: list[Axis], over: list[Axis], dry: Body) -> Kernel | None:
        """A program that takes row after row; None where there are too few rows."""
        n, count = (prod(a.size[0] for a in axes) for axes in (over, kept))
        wide = sum(set(kept) & set(a.factors) != set() and set(over) & set(a.factors) != set() for a in dry.accesses)
        wide -= len(self.full_outputs())
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
        depths, whole = self.depths(), self.full_outputs()
        full = list(whole)
        for level in range(1, max(levels.values()) + 1):
            ops = [self.group.members[v] for v, n in levels.items() if n == level]
            ops = [op for op in ops if not (id(op) in seen or seen.add(id(op)))]
            after: list[tuple[Op, list[str]]] = []
            body.open()
            for op in ops:
                after.append((op, accumulate(body, op, self.traits)))
            for output in [v for v in full if self.choice.lean and depths[v] < level]:
                full.remove(output)
                body.store(output)
            self._close(body, step)
            for op, accumulators in after:
                settle(body, op, accumulators)
        for output in self.outputs:
            if output not in whole:
                body.store(output)
        if full:
            body.open()
            for output in full:
                body.store(output)
            self._close(body, step)

    def _close(self, body: Body, step: str) -> None:
        span = f"tl.range(0, @over@, {step}, num_stages={self.ahead})" if self.ahead else f"range(0, @over@, {step})"
        body.close_into(f"for start in {span}:")


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
