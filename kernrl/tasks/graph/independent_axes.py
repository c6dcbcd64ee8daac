"""Axes of a Graph whose indices are computed apart from one another, nearly always the batch.

What a Graph gives for some indices of such an axis depends on those indices of its inputs alone, so it may be computed for a
few of them at a time. Each op either carries an axis of an operand through to an axis of its result, index by index, or
mixes it. Axes that are carried into one another are one class. A class is independent where no op mixes any axis of it, no
parameter has one, no value has two, and every output has one, be it of another class of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from kernrl.tasks.graph.graph import Graph, Node, Value
from kernrl.tasks.graph.ops import OPS, RESHAPES, SIZED

Axis = tuple[str, int]
"""Name of a value, and which of its axes."""

Link = tuple[int, int, int]
"""Which operand (of those that are values), its axis, and the axis of the result into which it is carried."""


@dataclass(frozen=True, slots=True)
class IndependentAxis:
    """An axis of several values, each index of which is computed by itself."""

    size: int
    axes: dict[str, int]
    """Name of a value → which of its axes. Values without one are the same for all indices."""

    def is_cut(self, graph: Graph, other: Graph, size: int) -> bool:
        """Whether `other` computes what `graph` does, for `size` indices. Where a module has read the size as a number, it does
        not."""

        def shorter(value: Value) -> Value:
            at = self.axes.get(value.name)
            return value if at is None else replace(value, shape=(*value.shape[:at], size, *value.shape[at + 1 :]))

        ours = replace(
            graph,
            inputs=tuple(replace(i, value=shorter(i.value)) for i in graph.inputs),
            nodes=tuple(replace(node, results=tuple(map(shorter, node.results))) for node in graph.nodes),
        )
        return _without_sizes(ours) == _without_sizes(other)


def _without_sizes(graph: Graph) -> Graph:
    """Without what follows from the shapes of its values: strides, and the shapes that a view is told."""

    def bare(node: Node) -> Node:
        sizes = SIZED[node.op] if node.op in _TOLD_SHAPES else ()
        return replace(node, attributes=tuple((k, v) for k, v in node.attributes if k not in sizes))

    inputs = tuple(replace(i, stride=()) for i in graph.inputs)
    return replace(graph, inputs=inputs, nodes=tuple(map(bare, graph.nodes)))


_TOLD_SHAPES = ("reshape", "unflatten", "expand", "full")

_REPEATS = ("expand", "full")
"""Ops that hold the same at each index of an axis that they make."""


def independent_axes(graph: Graph) -> list[IndependentAxis]:
    """Every such axis of more than one index, the first one of the outputs first."""
    classes = _Classes()
    values = graph.values
    mixed: set[Axis] = {(p.value.name, i) for p in graph.parameters for i in range(len(p.value.shape))}
    for node in graph.nodes:
        links = _links(node, values)
        for operand, i, j in links:
            classes.join((node.reads[operand], i), (node.value.name, j))
        carried = {(operand, i) for operand, i, _ in links}
        for operand, name in enumerate(node.reads):
            mixed.update((name, i) for i in range(len(values[name].shape)) if (operand, i) not in carried)
        if node.op not in _REPEATS:  # an axis that an op makes anew may hold anything at an index
            new = {(r.name, i) for r in node.results for i in range(len(r.shape))}
            mixed |= new - {(node.value.name, j) for _, _, j in links}
    found: dict[Axis, list[Axis]] = {}
    for value in values.values():
        for i in range(len(value.shape)):
            found.setdefault(classes.of((value.name, i)), []).append((value.name, i))
    sizes = {axis: values[axis[0]].shape[axis[1]] for axis in found}
    clean = [
        IndependentAxis(sizes[axis], dict(axes))
        for axis, axes in found.items()
        if sizes[axis] > 1 and len(dict(axes)) == len(axes) and not mixed.intersection(axes)
    ]
    outputs = [o for o in graph.outputs if isinstance(o, str)]
    if not outputs:
        return []
    whole = [axis for one in clean if outputs[0] in one.axes and (axis := _over(outputs, one, clean))]
    given = [axis for axis in whole if any(i.value.name in axis.axes for i in graph.inputs)]
    return sorted(given, key=lambda axis: [axis.axes[o] for o in outputs])


def _over(outputs: Sequence[str], axis: IndependentAxis, others: Sequence[IndependentAxis]) -> IndependentAxis | None:
    """An axis with those of the same size that outputs have which have nothing to do with it; None if one has none."""
    axes = dict(axis.axes)
    for output in outputs:
        if output not in axes:
            apart = (o.axes for o in others if o.size == axis.size and output in o.axes and not o.axes.keys() & axes.keys())
            found = min(apart, key=lambda one: one[output], default=None)
            if found is None:
                return None
            axes |= found
    return IndependentAxis(axis.size, axes)


class _Classes:
    """Axes that are carried into one another."""

    def __init__(self) -> None:
        self._above: dict[Axis, Axis] = {}

    def of(self, axis: Axis) -> Axis:
        """The axis that stands for all of its class."""
        while axis in self._above:
            axis = self._above[axis]
        return axis

    def join(self, one: Axis, other: Axis) -> None:
        one, other = self.of(one), self.of(other)
        if one != other:
            self._above[one] = other


def _links(node: Node, values: Mapping[str, Value]) -> list[Link]:
    """What an op carries, index by index: not an axis of one that broadcasting repeats."""
    rule, reads = _RULES.get(node.op), [values[name] for name in node.reads]
    found = rule(node, reads) if rule else ()
    return [(operand, i, j) for operand, i, j in found if reads[operand].shape[i] == node.value.shape[j]]


Rule = Callable[[Node, Sequence[Value]], Iterator[Link]]
"""What an op carries of the values that it reads. Links of axes of different sizes are dropped."""


def _same(operand: int, rank: int, without: Sequence[int] = ()) -> Iterator[Link]:
    """Each axis into that of the same number."""
    yield from ((operand, i, i) for i in range(rank) if i not in without)


def _aligned(operand: int, value: Value, result: Value, without: Sequence[int] = ()) -> Iterator[Link]:
    """Each axis into that of the same number counted from the last, as in broadcasting; `without` some of the result's."""
    more = len(result.shape) - len(value.shape)
    yield from ((operand, i, i + more) for i in range(len(value.shape)) if i + more not in without)


def _dims(node: Node) -> tuple[int, ...]:
    return node["dim"] if isinstance(node["dim"], tuple) else (node["dim"],)


def _broadcast(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    for operand, value in enumerate(reads):
        yield from _aligned(operand, value, node.value)


def _but_channels(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    """An op with a number for each channel, which is axis 1."""
    yield from _same(0, len(reads[0].shape), (1,))


def _but_dims(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    """An op over the axes `dim`, in every operand that has the result's rank (a norm's weight has not)."""
    rank, dims = len(node.value.shape), [d % max(len(node.value.shape), 1) for d in _dims(node)]
    yield from _same(0, rank, dims)


def _reduction(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    left = [i for i in range(len(reads[0].shape)) if i not in _dims(node)]
    yield from ((0, i, i if node["keepdim"] else j) for j, i in enumerate(left))


def _samples(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    """A norm over channels and places, which takes each sample by itself."""
    yield 0, 0, 0


def _convolution(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    if len(reads[0].shape) == len(reads[1].shape):  # without samples, the first axis is the channels
        yield 0, 0, 0


def _pool(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    places = int(node.op[-2])
    yield from _same(0, len(reads[0].shape) - places)


def _linear(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    last = len(node.value.shape) - 1
    yield from _same(0, last)
    yield from ((operand, 0, last) for operand in range(1, len(reads)))


def _matmul(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    (a, b), rank = reads, len(node.value.shape)
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    batch = rank - rows - columns  # the number of axes before them
    for operand, value in enumerate((a, b)):
        own = len(value.shape) - 2
        yield from ((operand, i, i + batch - own) for i in range(own))
    if rows:
        yield 0, len(a.shape) - 2, batch
    if columns:
        yield 1, len(b.shape) - 1, rank - 1


def _einsum(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    terms, _, result = node["equation"].replace(" ", "").partition("->")
    if "." in terms:
        return
    for operand, term in enumerate(terms.split(",")):
        for i, letter in enumerate(term):
            if term.count(letter) == 1 and letter in result:
                yield operand, i, result.index(letter)


def _regrouped(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    """A view that keeps the order of the elements: an axis stays that has the same size, and as many elements before it."""
    before, after = reads[0].shape, node.value.shape
    for i in range(len(before)):
        yield from ((0, i, j) for j in range(len(after)) if before[i] == after[j] and prod(before[:i]) == prod(after[:j]))


def _permute(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    yield from ((0, i, j) for j, i in enumerate(node["dims"]))


def _select(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    left = [i for i in range(len(reads[0].shape)) if i != node["dim"]]
    yield from ((0, i, j) for j, i in enumerate(left))


def _cat(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    for operand, value in enumerate(reads):
        yield from _same(operand, len(value.shape), _dims(node))


def _pad(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    padding, rank = node["padding"], len(node.value.shape)
    yield from _same(0, rank, [rank - 1 - k // 2 for k, n in enumerate(padding) if n])


def _repeat(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    yield from _aligned(0, reads[0], node.value, [j for j, n in enumerate(node["repeats"]) if n != 1])


def _but_last(count: int) -> Rule:
    """An op over the last `count` axes."""

    def rule(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
        yield from _same(0, len(reads[0].shape) - count)

    return rule


def _embedding(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    yield 0, 1, len(node.value.shape) - 1
    yield from _same(1, len(reads[1].shape))


def _gather(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    x, indices = reads
    [dim] = _dims(node)
    for i in range(len(x.shape)):
        if i == dim:
            yield 1, i, i
        elif x.shape[i] == indices.shape[i]:
            yield from ((0, i, i), (1, i, i))


def _index_select(node: Node, reads: Sequence[Value]) -> Iterator[Link]:
    yield from _same(0, len(reads[0].shape), _dims(node))
    if reads[1].shape:
        yield 1, 0, _dims(node)[0]


_OF_KIND = {"pointwise": _broadcast, "reduction": _reduction, "normalization": _but_dims, "scan": _but_dims}
_OF_KIND |= {"convolution": _convolution, "pool": _pool}

_RULES: dict[str, Rule] = {
    **{name: _OF_KIND[op.kind] for name, op in OPS.items() if op.kind in _OF_KIND},
    **dict.fromkeys(("batch_norm_eval", "prelu"), _but_channels),
    **dict.fromkeys(("group_norm", "instance_norm"), _samples),
    "linear": _linear,
    "matmul": _matmul,
    "einsum": _einsum,
    **dict.fromkeys(RESHAPES, _regrouped),
    "permute": _permute,
    "expand": _broadcast,
    "select": _select,
    "repeat": _repeat,
    "pad": _pad,
    "cat": _cat,
    **dict.fromkeys(("slice", "chunk", "flip", "roll"), _but_dims),
    **dict.fromkeys(("tril", "triu"), _but_last(2)),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _but_last(3)),
    "embedding": _embedding,
    "gather": _gather,
    "index_select": _index_select,
}
"""Op → what it carries. What is not here mixes everything: unknown ops, a batch norm by its batch's statistics, `arange`."""
del _RULES["batch_norm"]
