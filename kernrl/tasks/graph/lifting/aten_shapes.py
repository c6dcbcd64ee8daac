"""What ATen's convolutions, pools, views, copies and new tensors say, in the ops of a Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from kernrl.tasks.graph.canonical.views import broadcast

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder

Arguments = dict[str, Any]
"""Argument of the schema → value: a tensor as the name of its value. Also the call's `name`, which results are `used`, and
the first one's `result_dtype`."""
Rule = Callable[["Builder", Arguments], Any]
"""Gives the name of the result, a list of names, or None where the call stays as it is, unknown."""


def first(a: Arguments) -> str:
    """The tensor that the call is about."""
    return a["self"] if "self" in a else a["input"]


def named(op: str, *attributes: str) -> Rule:
    """The op of that name on the first argument, with these arguments as attributes."""
    return lambda b, a: b.add(op, first(a), **{name: a[name] for name in attributes})


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
        attributes: dict[str, Any] = {"kernel_size": kernel, "stride": _many(a["stride"], rank) if a["stride"] else kernel}
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
        asked = a["split_size"] if "split_size" in a else a["split_sizes"]
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


def _cat(b: Builder, a: Arguments) -> str:
    some = [x for x in a["tensors"] if prod(b.value(x).shape)]
    return b.add("cat", *some, dim=a["dim"]) if len(some) > 1 else (some or a["tensors"])[0]


def _pad(b: Builder, a: Arguments) -> str:
    mode = a.get("mode", "constant")
    return b.add("pad", first(a), padding=tuple(a["pad"]), mode=mode, value=(a["value"] or 0.0) if mode == "constant" else 0.0)


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


def _filled_with(argument: str) -> Rule:
    """A number, or another tensor, in the shape and the dtype of the first."""

    def rule(b: Builder, a: Arguments) -> str:
        value, shape, dtype = a[argument], b.value(a["self"]).shape, a["result_dtype"]
        if not isinstance(value, str):
            return b.add("full", value, shape=shape, dtype=dtype)
        return _expand(b, {"self": b.add("cast", value, dtype=dtype), "size": shape})

    return rule


def _arange(b: Builder, a: Arguments) -> str:
    return b.add("arange", start=a.get("start", 0), end=a["end"], step=a.get("step", 1), dtype=a["result_dtype"])


def _broadcast_tensors(b: Builder, a: Arguments) -> list[str]:
    shape = broadcast([b.value(x).shape for x in a["tensors"]])
    return [_expand(b, {"self": x, "size": shape}) for x in a["tensors"]]


def _nearest(rank: int) -> Rule:
    """Every element several times along each axis of space, where that is a whole number of times."""

    def rule(b: Builder, a: Arguments) -> str | None:
        x = first(a)
        outer, shape = b.value(x).shape[:-rank], b.value(x).shape[-rank:]
        sizes = a["output_size"] or [int(s * f) for s, f in zip(shape, a["scale_factors"], strict=True)]
        if any(to % s for s, to in zip(shape, sizes, strict=True)):
            return None
        apart = [n for s in shape for n in (s, 1)]
        wide = [n for s, to in zip(shape, sizes, strict=True) for n in (s, to // s)]
        repeated = b.add("expand", b.add("reshape", x, shape=(*outer, *apart)), shape=(*outer, *wide))
        return b.add("reshape", repeated, shape=(*outer, *sizes))

    return rule


def _for_ranks(pattern: str, rule: Callable[[int], Rule]) -> dict[str, Rule]:
    return {pattern.format(n=n): rule(n) for n in (1, 2, 3)}


SHAPES: dict[str, Rule] = {
    **_for_ranks("conv{n}d", _convolution),
    **_for_ranks("conv_transpose{n}d", _transposed),
    **_for_ranks("max_pool{n}d", lambda n: _pool("max", n)),
    **_for_ranks("max_pool{n}d_with_indices", lambda n: _pool("max", n)),
    **_for_ranks("avg_pool{n}d", lambda n: _pool("avg", n)),
    **_for_ranks("adaptive_avg_pool{n}d", lambda n: _adaptive("avg", n)),
    **_for_ranks("adaptive_max_pool{n}d", lambda n: _adaptive("max", n)),
    **_for_ranks("upsample_nearest{n}d", _nearest),
    **dict.fromkeys(
        ("reshape", "_unsafe_view"), lambda b, a: _reshaped(b, a["self"], a["shape"] if "shape" in a else a["size"])
    ),
    "view": lambda b, a: _reshaped(b, a["self"], a["size"]) if "size" in a else None,
    **dict.fromkeys(("view_as", "reshape_as"), lambda b, a: _reshaped(b, a["self"], b.value(a["other"]).shape)),
    "flatten": named("flatten", "start_dim", "end_dim"),
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
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "stack": _stack,
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    "flip": lambda b, a: b.add("flip", a["self"], dim=tuple(a["dims"])),
    "roll": lambda b, a: b.add("roll", a["self"], shifts=tuple(a["shifts"]), dim=tuple(a["dims"])) if a["dims"] else None,
    "repeat": named("repeat", "repeats"),
    "tril": named("tril", "diagonal"),
    "triu": named("triu", "diagonal"),
    "pixel_shuffle": named("pixel_shuffle", "upscale_factor"),
    "pixel_unshuffle": named("pixel_unshuffle", "downscale_factor"),
    "embedding": lambda b, a: b.add("embedding", a["weight"], a["indices"]),
    **{op: lambda b, a, op=op: b.add(op, a["self"], a["index"], dim=a["dim"]) for op in ("gather", "index_select")},
    **dict.fromkeys(("to", "_to_copy", "type_as"), _cast),
    **{f"{prefix}ones{suffix}": _filled(1, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    **{f"{prefix}zeros{suffix}": _filled(0, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    # what is never overwritten may be anything
    **{f"{prefix}empty{suffix}": _filled(0, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    **{f"{prefix}full{suffix}": _filled(None, suffix == "_like") for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))},
    "fill": _filled_with("value"),
    "copy": _filled_with("src"),
    "zero": _filled(0, like=True),
    "arange": _arange,
}
"""Name of an ATen op, without its overload → what it says."""
