"""Products whose operands are loaded by tensor descriptors that the host makes: one instruction of Hopper's a tile.

Addresses and masks take neither registers nor instructions then, and what lies outside of an operand is loaded as zeros. The
tail is that of other products. Tensor cores multiply: products under `fp32` are left to the other styles.
"""

from __future__ import annotations

from math import prod
from typing import Literal

from kernrl.tasks.solutions.from_graph.codegen.assembly import Kernel
from kernrl.tasks.solutions.from_graph.codegen.index_text import wrapped
from kernrl.tasks.solutions.from_graph.codegen.layouts import total
from kernrl.tasks.solutions.from_graph.codegen.product_tile import NoTailError, TileBody, TileLayout
from kernrl.tasks.solutions.from_graph.codegen.products import LEAST, MOST_BATCH, Place, ProductChoice, ProductWriter
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import SHARED_BYTES, Kind, Tiles, clocks, fitted, in_parts, item_bytes
from kernrl.tasks.solutions.from_graph.codegen.view_index import Index, RestartError
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis

ALIGNED_BYTES = 16
"""Rows of a described tensor begin at multiples of this."""
BARRIER_BYTES = 1 << 10
"""Shared memory left for what stages wait on."""
HALVED = 128
"""Columns of a tile from which its tail works on one half of it after the other, in half the registers and shared memory."""
PARTS_BYTES = 16 << 10
"""Shared memory in which a tile is reduced."""
MOST_STAGES = 4
SHAPES = ((128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 64, 4), (64, 256, 4), (64, 128, 4), (64, 64, 4))
"""Rows and columns of tiles, with their warps: tensor cores multiply 64 rows at a time."""
SHARED_BY_TWO = (128, 128)
"""Of this tile a multiprocessor holds two programs, one of which multiplies while the other stores, if it has a stage less."""
SLOW_ALONE = (128, 256)
"""The last of equal estimates where a program has one tile, or a part of it: on an H200 that took 1.05 to 1.25 times as long as
with 256 x 128 under tf32, at 12 of 13 shapes, and parts of it 1.01 to 1.19 times in every precision. Whole tiles of half
precision are alike, and so are persistent programs."""
SWIZZLED_BYTES = 128
"""Of a tile's depth: rows as long as this lie in shared memory as tensor cores read them."""
Tail = Literal["halves", "whole", "parts"]
"""How it goes over a tile: one half after the other, all at once, or all at once without storing it."""


def write_described(place: Place, choice: ProductChoice) -> list[Kernel]:
    """The kernel of a product and the group that reads it, or the two that do its work one after the other.

    Raises:
        NoTailError: The group is no tail of the product, or an operand cannot be described.
    """
    for _ in range(64):
        try:
            return _Described(place, choice).write()
        except RestartError:
            continue
    raise NoTailError("axes were split for ever")


def described_tiles(
    m: int, n: int, k: int, batch: int, precision: str, kind: Kind, least: tuple[int, int], tail: Tail, width: int = 0
) -> list[Tiles]:
    """Tiles for a product of `[m, k]` by `[k, n]`, best first, each with as many stages as fit beside what it stores.

    Under `split` those whose sums are cut, and only where that takes fewer clocks than whole sums of any tile.

    Args:
        least: Rows and columns that a tile holds at least, because they are reduced in it.
        width: Bytes of an element of what the tail lays out anew, where they are not those of the precision.
    """
    item = item_bytes(precision)
    found = []
    for rows, columns, warps in SHAPES:
        if rows < least[0] or columns < least[1] or (tail == "whole" and rows > 128):  # registers would not hold it
            continue
        two = (rows, columns) == SHARED_BY_TWO and kind != "persistent"
        tiles = fitted(Tiles(rows, columns, SWIZZLED_BYTES // item, warps, MOST_STAGES - two), k)
        stored = 0
        if kind == "persistent":
            if batch > 1 or tiles.waves(m, n) < 2:
                continue
            # the next tile's stages are filled while this one is laid out for its store
            half = tail == "halves" and columns >= HALVED
            stored = PARTS_BYTES if tail == "parts" else rows * columns * (width or item) // (2 if half else 1)
        room = (SHARED_BYTES - BARRIER_BYTES - stored) // ((rows + columns) * tiles.k * item)
        if room >= 2:
            stages = min(tiles.stages, room)
            found.append(Tiles(rows, columns, tiles.k, warps, stages, persistent=kind == "persistent"))

    def time(tiles: Tiles) -> float:
        return clocks(tiles, m, n, k, batch, precision)

    if kind == "split" and found:
        whole = min(map(time, found))
        cut = [in_parts(tiles, m, n, k, batch, precision) for tiles in found]
        found = [tiles for tiles in cut if tiles.split > 1 and time(tiles) < whole]
    if kind == "split" or (kind == "plain" and item == 4):
        found.sort(key=lambda tiles: (tiles.m, tiles.n) == SLOW_ALONE)
    return sorted(found, key=time)


class _Described(ProductWriter):
    @property
    def halved(self) -> bool:
        """The tail works on one half of the tile after the other."""
        return self.tail == "halves" and self.tiles.n >= HALVED

    @property
    def tail(self) -> Tail:
        return "halves" if not self.side else "whole" if self.whole or self.place.keep else "parts"

    def tile(self) -> Tiles:
        if self.place.precision == "fp32":
            raise NoTailError("tensor cores do not multiply float32")
        m, n, batch = (total(axes, self.sets) for axes in (self.m, self.n, self.batch))
        k = prod(size[0] for size in self.product.depth.values())
        if min(m[0], n[0], k) < LEAST or max(batch) > MOST_BATCH:
            raise NoTailError("the product is too small")
        least = max(m) if self.whole and self.side == "m" else 0, max(n) if self.whole and self.side == "n" else 0
        kind, width = self.choice.kind, self._widths().tail
        found = described_tiles(m[0], n[0], k, batch[0], self.place.precision, kind, least, self.tail, width)
        if self.choice.rank >= len(found):
            raise NoTailError("no tile fits")
        return found[self.choice.rank]

    def loop(self, body: TileBody, layout: TileLayout) -> list[str]:
        p = self.product
        layout.reduced = {*self.ka.values(), *self.kb.values()}
        body.open()
        a = self._block(body, p.a, self._index(p.a_labels, self.ka), "m", self.ka)
        b = self._block(body, p.b, self._index(p.b_labels, self.kb), "n", self.kb)
        self.multiply(body, a, b)
        return body.close()

    def _block(self, body: TileBody, value: str, index: Index, side: str, depth: dict[str, Axis]) -> str:
        """Load a block of an operand; returns Python of it as a factor."""
        root, value, index = body.operand(value, index)
        shape, dims = self.program.shapes[value], {"plane": self.batch, side: self.m if side == "m" else self.n}
        dims["k"] = list(depth.values())
        if any(total(list(i.parts), self.sets) != size or i.step != 1 for i, size in zip(index, shape, strict=True)):
            raise NoTailError("an operand is a slice")
        if self.program.dtypes[root] != "float32" or root in self.place.orders:
            raise NoTailError("an operand lies in another order, or holds no floating-point numbers")
        axes = [a for i in index for a in i.parts]
        for order in (("plane", side, "k"), ("plane", "k", side), (side, "k"), ("k", side)):
            if all(dims[d] for d in order) and [a for d in order for a in dims[d]] == axes:
                return self._described(body, root, {d: dims[d] for d in order})
        raise NoTailError("an operand is no matrix, or one of several")

    def _described(self, body: TileBody, root: str, dims: dict[str, list[Axis]]) -> str:
        """Load a block of a tensor that has these dimensions."""
        item, tiles = item_bytes(self.place.precision), self.tiles
        sizes = {d: total(axes, self.sets) for d, axes in dims.items()}
        *_, side, last = dims
        if last != "k" and item == 4:  # each block would be turned in registers, with no product under way meanwhile
            raise NoTailError("tensor cores read float32 numbers along the depth alone")
        if sizes[last][0] * item % ALIGNED_BYTES:
            raise NoTailError("rows of an operand begin between 16 bytes")
        text, columns = f"@{root}@", self.names.expression(sizes[last])
        if self.program.shapes[root] != tuple(sizes.values()):
            planes = [self.names.expression(sizes["plane"])] if "plane" in sizes else []
            text += f".view({', '.join([*planes, '-1', columns])})"
        if any(n * item % ALIGNED_BYTES for n in sizes[last]):
            each, columns = ALIGNED_BYTES // item, wrapped(columns)
            text = f"torch.nn.functional.pad({text}, (0, -{columns} % {each})) if {columns} % {each} else {text}"
        blocks = {"plane": 1, "m": tiles.m, "n": tiles.n, "k": tiles.k}
        starts = {"plane": "plane", "m": "pid_m * BLOCK_M", "n": "pid_n * BLOCK_N", "k": "start"}
        variable = body.name(root)
        name = f"{variable}_desc"
        body.used.add(name)
        body.descriptors[name] = root, f"TensorDescriptor.from_tensor({text}, [{', '.join(str(blocks[d]) for d in dims)}])"
        load = f"{name}.load([{', '.join(starts[d] for d in dims)}])"
        if "plane" in dims:
            load += f".reshape([{', '.join(f'BLOCK_{d.upper()}' for d in (side, last))}])"
        body.say(f"{variable} = {load}")
        return variable if (last == "k") == ("m" in dims) else f"{variable}.T"

    def walk(self, defined: dict[str, list[str]], loop: list[str]) -> list[str]:
        return [self.steps(), *("    " + line for line in loop)]

    def tile_lines(self, defined: dict[str, list[str]], loop: list[str], rest: list[str]) -> list[str]:
        if not self.halved:
            return super().tile_lines(defined, loop, rest)
        tail = [
            "n = pid_n * BLOCK_N + half * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]",
            "mask = (m < @m@) & (n < @n@)",
            *defined["n"],
            "acc = left if half == 0 else right",
            *rest,
        ]
        return [
            "m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
            *(line for side in ("plane", "m") for line in defined.get(side, ())),
            "acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)",
            *self.walk(defined, loop),
            "left, right = tl.split(tl.permute(tl.reshape(acc, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))",
            "for half in tl.static_range(2):",
            *("    " + line for line in tail),
        ]
