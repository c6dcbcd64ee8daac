"""Spellings and what they spell: `x * sigmoid(x)` is `silu(x)`.

Each rule looks at one op that is about to be added and at the nodes that its operands come from. It gives the name of the
value that does the same in canonical form, or None. A rule holds for all numbers up to rounding: none drops a guard
against overflow, or merges two numbers into one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernrl.tasks.graph.graph import Node, Operand
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.graph.views import VIEW_RULES, move_views

if TYPE_CHECKING:
    from kernrl.tasks.graph.build import Builder

Attributes = dict[str, Any]
Rule = Callable[["Builder", tuple[Operand, ...], Attributes], str | None]

CLOSE = 2e-4
"""Relative difference at which a written-out constant is the one that is meant: 0.7979 for sqrt(2 / pi)."""


def rewrite(b: Builder, op: str, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """The canonical form of an op on operands, where it is another; else None."""
    if op in VIEW_RULES:
        return VIEW_RULES[op](b, operands, attributes)
    return move_views(b, op, operands, attributes) or (RULES[op](b, operands, attributes) if op in RULES else None)


def _is(value: Operand, number: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isclose(value, number, rel_tol=CLOSE)


def _exactly(value: Operand, number: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == number


def _unchanged(b: Builder, x: Operand) -> str | None:
    """`x` itself, for `x * 1.0`: not for a number, and not where the arithmetic changes the dtype."""
    return x if isinstance(x, str) and b.value(x).dtype.startswith(("float", "bfloat")) else None


def _other(b: Builder, pair: tuple[Operand, ...], *ops: str) -> tuple[Node, Operand] | None:
    """The operand that one of `ops` gives, and the one beside it."""
    for one, beside in (pair, pair[::-1]):
        if node := b.node(one, *ops):
            return node, beside
    return None


def _plus(b: Builder, x: Operand, number: float) -> Operand | None:
    """`y`, where x is `y + number`."""
    node = b.node(x, "add")
    return node.operands[0] if node and _is(node.operands[1], number) else None


def _add(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    x, y = operands
    if x == y and isinstance(x, str):
        return b.add("mul", x, 2.0 if b.value(x).dtype.startswith(("float", "bfloat")) else 2)
    if isinstance(y, int | float):
        return _unchanged(b, x) if y == 0 else b.add("sub", x, -y) if y < 0 else None
    if found := _other(b, operands, "neg"):
        return b.add("sub", found[1], found[0].operands[0])
    if (found := _other(b, operands, "linear")) and found[0].operands[2] is None and b.is_parameter(found[1]):
        x, weight, _none = found[0].operands
        if b.value(found[1]).shape == b.value(weight).shape[:1]:  # pyright: ignore[reportArgumentType]
            return b.add("linear", x, weight, found[1])
    if (found := _other(b, operands, "rms_norm", "layer_norm", "instance_norm", "batch_norm_eval")) is not None:
        return _affine(b, found[0], None, found[1])
    return None


def _sub(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    x, y = operands
    if isinstance(y, int | float):
        return _unchanged(b, x) if y == 0 else b.add("add", x, -y) if y < 0 else None
    if node := b.node(y, "neg"):
        return b.add("add", x, node.operands[0])
    if (node := b.node(y, "tanh")) and node.operands[0] == x:
        return b.add("tanhshrink", x)
    return None


def _mul(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    x, y = operands
    if x == y:
        return b.add("square", x)
    if isinstance(y, int | float):
        if y in (1, -1):
            return b.add("neg", x) if y < 0 else _unchanged(b, x)
        if _is(y, 1 / 6) and (named := _sixth(b, x)):
            return named
    if (found := _other(b, operands, "square")) and found[0].operands[0] == found[1]:
        return b.add("pow", found[1], 3.0)
    for op, becomes in (("sigmoid", "silu"), ("hardsigmoid", "hardswish")):
        if (found := _other(b, operands, op)) and found[0].operands[0] == found[1]:
            return b.add(becomes, found[1])
    found = _other(b, operands, "tanh")
    soft = b.node(found[0].operands[0], "softplus") if found else None
    if found and soft and soft.operands[0] == found[1] and soft["beta"] == 1:
        return b.add("mish", found[1])
    if (found := _other(b, operands, "rsqrt")) and (norm := _normalized(b, found[1], found[0].operands[0])):
        return norm
    if found := _other(b, operands, "rms_norm", "layer_norm"):
        return _affine(b, found[0], found[1], None)
    return _gelu(b, operands)


def _sixth(b: Builder, x: Operand) -> str | None:
    """What `x / 6` is: `relu6(y + 3) / 6` and `y * relu6(y + 3) / 6`."""
    inner, beside = x, None
    if product := b.node(x, "mul"):
        if not (found := _other(b, product.operands, "clamp")):
            return None
        inner, beside = found[0].value.name, found[1]
    clamp = b.node(inner, "clamp")
    if not clamp or (clamp["min"], clamp["max"]) != (0.0, 6.0):
        return None
    y = _plus(b, clamp.operands[0], 3.0)
    if y is None or beside not in (None, y):
        return None
    return b.add("hardsigmoid" if beside is None else "hardswish", y)


def _factors(b: Builder, x: Operand, *, powers: bool = False) -> tuple[float, list[str]]:
    """x as a number times values: `0.5 * x * y` is (0.5, [x, y]); with `powers`, squares and cubes as what they multiply."""
    if isinstance(x, int | float):
        return float(x), []
    if node := b.node(x, "mul"):
        (m, left), (n, right) = (_factors(b, o, powers=powers) for o in node.operands)
        return m * n, left + right
    if powers and (node := b.node(x, "square", "pow")) and node.operands[1:] in ((), (3.0,)):
        return 1.0, [node.operands[0]] * (2 if node.op == "square" else 3)  # pyright: ignore[reportReturnType]
    if (node := b.node(x, "div")) and isinstance(node.operands[1], int | float) and node["rounding_mode"] is None:
        n, left = _factors(b, node.operands[0], powers=powers)
        return n / node.operands[1], left
    return 1.0, [x] if isinstance(x, str) else []


def _gelu(b: Builder, operands: tuple[Operand, ...]) -> str | None:
    """`0.5 * x * (1 + erf(x / sqrt(2)))`, or with `tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))`, in any order."""
    (m, left), (n, right) = _factors(b, operands[0]), _factors(b, operands[1])
    values = left + right
    if len(values) != 2 or not _is(m * n, 0.5):
        return None
    for x, gate in (values, values[::-1]):
        inner = b.node(_plus(b, gate, 1.0), "erf", "tanh")
        if inner is None:
            continue
        scale, terms = _factors(b, inner.operands[0])
        if inner.op == "erf" and terms == [x] and _is(scale, math.sqrt(0.5)):
            return b.add("gelu", x)
        if inner.op == "tanh" and len(terms) == 1 and _is(scale, math.sqrt(2 / math.pi)) and _cubic(b, terms[0], x):
            return b.add("gelu", x, approximate="tanh")
    return None


def _cubic(b: Builder, term: str, x: str) -> bool:
    """term is `x + 0.044715 * x ** 3`."""
    node = b.node(term, "add")
    if not node or x not in node.operands:
        return False
    scale, cube = _factors(b, node.operands[1] if node.operands[0] == x else node.operands[0], powers=True)
    return _is(scale, 0.044715) and cube == [x] * 3


def _div(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    x, y = operands
    if attributes["rounding_mode"] is not None:
        return None
    if isinstance(y, int | float):
        return _unchanged(b, x) if y == 1 else _sixth(b, x) if _exactly(y, 6) else None
    if _exactly(x, 1) and (node := b.node(y, "sqrt")):
        return b.add("rsqrt", node.operands[0])
    if (inner := _plus(b, y, 1.0)) is not None:
        if (node := b.node(inner, "abs")) and node.operands[0] == x:
            return b.add("softsign", x)
        if (node := b.node(inner, "exp")) and (negative := b.node(node.operands[0], "neg")):
            if _exactly(x, 1):
                return b.add("sigmoid", negative.operands[0])
            if negative.operands[0] == x:
                return b.add("silu", x)
    if (root := b.node(y, "sqrt")) and (norm := _normalized(b, x, root.operands[0])):
        return norm
    return _softmax_written_out(b, x, y)


def _softmax_written_out(b: Builder, x: Operand, y: Operand) -> str | None:
    """`e / e.sum(dim, keepdim=True)` with `e = exp(x - amax(x, dim, keepdim=True))`."""
    total, e = b.node(y, "sum"), b.node(x, "exp")
    shifted = b.node(e.operands[0], "sub") if e else None
    top = b.node(shifted.operands[1], "amax") if shifted else None
    if not (total and shifted and top) or total.operands[0] != x or top.operands[0] != shifted.operands[0]:
        return None
    return b.add("softmax", shifted.operands[0], dim=total["dim"]) if top["dim"] == total["dim"] else None


def _normalized(b: Builder, x: Operand, spread_and_eps: Operand) -> str | None:
    """`x / sqrt(spread + eps)`, as layer_norm where x is centred, else as rms_norm."""
    return _centred(b, x, spread_and_eps) or _rms(b, x, spread_and_eps)


def _rms(b: Builder, x: Operand, mean_square_and_eps: Operand) -> str | None:
    """`x / sqrt(mean(x ** 2, dim, keepdim=True) + eps)`."""
    total = b.node(mean_square_and_eps, "add")
    mean = b.node(total.operands[0], "mean") if total and isinstance(total.operands[1], float) else None
    square = b.node(mean.operands[0], "square") if mean else None
    if not (total and mean and square) or square.operands[0] != x:
        return None
    return b.add("rms_norm", x, None, dim=mean["dim"], eps=total.operands[1])


def _centred(b: Builder, difference: Operand, var_and_eps: Operand) -> str | None:
    """`(x - mean(x)) / sqrt(var(x, correction=0) + eps)`; the variance may be the mean of the difference's square."""
    total, minus = b.node(var_and_eps, "add"), b.node(difference, "sub")
    mean = b.node(minus.operands[1], "mean") if minus else None
    spread = b.node(total.operands[0], "var", "mean") if total and isinstance(total.operands[1], float) else None
    if not (total and minus and mean and spread) or mean.operands[0] != minus.operands[0] or spread["dim"] != mean["dim"]:
        return None
    square = b.node(spread.operands[0], "square")
    whole = spread.op == "var" and spread["correction"] == 0 and spread.operands[0] == mean.operands[0]
    if not whole and not (spread.op == "mean" and square and square.operands[0] == difference):
        return None
    return b.add("layer_norm", mean.operands[0], None, None, dim=mean["dim"], eps=total.operands[1])


def _affine(b: Builder, norm: Node, weight: Operand, bias: Operand) -> str | None:
    """A norm with a parameter multiplied or added behind it, where the norm has a place for it that is empty."""
    x = norm.operands[0]
    given = weight if bias is None else bias
    if norm.op not in ("layer_norm", "rms_norm") or not b.is_parameter(given):
        return None
    shape = b.value(x).shape  # pyright: ignore[reportArgumentType]
    trailing = norm["dim"] == tuple(range(len(shape) - len(norm["dim"]), len(shape)))
    if not trailing or b.value(given).shape != tuple(shape[d] for d in norm["dim"]):  # pyright: ignore[reportArgumentType]
        return None
    if bias is None and norm.operands[1] is None and norm.operands[2:] in ((), (None,)):
        return b.add(norm.op, x, weight, *norm.operands[2:], **dict(norm.attributes))
    if bias is not None and norm.op == "layer_norm" and norm.operands[2] is None:
        return b.add("layer_norm", x, norm.operands[1], bias, **dict(norm.attributes))
    return None


def _pow(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    x, n = operands
    named = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}.get(n) if isinstance(n, float) else None
    if named:
        return b.add(named, x)
    return _unchanged(b, x) if n == 1 else b.add("div", 1.0, x) if n == -1.0 else None


def _bound(side: str) -> Rule:
    """`maximum(x, number)` as `clamp(x, min=number)`."""

    def rule(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
        x, y = operands
        if x == y and isinstance(x, str):
            return x
        return b.add("clamp", x, **{side: y}) if isinstance(y, int | float) else None

    return rule


def _clamp(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    low, high = attributes["min"], attributes["max"]
    if (low, high) == (None, None):
        return operands[0]  # pyright: ignore[reportReturnType]
    before = b.node(operands[0], "clamp", "relu")
    if before and None in (low, high):
        inner = (0.0, None) if before.op == "relu" else (before["min"], before["max"])
        both = (inner[0], high) if low is None else (low, inner[1])
        if (inner[1] if low is None else inner[0]) is None and both[0] <= both[1]:
            return b.add("clamp", before.operands[0], min=both[0], max=both[1])
    return b.add("relu", operands[0]) if low == 0 and high is None else None


def _sqrt(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    node = b.node(operands[0], "var")
    return b.add("std", *node.operands, **dict(node.attributes)) if node else None


def _where(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    """`where(x > 0, x, slope * x)` is leaky_relu, or relu where the slope is 0."""
    test, yes, no = operands
    if negated := b.node(test, "logical_not"):
        return b.add("where", negated.operands[0], no, yes)
    node = b.node(test, "gt", "ge")
    if not node or node.operands[0] != yes or not _exactly(node.operands[1], 0) or not isinstance(yes, str):
        return None
    if _exactly(no, 0):
        return b.add("relu", yes)
    scaled = b.node(no, "mul")
    if scaled and scaled.operands[0] == yes and isinstance(scaled.operands[1], float):
        return b.add("leaky_relu", yes, negative_slope=scaled.operands[1])
    return None


def _linear(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    """`linear` reads a weight [out, in]: of one that is stored the other way round, it is a matmul."""
    x, weight, bias = operands
    turned = b.node(weight, "permute")
    if not turned or turned["dims"] != (1, 0):
        return None
    product = b.add("matmul", x, turned.operands[0])
    return product if bias is None else b.add("add", product, bias)


def _matmul(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    x, y = operands
    turned = b.node(y, "permute")
    if turned and turned["dims"] == (1, 0) and len(b.value(x).shape) >= 2:  # pyright: ignore[reportArgumentType]
        return b.add("linear", x, turned.operands[0], None)
    return None


def _group_norm(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    x = b.value(operands[0])  # pyright: ignore[reportArgumentType]
    if len(x.shape) > 2 and x.shape[1] == attributes["num_groups"]:
        return b.add("instance_norm", *operands, eps=attributes["eps"])
    return None


def _reduction(b: Builder, operands: tuple[Operand, ...], attributes: Attributes, op: str) -> str | None:
    """The same reduction twice in a row, over other axes, is one over both."""
    before = b.node(operands[0], op)
    if not before or not attributes["keepdim"] or set(before["dim"]) & set(attributes["dim"]):
        return None
    return b.add(op, before.operands[0], dim=before["dim"] + attributes["dim"], keepdim=True)


def _merging(op: str) -> Rule:
    return lambda b, operands, attributes: _reduction(b, operands, attributes, op)


def _cast(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    x = operands[0]
    return x if isinstance(x, str) and b.value(x).dtype == attributes["dtype"] else None


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "sqrt": _sqrt,
    "maximum": _bound("min"),
    "minimum": _bound("max"),
    "clamp": _clamp,
    "where": _where,
    "linear": _linear,
    "matmul": _matmul,
    "group_norm": _group_norm,
    "cast": _cast,
    **{op: _merging(op) for op in ("sum", "mean", "amax", "amin", "prod", "logsumexp", "any", "all")},
}
"""Op → its rule."""

assert RULES.keys() <= OPS.keys()
