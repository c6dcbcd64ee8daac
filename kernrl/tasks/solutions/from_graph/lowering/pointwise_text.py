"""Triton text of every pointwise op. `{0}`, `{1}` are operands; attributes stand by name.

Nothing of libdevice is used, which Triton's interpreter lacks. Relative accuracy is kept where PyTorch keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kernrl.tasks.grammar.pointwise import HELPERS as GRAMMAR_HELPERS

HELPERS = GRAMMAR_HELPERS | {
    # as the grammar's, and what is lost at -1 and at infinity is no number
    "log1p": """\
@triton.jit
def log1p(x):
    u = 1.0 + x
    lost = (u - 1.0) - x
    return tl.log(u) - tl.where((u > 0) & (u < float("inf")), lost / u, 0.0)
""",
    # Cephes' atanf: three ranges, one polynomial
    "atan": """\
@triton.jit
def atan(x):
    a = tl.abs(x)
    big = a > 2.41421356
    mid = a > 0.41421356
    start = tl.where(big, 1.57079633, tl.where(mid, 0.785398163, 0.0))
    t = tl.where(big, -1.0 / a, tl.where(mid, (a - 1.0) / (a + 1.0), a))
    z = t * t
    p = ((0.0805374450 * z - 0.138776856) * z + 0.199777106) * z - 0.333329492
    y = start + (p * z * t + t)
    return tl.where(x < 0, -y, y)
""",
}
"""Name → source of a helper that expressions call."""

TEXTS: dict[str, str] = {
    "relu": "tl.maximum({0}, 0.0)",
    "silu": "{0} * tl.sigmoid({0})",
    "mish": "mish({0})",
    "sigmoid": "tl.sigmoid({0})",
    "tanh": "tanh({0})",
    "hardswish": "{0} * tl.minimum(tl.maximum({0} + 3.0, 0.0), 6.0) / 6.0",
    "hardsigmoid": "tl.minimum(tl.maximum({0} + 3.0, 0.0), 6.0) / 6.0",
    "selu": "1.05070099 * tl.where({0} > 0, {0}, 1.67326324 * expm1({0}))",
    "log_sigmoid": "tl.minimum({0}, 0.0) - log1p(tl.exp(-tl.abs({0})))",
    "softsign": "{0} / (1.0 + tl.abs({0}))",
    "tanhshrink": "{0} - tanh({0})",
    "abs": "tl.abs({0})",
    "neg": "-{0}",
    "square": "{0} * {0}",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "expm1": "expm1({0})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "log2": "tl.log2({0})",
    "log10": "tl.log({0}) * 0.434294482",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tan": "tl.sin({0}) / tl.cos({0})",
    "atan": "atan({0})",
    "asin": "atan({0} / tl.sqrt((1.0 - {0}) * (1.0 + {0})))",
    "sinh": "0.5 * (expm1({0}) - expm1(-{0}))",
    "cosh": "0.5 * (tl.exp({0}) + tl.exp(-{0}))",
    "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "logical_not": "{0} == 0",
    "leaky_relu": "tl.where({0} > 0, {0}, {0} * {negative_slope})",
    "elu": "tl.where({0} > 0, {0}, {alpha} * expm1({0}))",
    "celu": "tl.where({0} > 0, {0}, {alpha} * expm1({0} / {alpha}))",
    "softshrink": "tl.where({0} > {lambd}, {0} - {lambd}, tl.where({0} < -{lambd}, {0} + {lambd}, 0.0))",
    "hardshrink": "tl.where(tl.abs({0}) > {lambd}, {0}, 0.0)",
    "threshold": "tl.where({0} > {threshold}, {0}, {value})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "where": "tl.where({0}, {1}, {2})",
    "prelu": "tl.where({0} > 0, {0}, {0} * {1})",
}
"""Op → expression, where attributes change nothing of its form."""


def literal(number: Any) -> str:
    """A number in a kernel."""
    if isinstance(number, float) and not math.isfinite(number):
        return f'float("{number}")'
    if isinstance(number, float):
        short = f"{number:.9g}"  # float32 has no more digits
        return short if any(c in short for c in ".en") else f"{short}.0"
    return repr(number)


def _gelu(a: Mapping[str, Any]) -> str:
    if a["approximate"] == "tanh":
        return "{0} * tl.sigmoid(1.59576912 * ({0} + 0.044715 * {0} * {0} * {0}))"
    return "0.5 * {0} * (1.0 + tl.erf({0} * 0.70710678))"


def _clamp(a: Mapping[str, Any]) -> str:
    """By comparisons, which leave NaN as it is."""
    text = "{0}"
    if a["max"] is not None:
        text = f"tl.where({{0}} > {literal(a['max'])}, {literal(a['max'])}, {text})"
    return text if a["min"] is None else f"tl.where({{0}} < {literal(a['min'])}, {literal(a['min'])}, {text})"


def _softplus(a: Mapping[str, Any]) -> str:
    if a["beta"] == 1.0:
        text = "tl.maximum({0}, 0.0) + log1p(tl.exp(-tl.abs({0})))"
    else:
        scaled = f"{{0}} * {literal(a['beta'])}"
        text = f"(tl.maximum({scaled}, 0.0) + log1p(tl.exp(-tl.abs({scaled})))) / {literal(a['beta'])}"
    # beyond 20, log1p(exp(-x)) is below float32's last digit
    return (
        text if a["threshold"] >= 20 else f"tl.where({{0}} * {literal(a['beta'])} > {literal(a['threshold'])}, {{0}}, {text})"
    )


def _cast(a: Mapping[str, Any]) -> str | None:
    return {
        "float32": "{0}.to(tl.float32)",
        "int64": "{0}.to(tl.int64)",
        "int32": "{0}.to(tl.int32)",
        "bool": "{0} != 0",
    }.get(a["dtype"])


WITH_ATTRIBUTES: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "gelu": _gelu,
    "clamp": _clamp,
    "softplus": _softplus,
    "cast": _cast,
    "div": lambda a: "{0} / {1}" if a["rounding_mode"] is None else None,
}


def point_text(op: str, operands: tuple[Any, ...], attributes: Mapping[str, Any]) -> str | None:
    """The expression of an op, its operands left open; None where there is no rule."""
    if op in WITH_ATTRIBUTES:
        return WITH_ATTRIBUTES[op](attributes)
    if op == "pow":
        return power_text(operands[1]) if not isinstance(operands[1], str) else None
    text = TEXTS.get(op)
    for name, value in attributes.items():
        text = text and text.replace(f"{{{name}}}", literal(value))
    return text and text.replace(" 1.0 * expm1", " expm1").replace(" / 1.0)", ")")


def power_text(exponent: Any) -> str:
    """The expression of a power."""
    if float(exponent).is_integer() and 1 <= abs(exponent) <= 8:
        product = " * ".join(["{0}"] * int(abs(exponent)))
        return product if exponent > 0 else f"1.0 / ({product})"
    return f"tl.exp(tl.log({{0}}) * {literal(float(exponent))})"


def helpers_in(text: str) -> list[str]:
    """Names of the helpers that a text calls."""
    return [name for name in HELPERS if _calls(text, name)]


def _calls(text: str, name: str) -> bool:
    at = text.find(f"{name}(")
    while at >= 0:
        if at == 0 or not (text[at - 1].isalnum() or text[at - 1] in "_."):
            return True
        at = text.find(f"{name}(", at + 1)
    return False
