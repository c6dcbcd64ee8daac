"""Arithmetic of a kernel, counted from its IR; part of a plan's price."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernrl.verifier.plan.ttir import Block, Function, Op, TtirError, parse

_ARITHMETIC = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: int(a / b) if abs(a) < 1 << 50 else a // b,
    "arith.remsi": lambda a, b: math.fmod(a, b).__int__(),
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.extsi": lambda a: a,
    "arith.extui": lambda a: a,
    "arith.trunci": lambda a: a,
    "arith.index_cast": lambda a: a,
}
_EMULATED = {"tf32": ("tf32", 1), "tf32x3": ("tf32", 3), "bf16x3": ("half", 3), "bf16x6": ("half", 6)}
"""How a float32 product runs on tensor cores: the unit, and how many products it takes there."""
_SHAPE = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<\w+>|\w+)")


@dataclass(frozen=True, slots=True)
class KernelFlops:
    """Arithmetic of one launch, summed over its programs."""

    dot_flops: Mapping[str, float]
    """Floating-point operations of `tl.dot` by unit: `half`, `tf32`, or `fp32`."""
    point_flops: float
    """Element-wise and reduction operations."""
    guessed: bool = False
    """Whether some loop may make more or fewer trips than are counted."""


def kernel_flops(text: str, scalars: Mapping[int, int], grid: tuple[int, int, int]) -> KernelFlops:
    """Count a launch's arithmetic. `scalars` are by position; all programs count like program 0. Raises TtirError."""
    function = parse(text)
    values: dict[int, int] = {function.params[i]: v for i, v in scalars.items() if i < len(function.params)}
    dots: dict[str, float] = {}
    try:
        counted = _count(function.body, values, grid, math.prod(grid), dots)
    except (ValueError, LookupError, OverflowError, TypeError) as error:
        raise TtirError(f"malformed: {error}") from None
    return KernelFlops(dots, counted, _guessed(function, values))


def _count(
    blocks: Mapping[str, Block], values: dict[int, int], grid: tuple[int, int, int], weight: float, dots: dict[str, float]
) -> float:
    total = 0.0
    for block in blocks.values():
        for op in block.ops:
            if op.name == "scf.for":
                trips = _trips(op, values)
                body = op.regions[0]["entry"]
                values[body.args[0]] = values.get(op.operands[0], 0)
                total += _count(op.regions[0], values, grid, weight * trips, dots)
                continue
            _evaluate(op, values, grid)
            if op.name == "tt.dot":
                flops, unit = dot_flops(op)
                dots[unit] = dots.get(unit, 0.0) + flops * weight
            elif (
                op.name.startswith("math.")
                or (op.name.startswith("arith.") and op.name.endswith("f"))
                or "tt.reduce" in op.name
            ):
                total += weight * max((math.prod(map(int, m[1].split("x")[:-1])) for m in _SHAPE.finditer(op.text)), default=1)
            for region in op.regions:
                total += _count(region, values, grid, weight if op.name == "scf.if" else 0.0, dots)
    return total


def _guessed(function: Function, values: Mapping[int, int]) -> bool:
    """Whether a loop goes on while a condition holds, or has ends that are not known or differ from program to program, or from
    trip to trip of another loop."""
    differing: set[int] = set()
    for op in function.walk():
        if op.name == "scf.while":
            return True
        if op.name == "scf.for":
            if any(v not in values or v in differing for v in op.operands[:3]):
                return True
            differing.add(op.regions[0]["entry"].args[0])
        elif op.name == "tt.get_program_id" or not differing.isdisjoint(op.operands):
            differing.update(op.results)
    return False


def _trips(op: Op, values: Mapping[int, int]) -> int:
    low, high, step = (values.get(v) for v in op.operands[:3])
    if low is None or high is None or not step:
        return 1
    return max(0, -(-(high - low) // step))


def _evaluate(op: Op, values: dict[int, int], grid: tuple[int, int, int]) -> None:
    if not op.results:
        return
    if op.name == "arith.constant":
        found = re.fullmatch(r" (-?\d+|true|false)(?: : \w+)?", op.text)
        if found:
            values[op.results[0]] = {"true": 1, "false": 0}.get(found[1]) or int(found[1] if found[1][-1].isdigit() else 0)
    elif op.name == "tt.get_program_id":
        values[op.results[0]] = 0
    elif op.name == "tt.get_num_programs":
        values[op.results[0]] = grid["xyz".index(op.text.split()[0])]
    elif op.name in _ARITHMETIC and all(v in values for v in op.operands):
        try:
            result = _ARITHMETIC[op.name](*(values[v] for v in op.operands))
            # wrap at 64 bits, as repeated products would grow without end
            values[op.results[0]] = (result + (1 << 63)) % (1 << 64) - (1 << 63)
        except (ZeroDivisionError, ValueError, OverflowError):
            return


def dot_flops(op: Op) -> tuple[float, str]:
    """Floating-point operations of one `tl.dot`, and the unit that makes them."""
    shapes = [m.groups() for m in _SHAPE.finditer(op.types)]
    if len(shapes) < 3:
        raise TtirError("a dot without shapes")
    left, right = ([int(d) for d in shape.split("x")[:-1]] for shape, _ in shapes[:2])
    kind = shapes[0][1]
    precision = re.search(r"inputPrecision = (\w+)", op.text)
    unit, times = _EMULATED.get(precision[1] if precision else "", ("fp32", 1)) if kind == "f32" else ("half", 1)
    unit = "fp32" if kind == "f64" else unit
    return 2.0 * math.prod(left) * right[-1] * times, unit
