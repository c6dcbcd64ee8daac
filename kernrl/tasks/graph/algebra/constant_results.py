"""Results that no input changes, reductions over one element, and numbers that come together."""

from __future__ import annotations

import math
from math import prod

from kernrl.tasks.graph.algebra.sight import Into, Make, Rule, Sight
from kernrl.tasks.graph.graph import Node, Value

FLOATS = ("float32", "bfloat16", "float16", "float64")


def full(into: Into, number: float, like: Value) -> str:
    """A tensor of one number, in the shape of what it replaces."""
    return into.add("full", number, shape=like.shape, dtype=like.dtype)


def count(s: Sight, x: object, dims: tuple[int, ...]) -> int:
    """How many elements of `x` a reduction over `dims` takes together."""
    shape = s.shape(x)  # pyright: ignore[reportArgumentType]
    return prod(shape[d] for d in dims)


def _one_element(s: Sight, node: Node) -> Make | None:
    """A reduction or normalization over one element: the element, or a number."""
    if node.kind not in ("reduction", "normalization") or "dim" not in dict(node.attributes) or node.value.dtype not in FLOATS:
        return None
    x, dims = node.reads[0], node["dim"]
    if not dims or count(s, x, dims) != 1 or node.op == "rms_norm":
        return None
    if node.op in ("sum", "mean", "amax", "amin", "prod", "logsumexp"):
        return lambda into: into.shaped(into.names[x], node.value)
    if node.op == "norm":
        return lambda into: into.shaped(into.add("abs", into.names[x]), node.value)
    if node.op in ("var", "std") and node["correction"] == 0:
        return lambda into: full(into, 0.0, node.value)
    if node.op in ("softmax", "log_softmax"):
        return lambda into: full(into, float(node.op == "softmax"), node.value)
    if node.op == "layer_norm" and len(node.reads) == 1:
        return lambda into: full(into, 0.0, node.value)
    return None


def _less_itself(s: Sight, node: Node) -> Make | None:
    """`x - x`, as it is left of `x - amax(x)` over one element."""
    if node.op == "sub" and node.operands[0] == node.operands[1] and node.value.dtype in FLOATS:
        return lambda into: full(into, 0.0, node.value)
    return None


def _softmax_then_sum(s: Sight, node: Node) -> Make | None:
    """A softmax summed over its own axes is 1."""
    if node.op not in ("sum", "mean") or not (soft := s.sole(node.reads[0], "softmax")):
        return None
    if set(soft["dim"]) != set(node["dim"]):
        return None
    n = count(s, node.reads[0], node["dim"])
    return lambda into: full(into, 1.0 if node.op == "sum" else 1.0 / n, node.value)


def _of_a_constant(s: Sight, node: Node) -> Make | None:
    """Arithmetic on a tensor of one number, with another number."""
    full_node = next((f for o in node.operands if (f := s.node(o, "full"))), None)
    if full_node is None or node.op not in ARITHMETIC or node.value.dtype not in FLOATS or len(node.reads) != 1:
        return None
    numbers = [full_node.operands[0] if isinstance(o, str) else o for o in node.operands]
    if not all(isinstance(n, int | float) for n in numbers) or dict(node.attributes).get("rounding_mode"):
        return None
    try:
        value = ARITHMETIC[node.op](*map(float, numbers))  # pyright: ignore[reportArgumentType]
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return lambda into: full(into, value, node.value)


ARITHMETIC = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "relu": lambda a: max(a, 0.0), "neg": lambda a: -a, "abs": abs, "square": lambda a: a * a, "exp": math.exp,
    "sqrt": math.sqrt, "tanh": math.tanh, "sigmoid": lambda a: 1.0 / (1.0 + math.exp(-a)),
    "gelu": lambda a: 0.5 * a * (1.0 + math.erf(a * math.sqrt(0.5))), "silu": lambda a: a / (1.0 + math.exp(-a)),
}  # fmt: skip


def _numbers_together(s: Sight, node: Node) -> Make | None:
    """`(x * a) * b` is `x * ab`, and so for sums. Quotients are left: a count that is divided by follows the sizes."""
    pair = {"mul": ("mul",), "add": ("add", "sub"), "sub": ("add", "sub")}.get(node.op, ())
    inner = s.sole(node.operands[0], *pair) if pair else None
    if not inner or not isinstance(inner.operands[0], str) or node.value.dtype not in FLOATS:
        return None
    x, a, b = inner.operands[0], inner.operands[1], node.operands[1]
    if not isinstance(a, float) or not isinstance(b, float) or 0.0 in (a, b) or not (math.isfinite(a) and math.isfinite(b)):
        return None
    if node.op == "mul":
        return (lambda into: into.add("mul", into.names[x], a * b)) if 1e-30 < abs(a * b) < 1e30 else None
    number = (a if inner.op == "add" else -a) + (b if node.op == "add" else -b)
    return lambda into: into.add("add", into.names[x], number)


CONSTANT_RULES: dict[str, Rule] = {
    "one-element": _one_element,
    "less-itself": _less_itself,
    "softmax-then-sum": _softmax_then_sum,
    "of-a-constant": _of_a_constant,
    "numbers-together": _numbers_together,
}
