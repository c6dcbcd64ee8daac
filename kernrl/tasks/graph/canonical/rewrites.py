"""Spellings and what they spell: `x * sigmoid(x)` is `silu(x)`.

Each rule looks at one op that is about to be added and at the nodes that its operands come from. It gives the name of the
value that does the same in canonical form, or None. A rule holds for all numbers up to rounding: none drops a guard
against overflow, or merges two numbers into one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.patterns import affine, exactly, gelu, is_about, minus, normalized, one_of, sixth, softmax
from kernrl.tasks.graph.canonical.views import VIEW_RULES, move_views
from kernrl.tasks.graph.graph import Operand
from kernrl.tasks.graph.ops import OPS

Attributes = dict[str, Any]
Rule = Callable[[Builder, tuple[Operand, ...], Attributes], str | None]


def rewrite(b: Builder, op: str, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """The canonical form of an op on operands, where it is another; else None."""
    if op in VIEW_RULES:
        return VIEW_RULES[op](b, operands, attributes)
    return move_views(b, op, operands, attributes) or (RULES[op](b, operands, attributes) if op in RULES else None)


def _unchanged(b: Builder, x: Operand) -> str | None:
    """`x` itself, for `x * 1.0`: not for a number, and not where the arithmetic changes the dtype."""
    return x if isinstance(x, str) and b.value(x).dtype.startswith(("float", "bfloat")) else None


def _add(b: Builder, operands: tuple[Operand, ...], _: Attributes) -> str | None:
    x, y = operands
    if x == y and isinstance(x, str):
        return b.add("mul", x, 2.0 if b.value(x).dtype.startswith(("float", "bfloat")) else 2)
    if isinstance(y, int | float):
        return _unchanged(b, x) if y == 0 else b.add("sub", x, -y) if y < 0 else None
    if found := one_of(b, operands, "neg"):
        return b.add("sub", found[1], found[0].operands[0])
    if (found := one_of(b, operands, "linear")) and found[0].operands[2] is None and b.is_parameter(found[1]):
        x, weight, _none = found[0].operands
        if b.value(found[1]).shape == b.value(weight).shape[:1]:  # pyright: ignore[reportArgumentType]
            return b.add("linear", x, weight, found[1])
    if (found := one_of(b, operands, "rms_norm", "layer_norm", "instance_norm", "batch_norm_eval")) is not None:
        return affine(b, found[0], None, found[1])
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
        if is_about(y, 1 / 6) and (named := sixth(b, x)):
            return named
    if (found := one_of(b, operands, "square")) and found[0].operands[0] == found[1]:
        return b.add("pow", found[1], 3.0)
    for op, becomes in (("sigmoid", "silu"), ("hardsigmoid", "hardswish")):
        if (found := one_of(b, operands, op)) and found[0].operands[0] == found[1]:
            return b.add(becomes, found[1])
    found = one_of(b, operands, "tanh")
    soft = b.node(found[0].operands[0], "softplus") if found else None
    if found and soft and soft.operands[0] == found[1] and soft["beta"] == 1:
        return b.add("mish", found[1])
    if (found := one_of(b, operands, "rsqrt")) and (norm := normalized(b, found[1], found[0].operands[0])):
        return norm
    if found := one_of(b, operands, "rms_norm", "layer_norm"):
        return affine(b, found[0], found[1], None)
    return gelu(b, operands)


def _div(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    x, y = operands
    if attributes["rounding_mode"] is not None:
        return None
    if isinstance(y, int | float):
        return _unchanged(b, x) if y == 1 else sixth(b, x) if exactly(y, 6) else None
    if exactly(x, 1) and (node := b.node(y, "sqrt")):
        return b.add("rsqrt", node.operands[0])
    if (inner := minus(b, y, 1.0)) is not None:
        if (node := b.node(inner, "abs")) and node.operands[0] == x:
            return b.add("softsign", x)
        if (node := b.node(inner, "exp")) and (negative := b.node(node.operands[0], "neg")):
            if exactly(x, 1):
                return b.add("sigmoid", negative.operands[0])
            if negative.operands[0] == x:
                return b.add("silu", x)
    if (root := b.node(y, "sqrt")) and (norm := normalized(b, x, root.operands[0])):
        return norm
    return softmax(b, x, y)


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
        if (inner[1] if low is None else inner[0]) is None and both[0] <= both[1]:  # pyright: ignore[reportOperatorIssue]
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
    if not node or node.operands[0] != yes or not exactly(node.operands[1], 0) or not isinstance(yes, str):
        return None
    if exactly(no, 0):
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
    if (before := b.node(x, "cast")) and b.value(before.operands[0]).dtype == "bool":  # pyright: ignore[reportArgumentType]
        return b.add("cast", before.operands[0], **attributes)  # zeros and ones, whatever they were called between
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
    "cast": _cast,
    **{op: _merging(op) for op in ("sum", "mean", "amax", "amin", "prod", "logsumexp", "any", "all")},
}
"""Op → its rule."""

assert RULES.keys() <= OPS.keys()
