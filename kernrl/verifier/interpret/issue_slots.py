"""How much of a multiprocessor's instruction issue one operation of a kernel takes, in lanes.

An operation on a tile takes an instruction for each element, masked or not: less where the compiler folds it into another
(integers into addresses, sums into multiply-adds), and more where the hardware has no instruction for it: divisions and
transcendental functions. The counts are roughly those of the machine code that Triton's compiler makes for sm_90. Operations
that only reshape a tile take none.
"""

from __future__ import annotations

import functools
import math
import re

import torch
from torch import Tensor

FREE = frozenset((
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.make_range", "arith.constant", "tt.dot",
    "tt.get_program_id", "tt.get_num_programs", "arith.extf", "arith.truncf", "arith.bitcast", "tt.bitcast", "scf.for",
    "scf.if", "scf.while", "scf.yield", "scf.condition", "tt.assert", "llvm.intr.assume", "tt.load", "tt.store",
))  # fmt: skip
SLOTS = {
    "arith.divf": 8.0, "arith.remf": 12.0, "arith.divsi": 4.0, "arith.remsi": 4.0, "arith.divui": 4.0, "arith.remui": 4.0,
    "math.exp": 6.0, "math.exp2": 4.0, "math.log": 10.0, "math.log2": 8.0, "math.sqrt": 8.0, "math.rsqrt": 6.0,
    "math.sin": 30.0, "math.cos": 30.0, "math.erf": 30.0, "tt.extern_elementwise": 30.0, "tt.precise_divf": 10.0,
    "tt.precise_sqrt": 12.0, "tt.reduce": 3.0, "tt.scan": 8.0,
}  # fmt: skip
OTHER, INTEGER, SINGLE_INTEGER = 0.8, 0.2, 1.0
"""Of whole numbers, the most go into addresses, which are computed once for four elements where these are
accessed together, and for each where they are not."""
VECTOR_SLOTS, SINGLE_SLOTS, COPY_SLOTS = 1.5, 6.0, 24.0
"""An element that is accessed as one of four, by an instruction of 16 bytes a thread; by itself; and by itself in a copy to
shared memory, as loads that are asked for ahead are: three to seven cycles for a warp were measured on an H200."""
VECTOR_BYTES = 16
_INTEGER = re.compile(r"arith\.\w*i|tt\.addptr")
BANK_LANES = 128
"""Lanes that a multiprocessor could issue in the cycle that one of 32 colliding stores takes."""
_AXIS = re.compile(r"axis = (\d+)")
_SHAPES = re.compile(r"tensor<((?:\d+x)+)")


@functools.lru_cache(maxsize=4096)
def issue_slots(name: str, text: str, threads: int) -> float:
    """Lanes that one operation of a program of so many threads occupies, without accesses; scalars cost nothing."""
    elements = 0 if name in FREE else tile_elements(text)
    if not elements:
        return 0.0
    # a tile of fewer elements is held by several threads, and computed by each
    return max(elements, threads) * SLOTS.get(name, OTHER)


@functools.lru_cache(maxsize=1024)
def counts_places(name: str) -> bool:
    """Whether an operation computes with whole numbers."""
    return _INTEGER.fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)
def exchange_slots(text: str, threads: int) -> float:
    """Lanes that a reduction waits for shared memory, as if they were issued, where it goes over an axis that warps share.

    Triton gives the last axis to the lanes of a warp and the first to warps, and every warp leaves a number for each column,
    side by side with those of the other warps: all lanes of a store meet in one bank.
    """
    axis, shape = _AXIS.search(text), _SHAPES.search(text)
    sides = [int(side) for side in shape[1].split("x")[:-1]] if shape else []
    if axis is None or len(sides) != 2 or int(axis[1]) != 0:
        return 0.0
    return BANK_LANES * sides[1] * float(min(threads // 32, sides[0]) if threads > 32 else 0)


@functools.lru_cache(maxsize=4096)
def tile_elements(text: str) -> int:
    """Elements of the largest tile that an operation's types name."""
    return max((math.prod(map(int, m[1].split("x")[:-1])) for m in _SHAPES.finditer(text)), default=0)


def in_vectors(address: Tensor, mask: Tensor, itemsize: int) -> bool:
    """Whether an access takes 16 bytes a thread: `address` and `mask` are [cases, programs, tile …]."""
    address, mask = (v.expand(torch.broadcast_shapes(address.shape, mask.shape))[0] for v in (address, mask))
    step = VECTOR_BYTES // itemsize
    return step <= 1 or any(
        _in_vectors(address.movedim(axis, -1), mask.movedim(axis, -1), step, itemsize)
        for axis in range(1, address.dim())
        if address.shape[axis] % step == 0
    )


def _in_vectors(address: Tensor, mask: Tensor, step: int, itemsize: int) -> bool:
    """Whether all elements lie in runs of `step`, each aligned, and either kept or left out as a whole."""
    address, mask = (v.reshape(-1, step) for v in (address, mask))
    steps = torch.arange(step) * itemsize
    side_by_side = ((address - address[:, :1]) == steps).all(1) & (address[:, 0] % VECTOR_BYTES == 0)
    return bool(((side_by_side | ~mask.any(1)) & (mask == mask[:, :1]).all(1)).double().mean() > 0.9)
