"""The work of a Graph as data: ops on values with shapes, and which views kernels must write out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Shape, Size, is_one

FEW_FILTERS = 8
"""Of an image of one channel, so many filters at most are computed one by one; more are a product."""
FEW_CHANNELS = 8
"""With fewer channels in a group, the taps of a convolution are part of its depth: a tile of channels alone would be empty."""
COMPUTED = ("float32", "bfloat16", "float16")
"""Dtypes that kernels compute in float32; what is of another dtype is compared, chosen and copied as it is."""


@dataclass(frozen=True, slots=True)
class Count:
    """An operand that is a size."""

    size: Size


@dataclass(frozen=True, slots=True)
class Varies:
    """An operand that is a number which differs between the input sets."""

    values: tuple[float, ...]


Operand = str | int | float | bool | None | Count | Varies


@dataclass(frozen=True, slots=True)
class Op:
    """One piece of work."""

    kind: Literal["point", "reduce", "view", "window", "library"]
    results: tuple[str, ...]
    """One value; two for `moments` (mean, sum of squared deviations) and `expsum` (maximum, sum of exponentials)."""
    operands: tuple[Operand, ...]
    text: str = ""
    """Of a point: its Triton expression."""
    how: str = ""
    """Which reduction (sum, max, min, moments, expsum), view (reshape, permute, expand, slice) or window (max, avg, avg_inside,
    taps, or the mode of a padding)."""
    dims: tuple[int, ...] = ()
    """Of a reduction: the axes it reduces to size 1. Of a permute: the operand's axes in order. Of a slice: its axis."""
    start: Size | None = None
    step: int = 1
    window: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scale: float = 0.0
    node: int = -1
    """Position of the Graph's node that it comes from."""

    @property
    def value(self) -> str:
        """Its first result."""
        return self.results[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """The values it reads."""
        return tuple(o for o in self.operands if isinstance(o, str))


@dataclass
class Program:
    """What a Graph comes to."""

    graph: Graph
    graphs: tuple[Graph, ...]
    shapes: dict[str, Shape] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    last: dict[str, None] = field(default_factory=dict)
    """Values that are written with their channels innermost."""
    outputs: list[Any] = field(default_factory=list)
    """What `forward` returns, in order: values, or numbers as they are."""

    @property
    def sets(self) -> int:
        """How many input sets its sizes speak of."""
        return len(self.graphs)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape to which those shapes broadcast."""
    rank = max(map(len, shapes))
    ranked = [s for s in shapes if s]
    if not ranked:
        return ()
    one = (1,) * len(ranked[0][0])
    padded = [(one,) * (rank - len(s)) + s for s in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        wide = {s for s in sizes if not is_one(s)}
        if len(wide) > 1:
            raise CannotWriteError(f"sizes {wide} do not broadcast")
        out.append(next(iter(wide), one))
    return tuple(out)


def settle_views(p: Program, written: Collection[str] = (), *, as_asked: bool = False) -> None:
    """Have kernels write the views that must be memory of their own: those returned, and those library calls cannot take.

    Args:
        written: Others that must, since nothing can be computed through them.
        as_asked: What a library call returns with the channels innermost is written as the module would return it, and what
            nothing but linear layers read with two axes swapped as they read it.
    """
    givers = {r: op for op in p.ops for r in op.results}
    readers = Counter(r for op in p.ops for r in set(op.reads)) + Counter(o for o in p.outputs if isinstance(o, str))
    folded = Counter(op.reads[0] for op in p.ops if as_asked and _folds(op, p))
    copied: dict[str, None] = {op.value: None for op in p.ops if op.kind == "view" and op.value in written}
    returned: set[str] = set()
    for i, output in enumerate(p.outputs):
        if not isinstance(output, str):
            continue
        giver = givers.get(output)
        library = giver is not None and giver.kind == "library"
        turned = as_asked and library and giver is not None and any(r in p.last for r in giver.reads)
        if giver is None or output in returned or turned or (library and not _authored(output, givers)):
            name = f"out{i}"
            p.shapes[name], p.dtypes[name] = p.shapes[output], p.dtypes[output]
            p.ops.append(Op("point", (name,), (output,), text="{0}", node=len(p.graph.nodes)))
            p.outputs[i] = name
        elif giver.kind == "view":
            copied[output] = None
        returned.add(output)
    for op in p.ops:
        product = op.kind == "library" and p.graph.nodes[op.node].kind == "product"
        for read in op.reads if op.kind == "library" else ():
            base, plain, folds = read, True, readers[read] == folded[read]
            while (giver := givers.get(base)) and giver.kind == "view":
                swaps = giver.how == "permute" and product and giver.dims[:-2] == tuple(range(len(giver.dims) - 2))
                base = giver.reads[0]
                folds = folds and readers[base] == 1
                plain = plain and (giver.how == "reshape" or (swaps and not folds))
            if not plain and giver is not None and giver.kind != "library":
                copied[read] = None
    for name in copied:
        at = next(i for i, op in enumerate(p.ops) if name in op.results)
        view = p.ops[at]
        p.shapes[f"{name}_view"], p.dtypes[f"{name}_view"] = p.shapes[name], p.dtypes[name]
        p.ops[at] = replace(view, results=(f"{name}_view",))
        p.ops.insert(at + 1, Op("point", (name,), (f"{name}_view",), text="{0}", node=view.node))


def _folds(op: Op, p: Program) -> bool:
    """A stack of matrices times one, which the library makes one product of, with its bias, if the stack lies in order."""
    ranks = [len(p.shapes[read]) for read in op.reads[:2]]
    return op.kind == "library" and p.graph.nodes[op.node].kind == "product" and len(ranks) == 2 and ranks[0] > 2 >= ranks[1]


def _authored(value: str, givers: dict[str, Op]) -> bool:
    """A kernel has a part in a value."""
    stack = [value]
    while stack:
        op = givers.get(stack.pop())
        if op and op.kind not in ("library", "view"):
            return True
        stack += op.reads if op else ()
    return False
