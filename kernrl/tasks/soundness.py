"""Refuses programs that could not tell a right answer from a wrong one.

The chain is run on a few hundred numbers in numpy. A program is sound when dropping any one op visibly changes the
result (a ReLU after a sigmoid, a bias before an instance norm would not), when its result is not constant, and when it
does not magnify rounding errors beyond what float32 answers can be judged by.
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np

from kernrl.tasks.cores import simulate
from kernrl.tasks.program import Program, Step

Array = np.ndarray
VISIBLE = 0.02
"""Least change of the result, relative to its spread, that an op must make."""
MAGNIFIED = 30.0
"""Largest factor by which a relative error of the producer's output may grow."""

LOUD = 3.0
"""Parameters are drawn for hundreds of channels but simulated for eight: what the largest of them do is tried this way."""


@cache
def _noise(seed: int, size: int) -> Array:
    """Standard normal numbers, the same on every machine."""
    rng = Random(seed)
    return np.array([rng.gauss(0.0, 1.0) for _ in range(size)])


def _start(program: Program, bias: bool) -> Array:
    """A stand-in for the producer's output: [16, 24] rows or [4, 8, 16] images, with a shift a channel for a bias."""
    rows = program.producer.after.layout == "rows"
    shape = (16, 24) if rows else (4, 8, 16)
    family = program.producer.family
    spread = {"bmm": 8.0, "rows": 1.0, "image": 1.0}.get(family, 0.6)
    if family == "matmul" and "y" in program.producer.expression:
        spread = 8.0
    x = spread * _noise(1, 16 * 24 if rows else 4 * 8 * 16).reshape(shape)
    if bias:
        shift = 0.3 * _noise(2, shape[1])
        x = x + (shift if rows else shift[:, None])
    return x


def _apply(step: Step, x: Array, start: Array, seed: int, loud: float) -> Array:
    """One step on the stand-in; `loud` multiplies its parameters."""
    operands = []
    for index, operand in enumerate(step.operands.values()):
        if operand.kind == "residual":
            operands.append(start)
        elif operand.kind == "tensor":
            operands.append(_noise(seed + index, x.size).reshape(x.shape))
        else:
            channel = loud * _noise(seed + index, x.shape[1])
            operands.append(channel[:, None] if x.ndim == 3 else channel)
    core = step.core
    if core is None:
        return step.op.simulate(x, *step.values, *operands)  # pyright: ignore[reportAttributeAccessIssue]
    if core.space == "window":
        x = x[..., : x.shape[2] // 2 * 2]
        return simulate(core.body, x.reshape(*x.shape[:2], -1, 2), 3)[..., 0]
    sets, axis = x, {"rows": 1, "space": 2, "channels": 1, "group": 2, "batch": (0, 2) if x.ndim == 3 else 0}[core.space]
    if core.space == "group":
        sets = x.reshape(x.shape[0], 2, -1)
    if not _is_steady(core.body, sets, axis):
        return np.full_like(x, np.nan)
    y = simulate(core.body, sets, axis)
    if not core.collapses:
        y = y.reshape(x.shape)
    for operand, apply in zip(operands, (np.multiply, np.add), strict=False):
        y = apply(y, operand)
    return y[:, :, 0] if core.collapses and core.space == "space" and step.after.layout != "grid" else y


def _is_steady(body: str, x: Array, axis: int | tuple[int, ...]) -> bool:
    """No normalised set is nearly constant beside its mean: there the rounding of the mean would decide the result."""
    if body != "norm":
        return True
    mean, var = x.mean(axis=axis), x.var(axis=axis)
    return bool((np.abs(mean) < MAGNIFIED * np.sqrt(var + 1e-5)).all())


def _run(program: Program, x: Array, drop: int = -1, loud: float = 1.0) -> Array:
    start = x
    for index, step in enumerate(program.steps):
        if index != drop:
            x = _apply(step, x, start, 100 + 10 * index, loud)
    return x


def is_sound(program: Program) -> bool:
    """Every op shows in the result, the result varies, and rounding stays rounding."""
    with np.errstate(all="ignore"):
        x = _start(program, bias=True)
        result = _run(program, x)
        spread, size = float(result.std()), float(np.sqrt((result**2).mean()))
        if not (np.isfinite(result).all() and 1e-4 < size < 1e4 and spread > 2e-3 * size):
            return False
        if not np.isfinite(_run(program, x, loud=LOUD)).all():
            return False
        shaken = _run(program, x * (1.0 + 1e-6 * _noise(3, x.size).reshape(x.shape)))
        if np.sqrt(((shaken - result) ** 2).mean()) > 1e-6 * MAGNIFIED * size:
            return False
        others = [_run(program, x, drop=index) for index, step in enumerate(program.steps) if step.before == step.after]
        if program.producer.bias:
            others.append(_run(program, _start(program, bias=False)))
        return all(np.sqrt(((other - result) ** 2).mean()) > VISIBLE * spread for other in others)
