"""What is one call in PyTorch and several ops in a Graph: products, copies in another order, and what other files have."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kernrl.tasks.graph.lifting import elementwise
from kernrl.tasks.graph.lifting.aten_shapes import Arguments, Rule, first
from kernrl.tasks.graph.lifting.cells import CELLS
from kernrl.tasks.graph.lifting.einsum import add_einsum
from kernrl.tasks.graph.lifting.losses import LOSSES

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder

# products


def _bilinear(b: Builder, a: Arguments) -> str:
    """Every element of a row with every one of another, through one layer."""
    one, other, weight = a["input1"], a["input2"], a["weight"]
    rank = len(b.value(one).shape)
    pairs = b.add("mul", b.add("unsqueeze", one, dim=(rank,)), b.add("unsqueeze", other, dim=(rank - 1,)))
    flat = b.add("flatten", pairs, start_dim=rank - 1, end_dim=rank)
    return b.add("linear", flat, b.add("flatten", weight, start_dim=1, end_dim=2), a["bias"])


def _tensordot(b: Builder, a: Arguments) -> str:
    ranks = [len(b.value(a[name]).shape) for name in ("self", "other")]
    letters = "abcdefghijklmnopqrstuvwxyz"
    one, other = list(letters[: ranks[0]]), list(letters[ranks[0] : sum(ranks)])
    for i, j in zip(a["dims_self"], a["dims_other"], strict=True):
        other[j % ranks[1]] = one[i % ranks[0]]
    out = [c for c in one if c not in other] + [c for c in other if c not in one]
    return add_einsum(b, f"{''.join(one)},{''.join(other)}->{''.join(out)}", (a["self"], a["other"]))


def _inner(b: Builder, a: Arguments) -> str:
    """Over the last axis of both."""
    ranks = [len(b.value(a[name]).shape) for name in ("self", "other")]
    return _tensordot(b, a | {"dims_self": [ranks[0] - 1], "dims_other": [ranks[1] - 1]})


def _sum_of_products(b: Builder, a: Arguments) -> str:
    """`addbmm`."""
    product = b.add("sum", b.add("matmul", a["batch1"], a["batch2"]), dim=0)
    product = product if a["alpha"] == 1 else b.add("mul", product, a["alpha"])
    if a["beta"] == 0:
        return product
    return b.add("add", product, a["self"] if a["beta"] == 1 else b.add("mul", a["self"], a["beta"]))


def _chain(b: Builder, a: Arguments) -> str:
    found, *rest = a["tensors"] if "tensors" in a else a["matrices"]
    for matrix in rest:
        found = b.add("matmul", found, matrix)
    return found


# copies in another order


def _stacked(dim: int, rank: int) -> Rule:
    """hstack and its like: `cat` along an axis, of tensors that have at least that many."""

    def rule(b: Builder, a: Arguments) -> str | None:
        least = min(len(b.value(x).shape) for x in a["tensors"])
        return b.add("cat", *a["tensors"], dim=dim) if least >= rank else None

    return rule


def _repeat_each(b: Builder, a: Arguments) -> str | None:
    """`repeat_interleave` of a number."""
    times, x = a["repeats"], a["self"]
    if not isinstance(times, int):
        return None
    if a["dim"] is None:
        x = b.add("reshape", x, shape=(-1,))
    shape = list(b.value(x).shape)
    at = (a["dim"] or 0) % len(shape)
    wide = b.add("expand", b.add("unsqueeze", x, dim=(at + 1,)), shape=(*shape[: at + 1], times, *shape[at + 1 :]))
    return b.add("reshape", wide, shape=(*shape[:at], shape[at] * times, *shape[at + 1 :]))


def _one_hot(b: Builder, a: Arguments) -> str | None:
    count, rank = a["num_classes"], len(b.value(a["self"]).shape)
    if count < 1:
        return None
    mine = b.add("eq", b.add("unsqueeze", a["self"], dim=(rank,)), b.add("arange", end=count, dtype="int64"))
    return b.add("cast", mine, dtype="int64")


def _tile(b: Builder, a: Arguments) -> str:
    rank = len(b.value(a["self"]).shape)
    return b.add("repeat", a["self"], repeats=(1,) * (rank - len(a["dims"])) + tuple(a["dims"]))


def _channel_shuffle(b: Builder, a: Arguments) -> str:
    batch, channels, *space = b.value(a["self"]).shape
    groups = a["groups"]
    apart = b.add("reshape", a["self"], shape=(batch, groups, channels // groups, *space))
    turned = b.add("permute", apart, dims=(0, 2, 1, *range(3, 3 + len(space))))
    return b.add("reshape", turned, shape=(batch, channels, *space))


def _unfold(b: Builder, a: Arguments) -> str | None:
    """Windows that do not overlap; their elements become the last axis."""
    shape, size, step = b.value(a["self"]).shape, a["size"], a["step"]
    at = a["dimension"] % len(shape)
    if step < size:
        return None
    count = (shape[at] - size) // step + 1
    if count * step > shape[at]:  # the last window is shorter than a step
        return None
    whole = b.add("slice", a["self"], dim=at, start=0, stop=count * step)
    apart = b.add("unflatten", whole, dim=at, sizes=(count, step))
    apart = b.add("slice", apart, dim=at + 1, start=0, stop=size)
    rest = [d for d in range(len(shape) + 1) if d != at + 1]
    return b.add("permute", apart, dims=(*rest, at + 1))


def _im2col(b: Builder, a: Arguments) -> str | None:
    """Patches that do not overlap."""
    kernel, stride, x = tuple(a["kernel_size"]), tuple(a["stride"]), b.value(a["self"]).shape
    if kernel != stride or any(a["padding"]) or set(a["dilation"]) != {1} or len(x) != 4:
        return None
    if any(n % k for n, k in zip(x[2:], kernel, strict=True)):
        return None
    batch, channels, height, width = x
    down, right = height // kernel[0], width // kernel[1]
    apart = b.add("reshape", a["self"], shape=(batch, channels, down, kernel[0], right, kernel[1]))
    turned = b.add("permute", apart, dims=(0, 1, 3, 5, 2, 4))
    return b.add("reshape", turned, shape=(batch, channels * kernel[0] * kernel[1], down * right))


def _meshgrid(b: Builder, a: Arguments) -> list[str]:
    """Each vector along an axis of its own; the first two change places where the indexing is "xy"."""
    vectors = a["tensors"]
    rank = len(vectors)
    axes = [1, 0, *range(2, rank)] if a.get("indexing") == "xy" and rank > 1 else list(range(rank))
    shape = tuple(prod(b.value(vectors[axis]).shape) for axis in axes)
    laid = [b.add("reshape", x, shape=(-1, *[1] * (rank - 1 - axis))) for x, axis in zip(vectors, axes, strict=True)]
    laid = [b.add("reshape", x, shape=(1,) * (rank - len(b.value(x).shape)) + b.value(x).shape) for x in laid]
    return [b.add("expand", x, shape=shape) for x in laid]


def _on_diagonal(b: Builder, rows: int, columns: int) -> str:
    """Where the elements of a matrix lie on its diagonal."""
    down, along = (b.add("arange", end=n, dtype="int64") for n in (rows, columns))
    return b.add("eq", b.add("unsqueeze", down, dim=(1,)), along)


def _eye(b: Builder, a: Arguments) -> str:
    return b.add("cast", _on_diagonal(b, a["n"], a.get("m", a["n"])), dtype=a["result_dtype"])


def _fill_diagonal(b: Builder, a: Arguments) -> str | None:
    shape = b.value(a["self"]).shape
    if len(shape) != 2 or (a["wrap"] and shape[0] > shape[1]):
        return None
    return b.add("where", _on_diagonal(b, *shape), a["fill_value"], a["self"])


def _put(b: Builder, a: Arguments) -> str | None:
    """`x[mask] = number`."""
    x, value, where = a["self"], a["values"], a["indices"]
    if a["accumulate"] or len(where) != 1 or b.value(where[0]).dtype != "bool":
        return None
    if isinstance(value, str):
        if prod(b.value(value).shape) != 1:
            return None
        value = b.add("reshape", value, shape=())
    mask, rank = b.value(where[0]).shape, len(b.value(x).shape)
    return b.add("where", b.add("reshape", where[0], shape=(*mask, *[1] * (rank - len(mask)))), value, x)


def _tensor_split(b: Builder, a: Arguments) -> list[str] | None:
    """Pieces of nearly equal size, or between given places."""
    size = b.value(a["self"]).shape[a["dim"]]
    if isinstance(a.get("sections"), int):
        count = a["sections"]
        each, more = divmod(size, count)
        places = [each * i + min(i, more) for i in range(1, count)]
    elif isinstance(a.get("indices"), list):
        places = [i % size if i < 0 else min(i, size) for i in a["indices"]]
    else:
        return None
    ends = list(zip([0, *places], [*places, size], strict=True))
    return [b.add("slice", a["self"], dim=a["dim"], start=start, stop=stop) for start, stop in ends]


def _diff(b: Builder, a: Arguments) -> str | None:
    if a["n"] != 1 or a["prepend"] is not None or a["append"] is not None:
        return None
    size = b.value(a["self"]).shape[a["dim"]]
    later, earlier = (b.add("slice", a["self"], dim=a["dim"], start=i, stop=size - 1 + i) for i in (1, 0))
    return b.add("sub", later, earlier)


def _aminmax(b: Builder, a: Arguments) -> list[str]:
    return [b.add(op, first(a), dim=a["dim"], keepdim=a["keepdim"]) for op in ("amin", "amax")]


def _nansum(b: Builder, a: Arguments) -> str | None:
    kept = b.add("where", b.add("isnan", a["self"]), 0.0, a["self"])
    return None if a.get("dtype") else b.add("sum", kept, dim=a.get("dim") or None, keepdim=a["keepdim"])


def _nanmean(b: Builder, a: Arguments) -> str | None:
    total, counted = _nansum(b, a), b.add("logical_not", b.add("isnan", a["self"]))
    count = b.add("cast", counted, dtype=b.value(a["self"]).dtype)
    return total and b.add("div", total, b.add("sum", count, dim=a.get("dim") or None, keepdim=a["keepdim"]))


COMPOSED: dict[str, Rule] = {
    **elementwise.ELEMENTWISE,
    **CELLS,
    **LOSSES,
    "bilinear": _bilinear,
    "tensordot": _tensordot,
    "inner": _inner,
    "addbmm": _sum_of_products,
    **dict.fromkeys(("linalg_multi_dot", "chain_matmul"), _chain),
    **dict.fromkeys(("hstack", "column_stack"), _stacked(1, 2)),
    "vstack": _stacked(0, 2),
    "dstack": _stacked(2, 3),
    "repeat_interleave": _repeat_each,
    "one_hot": _one_hot,
    "tile": _tile,
    "channel_shuffle": _channel_shuffle,
    "unfold": _unfold,
    "im2col": _im2col,
    "tensor_split": _tensor_split,
    "diff": _diff,
    "aminmax": _aminmax,
    "nansum": _nansum,
    "nanmean": _nanmean,
    "meshgrid": _meshgrid,
    "eye": _eye,
    "fill_diagonal": _fill_diagonal,
    "index_put": _put,
}
"""Name of an ATen op, without its overload → what it says."""

TAKE_NUMBERS = (*elementwise.TAKE_NUMBERS, "index_put", "fill_diagonal")
"""Those in which a tensor of one element may as well be a number."""
