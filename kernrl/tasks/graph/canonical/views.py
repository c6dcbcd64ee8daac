"""Views in their one form, and where they stand: behind the ops that they change nothing for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.graph import Operand
from kernrl.tasks.graph.ops import OPS, RESHAPES

Shape = tuple[int, ...]
Attributes = dict[str, Any]

OVER_ANY_AXES = ("sum", "mean", "amax", "amin", "prod", "logsumexp", "any", "all", "var", "std", "norm")
"""Reductions that do not ask in which order their axes lie."""


def reshape(b: Builder, x: str, shape: Sequence[int]) -> str:
    """x with its elements in the same order, in another shape (one size may be -1)."""
    while node := b.node(x, *RESHAPES):
        x = node.operands[0]  # pyright: ignore[reportAssignmentType]
    before, after = b.value(x).shape, _filled(b.value(x).shape, shape)
    if before == after:
        return x
    op, attributes = _classified(before, after)
    return b.place(op, (x,), attributes)


def _filled(before: Shape, shape: Sequence[int]) -> Shape:
    known = prod(s for s in shape if s != -1)
    return tuple(prod(before) // known if s == -1 else s for s in shape)


def _classified(before: Shape, after: Shape) -> tuple[str, Attributes]:
    """The plainest view that makes `after` of `before`."""
    if [s for s in before if s != 1] == [s for s in after if s != 1]:
        if (gone := _extra(before, after)) is not None:
            return "squeeze", {"dim": gone}
        if (new := _extra(after, before)) is not None:
            return "unsqueeze", {"dim": new}
    run = _run(before, after)
    if run:
        return "flatten", {"start_dim": run[0], "end_dim": run[1]}
    run = _run(after, before)
    if run:
        return "unflatten", {"dim": run[0], "sizes": after[run[0] : run[1] + 1]}
    return "reshape", {"shape": after}


def _extra(long: Shape, short: Shape) -> tuple[int, ...] | None:
    """The axes of size 1 by which `long` is longer than `short`, if they are all the difference."""
    extra, at = [], 0
    for axis, size in enumerate(long):
        if at < len(short) and short[at] == size:
            at += 1
        elif size == 1:
            extra.append(axis)
        else:
            return None
    return tuple(extra) if at == len(short) and extra else None


def _run(long: Shape, short: Shape) -> tuple[int, int] | None:
    """The first and last axis of the one run of `long` that is a single axis in `short`."""
    width = len(long) - len(short)
    if width < 1:
        return None
    for start in range(len(short)):
        end = start + width
        if (
            long[:start] == short[:start]
            and long[end + 1 :] == short[start + 1 :]
            and prod(long[start : end + 1]) == short[start]
        ):
            return start, end
    return None


def axis_groups(before: Shape, after: Shape) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Which axes of `before` become which of `after`, in smallest groups; axes of size 1 belong to none."""
    left, right = ([(i, s) for i, s in enumerate(shape) if s != 1] for shape in (before, after))
    groups = []
    while left and right:
        (i, m), (j, n) = left.pop(0), right.pop(0)
        ours, theirs = [i], [j]
        while m != n:
            if m < n:
                i, size = left.pop(0)
                ours.append(i)
                m *= size
            else:
                j, size = right.pop(0)
                theirs.append(j)
                n *= size
        groups.append((tuple(ours), tuple(theirs)))
    return groups


def move_views(b: Builder, op: str, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """The op before the view that its operands come through, and that view behind it; None where it is not the same."""
    kind = OPS[op].kind
    if kind == "pointwise" and op not in ("batch_norm_eval", "prelu"):
        return _without_expand(b, op, operands, attributes) or _before_view(b, op, operands, attributes)
    if op in OVER_ANY_AXES or op in ("argmax", "argmin"):
        if not attributes["keepdim"]:
            x = b.value(operands[0])  # pyright: ignore[reportArgumentType]
            kept = b.add(op, *operands, **{**attributes, "keepdim": True})
            return reshape(b, kept, [s for d, s in enumerate(x.shape) if d not in attributes["dim"]])
        return _over_other_axes(b, op, operands, attributes)
    if op in ("softmax", "log_softmax"):
        return _over_other_axes(b, op, operands, attributes)
    return None


def _without_expand(b: Builder, op: str, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """An operand that is expanded by hand, where broadcasting does it."""
    for i, operand in enumerate(operands):
        node = b.node(operand, "expand")
        if node is None:
            continue
        others = [b.value(o).shape for j, o in enumerate(operands) if isinstance(o, str) and j != i]
        narrow = b.value(node.operands[0]).shape  # pyright: ignore[reportArgumentType]
        if others and broadcast([narrow, *others]) == broadcast([node.value.shape, *others]):
            return b.add(op, *operands[:i], node.operands[0], *operands[i + 1 :], **attributes)
    return None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape to which those shapes broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))


def _before_view(b: Builder, op: str, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """`relu(flatten(x))` as `flatten(relu(x))`; with several tensors, where all come through the same view."""
    nodes = [b.node(o, *RESHAPES, "permute") for o in operands if isinstance(o, str)]
    first = nodes[0] if nodes else None
    if first is None:
        return None
    base = b.value(first.operands[0]).shape  # pyright: ignore[reportArgumentType]
    for node in nodes:
        if node is None or (node.op == "permute") != (first.op == "permute") or node.value.shape != first.value.shape:
            return None
        if b.value(node.operands[0]).shape != base or node.attributes != first.attributes:  # pyright: ignore[reportArgumentType]
            return None
    out = b.add(op, *(b.node(o).operands[0] if isinstance(o, str) else o for o in operands), **attributes)  # pyright: ignore[reportOptionalMemberAccess]
    return b.add("permute", out, dims=first["dims"]) if first.op == "permute" else reshape(b, out, first.value.shape)


def _over_other_axes(b: Builder, op: str, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """`flatten(x, 2).softmax(-1)` as `flatten(softmax(x, (2, 3)), 2)`, and a reduction of a permuted x likewise."""
    node, dim = b.node(operands[0], *RESHAPES, "permute"), attributes["dim"]
    if node is None:
        return None
    x: str = node.operands[0]  # pyright: ignore[reportAssignmentType]
    if op in ("argmax", "argmin") and (len(dim) > 1 or node.op not in ("permute", "squeeze", "unsqueeze")):
        return None
    if node.op == "permute":
        out = b.add(op, x, **{**attributes, "dim": tuple(node["dims"][d] for d in dim)})
        return b.add("permute", out, dims=node["dims"])
    wide = {d for d in dim if node.value.shape[d] != 1}
    axes: list[int] = []
    for ours, theirs in axis_groups(b.value(x).shape, node.value.shape):
        if wide & set(theirs):
            if not wide.issuperset(theirs):
                return None
            axes += ours
    if not axes or 0 in b.value(x).shape:
        return None
    out = b.add(op, x, **{**attributes, "dim": tuple(axes)})
    kept = [1 if d in dim else s for d, s in enumerate(node.value.shape)] if "keepdim" in attributes else node.value.shape
    return reshape(b, out, kept)


def _permute(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    x: str = operands[0]  # pyright: ignore[reportAssignmentType]
    dims = attributes["dims"]
    if inner := b.node(x, "permute"):
        x, dims = inner.operands[0], tuple(inner["dims"][d] for d in dims)  # pyright: ignore[reportAssignmentType]
        return b.add("permute", x, dims=dims)
    shape = b.value(x).shape
    wide = [d for d in dims if shape[d] != 1]
    if wide == sorted(wide):  # no element changes its place
        return reshape(b, x, [shape[d] for d in dims])
    return None


def _reshape(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    return reshape(b, operands[0], attributes["shape"])  # pyright: ignore[reportArgumentType]


def _by_shape(after: Callable[[Shape, Attributes], Sequence[int]]) -> Callable[..., str | None]:
    """A view that is a reshape to the shape that `after` gives."""

    def rule(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
        x: str = operands[0]  # pyright: ignore[reportAssignmentType]
        return reshape(b, x, after(b.value(x).shape, attributes))

    return rule


def _flattened(s: Shape, a: Attributes) -> Shape:
    return (*s[: a["start_dim"]], prod(s[a["start_dim"] : a["end_dim"] + 1]), *s[a["end_dim"] + 1 :]) if s else (1,)


def _unflattened(s: Shape, a: Attributes) -> Shape:
    return (*s[: a["dim"]], *_filled((s[a["dim"]],), a["sizes"]), *s[a["dim"] + 1 :])


def _unsqueezed(s: Shape, a: Attributes) -> list[int]:
    sizes = list(s)
    for d in a["dim"]:
        sizes.insert(d, 1)
    return sizes


def _expand(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    x: str = operands[0]  # pyright: ignore[reportAssignmentType]
    return x if b.value(x).shape == attributes["shape"] else None


def _slice(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """A slice that takes all is none, and one of equal pieces is a chunk."""
    x: str = operands[0]  # pyright: ignore[reportAssignmentType]
    size, start, stop = b.value(x).shape[attributes["dim"]], attributes["start"], attributes["stop"]
    if attributes["step"] != 1:
        return None
    width = stop - start
    if width == size:
        return x
    if width > 1 and size % width == 0 and start % width == 0:
        return b.add("chunk", x, chunks=size // width, dim=attributes["dim"], index=start // width)
    return None


def _chunk(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    return operands[0] if attributes["chunks"] == 1 else None  # pyright: ignore[reportReturnType]


def _select(b: Builder, operands: tuple[Operand, ...], attributes: Attributes) -> str | None:
    """The only one along an axis."""
    size = b.value(operands[0]).shape[attributes["dim"]]  # pyright: ignore[reportArgumentType]
    return b.add("squeeze", operands[0], dim=(attributes["dim"],)) if size == 1 else None


VIEW_RULES: dict[str, Callable[..., str | None]] = {
    "reshape": _reshape,
    "flatten": _by_shape(_flattened),
    "unflatten": _by_shape(_unflattened),
    "squeeze": _by_shape(lambda s, a: [n for d, n in enumerate(s) if d not in a["dim"] or n != 1]),
    "unsqueeze": _by_shape(_unsqueezed),
    "permute": _permute,
    "expand": _expand,
    "select": _select,
    "slice": _slice,
    "chunk": _chunk,
}
"""Op → its rule."""
