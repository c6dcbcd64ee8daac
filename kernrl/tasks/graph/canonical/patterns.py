"""What people write out by hand: gelu, hardswish, softmax, layer norm and RMS norm, found in the nodes that spell them."""

from __future__ import annotations

import math

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.graph import Node, Operand

CLOSE = 2e-4
"""Relative difference at which a written-out constant is the one that is meant: 0.7979 for sqrt(2 / pi)."""


def is_about(value: Operand, number: float) -> bool:
    """`value` is that number, as somebody may have written it out."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isclose(value, number, rel_tol=CLOSE)


def exactly(value: Operand, number: float) -> bool:
    """`value` is that number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == number


def one_of(b: Builder, pair: tuple[Operand, ...], *ops: str) -> tuple[Node, Operand] | None:
    """The operand that one of `ops` gives, and the one beside it."""
    for one, beside in (pair, pair[::-1]):
        if node := b.node(one, *ops):
            return node, beside
    return None


def minus(b: Builder, x: Operand, number: float) -> Operand | None:
    """`y`, where x is `y + number`."""
    node = b.node(x, "add")
    return node.operands[0] if node and is_about(node.operands[1], number) else None


def sixth(b: Builder, x: Operand) -> str | None:
    """What `x / 6` is: `relu6(y + 3) / 6` and `y * relu6(y + 3) / 6`."""
    inner, beside = x, None
    if product := b.node(x, "mul"):
        if not (found := one_of(b, product.operands, "clamp")):
            return None
        inner, beside = found[0].value.name, found[1]
    clamp = b.node(inner, "clamp")
    if not clamp or (clamp["min"], clamp["max"]) != (0.0, 6.0):
        return None
    y = minus(b, clamp.operands[0], 3.0)
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
        scale, values = _factors(b, node.operands[0], powers=True)
        times = 2 if node.op == "square" else 3
        return scale**times, values * times
    if (node := b.node(x, "div")) and isinstance(node.operands[1], int | float) and node["rounding_mode"] is None:
        n, left = _factors(b, node.operands[0], powers=powers)
        return n / node.operands[1], left
    return 1.0, [x] if isinstance(x, str) else []


def gelu(b: Builder, operands: tuple[Operand, ...]) -> str | None:
    """`0.5 * x * (1 + erf(x / sqrt(2)))`, or with `tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))`, in any order."""
    (m, left), (n, right) = _factors(b, operands[0]), _factors(b, operands[1])
    for gate in dict.fromkeys(left + right):
        inner = b.node(minus(b, gate, 1.0), "erf", "tanh")
        if inner is None:
            continue
        rest = left + right
        rest.remove(gate)
        for x in _curved(b, inner):
            scale, values = _factors(b, x)  # x may be a product itself
            if sorted(values) == sorted(rest) and is_about(m * n, 0.5 * scale):
                return b.add("gelu", x, approximate="none" if inner.op == "erf" else "tanh")
    return None


def _curved(b: Builder, inner: Node) -> list[str]:
    """The values x for which a node is `erf(x / sqrt(2))`, or gelu's tanh."""
    scaled = b.node(inner.operands[0], "mul", "div")
    if scaled is None or not isinstance(scaled.operands[1], int | float):
        return []
    scale = scaled.operands[1] if scaled.op == "mul" else 1 / scaled.operands[1]
    x = scaled.operands[0]
    if inner.op == "erf":
        return [x] if isinstance(x, str) and is_about(scale, math.sqrt(0.5)) else []
    total = b.node(x, "add", "sub")
    if total is None or not is_about(scale, math.sqrt(2 / math.pi)):
        return []
    pairs = [(one, cube) for one, cube in (total.operands, total.operands[::-1])]
    if total.op == "sub":  # of a negated x: `cube + -y` has become `cube - y`
        cube, y = total.operands
        pairs = [(b.add("neg", y), cube)] if isinstance(y, str) else []
    return [
        one
        for one, cube in pairs
        if isinstance(one, str) and _is_cube(_factors(b, cube, powers=True), _factors(b, one, powers=True))
    ]


def _is_cube(cube: tuple[float, list[str]], x: tuple[float, list[str]]) -> bool:
    """cube is `0.044715 * x ** 3`."""
    return is_about(cube[0], 0.044715 * x[0] ** 3) and sorted(cube[1]) == sorted(x[1] * 3)


def softmax(b: Builder, x: Operand, y: Operand) -> str | None:
    """`e / e.sum(dim, keepdim=True)` with `e = exp(x - amax(x, dim, keepdim=True))`."""
    total, e = b.node(y, "sum"), b.node(x, "exp")
    shifted = b.node(e.operands[0], "sub") if e else None
    top = b.node(shifted.operands[1], "amax") if shifted else None
    if not (total and shifted and top) or total.operands[0] != x or top.operands[0] != shifted.operands[0]:
        return None
    return b.add("softmax", shifted.operands[0], dim=total["dim"]) if top["dim"] == total["dim"] else None


def normalized(b: Builder, x: Operand, spread_and_eps: Operand) -> str | None:
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


def affine(b: Builder, norm: Node, weight: Operand, bias: Operand) -> str | None:
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
