"""Shapes of the commonest ops by plain arithmetic: asking torch takes a third of the time in which pairs are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from kernrl.tasks.graph.ops import OPS

_OTHER_DTYPES = {"cast", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "where", "pow", "remainder", "fmod"}
_OTHER_DTYPES |= {op for op in OPS if op.startswith(("logical", "bitwise"))}
POINTWISE = {n for n, op in OPS.items() if op.kind == "pointwise"} - _OTHER_DTYPES - {"prelu", "batch_norm_eval"}
REDUCTIONS = {"sum", "mean", "amax", "amin", "prod", "logsumexp", "var", "std", "norm"}
FLOAT = "float32"


def quick_shape(op: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of what an op gives, all of it float32; None where that takes more than arithmetic.

    Args:
        operands: As for `infer`: a tensor is its (shape, dtype).
    """
    tensors = [o for o in operands if isinstance(o, tuple)]
    if not tensors or any(dtype != FLOAT for _, dtype in tensors):
        return None
    if any(o is not None and type(o) not in (int, float, tuple) for o in operands):
        return None
    shapes = [shape for shape, _ in tensors]
    if op in POINTWISE:
        return _broadcast(shapes)
    if op in REDUCTIONS and len(operands) == 1:
        return _reduced(shapes[0], attributes)
    if op == "linear":
        return _linear(shapes)
    return None


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    rank = max(map(len, shapes))
    found = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n != 1 and found[d] not in (1, n):
                return None  # torch raises, and says what
            found[d] = n if n != 1 else found[d]
    return tuple(found)


def _reduced(shape: tuple[int, ...], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    dim = attributes["dim"]
    if not dim or not all(0 <= d < len(shape) for d in dim) or not prod(shape):
        return None
    if attributes["keepdim"]:
        return tuple(1 if d in dim else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dim)


def _linear(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    x, weight, *bias = shapes
    fits = len(x) > 0 and len(weight) == 2 and x[-1] == weight[1] and all(b == (weight[0],) for b in bias)
    return (*x[:-1], weight[0]) if fits else None
