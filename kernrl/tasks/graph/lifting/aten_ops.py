"""What ATen calls say, in the ops of a Graph: overloads, aliases and fused calls as the few forms that there are.

Arithmetic, reductions, norms and products are here; convolutions, pools, views and copies in `aten_shapes.py`, and what is
several ops at once in `composed.py` and `losses.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernrl.tasks.graph.lifting import composed
from kernrl.tasks.graph.lifting.aten_shapes import SHAPES, Arguments, Rule, first, named
from kernrl.tasks.graph.lifting.einsum import add_einsum
from kernrl.tasks.graph.ops import OPS

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder

IDENTITIES = ("contiguous", "clone", "detach", "alias", "lift_fresh", "lift_fresh_copy", "positive", "resolve_conj")
DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")
"""Calls that do nothing here: dropout is random or nothing, and the lifter refuses the random one."""

SECOND_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "absolute": "abs", "negative": "neg"}
SECOND_NAMES |= {"fix": "trunc", "sgn": "sign", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le"}
SECOND_NAMES |= {"not_equal": "ne"}
"""Another name that ATen has for an op → the op."""

TAKE_NUMBERS = {op for op, known in OPS.items() if known.kind == "pointwise" and not op.startswith(("batch", "prelu"))}
TAKE_NUMBERS |= {"rsub", "lerp", "addcmul", "addcdiv", "multiply", "subtract", "divide", "true_divide", "floor_divide"}
TAKE_NUMBERS |= {
    "max",
    "min",
    "clip",
    "clamp_min",
    "clamp_max",
    "masked_fill",
    "fill",
    "copy",
    *composed.TAKE_NUMBERS,
    *SECOND_NAMES,
}
"""Calls in which a tensor of one element may as well be a number."""


def _scaled(b: Builder, value: Any, factor: Any) -> Any:
    """`factor * value`, for the `alpha` and `beta` of ATen; mostly 1."""
    return value if factor == 1 else b.add("mul", value, factor) if isinstance(value, str) else value * factor


def _same(op: str) -> Rule:
    """An op of one or two operands under its own name."""

    def rule(b: Builder, a: Arguments) -> str:
        second = [a[name] for name in ("other", "exponent") if name in a]
        return b.add(op, first(a), *second)

    return rule


def _bitwise(word: str) -> Rule:
    """Of masks, which have one bit, it is the logical op."""

    def rule(b: Builder, a: Arguments) -> str:
        masks = all(not isinstance(x, str) or b.value(x).dtype == "bool" for x in (a["self"], a["other"]))
        return b.add(f"{'logical' if masks else 'bitwise'}_{word}", a["self"], a["other"])

    return rule


def _bitwise_not(b: Builder, a: Arguments) -> str:
    x = a["self"]
    return b.add("logical_not", x) if b.value(x).dtype == "bool" else b.add("sub", -1, x)


def _number(b: Builder, value: Any, other: Any) -> Any:
    """A mask as numbers, where arithmetic joins it with numbers: `x * (x > 0)`."""
    if not isinstance(value, str) or b.value(value).dtype != "bool":
        return value
    dtype = b.value(other).dtype if isinstance(other, str) else "float32" if isinstance(other, float) else "bool"
    return value if dtype == "bool" else b.add("cast", value, dtype=dtype)


def _arithmetic(op: str) -> Rule:
    """Arithmetic of two, of which one may be a mask."""

    def rule(b: Builder, a: Arguments) -> str:
        one, other = a["self"], _scaled(b, a["other"], a.get("alpha", 1))
        numbers = {"rounding_mode": a["rounding_mode"]} if a.get("rounding_mode") else {}
        return b.add(op, _number(b, one, other), _number(b, other, one), **numbers)

    return rule


def _clamp(b: Builder, a: Arguments) -> str:
    out, low, high = first(a), a.get("min"), a.get("max")
    if isinstance(low, str) or isinstance(high, str):
        out = out if low is None else b.add("maximum", out, low)
        return out if high is None else b.add("minimum", out, high)
    return b.add("clamp", out, min=low, max=high)


def _between(low: float, high: float) -> Rule:
    return lambda b, a: b.add("clamp", first(a), min=low, max=high)


def _elu(b: Builder, a: Arguments) -> str | None:
    return b.add("elu", first(a), alpha=a["alpha"]) if a["scale"] == a["input_scale"] == 1 else None


def _glu(b: Builder, a: Arguments) -> str:
    left, right = (b.add("chunk", first(a), chunks=2, dim=a["dim"], index=i) for i in (0, 1))
    return b.add("mul", left, b.add("sigmoid", right))


def _lerp(b: Builder, a: Arguments) -> str:
    return b.add("add", a["self"], b.add("mul", b.add("sub", a["end"], a["self"]), a["weight"]))


def _addc(op: str) -> Rule:
    return lambda b, a: b.add("add", a["self"], _scaled(b, b.add(op, a["tensor1"], a["tensor2"]), a["value"]))


def _reduction(op: str, *attributes: str) -> Rule:
    """Over `dim`, or over everything where there is none."""

    def rule(b: Builder, a: Arguments) -> str:
        dim = a.get("dim")
        x = b.add("cast", first(a), dtype=a["dtype"]) if a.get("dtype") else first(a)
        chosen = {name: a[name] for name in attributes}
        return b.add(op, x, dim=None if dim in ((), []) else dim, keepdim=bool(a.get("keepdim")), **chosen)

    return rule


def _extreme(op: str) -> Rule:
    """max and min: of two, over everything, or over an axis with its indices."""

    def rule(b: Builder, a: Arguments) -> Any:
        if "other" in a:
            return b.add(op + "imum", a["self"], a["other"])
        if "dim" not in a:
            return b.add(f"a{op}", a["self"], dim=None)
        where = {"dim": a["dim"], "keepdim": a["keepdim"]}
        return [b.add(f"{kind}{op}", a["self"], **where) if i in a["used"] else None for i, kind in enumerate(("a", "arg"))]

    return rule


def _spread(op: str) -> Callable[[Builder, Arguments], str]:
    """var and std; `unbiased` is the old word for a correction of 1."""

    def rule(b: Builder, a: Arguments) -> str:
        correction = a["correction"] if "correction" in a else float(a.get("unbiased", True))
        where = {"dim": a.get("dim") or None, "keepdim": a.get("keepdim", False)}
        return b.add(op, first(a), correction=1.0 if correction is None else correction, **where)

    return rule


def _spread_and_mean(op: str) -> Rule:
    return lambda b, a: [_spread(op)(b, a), b.add("mean", first(a), dim=a.get("dim") or None, keepdim=a.get("keepdim", False))]


def _norm(b: Builder, a: Arguments) -> str | None:
    p, dim = a.get("ord", a.get("p", 2)), a.get("dim")
    if p == "fro":  # of a matrix, which is that of its elements
        return None if a.get("dtype") else b.add("norm", a["self"], dim=dim, keepdim=a["keepdim"], p=2.0)
    axes = dim or b.value(first(a)).shape
    a_matrix_norm = "linalg" in a["name"] and "vector" not in a["name"] and p is not None and len(axes) > 1
    if a.get("dtype") or a_matrix_norm or isinstance(p, str):
        return None
    return b.add("norm", first(a), dim=a.get("dim") or None, keepdim=a.get("keepdim", False), p=2.0 if p is None else p)


def _softmax(op: str) -> Rule:
    return lambda b, a: b.add(op, b.add("cast", first(a), dtype=a["dtype"]) if a.get("dtype") else first(a), dim=a["dim"])


def _trailing(b: Builder, a: Arguments) -> tuple[int, ...]:
    rank, count = len(b.value(a["input"]).shape), len(a["normalized_shape"])
    return tuple(range(rank - count, rank))


def _layer_norm(b: Builder, a: Arguments) -> str:
    return b.add("layer_norm", a["input"], a["weight"], a["bias"], dim=_trailing(b, a), eps=a["eps"])


EPSILON = {"float64": 2.220446049250313e-16, "float32": 1.1920928955078125e-07, "bfloat16": 0.0078125, "float16": 0.0009765625}


def _rms_norm(b: Builder, a: Arguments) -> str:
    eps = EPSILON[b.value(a["input"]).dtype] if a["eps"] is None else a["eps"]
    return b.add("rms_norm", a["input"], a["weight"], dim=_trailing(b, a), eps=eps)


def _batch_norm(b: Builder, a: Arguments) -> str:
    x, affine, running = a["input"], (a["weight"], a["bias"]), (a["running_mean"], a["running_var"])
    if a.get("training", a.get("use_input_stats")):
        momentum = 0.1 if running[0] is None else None if a["momentum"] < 0 else a["momentum"]
        return b.add("batch_norm", x, *affine, *running, momentum=momentum, eps=a["eps"])
    return b.add("batch_norm_eval", x, *running, *affine, eps=a["eps"])


def _instance_norm(b: Builder, a: Arguments) -> str:
    if a["use_input_stats"]:
        return b.add("instance_norm", a["input"], a["weight"], a["bias"], eps=a["eps"])
    return _batch_norm(b, a)


def _group_norm(b: Builder, a: Arguments) -> str:
    return b.add("group_norm", a["input"], a["weight"], a["bias"], num_groups=a["num_groups"], eps=a["eps"])


def _matmul(left: str, right: str) -> Rule:
    return lambda b, a: b.add("matmul", a[left], a[right])


def _add_product(left: str, right: str) -> Rule:
    def rule(b: Builder, a: Arguments) -> str:
        product = _scaled(b, b.add("matmul", a[left], a[right]), a["alpha"])
        return product if a["beta"] == 0 else b.add("add", product, _scaled(b, a["self"], a["beta"]))

    return rule


def _dot(b: Builder, a: Arguments) -> str:
    return b.add("sum", b.add("mul", a["self"], a.get("other", a.get("tensor"))), dim=None)


def _outer(b: Builder, a: Arguments) -> str:
    return b.add("mul", b.add("unsqueeze", a["self"], dim=(1,)), b.add("unsqueeze", a["vec2"], dim=(0,)))


def _einsum(b: Builder, a: Arguments) -> str:
    return add_einsum(b, a["equation"], a["tensors"])


def _weight_norm(b: Builder, a: Arguments) -> str:
    dim = tuple(d for d in range(len(b.value(a["v"]).shape)) if d != a["dim"])
    return b.add("mul", a["v"], b.add("div", a["g"], b.add("norm", a["v"], dim=dim, keepdim=True)))


def _cosine_similarity(b: Builder, a: Arguments) -> str:
    def size(x: str) -> str:
        return b.add("clamp", b.add("norm", x, dim=a["dim"]), min=a["eps"], max=None)

    product = b.add("sum", b.add("mul", a["x1"], a["x2"]), dim=a["dim"])
    return b.add("div", product, b.add("mul", size(a["x1"]), size(a["x2"])))


def _attention(b: Builder, a: Arguments) -> str | None:
    """softmax(q k^T * scale, masked) v, as people write it out."""
    if a["dropout_p"]:
        return None
    q, k = b.value(a["query"]).shape, b.value(a["key"]).shape
    rank = len(k)
    key, value = a["key"], a["value"]
    if a["enable_gqa"] and q[-3] != k[-3]:
        key, value = (_each_repeated(b, x, q[-3] // k[-3]) for x in (key, value))
    turned = b.add("permute", key, dims=(*range(rank - 2), rank - 1, rank - 2))
    scale = q[-1] ** -0.5 if a["scale"] is None else a["scale"]
    scores = b.add("mul", b.add("matmul", a["query"], turned), scale)
    mask = a["attn_mask"]
    if a["is_causal"]:
        mask = b.add("tril", b.add("full", 1, shape=(q[-2], k[-2]), dtype="bool"))
    if mask is not None and b.value(mask).dtype == "bool":
        scores = b.add("where", mask, scores, float("-inf"))
    elif mask is not None:
        scores = b.add("add", scores, mask)
    return b.add("matmul", b.add("softmax", scores, dim=-1), value)


def _each_repeated(b: Builder, heads: str, times: int) -> str:
    """Heads of keys or values, each as often as there are queries for it."""
    *batch, count, length, width = b.value(heads).shape
    apart = b.add("reshape", heads, shape=(*batch, count, 1, length, width))
    repeated = b.add("expand", apart, shape=(*batch, count, times, length, width))
    return b.add("reshape", repeated, shape=(*batch, count * times, length, width))


ATEN: dict[str, Rule] = {
    **{name: (lambda b, a: first(a)) for name in (*IDENTITIES, *DROPOUTS)},
    **{op: _same(op) for op, known in OPS.items() if known.kind == "pointwise" and not known.attributes},
    **{name: _same(op) for name, op in SECOND_NAMES.items()},
    **{name.format(word): _bitwise(word) for name in ("__{}__", "bitwise_{}") for word in ("and", "or", "xor")},
    "round": lambda b, a: None if a.get("decimals") else b.add("round", a["self"]),
    **dict.fromkeys(("mul", "multiply"), _arithmetic("mul")),
    "relu6": _between(0.0, 6.0),
    "hardtanh": lambda b, a: b.add("clamp", a["self"], min=a["min_val"], max=a["max_val"]),
    "leaky_relu": named("leaky_relu", "negative_slope"),
    "rrelu": lambda b, a: b.add("leaky_relu", a["self"], negative_slope=(a["lower"] + a["upper"]) / 2),
    "elu": _elu,
    "celu": named("celu", "alpha"),
    "gelu": named("gelu", "approximate"),
    "softplus": named("softplus", "beta", "threshold"),
    "softshrink": named("softshrink", "lambd"),
    "hardshrink": named("hardshrink", "lambd"),
    "threshold": named("threshold", "threshold", "value"),
    "prelu": lambda b, a: b.add("prelu", a["self"], a["weight"]),
    "glu": _glu,
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), _clamp),
    "add": _arithmetic("add"),
    **dict.fromkeys(("sub", "subtract"), _arithmetic("sub")),
    "rsub": lambda b, a: b.add("sub", a["other"], _scaled(b, a["self"], a["alpha"])),
    **dict.fromkeys(("div", "divide", "true_divide"), _arithmetic("div")),
    "floor_divide": lambda b, a: b.add("div", a["self"], a["other"], rounding_mode="floor"),
    "bitwise_not": _bitwise_not,
    "reciprocal": lambda b, a: b.add("div", 1.0, a["self"]),
    "where": lambda b, a: b.add("where", a["condition"], a["self"], a["other"]) if "other" in a else None,
    "masked_fill": lambda b, a: b.add("where", a["mask"], a["value"], a["self"]),
    "lerp": _lerp,
    "addcmul": _addc("mul"),
    "addcdiv": _addc("div"),
    **{op: _reduction(op) for op in ("sum", "mean", "amax", "amin", "prod", "logsumexp", "any", "all", "argmax", "argmin")},
    "max": _extreme("max"),
    "min": _extreme("min"),
    "var": _spread("var"),
    "std": _spread("std"),
    "var_mean": _spread_and_mean("var"),
    "std_mean": _spread_and_mean("std"),
    **dict.fromkeys(("norm", "linalg_norm", "linalg_matrix_norm", "linalg_vector_norm"), _norm),
    **{name: _softmax(name.removeprefix("_")) for name in ("softmax", "log_softmax", "_softmax", "_log_softmax")},
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    **{op: lambda b, a, op=op: b.add(op, a["self"], dim=a["dim"]) for op in ("cumsum", "cumprod", "logcumsumexp")},
    "linear": lambda b, a: b.add("linear", a["input"], a["weight"], a["bias"]),
    "matmul": _matmul("self", "other"),
    **dict.fromkeys(("mm", "bmm"), _matmul("self", "mat2")),
    "mv": _matmul("self", "vec"),
    "addmm": _add_product("mat1", "mat2"),
    "baddbmm": _add_product("batch1", "batch2"),
    "addmv": _add_product("mat", "vec"),
    **dict.fromkeys(("dot", "vdot"), _dot),
    **dict.fromkeys(("outer", "ger"), _outer),
    "einsum": _einsum,
    "_weight_norm": _weight_norm,
    "scaled_dot_product_attention": _attention,
    "cosine_similarity": _cosine_similarity,
    **composed.COMPOSED,
    **SHAPES,
}
ATEN |= {f"special_{name}": rule for name, rule in ATEN.items() if f"special_{name}" not in ATEN}
"""Name of an ATen op, without its overload → what it says."""
