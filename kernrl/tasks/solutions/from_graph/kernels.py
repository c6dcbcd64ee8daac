"""Kernels: how a group's programs are laid over its space, and the text that comes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from kernrl.tasks.solutions.from_graph.emit import NEUTRAL, Access, BarrierError, Body, RestartError
from kernrl.tasks.solutions.from_graph.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.index_text import Flat, Sizes, address, wrapped
from kernrl.tasks.solutions.from_graph.lower import Op
from kernrl.tasks.solutions.from_graph.sizes import Names, Size, is_one, times
from kernrl.tasks.solutions.from_graph.stored import Schedule

__all__ = ["BarrierError", "Choice", "Kernel", "write_kernel"]


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
    split: int = 0
    """In how many parts long reductions are cut; 0: in none."""


@dataclass
class Kernel:
    """A kernel and its launch."""

    name: str
    source: str
    reads: list[str]
    writes: list[str]
    arguments: list[str]
    """What is passed for each parameter; a value in memory stands as `@value@`."""
    grid: str
    constants: dict[str, str]
    traits: tuple[str, ...] = ()
    partials: dict[str, str] = field(default_factory=dict)
    """Partial results, by name → Python of their shape; memory between a kernel and the one that settles them."""


@dataclass
class Layout:
    """A tile: flat indices, their masks, and how to reduce."""

    kept: Flat
    over: Flat | None
    shape: str
    fold_text: str = ""
    kept_mask: str = ""
    over_mask: str = ""
    both_mask: str = ""
    kept_lines: Sequence[str] = ()
    over_lines: Sequence[str] = ()
    reduced: set[Axis] = field(default_factory=set)
    across: Flat | None = None
    """The second side of a plane of elements that two tensors hold in other orders."""

    @property
    def flats(self) -> list[Flat]:
        """Every flat index."""
        return [f for f in (self.kept, self.over, self.across) if f]

    def mask(self, axes: set[Axis]) -> str:
        """The mask of elements that vary along these axes."""
        if self.across and self.over:
            sides = bool(axes & set(self.over.axes)), bool(axes & set(self.across.axes))
            return {(True, True): "mask", (True, False): self.over_mask, (False, True): self.kept_mask}.get(sides, "")
        across = bool(axes & self.reduced)
        along = bool(axes - self.reduced)
        if across and along:
            return self.both_mask
        return self.over_mask if across else self.kept_mask if along else ""

    def fold(self, op: str, text: str) -> str:
        """A reduction over the tile's reduced side."""
        return self.fold_text.format(op=op, e=text)


def flat_layout(axes: list[Axis]) -> Layout:
    """A vector of elements."""
    return Layout(
        Flat("offs", axes),
        None,
        "[BLOCK]",
        kept_mask="mask",
        kept_lines=("offs = @start@ + tl.arange(0, BLOCK)", "mask = offs < @total@"),
    )


def plane_layout(rest: list[Axis], loads: list[Axis], stores: list[Axis]) -> Layout:
    """A tile along the axes that loads and stores have innermost, so that both touch neighbours in memory."""
    return Layout(
        Flat("plane", rest),
        Flat("i", loads),
        "[BLOCK_I, BLOCK_J]",
        kept_mask="j < @across@",
        over_mask="i < @over@",
        kept_lines=(
            "plane = tl.program_id(0)",
            "i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)[:, None]",
            "j = tl.program_id(2) * BLOCK_J + tl.arange(0, BLOCK_J)[None, :]",
            "mask = (i < @over@) & (j < @across@)",
        ),
        across=Flat("j", stores),
    )


def row_layout(kept: list[Axis], over: list[Axis], walk: bool) -> Layout:
    """A program a set: a vector of its elements."""
    start = "start + " if walk else ""
    return Layout(
        Flat("row", kept),
        Flat("cols", over),
        "[BLOCK]",
        "tl.{op}({e}, axis=0)",
        over_mask="mask",
        both_mask="mask",
        kept_lines=("row = tl.program_id(0)",),
        over_lines=(f"cols = {start}tl.arange(0, BLOCK)", "mask = cols < @over@"),
        reduced=set(over),
    )


def rows_layout(kept: list[Axis], over: list[Axis], walk: bool) -> Layout:
    """Several sets a program, each along the last axis of a matrix."""
    start = "start + " if walk else ""
    return Layout(
        Flat("row", kept),
        Flat("cols", over),
        "[ROWS, BLOCK]",
        "tl.{op}({e}, axis=1, keep_dims=True)",
        kept_mask="row < @total@",
        over_mask="cols < @over@",
        both_mask="mask",
        kept_lines=("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",),
        over_lines=(f"cols = {start}tl.arange(0, BLOCK)[None, :]", "mask = (row < @total@) & (cols < @over@)"),
        reduced=set(over),
    )


def columns_layout(kept: list[Axis], over: list[Axis], walk: bool) -> Layout:
    """Several sets a program, each along the first axis of a matrix: neighbours in memory belong to different sets."""
    start = "start + " if walk else ""
    return Layout(
        Flat("cols", kept),
        Flat("row", over),
        "[ROWS, BLOCK]",
        "tl.{op}({e}, axis=0, keep_dims=True)",
        kept_mask="cols < @total@",
        over_mask="row < @over@",
        both_mask="mask",
        kept_lines=("cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]",),
        over_lines=(f"row = {start}tl.arange(0, ROWS)[:, None]", "mask = (row < @over@) & (cols < @total@)"),
        reduced=set(over),
    )


def total(axes: Sequence[Axis], sets: int) -> Size:
    """How many elements axes span."""
    return times((1,) * sets, *(a.size for a in axes))


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


class _Writer:
    """Writes the kernel of one group."""

    def __init__(self, schedule: Schedule, group: Group, names: Names, choice: Choice, orders: dict[str, tuple[int, ...]], name: str):
        self.s, self.group, self.names, self.choice, self.orders, self.name = schedule, group, names, choice, orders, name
        self.sets = schedule.plan.program.sets
        self.outputs = [v for v in group.members if v in schedule.stored]
        self.traits: list[str] = []

    def body(self, layout: Layout) -> Body:
        """An empty body on a tile."""
        return Body(self.s, self.group, layout, self.orders, used={"x", "offs", "row", "cols", "mask", "start", "acc"})

    def write(self) -> list[Kernel]:
        """The kernel, or two where a reduction is split; axes are split until none has to be."""
        for _ in range(64):
            self.traits.clear()
            try:
                if not self._needed_reductions():
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

    def _needed_reductions(self) -> dict[str, int]:
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
        return self._finish(body, layout, lines, {"BLOCK": str(block)}, start, 8 if block > 2048 else 4)

    def _plane(self, dry: Body, order: list[Axis]) -> Kernel | None:
        """A kernel that turns a tensor round on its way, where what it reads has another axis innermost."""
        stored = dry.accesses[-1]
        full = [a for a in dry.accesses if prod(x.size[0] for x in a.factors) == prod(x.size[0] for x in order)]
        firsts = [min(a.factors, key=lambda x: a.factors[x][0], default=None) for a in full if not a.extra]
        turned = next((x for x in firsts if x is not None and x is not order[-1]), None)
        if turned is None or dry.pinned or stored.factors[order[-1]][0] != 1:
            return None
        flat = Flat("offs", order)
        flat.merge(full, dry.pinned)
        loads, stores = next(run for run in flat.runs if turned in run), flat.runs[-1]
        if loads is stores or min(prod(a.size[0] for a in run) for run in (loads, stores)) < 8:
            return None
        layout = plane_layout([a for a in order if a not in (*loads, *stores)], loads, stores)
        if prod(a.size[0] for a in stores) > 65535 * 32 or prod(a.size[0] for a in loads) > 65535 * 32:
            return None
        body = self.body(layout)
        body.used |= {"i", "j", "plane"}
        for output in self.outputs:
            body.store(output)
        self.traits.append("turned")
        return self._finish(body, layout, ["@kept@", *body.lines[0]], {"BLOCK_I": "32", "BLOCK_J": "64"}, "", 4, "plane")

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
            across = max(8, min(128, power(rows), 4096 // held))
            blocks = {"ROWS": str(held) if walk else "@width@", "BLOCK": str(across)}
            warps, grid = 4 if held * across <= 2048 else 8, "columns"
        self.traits.append("walk" if walk else "whole")
        body = self.body(layout)
        if walk:
            self._walk(body, "ROWS" if not inner else "BLOCK")
            lines = ["@kept@", *body.lines[0]]
        else:
            for output in self.outputs:
                body.store(output)
            lines = ["@kept@", "@over@", *body.lines[0]]
        return self._finish(body, layout, lines, blocks, "", warps, grid)

    def _walk(self, body: Body, step: str) -> None:
        """A loop over the set for each depth of reductions, and one for what is written of every element."""
        levels = self._needed_reductions()
        seen: set[int] = set()
        for level in range(1, max(levels.values()) + 1):
            ops = [self.group.members[v] for v, n in levels.items() if n == level]
            ops = [op for op in ops if not (id(op) in seen or seen.add(id(op)))]
            after: list[tuple[Op, list[str]]] = []
            body.open()
            for op in ops:
                after.append((op, self._accumulate(body, op)))
            self._close(body, step)
            for op, accumulators in after:
                self._settle(body, op, accumulators)
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
        body.close_into(f"for start in range(0, @over@, {step}):")

    def _accumulate(self, body: Body, op: Op) -> list[str]:
        """Lines of the loop that take a chunk in; returns the accumulators."""
        x = body.at(op.reads[0], body.layout(op.reads[0]))
        mask = body.tile.mask(set(self.group.axes))
        names = [body.name(f"{op.value}_acc")] if op.how in NEUTRAL else [body.name(f"{r}_acc") for r in op.results]

        def start(name: str, value: str) -> None:
            body.fixed.add(name)
            body.say(f"{name} = tl.full({body.tile.shape}, {value}, dtype=tl.float32)", 0)

        if op.how == "sum":
            start(names[0], "0.0")
            body.say(f"{names[0]} += tl.where({mask}, {x}, 0.0)")
        elif op.how in NEUTRAL:
            start(names[0], NEUTRAL[op.how])
            body.say(f"{names[0]} = tl.{op.how}imum({names[0]}, tl.where({mask}, {x}, {NEUTRAL[op.how]}))")
        elif op.how == "expsum":
            self.traits.append("online")
            start(names[0], "-1e38")
            start(names[1], "0.0")
            top = body.name(f"{op.value}_new")
            body.say(f"{top} = tl.maximum({names[0]}, tl.where({mask}, {x}, {NEUTRAL['max']}))")
            body.say(f"{names[1]} = {names[1]} * tl.exp({names[0]} - {top}) + tl.where({mask}, tl.exp({x} - {top}), 0.0)")
            body.say(f"{names[0]} = {top}")
        else:  # Welford's update, lane by lane
            self.traits.append("welford")
            count, d = body.name(f"{op.value}_count"), body.name(f"{op.value}_delta")
            names.append(count)
            for name in names:
                start(name, "0.0")
            body.say(f"{count} += tl.where({mask}, 1.0, 0.0)")
            body.say(f"{d} = tl.where({mask}, {x} - {names[0]}, 0.0)")
            body.say(f"{names[0]} += {d} / tl.maximum({count}, 1.0)")
            body.say(f"{names[1]} += tl.where({mask}, {d} * ({x} - {names[0]}), 0.0)")
        return names

    def _settle(self, body: Body, op: Op, names: list[str]) -> None:
        """Lines behind the loop that make one value of each accumulator."""

        def keep(result: str, text: str) -> str:
            variable = body.name(result)
            body.say(f"{variable} = {text}", 0)
            body.scopes[0][result, body.layout(result)] = variable
            return variable

        fold = body.tile.fold
        if op.how in NEUTRAL:
            keep(op.value, fold(op.how, names[0]))
        elif op.how == "expsum":
            top = keep(op.results[0], fold("max", names[0]))
            keep(op.results[1], fold("sum", f"{names[1]} * tl.exp({names[0]} - {top})"))
        else:
            n = body.size(total(self.group.reduced, self.sets))
            mean = keep(op.results[0], f"{fold('sum', f'{names[0]} * {names[2]}')} / {n}")
            off = f"({names[0]} - {mean})"
            keep(op.results[1], fold("sum", f"{names[1]} + {names[2]} * {off} * {off}"))

    # split reductions

    def _split(self) -> list[Kernel] | None:
        """Parts of each set by a program each, and a second kernel that puts them together; None where one will do."""
        levels = self._needed_reductions()
        n, rows = (prod(a.size[0] for a in axes) for axes in (self.group.reduced, self.group.kept))
        full = any(a in self.group.reduced for v in self.outputs for dim in self.group.layouts[v] for a in dim)
        if not self.choice.split or full or max(levels.values()) > 1 or n < 4096:
            return None
        dry = self.body(row_layout(self.group.kept, list(self.group.reduced), False))
        for output in self.outputs:
            dry.store(output)
        reference = max(dry.accesses, key=lambda a: prod(x.size[0] for x in a.factors))
        kept, over = _ordered(self.group.kept, [reference]), _ordered(list(self.group.reduced), [reference])
        inner = self._inner(dry)
        across = 1 if inner else max(8, min(64, power(rows)))
        parts = min(self.choice.split, max(1, power(2112 * across // max(rows, 1)) // 2))
        if parts < 4:
            return None
        self.traits.append(f"split{parts}")
        ops = list({id(op): op for op in (self.group.members[v] for v in levels)}.values())
        return [self._parts(ops, kept, over, inner, across, parts), self._settled(ops, kept, over, parts)]

    def _parts(self, ops: list[Op], kept: list[Axis], over: list[Axis], inner: bool, across: int, parts: int) -> Kernel:
        """Each program walks every `parts`-th chunk of its set and writes what came of it."""
        layout = (row_layout if inner else columns_layout)(kept, over, True)
        body, step = self.body(layout), "BLOCK" if inner else "ROWS"
        body.used.add("part")
        body.open()
        after = [(op, self._accumulate(body, op)) for op in ops]
        body.close_into(f"for start in range(part * {step}, @over@, {parts} * {step}):")
        index, mask = ("row", "") if inner else ("cols", ", mask=cols < @total@")
        partials: dict[str, str] = {}
        rows = self.names.expression(total(kept, self.sets))
        for op, names in after:
            for i, text in enumerate(_parts_text(op, names, layout.fold)):
                name = f"{op.value}_part{i or ''}"
                partials[name] = f"({parts}, {rows})"
                body.say(f"tl.store({body.pointer(name)} + part * @rows@ + {index}, {text}{mask})", 0)
        lines = ["@kept@", "part = tl.program_id(1)", *body.lines[0]]
        block = {"BLOCK": "1024"} if inner else {"ROWS": str(max(16, 2048 // across)), "BLOCK": str(across)}
        made = self._finish(body, layout, lines, block, "", 4, "each" if inner else "columns")
        made.grid = f"{made.grid.removesuffix(')').removesuffix(',')}, {parts})"
        made.writes, made.partials = [], partials
        made.name, made.source = f"{self.name}_parts", made.source.replace(f"def {self.name}(", f"def {self.name}_parts(")
        return made

    def _settled(self, ops: list[Op], kept: list[Axis], over: list[Axis], parts: int) -> Kernel:
        """One value of each set's parts, and what follows from it."""
        layout = (columns_layout if kept else row_layout)(kept, over, False)
        body = self.body(layout)
        body.used.add("part")
        body.say(f"part = tl.arange(0, {parts}){'[:, None]' if kept else ''}", 0)
        place = f"part * @rows@ + cols, mask=(part < {parts}) & (cols < @total@)" if kept else "part"
        for op in ops:
            loaded = []
            for i in range(len(_parts_text(op, ["", "", ""], lambda how, text: ""))):
                pointer, name = body.pointer(f"{op.value}_part{i or ''}"), body.name(f"{op.value}_part{i or ''}")
                body.say(f"{name} = tl.load({pointer} + {place})", 0)
                loaded.append(name)
            self._settle(body, op, loaded)
        for output in self.outputs:
            body.store(output)
        rows = prod(a.size[0] for a in kept)
        return self._finish(body, layout, ["@kept@", *body.lines[0]], {"BLOCK": str(max(1, min(64, power(rows))))}, "", 4, "columns" if kept else "each")

    # text

    def _finish(
        self, body: Body, layout: Layout, lines: list[str], blocks: dict[str, str], start: str, warps: int, grid: str = ""
    ) -> Kernel:
        """Write addresses and sizes in, and put the kernel together."""
        sizes = Sizes(self.names, set(body.used) | set(body.pointers.values()) | set(blocks))
        flats = layout.flats
        used = body.pinned | {a for access in body.accesses for a, f in access.factors.items() if any(f)}
        kept_total, over_total = total(layout.kept.axes, self.sets), total(layout.over.axes if layout.over else [], self.sets)
        marks: dict[str, str] = {}
        if layout.over is not None:
            marks["@over@"] = sizes.text(over_total)
        if layout.across is not None:
            marks["@across@"] = sizes.text(total(layout.across.axes, self.sets))
        for i, size in enumerate(body.sizes):
            marks[f"@size{i}@"] = sizes.text(size)
        if any("@rows@" in line for line in lines):
            marks["@rows@"] = wrapped(sizes.text(kept_total))
        if any("@total@" in line for line in (*lines, *layout.kept_lines, *layout.over_lines, layout.kept_mask)):
            marks["@total@"] = sizes.text(kept_total) if layout.over else sizes.pass_on("n_elements", f"@{self.outputs[0]}@.numel()")
        for flat in flats:
            flat.merge(body.accesses, body.pinned)
            for axis in flat.axes if len(flat.runs) > 1 else ():
                sizes.text(axis.size)
        defined = [flat.define(sizes, used) for flat in flats]
        for i, access in enumerate(body.accesses):
            marks[f"@at{i}@"] = address(access, flats, sizes)
        for i, axis in enumerate(self.group.axes):
            for flat in flats:
                if (run := flat.run_of(axis)) is not None:
                    marks[f"@axis{i}@"] = flat.variables[run]
        marks["@start@"] = start
        if layout.across:
            head = {"@kept@": [*layout.kept_lines, *(line for lines_ in defined for line in lines_)]}
        else:
            head = {"@kept@": [*layout.kept_lines, *defined[0]], "@over@": [*layout.over_lines, *(defined[1] if layout.over else ())]}
        out: list[str] = []
        for line in lines:
            stripped = line.strip()
            if stripped in head:
                indent = line[: len(line) - len(stripped)]
                out += [indent + part for part in head[stripped]]
            else:
                out.append(line)
        return self._kernel(body, sizes, _filled(out, marks), blocks, warps, self._grid(grid, layout, sizes, blocks), over_total)

    def _grid(self, grid: str, layout: Layout, sizes: Sizes, blocks: dict[str, str]) -> str:
        count = self.names.expression(total(layout.kept.axes, self.sets)) if grid else f"@{self.outputs[0]}@.numel()"
        if layout.across and layout.over:
            sides = [self.names.expression(total(flat.axes, self.sets)) for flat in (layout.over, layout.across)]
            return f"({count}, triton.cdiv({sides[0]}, 32), triton.cdiv({sides[1]}, 64))"
        if grid in ("each", ""):
            if grid:
                return f"({count},)"
            if self.choice.persistent:
                return f"(min(1056, triton.cdiv({count}, {blocks['BLOCK']})),)"
            return f"(triton.cdiv({count}, {blocks['BLOCK']}),)"
        return f"(triton.cdiv({count}, {blocks['ROWS' if grid == 'rows' else 'BLOCK']}),)"

    def _kernel(self, body: Body, sizes: Sizes, lines: list[str], blocks: dict[str, str], warps: int, grid: str, over: Size) -> Kernel:
        text = "\n".join(lines)
        parameters, arguments = list(body.pointers.values()), [f"@{v}@" for v in body.pointers]
        for values, name in body.numbers.items():
            parameters.append(name)
            arguments.append(self.names.number(values))
        for name, host in sizes.hosts.items():
            if re.search(rf"\b{name}\b", text):
                parameters.append(f"{name}: tl.constexpr" if name in sizes.constexpr else name)
                arguments.append(host)
        constants = {}
        for name, value in blocks.items():
            if re.search(rf"\b{name}\b", text):
                parameters.append(f"{name}: tl.constexpr")
                wide = f"triton.next_power_of_2({self.names.expression(over)})"
                constants[name] = value if value != "@width@" else wide
        constants["num_warps"] = str(warps)
        source = f"@triton.jit\ndef {self.name}({', '.join(parameters)}):\n" + "\n".join("    " + line for line in lines) + "\n"
        return Kernel(self.name, source, list(body.pointers), self.outputs, arguments, grid, constants, tuple(self.traits))


def _parts_text(op: Op, names: list[str], fold: Callable[[str, str], str]) -> list[str]:
    """What a program writes of its part, one number for each accumulator."""
    if op.how in NEUTRAL:
        return [fold(op.how, names[0])]
    if op.how == "expsum":
        return [fold("max", names[0]), fold("sum", f"{names[1]} * tl.exp({names[0]} - {fold('max', names[0])})")]
    count = fold("sum", names[2])
    mean = f"({fold('sum', f'{names[0]} * {names[2]}')} / tl.maximum({count}, 1.0))"
    off = f"({names[0]} - {mean})"
    return [mean, fold("sum", f"{names[1]} + {names[2]} * {off} * {off}"), count]


def _filled(lines: list[str], marks: dict[str, str]) -> list[str]:
    """Marks replaced; what a mark stands for is put in parentheses where it has to be."""

    def put(match: re.Match[str]) -> str:
        text = marks[match[0]]
        loose = match[0].startswith("@at") or text.replace("_", "").isalnum()
        before, after = match.string[match.start() - 2 : match.start()], match.string[match.end() : match.end() + 2]
        tight = any(c in "*/%-" for c in before + after)
        return text if loose or not tight else f"({text})"

    return [re.sub(r"@\w+@", put, re.sub(r"@\w+@", put, line)) for line in lines]


def _ordered(axes: list[Axis], accesses: Sequence[Access]) -> list[Axis]:
    """Axes from outermost to innermost in the memory that an access goes to; those that it does not cross first."""

    def stride(axis: Axis) -> int:
        return -max((a.factors.get(axis, (1 << 62,))[0] for a in accesses), default=0)

    return sorted(axes, key=stride)


def write_kernel(
    schedule: Schedule, group: Group, names: Names, choice: Choice, orders: dict[str, tuple[int, ...]], name: str
) -> list[Kernel]:
    """The kernel of a group, or the two that do its work one after the other. Raises BarrierError, CannotWriteError."""
    return _Writer(schedule, group, names, choice, orders, name).write()
