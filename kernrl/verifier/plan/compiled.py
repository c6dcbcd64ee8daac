"""CompiledKernel: machine code made from a plan's kernel, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A cubin and all that is needed to launch it.

    Launch ABI: the cubin's entry `name` takes `parameters` in order, then two 64-bit pointers, global scratch and profile
    scratch. A launch uses `32 * num_warps` threads in x and `shared_bytes` of dynamic shared memory. Global scratch is
    `grid x * y * z * global_scratch_bytes` long, aligned to `global_scratch_align`, or null when that is 0; profile
    scratch is always null.
    """

    name: str
    cubin: bytes
    parameters: tuple[str, ...]
    """Types of the runtime arguments in order: `*f32` (any pointer, 8 bytes), `i1`, `i32`, `i64`, `f32`, `f64`, …"""
    shared_bytes: int
    num_warps: int
    global_scratch_bytes: int
    global_scratch_align: int
    target: str
