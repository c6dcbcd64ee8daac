"""Tiles of a matrix product: which are sensible on a GPU for a shape, by arithmetic alone.

A multiprocessor works on a tile at a time, so a product takes as many waves as its tiles fill, whole ones. Tiles differ in what
they load for each operation, in how much of them lies outside the product, and in how much shared memory their stages take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from kernrl.tasks.solutions.from_graph.codegen.layouts import power

MULTIPROCESSORS = 132
SHARED_BYTES = 227 << 10
"""What one program may hold in shared memory on Hopper."""
SCRATCH_BYTES = 4096
"""What reductions over a program's threads take of it, at most."""
MOST_SPLIT = 32
"""Parts of a tile's sum, all of which a program of the next kernel adds up."""
MOST_INDEX = (1 << 31) - 1
"""Of an element of all parts: kernels count in 32 bits."""
L2_BYTES_PER_CLOCK = 42
"""What a multiprocessor gets of the L2 cache in a clock: 5.5 TB/s over 132 of them at 1 GHz, rounded down."""

Kind = Literal["plain", "persistent", "split"]
"""How programs share a product: a tile each; several tiles each, one after the other; or a part of a tile's sum each."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of an element in shared memory."""

    a: int
    b: int
    """Of either operand."""
    tail: int
    """Of what is laid out anew behind the loop: what is stored, or the accumulator itself."""

    @staticmethod
    def of(precision: str) -> Widths:
        """Where everything has the precision of the task."""
        item = item_bytes(precision)
        return Widths(item, item, item)


def item_bytes(precision: str) -> int:
    """Bytes of an element of a task's tensors."""
    return 2 if precision in ("bf16", "fp16") else 4


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut: numbers that stand in the text of its kernel's launch."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8
    """Rows of tiles that are worked on together, so that the columns they share stay in the L2 cache."""
    split: int = 1
    """Parts of a tile's sum."""
    persistent: bool = False

    def shared_bytes(self, widths: Widths) -> int:
        """Shared memory of a program.

        The loop holds its stages, and the tail takes their room when they are done with; but a persistent program loads for its
        next tile while the last one is laid out for the tail, and needs room for both.
        """
        loop = (self.m * widths.a + self.n * widths.b) * self.k * self.stages
        tail = self.m * self.n * widths.tail
        return loop + tail if self.persistent else max(loop, tail)

    def waves(self, m: int, n: int, batch: int = 1) -> int:
        """Rounds in which all multiprocessors work on a tile each."""
        tiles = -(-m // self.m) * -(-n // self.n) * batch * self.split
        return -(-tiles // MULTIPROCESSORS)

    def busy_flops(self, m: int, n: int, k: int, batch: int = 1) -> int:
        """Operations for which the time passes: those of whole waves of whole tiles."""
        return 2 * self.m * self.n * self.depth(k) * MULTIPROCESSORS * self.waves(m, n, batch)

    def depth(self, k: int) -> int:
        """How far a program goes along the depth of a product, in whole steps."""
        return -(-k // (self.k * self.split)) * self.k


HALF = (
    Tiles(128, 256, 64, 8, 3),
    Tiles(128, 128, 64, 8, 4),
    Tiles(128, 64, 64, 4, 4),
    Tiles(64, 256, 64, 4, 4),
    Tiles(64, 128, 64, 4, 4),
    Tiles(64, 64, 128, 4, 4),
    Tiles(64, 32, 128, 4, 4),
    Tiles(16, 128, 128, 4, 4),
    Tiles(16, 64, 128, 4, 4),
    Tiles(128, 32, 64, 4, 4),
)
TF32 = (
    Tiles(128, 256, 32, 8, 3),
    Tiles(128, 128, 32, 8, 4),
    Tiles(128, 64, 32, 4, 4),
    Tiles(64, 256, 32, 4, 4),
    Tiles(64, 128, 32, 4, 4),
    Tiles(64, 64, 64, 4, 4),
    Tiles(64, 32, 64, 4, 4),
    Tiles(16, 128, 64, 4, 4),
    Tiles(16, 64, 64, 4, 4),
    Tiles(128, 32, 32, 4, 4),
)
IEEE = (
    Tiles(128, 128, 16, 8, 3),
    Tiles(64, 64, 32, 4, 3),
    Tiles(64, 128, 16, 8, 3),
    Tiles(32, 64, 32, 4, 3),
    Tiles(16, 64, 32, 4, 3),
)
"""Of plain float32 multiply-adds: every element of a tile is in registers, so tiles are small."""


def tile_sizes(
    m: int,
    n: int,
    k: int,
    batch: int,
    precision: str,
    kind: Kind = "plain",
    least: tuple[int, int] = (0, 0),
    widths: Widths | None = None,
) -> list[Tiles]:
    """Tiles for a product of `[m, k]` by `[k, n]`, best first; none where no tile fits.

    Args:
        least: Rows and columns that a tile holds at least, because they are reduced in it.
        widths: Where something has another width than the precision's.
    """
    item, widths = item_bytes(precision), widths or Widths.of(precision)
    found = []
    for tiles in {2: HALF, 4: IEEE if precision == "fp32" else TF32}[item]:
        if tiles.m < least[0] or tiles.n < least[1]:
            continue
        tiles = fitted(tiles, k)
        if kind == "persistent":
            if batch > 1 or tiles.waves(m, n) < 2:
                continue
            tiles = _with(tiles, persistent=True)
        if tiles.shared_bytes(widths) > SHARED_BYTES:
            continue
        if kind == "split":
            parts = _parts(tiles, m, n, k, batch)
            if parts < 2:
                continue
            tiles = _with(tiles, split=parts)
        if tiles not in found:
            found.append(tiles)
    return sorted(found, key=lambda t: clocks(t, m, n, k, batch, precision))


def window_tiles(m: int, n: int, k: int, precision: str) -> list[Tiles]:
    """Tiles for a convolution of images of `m` pixels to `n` channels, best first.

    Args:
        k: What a step goes along: the channels of a group, or all taps of a few channels.
    """
    item = item_bytes(precision)
    step, wide = max(16, min(128 // item, power(k))), max(16, min(128, power(n)))
    if precision == "fp32":
        return [Tiles(rows, min(wide, 64), 16, 4 if rows < 64 else 8, 3) for rows in (64, 32)]
    short = -(-m // 64) * 64 < 0.9 * (-(-m // 128) * 128)
    rows = 64 if short else 128
    first = Tiles(rows, wide, step, 8 if rows * wide > 128 * 64 else 4, 4)
    if wide <= 64 and m >= 1024:
        return [first, Tiles(256, wide, step, 8, 3)]
    return [first, Tiles(64, wide, step, 4, 4) if rows == 128 else Tiles(128, wide, step, 8, 4)]


def steps_ahead(stages: int, step_bytes: int) -> int:
    """How many stages a loop has that takes so many bytes in at each step; 0 where it cannot load ahead."""
    while stages > 1 and (stages - 1) * step_bytes > SHARED_BYTES - SCRATCH_BYTES:
        stages -= 1
    return stages if stages > 1 else 0


def _with(tiles: Tiles, k: int = 0, stages: int = 0, split: int = 1, persistent: bool = False) -> Tiles:
    return Tiles(tiles.m, tiles.n, k or tiles.k, tiles.warps, stages or tiles.stages, tiles.group, split, persistent)


def fitted(tiles: Tiles, k: int) -> Tiles:
    """No step along k is longer than k, and there are no more stages than steps."""
    step = max(16, min(tiles.k, power(k)))
    return _with(tiles, step, max(2, min(tiles.stages, -(-k // step))))


def _parts(tiles: Tiles, m: int, n: int, k: int, batch: int) -> int:
    """In how many parts k is cut: so many that one wave is full, and each part has four steps or more."""
    count = -(-m // tiles.m) * -(-n // tiles.n) * batch
    wanted, most = MULTIPROCESSORS // count, k // (4 * tiles.k)
    parts = min(wanted, most, MOST_SPLIT)
    return 1 << (parts.bit_length() - 1) if parts >= 2 else 1


def in_parts(tiles: Tiles, m: int, n: int, k: int, batch: int, precision: str) -> Tiles:
    """The tile with its sum cut into as many parts as take the fewest clocks, of four steps or more; whole if that is best.

    Any number may be best, and more than fill one wave: of 80 tiles, 3 parts each fill two waves of 132 multiprocessors.
    """
    most = min(MOST_SPLIT, k // (4 * tiles.k), MOST_INDEX // (m * n * batch))
    cut = [replace(tiles, split=parts) for parts in range(1, max(1, most) + 1)]
    return min(cut, key=lambda t: clocks(t, m, n, k, batch, precision))


def clock_flops(precision: str) -> int:
    """Operations of a multiprocessor in a clock."""
    return {"fp32": 256, "tf32": 2048}.get(precision, 4096)


@lru_cache(maxsize=4096)
def fewest_clocks(m: int, n: int, k: int, batch: int, precision: str) -> float:
    """Clocks of the best tiles for a product, whole or cut along its depth."""
    whole = [t for kind in ("plain", "persistent") for t in tile_sizes(m, n, k, batch, precision, kind)]
    cut = [in_parts(t, m, n, k, batch, precision) for t in whole if not t.persistent and k >= 8 * t.k]
    return min(clocks(t, m, n, k, batch, precision) for t in (*whole, *cut))


def clocks(tiles: Tiles, m: int, n: int, k: int, batch: int, precision: str) -> float:
    """Clocks that a product takes on the model's multiprocessors: each wave as long as multiplying or loading takes."""
    item = item_bytes(precision)
    rate = clock_flops(precision) * min(1.0, tiles.m / 64)  # a warpgroup multiplies 64 rows at once
    depth = tiles.depth(k)
    multiply = 2 * tiles.m * tiles.n * depth / rate
    load = (tiles.m + tiles.n) * depth * item / L2_BYTES_PER_CLOCK
    ends = 1500 + (tiles.m * tiles.n * 8 / L2_BYTES_PER_CLOCK) * (0.5 if tiles.persistent else 1.0)
    write = 2 * tiles.split * m * n * batch * 4 / (L2_BYTES_PER_CLOCK * MULTIPROCESSORS) if tiles.split > 1 else 0.0
    return tiles.waves(m, n, batch) * (max(multiply, load) + ends) + write
