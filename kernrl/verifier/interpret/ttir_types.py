"""Types of values in a kernel's TTIR, read from their text."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

import torch

from kernrl.verifier.plan.ttir import Function, Op, TtirError

MAX_TILE = 1 << 20

DTYPES = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2, "index": torch.int64,
}  # fmt: skip

_TYPE = re.compile(r"(?:tensor<((?:\d+x)*))?(!tt\.ptr<)?(\w+)")


@dataclass(frozen=True, slots=True)
class Type:
    """A value's type: tile shape (empty for a scalar), element type, and whether it is a pointer to that."""

    shape: tuple[int, ...]
    element: str
    pointer: bool

    @property
    def dtype(self) -> torch.dtype:
        if self.pointer:
            return torch.int64
        if self.element not in DTYPES:
            raise TtirError(f"the type {self.element}")
        return DTYPES[self.element]


@functools.lru_cache(maxsize=2048)
def read_type(text: str) -> Type:
    """Parse `tensor<64x!tt.ptr<f32>>`, `i32`, … Raises TtirError for other text and for tiles over Triton's limit."""
    found = _TYPE.match(text.strip())
    if found is None:
        raise TtirError(f"the type {text[:60]}")
    shape = tuple(int(d) for d in (found[1] or "").split("x")[:-1])
    if math.prod(shape) > MAX_TILE:
        raise TtirError(f"a tile of {math.prod(shape)} elements")
    return Type(shape, found[3], found[2] is not None)


def result_type(op: Op) -> Type:
    """The type of an operation's result: after `->` or ` to `, else the first one given."""
    return _result_type(op.types)


@functools.lru_cache(maxsize=2048)
def _result_type(types: str) -> Type:
    if types.strip() in ("true", "false"):
        return Type((), "i1", False)
    for arrow in ("-> ", " to "):
        if arrow in types:
            return read_type(types.rpartition(arrow)[2].lstrip("("))
    return read_type(types)


@functools.lru_cache(maxsize=128)
def widest_tile(function: Function) -> int:
    """Elements of a kernel's largest tile."""
    tiles = [read_type(m[0]).shape for op in function.walk() for m in re.finditer(r"tensor<(?:\d+x)+[!\w.]+", op.text)]
    return max((math.prod(s) for s in tiles), default=1)
