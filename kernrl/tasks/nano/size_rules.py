"""What each op says of the sizes that it reads and gives: which belong together, and which are free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import Any, NamedTuple

from kernrl.tasks.graph.canonical.views import axis_groups
from kernrl.tasks.graph.graph import Graph, Node, Value
from kernrl.tasks.graph.ops import RESHAPES
from kernrl.tasks.graph.run import infer
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, over, times

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


class Tie(Exception):
    """Two sizes that were taken for free belong together."""

    def __init__(self, one: Size, other: Size) -> None:
        super().__init__(one, other)
        self.one, self.other = one, other


class FreeAxis(NamedTuple):
    """An axis whose size nothing else decides."""

    size: int
    number: int
    batch: bool
    """Whether it is the first one of an input that has several."""


@dataclass
class SizeAssignment:
    """One attempt to give the values of a Graph three shapes each; `run` raises `Tie` where two sizes belong together."""

    graph: Graph
    ties: dict[int, int]
    """Number of a free axis → the one before it that it is equal to."""
    given: dict[int, Size]
    """Number of an axis → its sizes, where others decide them."""
    tied: set[int]
    """Sizes of which all axes are one."""
    fixed: frozenset[int]
    """Sizes that do not change."""
    odd: bool
    """Whether heights and widths are odd in the third Graph."""
    second: Callable[[FreeAxis], int] | None = None
    """Size of a free axis in the second Graph, in place of a multiple. An axis that is tied to one before it is not asked for:
    it keeps its proportion to that one."""
    shapes: dict[str, Shape] = field(default_factory=dict)
    by_size: dict[int, Size] = field(default_factory=dict)
    chosen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of a free axis → its size, and what `second` said of it."""
    free: count[int] = field(default_factory=count)
    axes: dict[Size, int] = field(default_factory=dict)
    """Size of a free axis → its number."""
    rows: list[list[tuple[tuple[str, Any], ...]]] = field(default_factory=list)

    def run(self) -> tuple[Graph, ...]:
        self.values = self.graph.values
        for node in self.graph.nodes:
            self._node(node)
        for held in (*self.graph.inputs, *self.graph.parameters):
            self._leaf(held.value.name)
        return tuple(self._graph(i) for i in range(3))

    def _graph(self, i: int) -> Graph:
        def at(value: Value) -> Value:
            return replace(value, shape=tuple(s[i] for s in self.shapes[value.name]))

        return replace(
            self.graph,
            inputs=tuple(replace(x, value=at(x.value), stride=()) for x in self.graph.inputs),
            parameters=tuple(replace(p, value=at(p.value)) for p in self.graph.parameters),
            nodes=tuple(
                replace(n, attributes=self.rows[k][i], results=tuple(map(at, n.results)))
                for k, n in enumerate(self.graph.nodes)
            ),
        )

    # sizes

    def _fresh(self, n: int, odd: int = 0, *, batch: bool = False) -> Size:
        """A free axis; `odd` is 1 where its last size shall not be a multiple."""
        if n == 1 or n in self.fixed:
            return (n, n, n)
        if n in self.by_size:
            return self.by_size[n]
        k = next(self.free)
        while k in self.ties:
            k = self.ties[k]
        # the second factor runs the other way round, so that no product of axes equals another in both
        second = self._second(FreeAxis(n, k, batch)) if self.second else n * PRIMES[k % len(PRIMES)]
        size = self.given.get(k) or (n, second, n * PRIMES[-1 - k % len(PRIMES)] | odd)
        self.axes[size] = k
        return self.by_size.setdefault(n, size) if n in self.tied else size

    def _second(self, axis: FreeAxis) -> int:
        assert self.second
        whole, part = self.chosen.setdefault(axis.number, (axis.size, self.second(axis)))
        return axis.size * part // whole if axis.size * part % whole == 0 else self.second(axis)

    def axis_of(self, size: Size) -> int | None:
        """The number of the free axis that a size is, or is a multiple or a part of."""
        if size in self.axes:
            return self.axes[size]
        fitting = (
            k for free, k in self.axes.items() if all(a * size[0] == b * free[0] for a, b in zip(free, size, strict=True))
        )
        return next(fitting, None)

    def _same(self, one: Size, other: Size) -> None:
        """An op needs two sizes to be equal."""
        if one != other:
            raise Tie(one, other)

    def _known(self, n: int) -> Size | None:
        """An axis that is known to have this size; None where there is none, or it is small and says nothing."""
        if n < 8:
            return None
        sizes = [s for shape in self.shapes.values() for s in shape if s[0] == n and len(set(s)) > 1]
        return sizes[-1] if sizes else None

    def _leaf(self, name: str, wanted: Sequence[Size | None] = ()) -> None:
        """Settle the shape of an input or parameter: `wanted` from the right, free where that says nothing."""
        if name in self.shapes:
            return
        shape = self.values[name].shape
        held = [*[None] * (len(shape) - len(wanted)), *wanted][-len(shape) :] if shape else []
        given = any(x.value.name == name for x in self.graph.inputs)
        first, several = 2 if self.odd and given else len(shape), len(shape) > 1
        self.shapes[name] = tuple(
            (n, n, n)
            if n == 1
            else w
            if w is not None and w[0] == n
            else self._fresh(n, int(axis >= first), batch=given and several and axis == 0)
            for axis, (n, w) in enumerate(zip(shape, held, strict=True))
        )

    # nodes

    def _node(self, node: Node) -> None:
        rule = getattr(self, f"_{node.kind}", None)
        if node.op in ("einsum", "prelu", "batch_norm_eval"):
            rule = getattr(self, f"_{node.op}")
        if rule:
            rule(node)
        for read in node.reads:
            self._leaf(read)
        rows = self._attributes(node)
        self.rows.append(rows)
        if node.kind == "unknown":
            for r in node.results:
                same = next((self.shapes[x] for x in node.reads if self.values[x].shape == r.shape), None)
                self.shapes[r.name] = same or tuple((n, n, n) for n in r.shape)
            return
        shapes = []
        for i in range(3):
            operands = tuple(
                (tuple(s[i] for s in self.shapes[o]), self.values[o].dtype) if isinstance(o, str) else o for o in node.operands
            )
            shapes.append(infer(node.op, operands, rows[i])[0])
        if shapes[0] != node.value.shape or any(len(s) != len(shapes[0]) for s in shapes):
            raise ValueError
        if any((a == 1) != (b == 1) for a, *rest in zip(*shapes, strict=True) for b in rest):
            raise ValueError
        self.shapes[node.value.name] = tuple(zip(*shapes, strict=True))

    def _first(self, node: Node) -> Shape:
        self._leaf(node.reads[0])
        return self.shapes[node.reads[0]]

    def _pointwise(self, node: Node) -> None:
        rank = len(node.value.shape)
        wanted: list[Size | None] = [None] * rank
        for read in sorted(node.reads, key=lambda r: r not in self.shapes):
            if read not in self.shapes:
                self._leaf(read, wanted)
            shape = self.shapes[read]
            for d, s in enumerate(shape, rank - len(shape)):
                if not is_one(s):
                    self._same(wanted[d] or s, s)
                    wanted[d] = s

    def _prelu(self, node: Node) -> None:
        x = self._first(node)
        self._leaf(node.reads[1], [x[1] if len(x) > 1 else None])

    def _channels(self, node: Node) -> None:
        x = self._first(node)
        for read in node.reads[1:]:
            self._leaf(read, [x[1]])
            self._same(self.shapes[read][0], x[1])

    def _batch_norm_eval(self, node: Node) -> None:
        self._channels(node)

    def _normalization(self, node: Node) -> None:
        if node.op in ("batch_norm", "instance_norm", "group_norm"):
            self._channels(node)
        elif node.op in ("layer_norm", "rms_norm"):
            x = self._first(node)
            for read in node.reads[1:]:
                self._leaf(read, [x[d] for d in node["dim"]])
                for d, s in zip(node["dim"], self.shapes[read], strict=True):
                    self._same(s, x[d])

    def _product(self, node: Node) -> None:
        a, b = node.reads[:2]
        if node.op == "linear":
            x = self._first(node)
            self._leaf(b, [None, x[-1]])
            self._same(self.shapes[b][-1], x[-1])
            for bias in node.reads[2:]:
                self._leaf(bias, [self.shapes[b][0]])
            return
        if a not in self.shapes and b in self.shapes:
            y = self.shapes[b]
            self._leaf(a, [*y[:-2], None, y[max(len(y) - 2, 0)]])
        x = self._first(node)
        rank = len(self.values[b].shape)
        self._leaf(b, [x[-1]] if rank == 1 else [*x[:-2], x[-1], None][-rank:])
        y = self.shapes[b]
        self._same(x[-1], y[max(rank - 2, 0)])
        for m, n in zip(reversed(x[:-2]), reversed(y[:-2]), strict=False):
            if not is_one(m) and not is_one(n):
                self._same(m, n)

    def _einsum(self, node: Node) -> None:
        known: dict[str, Size] = {}
        terms = list(zip(node["equation"].partition("->")[0].split(","), node.reads, strict=True))
        for term, read in sorted(terms, key=lambda pair: pair[1] not in self.shapes):
            self._leaf(read, [known.get(c) for c in term])
            for c, size in zip(term, self.shapes[read], strict=True):
                self._same(known.setdefault(c, size), size)

    def _convolution(self, node: Node) -> None:
        x, w = self._first(node), node.reads[1]
        shape, channels = self.values[w].shape, x[1] if len(x) == len(node.value.shape) else x[0]
        window = [(n, n, n) for n in shape[2:]]
        groups = self._groups(node)
        each = over(channels, groups)
        if "transpose" in node.op:
            self._leaf(w, [channels, None if shape[1] > 1 else (1, 1, 1), *window])
            self._same(self.shapes[w][0], channels)
            out = times(self.shapes[w][1], groups)
        elif groups != (node["groups"],) * 3:  # depthwise
            wide = times(channels, (shape[0] // channels[0],) * 3)
            self._leaf(w, [wide, each, *window])
            out = wide
        else:
            self._leaf(w, [None, each, *window])
            self._same(self.shapes[w][1], each or channels)
            out = self.shapes[w][0]
        if self.second and not (over(channels, groups) and over(out, groups)):  # multiples of what divided go on doing so
            raise ValueError
        for bias in node.reads[2:]:
            self._leaf(bias, [out])

    def _groups(self, node: Node) -> Size:
        """The number of groups; of a depthwise convolution, its channels."""
        x = self.shapes[node.reads[0]]
        channels = x[1] if len(x) == len(node.value.shape) else x[0]
        groups = node["groups"]
        return channels if groups == channels[0] > 1 else (groups,) * 3

    def _move(self, node: Node) -> None:
        if node.op == "cat":
            x = self._first(node)
            for read in node.reads[1:]:
                self._leaf(read, [None if d == node["dim"] else s for d, s in enumerate(x)])
                for d, s in enumerate(self.shapes[read]):
                    self._same(s, x[d] if d != node["dim"] else s)

    # attributes that are sizes

    def _attributes(self, node: Node) -> list[tuple[tuple[str, Any], ...]]:
        """The attributes of a node at each of the three."""
        changed: dict[str, Any] = {}
        if node.kind == "convolution":
            changed["groups"] = self._groups(node)
        elif node.op in ("reshape", "unflatten", "expand", "full"):
            name = "sizes" if node.op == "unflatten" else "shape"
            target = self._expanded(node) if node.op in ("expand", "full") else self._reshaped(node)
            if node.op == "unflatten":
                d = node["dim"]
                target = target[d : d + len(node["sizes"])]
            changed[name] = tuple(tuple(s[i] for s in target) for i in range(3))
        elif node.op == "slice":
            size = self.shapes[node.reads[0]][node["dim"]]
            changed |= {k: self._cut(node[k], size) for k in ("start", "stop")}
        elif node.op == "arange" and isinstance(node["end"], int):
            changed["end"] = self._known(node["end"]) or (node["end"],) * 3
        return [tuple((k, changed[k][i] if k in changed else v) for k, v in node.attributes) for i in range(3)]

    def _cut(self, n: int, size: Size) -> Size:
        """A place on an axis: its end, a simple part of it, or a number."""
        if n >= size[0] or n == 0:
            return tuple(n and s for s in size)
        part = next((k for k in (2, 3, 4) if n * k % size[0] == 0), None)
        return tuple(s * (n * part // size[0]) // part for s in size) if part else (n, n, n)

    def _expanded(self, node: Node) -> Shape:
        shape = node.value.shape
        x = self.shapes[node.reads[0]] if node.reads else ()
        before = [*[(1, 1, 1)] * (len(shape) - len(x)), *x]
        return tuple((self._known(n) or (n, n, n)) if is_one(s) else s for n, s in zip(shape, before, strict=True))

    def _reshaped(self, node: Node) -> Shape:
        x, after = self.shapes[node.reads[0]], node.value.shape
        found: list[Size] = [(1, 1, 1)] * len(after)
        for ours, theirs in axis_groups(tuple(s[0] for s in x), after):
            whole = times((1, 1, 1), *(x[d] for d in ours))
            mine = [x[d] for d in ours]
            parts = []
            for d in theirs:
                same = next((s for s in mine if s[0] == after[d]), None) or (self._known(after[d]) if len(theirs) > 1 else None)
                parts.append(same if same and over(whole, same) else (after[d],) * 3)
            if times((1, 1, 1), *parts) != whole:
                parts = self._absorbed(parts, whole)
            for d, part in zip(theirs, parts, strict=True):
                found[d] = part
        return tuple(found)

    def _absorbed(self, parts: list[Size], whole: Size) -> list[Size]:
        """One part takes what the others leave: the last that can."""
        for at in reversed(range(len(parts))):
            rest = over(whole, times((1, 1, 1), *parts[:at], *parts[at + 1 :]))
            if rest and rest[0] == parts[at][0]:
                return [*parts[:at], rest, *parts[at + 1 :]]
        plain: list[Size] = [(p[0],) * 3 for p in parts]
        at = max(range(len(plain)), key=lambda i: plain[i][0])
        rest = over(whole, times((1, 1, 1), *plain[:at], *plain[at + 1 :]))
        if rest is None:
            raise ValueError
        return [*plain[:at], rest, *plain[at + 1 :]]


assert {"flatten", "squeeze"} < set(RESHAPES)
assert prod(PRIMES[:5]) == 2310
