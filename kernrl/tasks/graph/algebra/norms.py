"""Normalizations: what cancels before them, and means of them that need no normalized tensor."""

from __future__ import annotations

from math import prod

from kernrl.tasks.graph.algebra.constant_results import FLOATS
from kernrl.tasks.graph.algebra.convolution_rules import CONVOLUTIONS
from kernrl.tasks.graph.algebra.sight import Into, Make, Rule, Sight
from kernrl.tasks.graph.graph import Node, Operand

CENTRED = ("layer_norm", "group_norm", "instance_norm", "batch_norm")
"""They subtract a mean."""


def _axes(s: Sight, node: Node) -> tuple[int, ...]:
    """The axes over which a node does not see a shift; of a group norm those inside each channel."""
    rank = len(s.shape(node.reads[0]))
    if node.op in ("group_norm", "instance_norm"):
        return tuple(range(2, rank))
    return (0, *range(2, rank)) if node.op == "batch_norm" else node["dim"]


def _uniform(s: Sight, node: Node, operand: Operand, rank: int) -> bool:
    """An operand that is one number for all that a node takes together."""
    if node.op == "group_norm":  # a group is of several channels
        return s.constant_along(operand, range(1, rank), rank)
    return s.constant_along(operand, _axes(s, node), rank)


def _shift_cancels(s: Sight, node: Node) -> Make | None:
    """What is added before a mean is subtracted, and does not vary where the mean is taken, changes nothing."""
    if node.op not in (*CENTRED, "softmax", "log_softmax", "var", "std") or node.value.dtype not in FLOATS:
        return None
    first = s.sole(node.operands[0], "add", "sub", "linear", *CONVOLUTIONS)
    if not first:
        return None
    rank = len(first.value.shape)
    if first.op in ("add", "sub"):
        x = next((o for o in first.operands if isinstance(o, str) and s.shape(o) == first.value.shape), None)
        other = first.operands[1] if first.operands[0] == x else first.operands[0]
        if x is None or (first.op == "sub" and x != first.operands[0]) or other == x or not _uniform(s, node, other, rank):
            return None
        return lambda into: into.add(node.op, into.old(x), *map(into.old, node.operands[1:]), **dict(node.attributes))
    bias = (*first.operands, None)[2]
    channel = rank - 1 if first.op == "linear" else 1
    per_channel = node.op == "group_norm" and node["num_groups"] != s.shape(node.operands[0])[1]
    if not isinstance(bias, str) or channel in _axes(s, node) or (per_channel and channel == 1):
        return None

    def make(into: Into) -> str:
        x, weight = map(into.old, first.operands[:2])
        bare = into.add(first.op, x, weight, None, **dict(first.attributes))
        return into.add(node.op, bare, *map(into.old, node.operands[1:]), **dict(node.attributes))

    return make


def _scale_into_eps(s: Sight, node: Node) -> Make | None:
    """norm(c x) is norm(x) with eps / c², for a positive number c."""
    if node.op not in (*CENTRED, "rms_norm") or not (first := s.sole(node.operands[0], "mul", "div")):
        return None
    x, c = first.operands[:2]
    if not isinstance(x, str) or not isinstance(c, float) or dict(first.attributes).get("rounding_mode"):
        return None
    scale = c if first.op == "mul" else 1.0 / c if c else 0.0
    if not 1e-3 < scale < 1e3 or x == c:
        return None
    attributes = dict(node.attributes) | {"eps": node["eps"] / scale**2}
    return lambda into: into.add(node.op, into.old(x), *map(into.old, node.operands[1:]), **attributes)


def _norm_then_mean(s: Sight, node: Node) -> Make | None:
    """The mean over all that a norm takes together is its bias; over space alone it follows from means and variances."""
    norm = s.sole(node.reads[0], *CENTRED) if node.op in ("mean", "sum") else None
    if not norm or node.value.dtype not in FLOATS:
        return None
    shape, dims = norm.value.shape, node["dim"]
    rank = len(shape)
    weight, bias = [*norm.operands[1:], None, None][:2]
    n = float(prod(shape[d] for d in dims))
    own = (*range(1, rank),) if norm.op == "group_norm" else _axes(s, norm)
    if norm.op == "group_norm" and weight is not None:
        own = ()
    if norm.op == "layer_norm":
        return _mean_of_layer_norm(s, node, norm)
    if own and set(own) <= set(dims):

        def bias_alone(into: Into) -> str:
            kept = [1 if d in dims else shape[d] for d in range(rank)]
            if not isinstance(bias, str):
                return into.add("full", 0.0, shape=node.value.shape, dtype=node.value.dtype)
            y = into.along(into.names[bias], 1, rank)  # [channels, 1 ...]
            y = into.add("mean", y, dim=(0,), keepdim=True) if 1 in dims else y
            y = y if node.op == "mean" else into.add("mul", y, n)
            zeros = into.add("full", 0.0, shape=tuple(kept), dtype=node.value.dtype)
            return into.shaped(into.add("add", zeros, y), node.value)

        return bias_alone
    space = tuple(range(2, rank))
    if not space or not set(dims) >= set(space) or norm.op == "instance_norm":
        return None
    rest = tuple(d for d in dims if d not in space)

    def from_moments(into: Into) -> str:
        y = _from_moments(into, norm, shape)
        y = into.add("mean", y, dim=rest, keepdim=True) if rest else y
        return into.shaped(y if node.op == "mean" else into.add("mul", y, n), node.value)

    return from_moments


def _mean_of_layer_norm(s: Sight, node: Node, norm: Node) -> Make | None:
    """Without a weight, the mean over the normalized axes is the mean of the bias."""
    if norm["dim"] != node["dim"] or len(norm.reads) > 1:
        return None
    return lambda into: into.add("full", 0.0, shape=node.value.shape, dtype=node.value.dtype)


def _from_moments(into: Into, norm: Node, shape: tuple[int, ...]) -> str:
    """The mean over space of a group or batch norm, from every channel's own mean and variance: x is read once.

    The variance of a union is the mean of (variance + squared distance of the means); all parts have one size here.
    """
    x, space, rank = into.old(norm.operands[0]), tuple(range(2, len(shape))), len(shape)
    mean = into.add("mean", x, dim=space, keepdim=True)
    var = into.add("var", x, dim=space, keepdim=True, correction=0.0)
    if norm.op == "batch_norm":
        dim, back = (0,), into.shape(mean)
    else:
        groups = norm["num_groups"]
        dim, back = (2,), into.shape(mean)
        mean, var = (into.shaped(v, (shape[0], groups, shape[1] // groups)) for v in (mean, var))
    off = into.add("sub", mean, into.add("mean", mean, dim=dim, keepdim=True))
    whole = into.add("mean", into.add("add", var, into.add("square", off)), dim=dim, keepdim=True)
    y = into.shaped(into.add("mul", off, into.add("rsqrt", into.add("add", whole, norm["eps"]))), back)
    for operand, op in zip([*norm.operands[1:], None, None][:2], ("mul", "add"), strict=True):
        if isinstance(operand, str):
            y = into.add(op, y, into.along(into.names[operand], 1, rank))
    return y


def _batch_norm_into_weights(s: Sight, node: Node) -> Make | None:
    """A batch norm by running statistics is a scale and a shift of each channel, which the layer before it can do."""
    first = s.sole(node.operands[0], "linear", *CONVOLUTIONS) if node.op == "batch_norm_eval" else None
    if not first or dict(first.attributes).get("groups", 1) != 1 or (first.op == "linear" and len(first.value.shape) != 2):
        return None
    if first.operands[1] not in {p.value.name for p in s.graph.parameters}:
        return None
    mean, var, weight, bias = [*node.operands[1:], None, None][:4]
    own = (*first.operands, None)[2]
    rank, channel = len(s.shape(first.operands[1])), int("transpose" in first.op)

    def make(into: Into) -> str:
        scale = into.add("rsqrt", into.add("add", into.old(var), node["eps"]))
        if isinstance(weight, str):
            scale = into.add("mul", scale, into.old(weight))
        shift = into.add("sub", into.old(own), into.old(mean)) if isinstance(own, str) else into.add("neg", into.old(mean))
        shift = into.add("mul", shift, scale)
        if isinstance(bias, str):
            shift = into.add("add", shift, into.old(bias))
        taps = into.add("mul", into.old(first.operands[1]), into.along(scale, channel, rank))
        return into.add(first.op, into.old(first.operands[0]), taps, shift, **dict(first.attributes))

    return make


NORM_RULES: dict[str, Rule] = {
    "norm-then-mean": _norm_then_mean,
    "shift-cancels": _shift_cancels,
    "scale-into-eps": _scale_into_eps,
    "batch-norm-into-weights": _batch_norm_into_weights,
}
