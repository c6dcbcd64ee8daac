"""Tiles of a matrix product: which are sensible on a GPU for a shape, by arithmetic alone.

A multiprocessor works on a tile at a time, so a product takes as many waves as its tiles fill, whole ones. Tiles differ in what
they load for each operation, in how much of them lies outside the product, and in how much shared memory their stages take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernrl.tasks.solutions.from_graph.codegen.layouts import power

MULTIPROCESSORS = 132
SHARED_BYTES = 227 << 10
"""What one program may hold in shared memory on Hopper."""
L2_BYTES_PER_CLOCK = 42
"""What a multiprocessor gets of the L2 cache in a clock: 5.5 TB/s over 132 of them at 1 GHz, rounded down."""

Kind = Literal["plain", "persistent", "split"]


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
    persistent: bool = False

    def shared_bytes(self, item: int) -> int:
        """Shared memory of its stages, for operands of so many bytes an element.

        A persistent program loads for its next tile while the last one's is laid out for the store, which takes room too.
        """
        return (self.m + self.n) * self.k * item * self.stages + self.m * self.n * item * self.persistent

    def waves(self, m: int, n: int, batch: int = 1) -> int:
        """Rounds in which all multiprocessors work on a tile each."""
        tiles = -(-m // self.m) * -(-n // self.n) * batch * self.split
        return -(-tiles // MULTIPROCESSORS)

    def busy_flops(self, m: int, n: int, k: int, batch: int = 1) -> int:
        """Operations for which the time passes: those of whole waves of whole tiles."""
        depth = -(-k // (self.k * self.split)) * self.k
        return 2 * self.m * self.n * depth * MULTIPROCESSORS * self.waves(m, n, batch)


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
    m: int, n: int, k: int, batch: int, precision: str, kind: Kind = "plain", least: tuple[int, int] = (0, 0)
) -> list[Tiles]:
    """Tiles for a product of `[m, k]` by `[k, n]`, best first; none where no tile fits.

    Args:
        least: Rows and columns that a tile holds at least, because they are reduced in it.
    """
    item = 2 if precision in ("bf16", "fp16") else 4
    found = []
    for tiles in {2: HALF, 4: IEEE if precision == "fp32" else TF32}[item]:
        if tiles.m < least[0] or tiles.n < least[1]:
            continue
        tiles = _fitted(tiles, k)
        if kind == "persistent":
            if batch > 1 or tiles.waves(m, n) < 2:
                continue
            tiles = _with(tiles, persistent=True)
        if tiles.shared_bytes(item) > SHARED_BYTES:
            continue
        if kind == "split":
            parts = _parts(tiles, m, n, k, batch)
            if parts < 2:
                continue
            tiles = _with(tiles, split=parts)
        if tiles not in found:
            found.append(tiles)
    return sorted(found, key=lambda t: _clocks(t, m, n, k, batch, precision))


def window_tiles(m: int, n: int, k: int, precision: str) -> list[Tiles]:
    """Tiles for a convolution of images of `m` pixels to `n` channels, best first.

    Args:
        k: What a step goes along: the channels of a group, or all taps of a few channels.
    """
    item = 2 if precision in ("bf16", "fp16") else 4
    step, wide = max(16, min(128 // item, power(k))), max(16, min(128, power(n)))
    if precision == "fp32":
        return [Tiles(rows, min(wide, 64), 16, 4 if rows < 64 else 8, 3) for rows in (64, 32)]
    short = -(-m // 64) * 64 < 0.9 * (-(-m // 128) * 128)
    rows = 64 if short else 128
    first = Tiles(rows, wide, step, 8 if rows * wide > 128 * 64 else 4, 4)
    if wide <= 64 and m >= 1024:
        return [first, Tiles(256, wide, step, 8, 3)]
    return [first, Tiles(64, wide, step, 4, 4) if rows == 128 else Tiles(128, wide, step, 8, 4)]


def _with(tiles: Tiles, k: int = 0, stages: int = 0, split: int = 1, persistent: bool = False) -> Tiles:
    return Tiles(tiles.m, tiles.n, k or tiles.k, tiles.warps, stages or tiles.stages, tiles.group, split, persistent)


def _fitted(tiles: Tiles, k: int) -> Tiles:
    """No step along k is longer than k, and there are no more stages than steps."""
    step = max(16, min(tiles.k, power(k)))
    return _with(tiles, step, max(2, min(tiles.stages, -(-k // step))))


def _parts(tiles: Tiles, m: int, n: int, k: int, batch: int) -> int:
    """In how many parts k is cut: so many that one wave is full, and each part has four steps or more."""
    count = -(-m // tiles.m) * -(-n // tiles.n) * batch
    wanted, most = MULTIPROCESSORS // count, k // (4 * tiles.k)
    parts = min(wanted, most, 32)
    return 1 << (parts.bit_length() - 1) if parts >= 2 else 1


def _clocks(tiles: Tiles, m: int, n: int, k: int, batch: int, precision: str) -> float:
    """Clocks that a product takes on the model's multiprocessors: each wave as long as multiplying or loading takes."""
    item = 2 if precision in ("bf16", "fp16") else 4
    rate = {"fp32": 256, "tf32": 2048}.get(precision, 4096)  # operations of a multiprocessor in a clock
    rate *= min(1.0, tiles.m / 64)  # a warpgroup multiplies 64 rows at once
    depth = -(-k // (tiles.k * tiles.split)) * tiles.k
    multiply = 2 * tiles.m * tiles.n * depth / rate
    load = (tiles.m + tiles.n) * depth * item / L2_BYTES_PER_CLOCK
    ends = 1500 + (tiles.m * tiles.n * 8 / L2_BYTES_PER_CLOCK) * (0.5 if tiles.persistent else 1.0)
    write = 2 * tiles.split * m * n * batch * 4 / (L2_BYTES_PER_CLOCK * MULTIPROCESSORS) if tiles.split > 1 else 0.0
    return tiles.waves(m, n, batch) * (max(multiply, load) + ends) + write
