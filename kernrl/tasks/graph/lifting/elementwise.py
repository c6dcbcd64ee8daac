"""Rare functions of one or two numbers, in the ops of a Graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kernrl.tasks.graph.lifting.aten_shapes import Arguments, Rule
from kernrl.tasks.graph.lifting.losses import xlogy

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


def _asinh(b: Builder, a: Arguments) -> str:
    """sign(x) * log1p(|x| + x² / (1 + √(x² + 1))), which keeps the digits of a small x."""
    size, square = b.add("abs", a["self"]), b.add("square", a["self"])
    root = b.add("sqrt", b.add("add", square, 1.0))
    more = b.add("div", square, b.add("add", root, 1.0))
    return b.add("mul", b.add("sign", a["self"]), b.add("log1p", b.add("add", size, more)))


def _acosh(b: Builder, a: Arguments) -> str:
    """log1p(t + √(2t + t²)) with t = x − 1, which keeps the digits near 1."""
    t = b.add("sub", a["self"], 1.0)
    root = b.add("sqrt", b.add("mul", t, b.add("add", t, 2.0)))
    return b.add("log1p", b.add("add", t, root))


def _atanh(b: Builder, a: Arguments) -> str:
    x = a["self"]
    return b.add("mul", b.add("sub", b.add("log1p", x), b.add("log1p", b.add("neg", x))), 0.5)


def _frac(b: Builder, a: Arguments) -> str:
    return b.add("sub", a["self"], b.add("trunc", a["self"]))


def _logit(b: Builder, a: Arguments) -> str:
    x, eps = a["self"], a["eps"]
    x = x if eps is None else b.add("clamp", x, min=eps, max=1 - eps)
    return b.add("log", b.add("div", x, b.add("sub", 1.0, x)))


def _sinc(b: Builder, a: Arguments) -> str:
    x = b.add("mul", a["self"], math.pi)
    return b.add("where", b.add("eq", a["self"], 0.0), 1.0, b.add("div", b.add("sin", x), x))


def _logaddexp(b: Builder, a: Arguments) -> str:
    """The larger one and what the other adds; of two equal ones, which may be infinite, a half each."""
    x, y = a["self"], a["other"]
    more = b.add("log1p", b.add("exp", b.add("neg", b.add("abs", b.add("sub", x, y)))))
    return b.add("where", b.add("eq", x, y), b.add("add", x, math.log(2)), b.add("add", b.add("maximum", x, y), more))


def _hypot(b: Builder, a: Arguments) -> str:
    """Scaled by the larger one, so that no square overflows."""
    x, y = (b.add("abs", a[name]) for name in ("self", "other"))
    high, low = b.add("maximum", x, y), b.add("minimum", x, y)
    root = b.add("sqrt", b.add("add", b.add("square", b.add("div", low, high)), 1.0))
    return b.add("where", b.add("eq", x, y), b.add("mul", x, math.sqrt(2)), b.add("mul", high, root))


LARGEST = 3.4028234663852886e38


def _nan_to_num(b: Builder, a: Arguments) -> str | None:
    x = a["self"]
    if b.value(x).dtype != "float32":
        return None
    high, low = (bound if a[name] is None else a[name] for name, bound in (("posinf", LARGEST), ("neginf", -LARGEST)))
    kept = b.add("where", b.add("eq", x, math.inf), high, b.add("where", b.add("eq", x, -math.inf), low, x))
    return b.add("where", b.add("isnan", x), a["nan"] or 0.0, kept)


def _isfinite(b: Builder, a: Arguments) -> str:
    return b.add("lt", b.add("abs", a["self"]), math.inf)


def _larger(op: str) -> Rule:
    """`fmax` and `fmin`: of a number and NaN, the number."""

    def rule(b: Builder, a: Arguments) -> str:
        x, y = a["self"], a["other"]
        return b.add("where", b.add("isnan", x), y, b.add("where", b.add("isnan", y), x, b.add(op, x, y)))

    return rule


def _heaviside(b: Builder, a: Arguments) -> str:
    x = a["self"]
    return b.add("where", b.add("eq", x, 0.0), a["values"], b.add("cast", b.add("gt", x, 0.0), dtype=b.value(x).dtype))


def _signbit(b: Builder, x: str) -> str:
    """Also of −0."""
    return b.add("logical_or", b.add("lt", x, 0.0), b.add("lt", b.add("div", 1.0, x), 0.0))


def _copysign(b: Builder, a: Arguments) -> str:
    x, y = a["self"], a["other"]
    size = b.add("abs", x)
    if not isinstance(y, str):
        return b.add("neg", size) if math.copysign(1, y) < 0 else size
    return b.add("where", _signbit(b, y), b.add("neg", size), size)


def _entr(b: Builder, a: Arguments) -> str:
    x = a["self"]
    return b.add("where", b.add("lt", x, 0.0), -math.inf, b.add("neg", xlogy(b, {"self": x, "other": x})))


def _float_power(b: Builder, a: Arguments) -> str:
    """In float64, whatever is given."""
    wide = [b.add("cast", a[name], dtype="float64") if isinstance(a[name], str) else a[name] for name in ("self", "exponent")]
    return b.add("pow", *wide)


def _isclose(b: Builder, a: Arguments) -> str | None:
    x, y = a["self"], a["other"]
    if a["equal_nan"] or b.value(x).dtype not in ("float32", "float64"):
        return None
    off = b.add("abs", b.add("sub", x, y))
    allowed = b.add("add", b.add("mul", b.add("abs", y), a["rtol"]), a["atol"])
    near = b.add("logical_and", b.add("lt", off, math.inf), b.add("le", off, allowed))
    return b.add("logical_or", b.add("eq", x, y), near)


def _shift(op: str, **attributes: Any) -> Rule:
    """`x >> 2` is `x // 4`."""
    return lambda b, a: b.add(op, a["self"], 1 << a["other"], **attributes)


ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys(("asinh", "arcsinh"), _asinh),
    **dict.fromkeys(("acosh", "arccosh"), _acosh),
    **dict.fromkeys(("atanh", "arctanh"), _atanh),
    "frac": _frac,
    **dict.fromkeys(("logit", "special_logit"), _logit),
    **dict.fromkeys(("sinc", "special_sinc"), _sinc),
    **dict.fromkeys(("xlogy", "special_xlogy"), xlogy),
    "logaddexp": _logaddexp,
    "hypot": _hypot,
    "nan_to_num": _nan_to_num,
    "isfinite": _isfinite,
    "special_expit": lambda b, a: b.add("sigmoid", a["self"]),
    "rad2deg": lambda b, a: b.add("mul", a["self"], 180 / math.pi),
    "deg2rad": lambda b, a: b.add("mul", a["self"], math.pi / 180),
    "ldexp": lambda b, a: b.add("mul", a["self"], b.add("exp2", a["other"])),
    "fmax": _larger("maximum"),
    "fmin": _larger("minimum"),
    "heaviside": _heaviside,
    "signbit": lambda b, a: _signbit(b, a["self"]),
    "copysign": _copysign,
    "special_entr": _entr,
    "float_power": _float_power,
    "isclose": _isclose,
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), _shift("div", rounding_mode="floor")),
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), _shift("mul")),
}
"""Name of an ATen op, without its overload → what it says."""

TAKE_NUMBERS = ("xlogy", "logaddexp", "hypot", "frac", "logit", "sinc", "asinh", "acosh", "atanh", "nan_to_num")
TAKE_NUMBERS += ("fmax", "fmin", "heaviside", "copysign", "float_power", "isclose")
"""Those in which a tensor of one element may as well be a number."""
