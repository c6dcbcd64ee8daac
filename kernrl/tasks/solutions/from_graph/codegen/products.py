"""Matrix products with what follows them in one kernel: a loop of `tl.dot`, and the tail on the tile in registers.

The tile is laid over the space of the tail's group, so whatever a group can read, view and write, the tail of a product can.
A product whose tail cannot be computed on a tile is left to the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernrl.tasks.graph.graph import ITEM_BYTES
from kernrl.tasks.solutions.from_graph.codegen.accumulate import parts_of_tile
from kernrl.tasks.solutions.from_graph.codegen.assembly import Assembly, Kernel, filled
from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Flat, Sizes, address, wrapped
from kernrl.tasks.solutions.from_graph.codegen.kernels import Choice, GroupWriter
from kernrl.tasks.solutions.from_graph.codegen.layouts import Layout, flat_layout, row_layout, total
from kernrl.tasks.solutions.from_graph.codegen.product_tile import OWN_NAMES, NoTailError, TileBody, TileLayout, beside
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import (
    MULTIPROCESSORS,
    Kind,
    Tiles,
    Widths,
    clocks,
    item_bytes,
    tile_sizes,
)
from kernrl.tasks.solutions.from_graph.codegen.view_index import Index, Ix, RestartError
from kernrl.tasks.solutions.from_graph.fusion.contraction import Contraction
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.lowering.sizes import Names, Size

LEAST = 8
"""Rows, columns and depth below which a product is left alone: a tile would be empty for the most part."""
MOST_PARTS = 8192
"""Of a reduction, which one program puts together."""
MOST_BATCH = 65535
"""Of the second and third axis of a grid."""


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """How products are written."""

    kind: Kind = "plain"
    rank: int = 0
    """Which tiles: 0 are those that the arithmetic puts first."""
    inputs: str = ""
    """`input_precision` of float32 products, where it is not the precision policy's own."""
    windows: bool = False
    """Convolutions are written, and products are left to the library."""
    described: bool = False
    """Operands are loaded by tensor descriptors, which Hopper's memory accelerator reads."""


@dataclass(frozen=True)
class Place:
    """What a product's kernel is written from."""

    schedule: Schedule
    group: Group
    product: Contraction
    names: Names
    orders: dict[str, tuple[int, ...]]
    precision: str
    keep: bool
    """The product itself is written too, for others that read it."""
    wide: frozenset[str]
    """Values that are float32 in memory whatever the precision."""


def write_product(place: Place, choice: ProductChoice) -> list[Kernel]:
    """The kernel of a product and the group that reads it, or the two that do its work one after the other.

    Raises:
        NoTailError: The group is no tail of the product.
    """
    for _ in range(64):
        try:
            return ProductWriter(place, choice).write()
        except RestartError:
            continue
    raise NoTailError("axes were split for ever")


class ProductWriter:
    """Writes the kernel of a product."""

    def __init__(self, place: Place, choice: ProductChoice) -> None:
        self.place, self.choice, self.group, self.product = place, choice, place.group, place.product
        self.names, self.program = place.names, place.schedule.plan.program
        self.sets = self.program.sets
        self.value = self.product.op.value
        self.plain = GroupWriter(place.schedule, self.group, self.names, Choice(), place.orders, "settle_kernel")
        self.outputs = self.plain.outputs
        self.dims = self._dims()
        self.batch, self.m, self.n = self.space()
        self.ka, self.kb = ({k: Axis(size) for k, size in self.depth().items()} for _ in "ab")
        if self.choice.kind == "split" and self.place.keep:
            raise NoTailError("others read the product")
        levels = self.plain.needed_reductions()
        full = any(a in self.group.reduced for v in self.outputs for dim in self.group.layouts[v] for a in dim)
        self.whole = bool(levels) and (full or max(levels.values()) > 1)
        """The reduced side lies in one tile: something of every element depends on it."""
        self.reductions = list({id(op): op for op in (self.group.members[v] for v in levels)}.values())
        self.side, self.planes = self._reduced_side() if levels else ("", False)
        self.tiles = self.tile()

    # the space

    def _body(self, layout: Layout) -> TileBody:
        used = set(OWN_NAMES)
        return TileBody(self.place.schedule, self.group, layout, self.place.orders, used=used, product=self.value)

    def _dims(self) -> tuple[tuple[Axis, ...], ...]:
        """The axes of each dimension of the product, which must be all of the group's."""
        if any(member.kind == "window" for member in self.group.members.values()):
            raise NoTailError("a window reaches beyond a tile")
        kept, over = self.group.kept, list(self.group.reduced)
        dry = self._body(row_layout(kept, over, False) if over else flat_layout(list(self.group.axes)))
        for output in self.outputs:
            dry.store(output)
        self.dry = dry
        if dry.found is None or any(i != Ix(i.parts) for i in dry.found):
            raise NoTailError("the product is not read, or in part")
        axes = [a for i in dry.found for a in i.parts]
        if len(axes) != len(set(axes)) or set(axes) != set(self.group.axes):
            raise NoTailError("the tail is larger than the product, or smaller")
        shape = self.place.schedule.plan.program.shapes[self.value]
        if self.place.keep and any(total(list(i.parts), self.sets) != size for i, size in zip(dry.found, shape, strict=True)):
            raise NoTailError("the tail reads a slice, and others the rest")
        return tuple(i.parts for i in dry.found)

    def space(self) -> tuple[list[Axis], list[Axis], list[Axis]]:
        """The axes of planes, rows and columns."""
        batch, m, n = ([a for d in dims for a in self.dims[d]] for dims in (self.product.batch, self.product.m, self.product.n))
        return batch, m, n

    def depth(self) -> dict[str, Size]:
        """What the loop's index counts through."""
        return self.product.depth

    def _reduced_side(self) -> tuple[str, bool]:
        """(which side of a tile is reduced, whether over all planes too); columns that are reduced by parts become planes."""
        if self.choice.kind == "split":
            return "", False  # the next kernel reduces
        reduced, cut = set(self.group.reduced), len(self.n) - len(self.group.reduced)
        if self.whole and cut > 0 and set(self.n[cut:]) == reduced:
            self.batch, self.n = [*self.batch, *self.n[:cut]], self.n[cut:]
        for name, axes in (("n", self.n), ("m", self.m)):
            if set(axes) == reduced:
                return name, False
            if {*axes, *self.batch} == reduced and not self.whole:
                return name, True
        raise NoTailError("it reduces other things than rows or columns")

    def tile(self) -> Tiles:
        """The tile's sizes."""
        m, n, batch = (total(axes, self.sets) for axes in (self.m, self.n, self.batch))
        k = prod(size[0] for size in self.product.depth.values())
        if min(m[0], n[0], k) < LEAST or max(batch) > MOST_BATCH:
            raise NoTailError("the product is too small")
        least = max(m) if self.whole and self.side == "m" else 0, max(n) if self.whole and self.side == "n" else 0
        found = tile_sizes(m[0], n[0], k, batch[0], self.place.precision, self.choice.kind, least, self._widths())
        if self.choice.rank >= len(found):
            raise NoTailError("no tile fits")
        return found[self.choice.rank]

    def _widths(self) -> Widths:
        """What an element takes in shared memory."""
        read = beside(self.dry, set(self.m), set(self.n))
        laid_out = [item_bytes(self.place.precision), *map(self._item, read.tiles), *([4] if read.spread else [])]
        return Widths(self._item(self.product.a), self._item(self.product.b), max(laid_out))

    def _item(self, value: str) -> int:
        """Bytes of an element of a value in memory."""
        dtype = self.program.dtypes[value]
        if dtype != "float32":
            return ITEM_BYTES.get(dtype, 1)
        return 4 if value in self.place.wide else item_bytes(self.place.precision)

    # the text

    def write(self) -> list[Kernel]:
        """The kernels."""
        layout = TileLayout(Flat("plane", self.batch), None, "[BLOCK_M, BLOCK_N]")
        layout.sides = {"plane": layout.kept} if self.batch else {}
        layout.sides |= {"m": Flat("m", self.m), "n": Flat("n", self.n)}
        layout.sides |= {"ka": Flat("ka", list(self.ka.values())), "kb": Flat("kb", list(self.kb.values()))}
        layout.fold_text = f"tl.{{op}}({{e}}, axis={int(self.side == 'n')}, keep_dims=True)"
        body = self._body(layout)
        loop = self.loop(body, layout)
        known = {a for flat in layout.flats for a in flat.axes}
        if any(a not in known for access in body.accesses for a in access.factors):
            raise NoTailError("an operand has axes of its own")
        layout.reduced = set(self.group.reduced)
        if self.tiles.split > 1:
            partials = {f"{self.value}_parts": self._parts(body)}
            return [self._kernel(body, layout, loop, partials)]
        if self.place.keep:  # the tail works on what the others read, rounded as it is
            body.say(f"acc = acc.to({body.pointer(self.value)}.dtype.element_ty).to(tl.float32)")
            self._store(body, self.value, "acc")
        if self.side and not self.whole:
            if self._most_parts() > MOST_PARTS:
                raise NoTailError("one program cannot put so many parts together")
            partials = self._reduced_parts(body)
            return [self._kernel(body, layout, loop, partials), self._settled()]
        for output in self.outputs:
            body.store(output)
        return [self._kernel(body, layout, loop, {})]

    def loop(self, body: TileBody, layout: TileLayout) -> list[str]:
        """The product of a tile."""
        p = self.product
        layout.reduced = {*self.ka.values(), *self.kb.values()}
        body.open()
        a, b = body.factor(p.a, self._index(p.a_labels, self.ka)), body.factor(p.b, self._index(p.b_labels, self.kb))
        self.multiply(body, a, b)
        return body.close()

    def multiply(self, body: TileBody, a: str, b: str) -> None:
        """Add the product of two tiles."""
        how = self.choice.inputs or {"fp32": "ieee", "tf32": "tf32"}.get(self.place.precision, "")
        body.say(f"acc = tl.dot({a}, {b}, acc" + (f', input_precision="{how}")' if how else ")"))

    def walk(self, defined: dict[str, list[str]], loop: list[str]) -> list[str]:
        """The loop over the depth."""
        steps = [
            "    ka = start + tl.arange(0, BLOCK_K)[None, :]",
            "    kb = start + tl.arange(0, BLOCK_K)[:, None]",
            *("    " + line for line in (*defined["ka"], *defined["kb"], *loop)),
        ]
        return [self.steps(), *steps]

    def steps(self) -> str:
        """The head of a loop over the depth, of which parts take turns."""
        first, step = ("part * BLOCK_K", "SPLIT * BLOCK_K") if self.tiles.split > 1 else ("0", "BLOCK_K")
        return f"for start in range({first}, @ka@, {step}):"

    def constants(self, sizes: Sizes, marks: dict[str, str]) -> None:
        """Make constants of the sizes by which the loop divides, and name them."""

    def _index(self, labels: tuple[int | str | None, ...], depth: dict[str, Axis]) -> Index:
        def of(label: int | str | None) -> Ix:
            return Ix() if label is None else Ix((depth[label],)) if isinstance(label, str) else Ix(self.dims[label])

        return tuple(map(of, labels))

    def _at(self, body: Body, axes: list[Axis]) -> str:
        """The place of an element in a tensor that has these axes, row by row."""
        shape = tuple(a.size for a in axes)
        return body.place(shape, range(len(shape)), tuple(Ix((a,)) for a in axes))

    def _store(self, body: Body, value: str, text: str) -> None:
        """Write the product as the library would."""
        shape = self.program.shapes[value]
        place = body.place(shape, self.place.orders.get(value, range(len(shape))), tuple(map(Ix, self.dims)))
        body.say(f"tl.store({body.pointer(value)} + {place}, {text}, mask=mask)")

    def _parts(self, body: Body) -> str:
        """Write what a program has of the sums; returns the shape of all parts."""
        axes = [a for dim in self.dims for a in dim]
        size = total(axes, self.sets)
        pointer, at = body.pointer(f"{self.value}_parts"), self._at(body, axes)
        body.say(f"tl.store({pointer} + part * {body.size(size)} + {at}, acc, mask=mask)")
        return f"({self.tiles.split}, {self.names.expression(size)})"

    def _kept(self) -> list[Axis]:
        """The axes along which reductions leave something."""
        return [*([] if self.planes else self.batch), *(self.m if self.side == "n" else self.n)]

    def _most_parts(self) -> int:
        """How many parts a reduction has at most, at any set."""
        axes, step = (self.n, self.tiles.n) if self.side == "n" else (self.m, self.tiles.m)
        sizes, planes = total(axes, self.sets), total(self.batch if self.planes else [], self.sets)
        return max(-(-n // step) * p for n, p in zip(sizes, planes, strict=True))

    def _counted(self) -> str:
        """Python of how many parts a reduction has."""
        axes, step = (self.n, self.tiles.n) if self.side == "n" else (self.m, self.tiles.m)
        text = f"triton.cdiv({self.names.expression(total(axes, self.sets))}, {step})"
        if not (self.planes and self.batch):
            return text
        return f"{wrapped(self.names.expression(total(self.batch, self.sets)))} * {text}"

    def _reduced_parts(self, body: Body) -> dict[str, str]:
        """Write what a tile has of each reduction; returns the parts with their shapes."""
        kept, partials, other = self._kept(), {}, "m" if self.side == "n" else "n"
        size = total(kept, self.sets)
        part = f"(plane * tiles_{self.side} + pid_{self.side})" if self.planes and self.batch else f"pid_{self.side}"
        for op in self.reductions:
            for i, text in enumerate(parts_of_tile(body, op)):
                name = f"{op.value}_part{i or ''}"
                at = f"{part} * {body.size(size)} + {self._at(body, kept)}"
                body.say(f"tl.store({body.pointer(name)} + {at}, {text}, mask={other} < @{other}@)")
                partials[name] = f"({self._counted()}, {self.names.expression(size)})"
        return partials

    def _settled(self) -> Kernel:
        self.plain.name = self.names.free("settle_kernel")
        self.plain.assembly.name = self.plain.name
        over = list(self.group.reduced)
        return self.plain.settled(self.reductions, self._kept(), over, self._counted(), self._most_parts())

    def _kernel(self, body: TileBody, layout: TileLayout, loop: list[str], partials: dict[str, str]) -> Kernel:
        tiles, traits = self.tiles, [f"{self.tiles.m}x{self.tiles.n}"]
        name = self.names.free("product_kernel")
        blocks = {"BLOCK_M": str(tiles.m), "BLOCK_N": str(tiles.n), "BLOCK_K": str(tiles.k), "GROUP_M": str(tiles.group)}
        if tiles.split > 1:
            blocks["SPLIT"] = str(tiles.split)
        sizes = Sizes(self.names, body.used | body.named | set(body.pointers.values()) | set(blocks))
        marks = {f"@{side}@": wrapped(sizes.text(total(flat.axes, self.sets))) for side, flat in layout.sides.items()}
        marks |= {f"@size{i}@": sizes.text(size) for i, size in enumerate(body.sizes)}
        self.constants(sizes, marks)
        crossed = {a for access in body.accesses for a, f in access.factors.items() if any(f)} | body.pinned
        defined: dict[str, list[str]] = {}
        for side, flat in layout.sides.items():
            flat.merge(body.accesses, body.pinned)
            for axis in flat.axes if len(flat.runs) > 1 else ():
                sizes.text(axis.size)
            defined[side] = flat.define(sizes, crossed)
        marks |= {f"@at{i}@": address(access, layout.flats, sizes) for i, access in enumerate(body.accesses)}
        named = {f"@axis{i}@": axis for i, axis in enumerate(self.group.axes)} | {f"@{k}@": a for k, a in self.ka.items()}
        for mark, axis in named.items():
            for flat in layout.flats:
                if (run := flat.run_of(axis)) is not None:
                    marks[mark] = flat.variables[run]
        lines = filled(self._lines(defined, loop, body.lines[0]), marks)
        assembly = Assembly(self.names, name, self.outputs, self.group, traits, self.sets)
        made = assembly.kernel(body, sizes, lines, blocks, tiles.warps, self._grid(), (1,) * self.sets)
        made.constants["num_stages"] = str(tiles.stages)
        made.partials, made.split = partials, tiles.split
        made.writes = [] if partials else list(self.outputs)
        if self.place.keep:
            made.writes.insert(0, self.value)
        m, n, batch = (total(axes, self.sets)[0] for axes in (self.m, self.n, self.batch))
        made.elements = m * n * batch
        depth = prod(s[0] for s in self.product.depth.values())
        made.product_flops = tiles.busy_flops(m, n, depth, batch)
        if self.product.taps is None:
            made.product_clocks = clocks(tiles, m, n, depth, batch, self.place.precision)
            sides = (self.product.a_labels, self.product.b_labels)
            made.turned = self.place.precision == "tf32" and any(labels[-1] not in self.product.depth for labels in sides)
        return made

    def _lines(self, defined: dict[str, list[str]], loop: list[str], rest: list[str]) -> list[str]:
        tiles = self.tiles
        head = [f"plane = tl.program_id({2 if tiles.split > 1 else 1})"] if self.batch else []
        if tiles.split > 1:
            head.append("part = tl.program_id(1)")
        body = [
            "band = pid // (GROUP_M * tiles_n)",
            "inside = pid % (GROUP_M * tiles_n)",
            "height = tl.minimum(tiles_m - band * GROUP_M, GROUP_M)",
            "pid_m = band * GROUP_M + inside % height",
            "pid_n = inside // height",
            *self.tile_lines(defined, loop, rest),
        ]
        counts = ["tiles_m = tl.cdiv(@m@, BLOCK_M)", "tiles_n = tl.cdiv(@n@, BLOCK_N)"]
        if tiles.persistent:
            walk = "for pid in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):"
            return [*head, *counts, walk, *("    " + line for line in body)]
        return ["pid = tl.program_id(0)", *head, *counts, *body]

    def tile_lines(self, defined: dict[str, list[str]], loop: list[str], rest: list[str]) -> list[str]:
        """A tile: where it is, its product, and the tail."""
        return [
            "m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
            "n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
            "mask = (m < @m@) & (n < @n@)",
            *(line for side in ("plane", "m", "n") for line in defined.get(side, ())),
            "acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)",
            *self.walk(defined, loop),
            *rest,
        ]

    def _grid(self) -> str:
        m, n, batch = (self.names.expression(total(axes, self.sets)) for axes in (self.m, self.n, self.batch))
        count = f"triton.cdiv({m}, {self.tiles.m}) * triton.cdiv({n}, {self.tiles.n})"
        if self.tiles.persistent:
            return f"(min({MULTIPROCESSORS}, {count}),)"
        axes = [count, *([str(self.tiles.split)] if self.tiles.split > 1 else []), *([batch] if self.batch else [])]
        return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
