"""Pools: two that are one, and monotone ops that commute with a maximum."""

from __future__ import annotations

from typing import Any

from kernrl.tasks.graph.algebra.constant_results import FLOATS
from kernrl.tasks.graph.algebra.sight import Into, Make, Rule, Sight
from kernrl.tasks.graph.graph import Node

MAX_POOLS = tuple(f"max_pool{n}d" for n in (1, 2, 3))
AVG_POOLS = tuple(f"avg_pool{n}d" for n in (1, 2, 3))


def _plain(pool: Node) -> bool:
    """No padding, no holes, no last window that is cut."""
    a: dict[str, Any] = dict(pool.attributes)
    return (
        not any(a["padding"])
        and not a["ceil_mode"]
        and a.get("divisor_override") is None
        and set(a.get("dilation", (1,))) == {1}
    )


def _pools_are_one(s: Sight, node: Node) -> Make | None:
    """A pool of a pool is a pool with wider windows; means only where the first one's windows do not overlap."""
    first = s.sole(node.reads[0], node.op) if node.op in (*MAX_POOLS, *AVG_POOLS) else None
    if not first or not _plain(node) or not _plain(first):
        return None
    if node.op in AVG_POOLS and first["kernel_size"] != first["stride"]:
        return None
    strides = first["stride"]
    width = tuple(k + (m - 1) * t for k, m, t in zip(first["kernel_size"], node["kernel_size"], strides, strict=True))
    stride = tuple(a * b for a, b in zip(strides, node["stride"], strict=True))
    attributes = dict(node.attributes) | {"kernel_size": width, "stride": stride}
    return lambda into: into.add(node.op, into.names[first.reads[0]], **attributes)


def _pool_then_all(s: Sight, node: Node) -> Make | None:
    """A pool whose windows cover everything, once for a mean, then the mean or maximum over space."""
    pools = {"amax": MAX_POOLS, "mean": AVG_POOLS}.get(node.op, ())
    first = s.sole(node.reads[0], *pools) if pools else None
    if not first or not _plain(first):
        return None
    x = first.reads[0]
    sizes = s.shape(x)
    space = range(len(sizes) - len(first["stride"]), len(sizes))
    if not set(node["dim"]) >= set(space):
        return None
    for d, k, t in zip(space, first["kernel_size"], first["stride"], strict=True):
        covered = (sizes[d] - k) % t == 0 and (t <= k if node.op == "amax" else t == k)
        if not covered:
            return None
    return lambda into: into.shaped(into.add(node.op, into.names[x], dim=node["dim"], keepdim=True), node.value)


RISING = (
    "relu", "sigmoid", "tanh", "selu", "hardsigmoid", "log_sigmoid", "softsign", "softplus", "exp", "expm1", "erf", "atan",
    "floor", "ceil", "clamp", "elu", "celu", "leaky_relu",
)  # fmt: skip
"""Ops that never fall, where their attributes are not negative, and are defined everywhere."""


def _rises(node: Node) -> bool:
    a: dict[str, Any] = dict(node.attributes)
    if node.op in ("elu", "celu") and a["alpha"] <= 0:
        return False
    if node.op == "softplus" and a["beta"] <= 0:
        return False
    return node.op in RISING and (node.op != "leaky_relu" or a["negative_slope"] >= 0)


def _rising_after_max(s: Sight, node: Node) -> Make | None:
    """The maximum of what never falls is that of the maximum: fewer elements to compute it for."""
    if node.op not in ("amax", "amin", *MAX_POOLS) or not (first := s.sole(node.reads[0], *RISING, "mul", "add", "sub", "div")):
        return None
    if node.value.dtype not in FLOATS:
        return None
    x, *numbers = first.operands
    if first.op in ("mul", "add", "sub", "div"):
        number = numbers[0]
        if not isinstance(number, float) or not isinstance(x, str) or dict(first.attributes).get("rounding_mode"):
            return None
        if first.op in ("mul", "div") and not 1e-6 < number < 1e6:
            return None
    elif not _rises(first):
        return None

    def make(into: Into) -> str:
        top = into.add(node.op, into.old(x), **dict(node.attributes))
        return into.shaped(into.add(first.op, top, *numbers, **dict(first.attributes)), node.value)

    return make


POOL_RULES: dict[str, Rule] = {
    "pools-are-one": _pools_are_one,
    "pool-then-all": _pool_then_all,
    "rising-after-max": _rising_after_max,
}
