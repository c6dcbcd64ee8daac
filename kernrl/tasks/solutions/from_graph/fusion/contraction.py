"""Which library calls are one matrix product, and which of their dimensions are its rows, columns and depth."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from kernrl.tasks.solutions.from_graph.fusion.fuse import Group
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import FEW_CHANNELS, Op, Program
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, over

Label = int | str
"""A dimension of the result by its position, or one that is summed over, by a name."""


@dataclass(frozen=True, slots=True)
class Taps:
    """The window of a convolution, a number for each dimension of the image."""

    kernel: Shape
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: Size
    transposed: bool
    flat: bool
    """The taps are part of the depth, and the image lies as it comes; else its channels are innermost."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """`result[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, whatever order the dimensions are in."""

    op: Op
    a: str
    b: str
    a_labels: tuple[Label | None, ...]
    """For each dimension of `a` what it is of the result; None where it has size 1."""
    b_labels: tuple[Label | None, ...]
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[str, ...]
    depth: dict[str, Size]
    """Sizes of what is summed over."""
    taps: Taps | None = None
    """Of a convolution: `a` is read through a window, `n` are channels and `m` are pixels."""


def contraction(program: Program, op: Op) -> Contraction | None:
    """A library call as a matrix product; None where it is none, or has no columns of its own."""
    node = program.graph.nodes[op.node]
    if op.kind != "library" or node.kind not in ("product", "convolution") or len(op.results) != 1:
        return None
    if len(op.reads) != 2 or any(o is not None for o in op.operands[2:]):
        return None  # with a bias that the call adds
    labels = _labels(program, op, node.op, dict(node.attributes))
    if labels is None:
        return None
    x, y = op.reads
    sizes: dict[str, Size] = {}
    for value, theirs in zip((x, y), labels, strict=True):
        for d, label in enumerate(theirs):
            if isinstance(label, str):
                sizes[label] = program.shapes[value][d]
    shape, one = program.shapes[op.value], (set(labels[0]), set(labels[1]))
    if not sizes or any(set(sizes) - own for own in one):
        return None  # what only one operand has cannot be summed by a product
    wide = [d for d in range(len(shape)) if not is_one(shape[d])]
    if not wide:
        return None
    swap = wide[-1] in one[0]
    if swap:
        x, y, labels, one = y, x, labels[::-1], one[::-1]
    n, rest = _run(wide, one[1] - one[0])
    m, batch = _run(rest, one[0] - one[1])
    if not n or not m:
        return None
    return Contraction(op, x, y, labels[0], labels[1], tuple(batch), tuple(m), tuple(n), tuple(sizes), sizes)


def convolution(program: Program, op: Op) -> Contraction | None:
    """A convolution as a sum over channels and taps; None where its operands do not lie as that needs."""
    node = program.graph.nodes[op.node]
    if op.kind != "library" or node.kind != "convolution" or any(o is not None for o in op.operands[2:]):
        return None
    rank, (x, w) = int(node.op[-2]), op.reads
    rows: list[dict[str, Any]] = [dict(g.nodes[op.node].attributes) for g in program.graphs]
    fixed = ("stride", "padding", "dilation")
    groups = tuple(row["groups"] for row in rows)
    channels = over(program.shapes[x][1], groups) if len(program.shapes[x]) == rank + 2 else None
    if channels is None or any(row[name] != rows[0][name] for row in rows for name in fixed):
        return None
    few = channels[0] < FEW_CHANNELS
    if few == (x in program.last) or (few and "transpose" in node.op):
        return None
    kernel = program.shapes[w][2:]
    stride, padding, dilation = (tuple(rows[0][name]) for name in fixed)
    taps = Taps(kernel, stride, padding, dilation, groups, "transpose" in node.op, few)
    depth = {"k": channels, **{f"tap{d}": size for d, size in enumerate(kernel)}}
    return Contraction(op, x, w, (), (), (0,), tuple(range(2, rank + 2)), (1,), tuple(depth), depth, taps)


def _run(dims: list[int], own: set[Label | None]) -> tuple[list[int], list[int]]:
    """(the last dimensions that one operand alone has, those in front of them)."""
    at = len(dims)
    while at and dims[at - 1] in own:
        at -= 1
    return dims[at:], dims[:at]


def _labels(program: Program, op: Op, name: str, a: dict[str, Any]) -> tuple[tuple[Label | None, ...], ...] | None:
    shapes = [program.shapes[v] for v in op.reads]
    rank = len(program.shapes[op.value])
    if name == "linear":
        return (*range(rank - 1), "k"), (rank - 1, "k")
    if name == "matmul" and min(map(len, shapes)) >= 2:
        pair = (("k", "n"), (rank - 2, rank - 1))
        found = []
        for side, shape in enumerate(shapes):
            lead = len(shape) - 2
            batch = [None if is_one(shape[d]) else rank - 2 - lead + d for d in range(lead)]
            found.append((*batch, *((pair[1][0], "k") if side == 0 else ("k", pair[1][1]))))
        return tuple(found)
    if name == "einsum":
        return _einsum(a["equation"], rank)
    pointwise = name.startswith("conv") and "transpose" not in name and a["groups"] == 1
    if pointwise and all(is_one(s) for s in shapes[1][2:]) and set(a["stride"]) == {1} and set(a["padding"]) == {0}:
        return (0, "k", *range(2, rank)), (1, "k", *[None] * (rank - 2))
    return None


def _einsum(equation: str, rank: int) -> tuple[tuple[Label | None, ...], ...] | None:
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or len(right) != rank or any(len(set(t)) != len(t) or "." in t for t in (*terms, right)):
        return None
    return tuple(tuple(right.index(c) if c in right else c for c in term) for term in terms)


def readers(schedule: Schedule, value: str) -> list[Group | Op]:
    """The kernels and library calls that read a value from memory, in order."""
    giver = schedule.plan.giver

    def reads(unit: Group | Op) -> bool:
        stack = (
            [r for v, op in unit.members.items() if v in schedule.stored for r in op.reads] if isinstance(unit, Group) else []
        )
        stack += unit.reads if isinstance(unit, Op) else []
        seen: set[str] = set()
        while stack:
            name = stack.pop()
            if name == value:
                return True
            op = giver.get(name)
            own = isinstance(unit, Group) and name in unit.members
            if name in seen or op is None or op.kind == "library" or (name in schedule.stored and not own):
                continue
            seen.add(name)
            stack += op.reads
        return False

    return [unit for unit in schedule.units if unit is not giver.get(value) and reads(unit)]


def products_with_tails(schedule: Schedule, *, windows: bool = False) -> dict[Group, Contraction]:
    """Groups that read a product before anything else does → that product, the largest where it is one of several.

    Args:
        windows: Convolutions, of whatever window, rather than products.
    """
    program, found = schedule.plan.program, {}
    for op in [u for u in schedule.units if isinstance(u, Op)]:
        product = (convolution if windows else contraction)(program, op)
        if product is None or not (first := readers(schedule, op.value)[:1]) or not isinstance(first[0], Group):
            continue
        before = found.get(first[0])
        if before is None or _flops(program, before) < _flops(program, product):
            found[first[0]] = product
    return found


def _flops(program: Program, product: Contraction) -> int:
    return prod(s[0] for s in (*program.shapes[product.op.value], *product.depth.values()))
