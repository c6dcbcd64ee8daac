"""The pointwise ops of the grammar: how PyTorch spells each one, how Triton computes it, and what it does to numbers.

Three columns a reader can compare line by line. The Triton expressions keep relative accuracy where PyTorch does: near
zero for `tanh` and `expm1`, in the tails for `mish` and `sigmoid`. They use nothing of libdevice, which Triton's
interpreter lacks. The third column is numpy and only serves `program.soundness`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = Any


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An op that maps each element by itself, with its numbers (`{a}`, `{b}`) and operands (`{bias}`, …) left open."""

    name: str
    spellings: tuple[str, ...]
    """PyTorch expressions of `{x}`; one that starts with `nn.` is a module made in `__init__`."""
    triton: str
    """Triton expression of the variable `{x}`."""
    simulate: Callable[..., Array]
    """numpy twin: `simulate(x, *values, *operands)`."""
    values: tuple[tuple[float, ...], ...] = ()
    """One menu to draw from for each number."""
    operands: tuple[str, ...] = ()
    kind: Literal["", "channel", "tensor", "residual"] = ""
    """Where operands come from: parameters of one number a channel, a further input of `forward`, or the producer's output."""
    draws: tuple[str, ...] = ("torch.randn({shape})",)
    """How `__init__` draws each parameter: never a value at which the op does nothing."""
    vector: bool = False
    """Parameters have shape `(C,)` whatever the rank, as `F.batch_norm` wants them, not one that broadcasts."""
    helper: str = ""
    """The helper function that the Triton expression calls, a key of HELPERS."""


HELPERS = {
    # (1 - e) / (1 + e) loses its digits near 0, where the odd series has them all
    "tanh": """\
@triton.jit
def tanh(x):
    s = x * x
    e = tl.exp(-2.0 * tl.abs(x))
    big = (1.0 - e) / (1.0 + e)
    small = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869488))))
    return tl.where(s < 0.06, small, tl.where(x < 0, -big, big))
""",
    "expm1": """\
@triton.jit
def expm1(x):
    tail = 0.041666667 + x * (0.0083333333 + x * (0.0013888889 + x * 0.0001984127))
    small = x * (1.0 + x * (0.5 + x * (0.16666667 + x * tail)))
    return tl.where(tl.abs(x) < 0.4, small, tl.exp(x) - 1.0)
""",
    # what rounding 1 + x lost is put back: exact for tiny x, where log(1 + x) is 0
    "log1p": """\
@triton.jit
def log1p(x):
    u = 1.0 + x
    return tl.log(u) - ((u - 1.0) - x) / u
""",
    # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2); beyond 20 it is 1 in float32
    "mish": """\
@triton.jit
def mish(x):
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))
""",
}


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _gelu(x: Array) -> Array:
    return x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _elu(x: Array, a: float = 1.0) -> Array:
    return np.where(x > 0, x, a * np.expm1(np.minimum(x, 0.0)))


ACTIVATIONS = (
    Pointwise("relu", ("torch.relu({x})", "F.relu({x})", "nn.ReLU()"), "tl.maximum({x}, 0.0)", lambda x: np.maximum(x, 0)),
    Pointwise("relu6", ("F.relu6({x})", "nn.ReLU6()"), "tl.minimum(tl.maximum({x}, 0.0), 6.0)", lambda x: np.clip(x, 0, 6)),
    Pointwise(
        "leaky_relu",
        ("F.leaky_relu({x}, {a})", "nn.LeakyReLU({a})"),
        "tl.where({x} > 0, {x}, {x} * {a})",
        lambda x, a: np.where(x > 0, x, x * a),
        values=((0.01, 0.05, 0.1, 0.2),),
    ),
    Pointwise(
        "gelu",
        ("F.gelu({x})", "nn.GELU()"),
        "0.5 * {x} * (1.0 + tl.erf({x} * 0.70710678))",
        _gelu,
    ),
    Pointwise(
        "gelu_tanh",
        ('F.gelu({x}, approximate="tanh")', 'nn.GELU(approximate="tanh")'),
        "{x} * tl.sigmoid(1.59576912 * ({x} + 0.044715 * {x} * {x} * {x}))",
        _gelu,
    ),
    Pointwise(
        "silu", ("F.silu({x})", "nn.SiLU()", "{x} * torch.sigmoid({x})"), "{x} * tl.sigmoid({x})", lambda x: x * _sigmoid(x)
    ),
    Pointwise("mish", ("F.mish({x})", "nn.Mish()"), "mish({x})", lambda x: x * np.tanh(_softplus(x)), helper="mish"),
    Pointwise("sigmoid", ("torch.sigmoid({x})", "nn.Sigmoid()"), "tl.sigmoid({x})", _sigmoid),
    Pointwise("tanh", ("torch.tanh({x})", "nn.Tanh()"), "tanh({x})", np.tanh, helper="tanh"),
    Pointwise(
        "hardtanh",
        ("F.hardtanh({x}, min_val={a}, max_val={b})", "nn.Hardtanh({a}, {b})"),
        "tl.minimum(tl.maximum({x}, {a}), {b})",
        np.clip,
        values=((-1.0, -0.5), (0.5, 1.0, 2.0)),
    ),
    Pointwise(
        "hardswish",
        ("F.hardswish({x})", "nn.Hardswish()"),
        "{x} * tl.minimum(tl.maximum({x} + 3.0, 0.0), 6.0) / 6.0",
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
    ),
    Pointwise(
        "hardsigmoid",
        ("F.hardsigmoid({x})", "nn.Hardsigmoid()"),
        "tl.minimum(tl.maximum({x} + 3.0, 0.0), 6.0) / 6.0",
        lambda x: np.clip(x + 3, 0, 6) / 6,
    ),
    Pointwise(
        "softplus",
        ("F.softplus({x})", "nn.Softplus()"),
        "tl.maximum({x}, 0.0) + log1p(tl.exp(-tl.abs({x})))",
        _softplus,
        helper="log1p",
    ),
    Pointwise(
        "logsigmoid",
        ("F.logsigmoid({x})", "nn.LogSigmoid()"),
        "tl.minimum({x}, 0.0) - log1p(tl.exp(-tl.abs({x})))",
        lambda x: -_softplus(-x),
        helper="log1p",
    ),
    Pointwise(
        "elu",
        ("F.elu({x}, alpha={a})", "nn.ELU(alpha={a})"),
        "tl.where({x} > 0, {x}, {a} * expm1({x}))",
        _elu,
        values=((0.5, 1.0, 1.5),),
        helper="expm1",
    ),
    Pointwise(
        "selu",
        ("F.selu({x})", "nn.SELU()"),
        "1.05070099 * tl.where({x} > 0, {x}, 1.67326324 * expm1({x}))",
        lambda x: 1.05070099 * _elu(x, 1.67326324),
        helper="expm1",
    ),
    Pointwise("softsign", ("F.softsign({x})", "nn.Softsign()"), "{x} / (1.0 + tl.abs({x}))", lambda x: x / (1 + np.abs(x))),
    Pointwise("abs", ("torch.abs({x})", "{x}.abs()"), "tl.abs({x})", np.abs),
    Pointwise("square", ("torch.square({x})", "{x} * {x}", "{x}.pow(2)"), "{x} * {x}", np.square),
)

SCALARS = (
    Pointwise("add_scalar", ("{x} + {a}",), "{x} + {a}", np.add, values=((0.1, 0.25, 0.5, 1.0, 2.0),)),
    Pointwise("sub_scalar", ("{x} - {a}",), "{x} - {a}", np.subtract, values=((0.1, 0.5, 1.0, 2.0),)),
    Pointwise(
        "mul_scalar", ("{x} * {a}", "torch.mul({x}, {a})"), "{x} * {a}", np.multiply, values=((0.1, 0.5, 1.5, 2.0, 3.0),)
    ),
    Pointwise("div_scalar", ("{x} / {a}", "torch.div({x}, {a})"), "{x} / {a}", np.divide, values=((1.5, 2.0, 3.0, 5.0),)),
    Pointwise(
        "clamp",
        ("torch.clamp({x}, {a}, {b})", "{x}.clamp(min={a}, max={b})"),
        "tl.minimum(tl.maximum({x}, {a}), {b})",
        np.clip,
        values=((-1.0, -0.5, 0.0), (0.5, 1.0, 2.0)),
    ),
    Pointwise(
        "max_scalar", ("torch.clamp({x}, min={a})",), "tl.maximum({x}, {a})", np.maximum, values=((-0.5, -0.1, 0.1, 0.5),)
    ),
    Pointwise(
        "min_scalar", ("torch.clamp({x}, max={a})",), "tl.minimum({x}, {a})", np.minimum, values=((-0.5, 0.1, 0.5, 1.0),)
    ),
)

PARAMETERS = (
    Pointwise("add_param", ("{x} + {bias}",), "{x} + {bias}", np.add, operands=("bias",), kind="channel"),
    Pointwise("sub_param", ("{x} - {shift}",), "{x} - {shift}", np.subtract, operands=("shift",), kind="channel"),
    Pointwise("mul_param", ("{x} * {scale}",), "{x} * {scale}", np.multiply, operands=("scale",), kind="channel"),
    Pointwise(
        "div_param",
        ("{x} / {divisor}",),
        "{x} / {divisor}",
        lambda x, p: x / (0.5 + np.abs(p)),
        operands=("divisor",),
        kind="channel",
        draws=("torch.rand({shape}) + 0.5",),
    ),
    Pointwise(
        "max_param",
        ("torch.maximum({x}, {floor})",),
        "tl.maximum({x}, {floor})",
        np.maximum,
        operands=("floor",),
        kind="channel",
    ),
    Pointwise(
        "min_param", ("torch.minimum({x}, {cap})",), "tl.minimum({x}, {cap})", np.minimum, operands=("cap",), kind="channel"
    ),
    Pointwise(
        "batch_norm_eval",
        ("F.batch_norm({x}, {running_mean}, {running_var}, {weight}, {bias})",),
        "({x} - {running_mean}) * tl.rsqrt({running_var} + 1e-5) * {weight} + {bias}",
        lambda x, mean, var, weight, bias: (x - mean) / np.sqrt(np.abs(var) + 0.5) * weight + bias,
        operands=("running_mean", "running_var", "weight", "bias"),
        kind="channel",
        draws=("torch.randn({shape})", "torch.rand({shape}) + 0.5", "torch.randn({shape})", "torch.randn({shape})"),
        vector=True,
    ),
)

TENSORS = (
    Pointwise(
        "add_tensor", ("{x} + {other}", "torch.add({x}, {other})"), "{x} + {other}", np.add, operands=("other",), kind="tensor"
    ),
    Pointwise("sub_tensor", ("{x} - {other}",), "{x} - {other}", np.subtract, operands=("other",), kind="tensor"),
    Pointwise(
        "mul_tensor",
        ("{x} * {other}", "torch.mul({x}, {other})"),
        "{x} * {other}",
        np.multiply,
        operands=("other",),
        kind="tensor",
    ),
    Pointwise(
        "max_tensor",
        ("torch.maximum({x}, {other})",),
        "tl.maximum({x}, {other})",
        np.maximum,
        operands=("other",),
        kind="tensor",
    ),
    Pointwise(
        "min_tensor",
        ("torch.minimum({x}, {other})",),
        "tl.minimum({x}, {other})",
        np.minimum,
        operands=("other",),
        kind="tensor",
    ),
    Pointwise("residual_add", ("{x} + {residual}",), "{x} + {residual}", np.add, operands=("residual",), kind="residual"),
    Pointwise("residual_mul", ("{x} * {residual}",), "{x} * {residual}", np.multiply, operands=("residual",), kind="residual"),
)

POINTWISE = ACTIVATIONS + SCALARS + PARAMETERS + TENSORS
