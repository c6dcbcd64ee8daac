"""Refuses programs that could not tell a right answer from a wrong one.

The chain is run on a few hundred numbers in numpy. A program is sound when dropping any one op visibly changes the
result (a ReLU after a sigmoid, a bias before an instance norm would not), when its result is not constant, and when it
does not magnify rounding errors beyond what float32 answers can be judged by.
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np

from kernrl.tasks.grammar.program import Program, Step
from kernrl.tasks.grammar.reductions import simulate

Array = np.ndarray
VISIBLE = 0.02
"""Least change of the result, relative to its spread, that an op must make."""
SHAKE = 1e-6
"""Relative error put on every op's result to see what becomes of rounding errors."""
MAGNIFIED = 100.0
"""Largest factor by which such errors may grow in the result, beside its RMS."""

LIVE = 0.3
"""Least share of the result's elements that other inputs must change: a clamp may leave almost everything at its bound."""
VARIED = 4e-3
"""Least spread of the result, relative to its RMS."""
STEADY = 100.0
"""Largest ratio of mean to spread of a normalised set, in any regime."""
STEADY_CONSTANT = 4.0
"""The same for a set of equal numbers, of which eager PyTorch may have the mean exactly."""
LOUD = 3.0
"""Parameters are drawn for hundreds of channels but simulated for eight: what the largest of them do is tried this way."""


@cache
def _noise(seed: int, size: int) -> Array:
    """Standard normal numbers, the same on every machine."""
    rng = Random(seed)
    return np.array([rng.gauss(0.0, 1.0) for _ in range(size)])


REGIMES = {
    # producer: (spread, mean, spread of a shift a channel) of its output for inputs that are normal, uniform,
    # normal + 3, normal × 64 and normal × 1e-3
    "layer": ((0.6, 0.0, 0.0), (0.17, 0.0, 0.3), (0.6, 0.0, 1.7), (38.0, 0.0, 0.0), (6e-4, 0.0, 0.1)),
    "product": ((8.0, 0.0, 0.0), (2.5, 32.0, 1.6), (35.0, 1150.0, 30.0), (3e4, 0.0, 0.0), (8e-6, 0.0, 0.0)),
    "none": ((1.0, 0.0, 0.0), (0.3, 0.5, 0.0), (1.0, 3.0, 0.0), (64.0, 0.0, 0.0), (1e-3, 0.0, 0.0)),
}


def _shapes(program: Program) -> list[tuple[int, ...]]:
    """Shapes of stand-ins. Sums grow and extremes settle with the size of a set, so a collapsing op is tried on two sizes."""
    rows = program.producer.after.layout == "rows"
    shapes: list[tuple[int, ...]] = [(16, 24) if rows else (4, 8, 16)]
    if any(step.core and step.core.collapses for step in program.steps):
        shapes.append((8, 768) if rows else (4, 32, 96))
    return shapes


def _starts(program: Program, shape: tuple[int, ...]) -> list[Array]:
    """Stand-ins for the producer's output in every regime."""
    producer = program.producer
    kind = "none" if producer.expression == "x" else "product" if len(producer.inputs) > 1 else "layer"
    noise = _noise(1, int(np.prod(shape))).reshape(shape)
    channel = _noise(2, shape[1]) if len(shape) == 2 else _noise(2, shape[1])[:, None]
    return [spread * noise + mean + shift * channel for spread, mean, shift in REGIMES[kind]]


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
    limit = np.where(var > 1e-10 * mean**2, STEADY, STEADY_CONSTANT)
    return bool((np.abs(mean) <= limit * np.sqrt(var + 1e-5)).all())


def _run(program: Program, x: Array, *, drop: int = -1, loud: float = 1.0, shake: float = 0.0) -> Array:
    """The chain on a stand-in, without step `drop`, with relative errors `shake` in every step's operand and result."""
    start = x = x * (1.0 + shake * _noise(3, x.size).reshape(x.shape))
    for index, step in enumerate(program.steps):
        if index != drop:
            x = _apply(step, x, start, 100 + 10 * index, loud)
            if shake:
                x = x * (1.0 + shake * _noise(4 + index, x.size).reshape(x.shape))
    return x


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def _is_conditioned(program: Program, start: Array) -> bool:
    """The result is finite, and rounding errors along the chain stay small beside it."""
    result = _run(program, start, loud=LOUD)
    if not np.isfinite(result).all():
        return False
    error = _rms(_run(program, start, loud=LOUD, shake=SHAKE) - result)
    return bool(np.isfinite(error)) and error <= SHAKE * MAGNIFIED * _rms(result)


def _is_visible(program: Program, start: Array) -> bool:
    """The result varies, and each op and the producer's bias show in it."""
    x = start
    if program.producer.bias:
        bias = 0.3 * _noise(5, start.shape[1])
        x = start + (bias if start.ndim == 2 else bias[:, None])
    result = _run(program, x)
    spread, size = float(result.std()), _rms(result)
    if not (np.isfinite(result).all() and 1e-4 < size < 1e4 and spread > VARIED * size):
        return False
    elsewhere = _run(program, np.roll(x, 1, axis=0))
    if np.mean(np.abs(elsewhere - result) > VISIBLE * VARIED * size) < LIVE:
        return False
    for index, step in enumerate(program.steps):
        if step.before == step.after and _rms(_run(program, x, drop=index) - result) < VISIBLE * spread:
            return False
    return not program.producer.bias or _rms(_run(program, start) - result) >= VISIBLE * spread


def is_sound(program: Program) -> bool:
    """Every op shows in the result, the result varies, and rounding stays rounding whatever the inputs."""
    with np.errstate(all="ignore"):
        return all(
            _is_visible(program, starts[0]) and all(_is_conditioned(program, start) for start in starts)
            for starts in (_starts(program, shape) for shape in _shapes(program))
        )
