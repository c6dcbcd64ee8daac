"""What ATen calls say, in the ops of a Graph: overloads, aliases and fused calls as the few forms that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernrl.tasks.graph.einsum import add_einsum
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.graph.views import broadcast

if TYPE_CHECKING:
    from kernrl.tasks.graph.build import Builder

Arguments = dict[str, Any]
"""Argument of the schema → value: a tensor as the name of its value. Also the call's `name`, which results are `used`, and
the first one's `result_dtype`."""
Rule = Callable[["Builder", Arguments], Any]
"""Gives the name of the result, a list of names, or None where the call stays as it is, unknown."""

IDENTITIES = ("contiguous", "clone", "detach", "alias", "lift_fresh", "lift_fresh_copy", "positive", "resolve_conj")
DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")
"""Calls that do nothing here: dropout is random or nothing, and the lifter refuses the random one."""


def _x(a: Arguments) -> str:
    return a["self"] if "self" in a else a["input"]


def _named(op: str, *attributes: str) -> Rule:
    """The op of that name on the first argument, with these arguments as attributes."""
    return lambda b, a: b.add(op, _x(a), **{name: a[name] for name in attributes})


def _scaled(b: Builder, value: Any, factor: Any) -> Any:
    """`factor * value`, for the `alpha` and `beta` of ATen; mostly 1."""
    return value if factor == 1 else b.add("mul", value, factor) if isinstance(value, str) else value * factor


def _same(op: str) -> Rule:
    """An op of one or two operands under its own name."""

    def rule(b: Builder, a: Arguments) -> str:
        second = [a[name] for name in ("other", "exponent") if name in a]
        return b.add(op, _x(a), *second)

    return rule


def _clamp(b: Builder, a: Arguments) -> str:
    out, low, high = _x(a), a.get("min"), a.get("max")
    if isinstance(low, str) or isinstance(high, str):
        out = out if low is None else b.add("maximum", out, low)
        return out if high is None else b.add("minimum", out, high)
    return b.add("clamp", out, min=low, max=high)


def _between(low: float, high: float) -> Rule:
    return lambda b, a: b.add("clamp", _x(a), min=low, max=high)


def _elu(b: Builder, a: Arguments) -> str | None:
    return b.add("elu", _x(a), alpha=a["alpha"]) if a["scale"] == a["input_scale"] == 1 else None


def _glu(b: Builder, a: Arguments) -> str:
    left, right = (b.add("chunk", _x(a), chunks=2, dim=a["dim"], index=i) for i in (0, 1))
    return b.add("mul", left, b.add("sigmoid", right))


def _lerp(b: Builder, a: Arguments) -> str:
    return b.add("add", a["self"], b.add("mul", b.add("sub", a["end"], a["self"]), a["weight"]))


def _addc(op: str) -> Rule:
    return lambda b, a: b.add("add", a["self"], _scaled(b, b.add(op, a["tensor1"], a["tensor2"]), a["value"]))


def _reduction(op: str, *attributes: str) -> Rule:
    """Over `dim`, or over everything where there is none."""

    def rule(b: Builder, a: Arguments) -> str:
        dim = a.get("dim")
        x = b.add("cast", _x(a), dtype=a["dtype"]) if a.get("dtype") else _x(a)
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
        return b.add(op, _x(a), correction=1.0 if correction is None else correction, **where)

    return rule


def _spread_and_mean(op: str) -> Rule:
    return lambda b, a: [_spread(op)(b, a), b.add("mean", _x(a), dim=a.get("dim") or None, keepdim=a.get("keepdim", False))]


def _norm(b: Builder, a: Arguments) -> str | None:
    p, dim = a.get("ord", a.get("p", 2)), a.get("dim")
    a_matrix_norm = "linalg" in a["name"] and "vector" not in a["name"] and p is not None and len(dim or (0, 1)) > 1
    if a.get("dtype") or a_matrix_norm or isinstance(p, str):
        return None
    return b.add("norm", _x(a), dim=a.get("dim") or None, keepdim=a.get("keepdim", False), p=2.0 if p is None else p)


def _softmax(op: str) -> Rule:
    return lambda b, a: b.add(op, b.add("cast", _x(a), dtype=a["dtype"]) if a.get("dtype") else _x(a), dim=a["dim"])


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


def _many(numbers: Any, rank: int) -> tuple[int, ...]:
    numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return numbers * rank if len(numbers) == 1 else numbers


def _convolution(rank: int) -> Rule:
    def rule(b: Builder, a: Arguments) -> str:
        x, weight = a["input"], b.value(a["weight"]).shape
        stride, dilation, padding = _many(a["stride"], rank), _many(a["dilation"], rank), a["padding"]
        if isinstance(padding, str):
            total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight[2:], strict=True)]
            padding = tuple(t // 2 for t in total)
            if any(t % 2 for t in total):  # one more behind than in front
                x = b.add("pad", x, padding=tuple(n for t in reversed(total) for n in (t // 2, t - t // 2)))
                padding = (0,) * rank
        attributes = {"stride": stride, "padding": _many(padding, rank), "dilation": dilation, "groups": a["groups"]}
        return b.add(f"conv{rank}d", x, a["weight"], a["bias"], **attributes)

    return rule


def _transposed(rank: int) -> Rule:
    def rule(b: Builder, a: Arguments) -> str:
        spread = {name: _many(a[name], rank) for name in ("stride", "padding", "output_padding", "dilation")}
        return b.add(f"conv_transpose{rank}d", a["input"], a["weight"], a["bias"], groups=a["groups"], **spread)

    return rule


def _pool(kind: str, rank: int) -> Rule:
    def rule(b: Builder, a: Arguments) -> Any:
        if 1 in a["used"]:  # the indices
            return None
        kernel = _many(a["kernel_size"], rank)
        attributes = {"kernel_size": kernel, "stride": _many(a["stride"], rank) if a["stride"] else kernel}
        attributes |= {"padding": _many(a["padding"], rank), "ceil_mode": a["ceil_mode"]}
        if kind == "max":
            attributes["dilation"] = _many(a["dilation"], rank)
        else:
            attributes |= {"count_include_pad": a["count_include_pad"], "divisor_override": a.get("divisor_override")}
        shape = b.value(a["self"]).shape
        if kernel == shape[-rank:] and not any(attributes["padding"]) and not attributes.get("divisor_override"):
            return _whole(b, kind, rank, a)
        return b.add(f"{kind}_pool{rank}d", a["self"], **attributes)

    return rule


def _whole(b: Builder, kind: str, rank: int, a: Arguments) -> str:
    """A pool whose window is the image."""
    rest = len(b.value(a["self"]).shape) - rank
    return b.add("mean" if kind == "avg" else "amax", a["self"], dim=tuple(range(rest, rest + rank)), keepdim=True)


def _adaptive(kind: str, rank: int) -> Rule:
    def rule(b: Builder, a: Arguments) -> Any:
        if 1 in a["used"]:
            return None
        size = _many(a["output_size"], rank)
        whole = all(s == 1 for s in size)
        return _whole(b, kind, rank, a) if whole else b.add(f"adaptive_{kind}_pool{rank}d", a["self"], output_size=size)

    return rule


def _reshaped(b: Builder, x: str, shape: Sequence[int]) -> str:
    return b.add("reshape", x, shape=tuple(shape))


def _squeeze(b: Builder, a: Arguments) -> str:
    dim = a.get("dim")
    return b.add("squeeze", a["self"], dim=tuple(dim) if isinstance(dim, list) else dim)


def _swap(one: str, other: str) -> Rule:
    def rule(b: Builder, a: Arguments) -> str:
        rank = len(b.value(a["self"]).shape)
        dims = list(range(rank))
        i, j = a[one] % max(rank, 1), a[other] % max(rank, 1)
        if rank:
            dims[i], dims[j] = dims[j], dims[i]
        return b.add("permute", a["self"], dims=tuple(dims))

    return rule


def _turned(b: Builder, a: Arguments) -> str:
    """The last two axes, or both, change places."""
    rank = len(b.value(a["self"]).shape)
    dims = tuple(range(rank))
    return b.add("permute", a["self"], dims=(*dims[:-2], *dims[:-3:-1]))


def _reversed(b: Builder, a: Arguments) -> str:
    return b.add("permute", a["self"], dims=tuple(range(len(b.value(a["self"]).shape)))[::-1])


def _movedim(b: Builder, a: Arguments) -> str:
    rank = len(b.value(a["self"]).shape)
    source, target = ([d % rank for d in _many(a[name], 1)] for name in ("source", "destination"))
    rest = [d for d in range(rank) if d not in source]
    dims = [source[target.index(d)] if d in target else rest.pop(0) for d in range(rank)]
    return b.add("permute", a["self"], dims=tuple(dims))


def _expand(b: Builder, a: Arguments) -> str:
    x = b.value(a["self"]).shape
    shape = tuple(b.value(a["other"]).shape) if "other" in a else tuple(a["size"])
    padded = (1,) * (len(shape) - len(x)) + tuple(x)
    out = _reshaped(b, a["self"], padded)
    return b.add("expand", out, shape=tuple(p if s == -1 else s for s, p in zip(shape, padded, strict=True)))


def _select(b: Builder, a: Arguments) -> str:
    size = b.value(a["self"]).shape[a["dim"]]
    return b.add("select", a["self"], dim=a["dim"], index=a["index"] % size)


def _slice(b: Builder, a: Arguments) -> str:
    size = b.value(a["self"]).shape[a["dim"]]
    start, stop, step = slice(a["start"], a["end"], a["step"]).indices(size)
    return b.add("slice", a["self"], dim=a["dim"], start=start, stop=max(stop, start), step=step)


def _narrow(b: Builder, a: Arguments) -> str | None:
    start = a["start"]
    if isinstance(start, str):
        return None
    start %= b.value(a["self"]).shape[a["dim"]]
    return b.add("slice", a["self"], dim=a["dim"], start=start, stop=start + a["length"])


def _pieces(b: Builder, a: Arguments) -> list[str]:
    """chunk, split, split_with_sizes."""
    size = b.value(a["self"]).shape[a["dim"]]
    if "chunks" in a:
        step = -(-size // a["chunks"])
        sizes = [min(step, size - at) for at in range(0, size, step)]
    else:
        asked = a.get("split_size", a.get("split_sizes", a.get("split_sizes_or_sections")))
        sizes = [min(asked, size - at) for at in range(0, size, asked)] if isinstance(asked, int) else list(asked)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        b.add("slice", a["self"], dim=a["dim"], start=start, stop=start + n) for start, n in zip(starts, sizes, strict=True)
    ]


def _unbind(b: Builder, a: Arguments) -> list[str]:
    size = b.value(a["self"]).shape[a["dim"]]
    return [b.add("select", a["self"], dim=a["dim"], index=i) for i in range(size)]


def _stack(b: Builder, a: Arguments) -> str:
    dim = a["dim"] % (len(b.value(a["tensors"][0]).shape) + 1)
    return b.add("cat", *(b.add("unsqueeze", x, dim=(dim,)) for x in a["tensors"]), dim=dim)


def _pad(b: Builder, a: Arguments) -> str:
    mode = a.get("mode", "constant")
    return b.add("pad", _x(a), padding=tuple(a["pad"]), mode=mode, value=(a["value"] or 0.0) if mode == "constant" else 0.0)


def _cast(b: Builder, a: Arguments) -> str:
    dtype = b.value(a["other"]).dtype if "other" in a else a.get("dtype")
    return b.add("cast", a["self"], dtype=dtype) if dtype else a["self"]


def _filled(value: float | None, like: bool) -> Rule:
    """ones, zeros and full, their `_like` and `new_` forms."""

    def rule(b: Builder, a: Arguments) -> str | None:
        fill = a["fill_value"] if value is None else value
        shape = b.value(a["self"]).shape if like else tuple(a["size"])
        return None if isinstance(fill, str) else b.add("full", fill, shape=shape, dtype=a["result_dtype"])

    return rule


def _arange(b: Builder, a: Arguments) -> str:
    return b.add("arange", start=a.get("start", 0), end=a["end"], step=a.get("step", 1), dtype=a["result_dtype"])


def _einsum(b: Builder, a: Arguments) -> str:
    return add_einsum(b, a["equation"], a["tensors"])


def _weight_norm(b: Builder, a: Arguments) -> str:
    dim = tuple(d for d in range(len(b.value(a["v"]).shape)) if d != a["dim"])
    return b.add("mul", a["v"], b.add("div", a["g"], b.add("norm", a["v"], dim=dim, keepdim=True)))


def _attention(b: Builder, a: Arguments) -> str | None:
    """softmax(q k^T * scale, masked) v, as people write it out."""
    if a["dropout_p"] or a["enable_gqa"]:
        return None
    q, k = b.value(a["query"]).shape, b.value(a["key"]).shape
    rank = len(k)
    turned = b.add("permute", a["key"], dims=(*range(rank - 2), rank - 1, rank - 2))
    scale = q[-1] ** -0.5 if a["scale"] is None else a["scale"]
    scores = b.add("mul", b.add("matmul", a["query"], turned), scale)
    mask = a["attn_mask"]
    if a["is_causal"]:
        mask = b.add("tril", b.add("full", 1, shape=(q[-2], k[-2]), dtype="bool"))
    if mask is not None and b.value(mask).dtype == "bool":
        scores = b.add("where", mask, scores, float("-inf"))
    elif mask is not None:
        scores = b.add("add", scores, mask)
    return b.add("matmul", b.add("softmax", scores, dim=-1), a["value"])


def _loss(op: str) -> Rule:
    def rule(b: Builder, a: Arguments) -> str:
        each = b.add(op, b.add("sub", a["self"], a["target"]))
        return b.add(("mean", "sum")[a["reduction"] - 1], each, dim=None) if a["reduction"] else each

    return rule


def _broadcast_tensors(b: Builder, a: Arguments) -> list[str]:
    shape = broadcast([b.value(x).shape for x in a["tensors"]])
    return [_expand(b, {"self": x, "size": shape}) for x in a["tensors"]]


def _for_ranks(pattern: str, rule: Callable[[int], Rule]) -> dict[str, Rule]:
    return {pattern.format(n=n): rule(n) for n in (1, 2, 3)}


ATEN: dict[str, Rule] = {
    **{name: (lambda b, a: _x(a)) for name in (*IDENTITIES, *DROPOUTS)},
    **{op: _same(op) for op, known in OPS.items() if known.kind == "pointwise" and not known.attributes},
    **{f"__{word}__": _same(f"bitwise_{word}") for word in ("and", "or", "xor")},
    "round": lambda b, a: None if a.get("decimals") else b.add("round", a["self"]),
    "multiply": _same("mul"),
    "relu6": _between(0.0, 6.0),
    "hardtanh": lambda b, a: b.add("clamp", a["self"], min=a["min_val"], max=a["max_val"]),
    "leaky_relu": _named("leaky_relu", "negative_slope"),
    "rrelu": lambda b, a: b.add("leaky_relu", a["self"], negative_slope=(a["lower"] + a["upper"]) / 2),
    "elu": _elu,
    "celu": _named("celu", "alpha"),
    "gelu": _named("gelu", "approximate"),
    "softplus": _named("softplus", "beta", "threshold"),
    "softshrink": _named("softshrink", "lambd"),
    "hardshrink": _named("hardshrink", "lambd"),
    "threshold": _named("threshold", "threshold", "value"),
    "prelu": lambda b, a: b.add("prelu", a["self"], a["weight"]),
    "glu": _glu,
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), _clamp),
    "add": lambda b, a: b.add("add", a["self"], _scaled(b, a["other"], a.get("alpha", 1))),
    **dict.fromkeys(("sub", "subtract"), lambda b, a: b.add("sub", a["self"], _scaled(b, a["other"], a.get("alpha", 1)))),
    "rsub": lambda b, a: b.add("sub", a["other"], _scaled(b, a["self"], a["alpha"])),
    **dict.fromkeys(
        ("div", "divide", "true_divide"),
        lambda b, a: b.add("div", a["self"], a["other"], rounding_mode=a.get("rounding_mode")),
    ),
    "floor_divide": lambda b, a: b.add("div", a["self"], a["other"], rounding_mode="floor"),
    "bitwise_not": lambda b, a: b.add("logical_not", a["self"]) if b.value(a["self"]).dtype == "bool" else None,
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
    **dict.fromkeys(("norm", "linalg_norm", "linalg_vector_norm"), _norm),
    **{name: _softmax(name.removeprefix("_")) for name in ("softmax", "log_softmax", "_softmax", "_log_softmax")},
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    **{op: lambda b, a, op=op: b.add(op, a["self"], dim=a["dim"]) for op in ("cumsum", "cumprod")},
    "linear": lambda b, a: b.add("linear", a["input"], a["weight"], a["bias"]),
    **dict.fromkeys(("matmul", "inner"), _matmul("self", "other")),
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
    "mse_loss": _loss("square"),
    "l1_loss": _loss("abs"),
    **_for_ranks("conv{n}d", _convolution),
    **_for_ranks("conv_transpose{n}d", _transposed),
    **_for_ranks("max_pool{n}d", lambda n: _pool("max", n)),
    **_for_ranks("max_pool{n}d_with_indices", lambda n: _pool("max", n)),
    **_for_ranks("avg_pool{n}d", lambda n: _pool("avg", n)),
    **_for_ranks("adaptive_avg_pool{n}d", lambda n: _adaptive("avg", n)),
    **_for_ranks("adaptive_max_pool{n}d", lambda n: _adaptive("max", n)),
    **dict.fromkeys(("reshape", "_unsafe_view"), lambda b, a: _reshaped(b, a["self"], a.get("shape", a.get("size")))),
    "view": lambda b, a: _reshaped(b, a["self"], a["size"]) if "size" in a else None,
    **dict.fromkeys(("view_as", "reshape_as"), lambda b, a: _reshaped(b, a["self"], b.value(a["other"]).shape)),
    "flatten": _named("flatten", "start_dim", "end_dim"),
    "ravel": lambda b, a: _reshaped(b, a["self"], (-1,)),
    "unflatten": lambda b, a: b.add("unflatten", a["self"], dim=a["dim"], sizes=tuple(a["sizes"])),
    "squeeze": _squeeze,
    "unsqueeze": lambda b, a: b.add("unsqueeze", a["self"], dim=(a["dim"],)),
    "permute": lambda b, a: b.add("permute", a["self"], dims=tuple(a["dims"])),
    "transpose": _swap("dim0", "dim1"),
    "swapdims": _swap("dim0", "dim1"),
    "swapaxes": _swap("axis0", "axis1"),
    **dict.fromkeys(("t", "mT", "adjoint"), _turned),
    "numpy_T": _reversed,
    **dict.fromkeys(("movedim", "moveaxis"), _movedim),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    "broadcast_tensors": _broadcast_tensors,
    "select": _select,
    "slice": _slice,
    "narrow": _narrow,
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _pieces),
    "unbind": _unbind,
    **dict.fromkeys(("cat", "concat", "concatenate"), lambda b, a: b.add("cat", *a["tensors"], dim=a["dim"])),
    "stack": _stack,
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    "flip": lambda b, a: b.add("flip", a["self"], dim=tuple(a["dims"])),
    "roll": lambda b, a: b.add("roll", a["self"], shifts=tuple(a["shifts"]), dim=tuple(a["dims"])) if a["dims"] else None,
    **dict.fromkeys(
        ("repeat", "tile"), lambda b, a: b.add("repeat", a["self"], repeats=tuple(a.get("repeats", a.get("dims"))))
    ),
    "tril": _named("tril", "diagonal"),
    "triu": _named("triu", "diagonal"),
    "pixel_shuffle": _named("pixel_shuffle", "upscale_factor"),
    "pixel_unshuffle": _named("pixel_unshuffle", "downscale_factor"),
    "embedding": lambda b, a: b.add("embedding", a["weight"], a["indices"]),
    **{op: lambda b, a, op=op: b.add(op, a["self"], a["index"], dim=a["dim"]) for op in ("gather", "index_select")},
    **dict.fromkeys(("to", "_to_copy", "type_as"), _cast),
    **{f"{prefix}ones{suffix}": _filled(1, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    **{f"{prefix}zeros{suffix}": _filled(0, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    **{f"{prefix}full{suffix}": _filled(None, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    "fill": lambda b, a: b.add("full", a["value"], shape=b.value(a["self"]).shape, dtype=a["result_dtype"]),
    "zero": _filled(0, like=True),
    "arange": _arange,
}
"""Name of an ATen op, without its overload → what it says."""
