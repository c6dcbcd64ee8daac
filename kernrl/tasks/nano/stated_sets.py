"""The small and ragged input sets of tasks that are drawn as Graphs: found there, where ops say which sizes belong together.

A search in the written text would have to try what the Graph knows, at a lift a try, and would keep sizes that only change
together. Here each free axis is given a small size, what ops make of it follows, and the writer names what differs
(`write_at_sizes`). So a set changes all that can change, and what must be equal stays equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import count
from math import gcd, lcm
from random import Random
from typing import NamedTuple

import torch

from kernrl.errors import UsageError
from kernrl.tasks.graph.costs import product_flops
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.input_sets import PRIMES, PRIMES_OF_SIDES, PRIMES_OF_VOLUMES, alike, tells_sizes
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.spellings import NoSpellingError
from kernrl.tasks.graph.writing.write import write_at_sizes
from kernrl.tasks.nano.axes import is_constant, shapes_of
from kernrl.tasks.nano.distinct_axes import at_smaller_sizes
from kernrl.tasks.nano.size_rules import FreeAxis
from kernrl.tasks.nano.sound_graphs import divisor, elements_of
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size
from kernrl.tasks.task import FULL, RAGGED, SMALL, InputSet, Task, load_reference

LARGEST, MOST_ELEMENTS, MOST_FLOPS = 2**16, 2**18, 2**24
"""Of a set: its largest value, all values together, and its products."""

LEAST = 8
"""Sizes up to it are kept: they are kernel sizes, strides, heads and the like."""

SHORTEST = 3
"""Least size of what a window leaves of an axis that was longer."""

LOWER = 3
"""How many of the preferred ways are tried for one size where all of them together come to too much."""

MOST_TRIES = 80
"""Longest search for one set; a try takes a millisecond."""


class _Way(NamedTuple):
    """How smaller sizes are chosen."""

    sizes: tuple[int, ...]
    """Least sizes. Axes take turns, so that two are not mixed up."""
    unit: int
    """What sizes go on dividing by if they did, beside groups and pieces; 0 where they need not even divide by those."""
    batch: int
    """Least size of a first axis."""
    batch_divides: bool
    """Whether the first axis goes on dividing, too."""


SMALL_WAYS = [
    _Way(sizes, unit, batch, divides)
    for batch, divides in ((2, False), (2, True), (16, True))
    for sizes, unit in (((16, 32), 16), ((8, 16), 8), ((8,), 8), ((24, 32), 8), ((48,), 16), ((96,), 16))
]
"""In order of preference: what divides by 16 goes on doing so, as a failure at such sizes is no matter of masks."""


def _ragged_ways(graph: Graph) -> list[_Way]:
    volume = any(len(x.value.shape) > 4 for x in graph.inputs)
    primes = PRIMES_OF_VOLUMES if volume else PRIMES
    longer = (tuple(n for n in primes if n > 12), (37, 41, 43, 47), (97, 101, 103))
    batches = ((3, 0), (3, 1), (3, 2), (3, 4), (13, 1))
    return [_Way(sizes, unit, batch, unit > 1) for batch, unit in batches for sizes in (primes, PRIMES_OF_SIDES, *longer)]


def write_with_sets(graph: Graph, hand: Hand, rng: Random, distinct: Sequence[Graph]) -> tuple[str, tuple[InputSet, ...]]:
    """The source of a task, and its input sets: full, small and ragged.

    Args:
        graph: The task's.
        hand: Who writes; `rng` makes the choices that are left.
        distinct: `at_distinct_sizes(graph)`. What is a constant there stays what it is.

    Raises:
        NoSpellingError: An op cannot be written, or there are no such sets that its text can have.
    """
    source, graphs, constants = "", [graph], list[dict[str, int]]()
    for name in (SMALL, RAGGED):
        for found in _smaller(graph, name):
            at_all = [*graphs, found]
            if not (alike(graph, found, shortest=SHORTEST) and _follow(at_all, distinct) and tells_sizes(at_all)):
                continue
            try:
                source, constants = write_at_sizes(at_all, hand, copy(rng))
            except NoSpellingError:
                continue
            if _computes(source, InputSet(name, constants[-1]), found):
                graphs.append(found)
                break
        else:
            raise NoSpellingError(f"there is no spelling that has {name} sizes")
    return source, (InputSet(FULL), *(InputSet(*pair) for pair in zip((SMALL, RAGGED), constants, strict=True)))


def _smaller(graph: Graph, name: str) -> Iterator[Graph]:
    """The Graph at small or ragged sizes that fit, the preferred ones first."""
    divides, ways = divisor(graph), SMALL_WAYS if name == SMALL else _ragged_ways(graph)
    if any(node.op == "chunk" for node in graph.nodes):  # which cuts an odd axis in the middle, too
        ways = [way for way in ways if way.unit]
    tries = count()

    def at(way: _Way, others: Mapping[int, _Way]) -> Graph | None:
        if next(tries) >= MOST_TRIES:
            return None
        return at_smaller_sizes(graph, lambda axis: _size(axis, others.get(axis.size, way), divides, odd=name == RAGGED))

    for way in ways:
        found, others = at(way, {}), dict[int, _Way]()
        if not found:
            continue
        for n in _sizes(graph):
            if _fits(found):
                break
            for lower in ways[:LOWER]:
                again = at(way, others | {n: lower})
                if again and elements_of(again) < elements_of(found):
                    found, others = again, others | {n: lower}
                    break
        if _fits(found):
            yield found


def _size(axis: FreeAxis, way: _Way, divides: int, *, odd: bool) -> int:
    if axis.size <= LEAST:
        return axis.size
    unit = lcm(gcd(axis.size, divides), gcd(axis.size, way.unit)) if way.unit else 1
    least = way.sizes[axis.number % len(way.sizes)]
    if axis.batch:
        unit, least = unit if way.batch_divides else 1, way.batch
    times = -(-least // unit)
    # of what groups divide, an odd number is left over
    return min(axis.size, unit * (times | 1 if odd and unit > 1 else times))


def _sizes(graph: Graph) -> list[int]:
    """Of inputs and parameters, the largest first."""
    return sorted({n for held in (*graph.inputs, *graph.parameters) for n in held.value.shape if n > LEAST}, reverse=True)


def _fits(graph: Graph) -> bool:
    largest = max(value.numel for value in graph.values.values())
    return largest <= LARGEST and elements_of(graph) <= MOST_ELEMENTS and product_flops(graph) <= MOST_FLOPS


def _follow(graphs: Sequence[Graph], distinct: Sequence[Graph]) -> bool:
    """Whether sizes that the listing says are one are so in these Graphs, and what it says is a constant stays."""
    known: dict[Size, Size] = {}
    ours, listed = shapes_of(graphs), shapes_of(distinct)
    return all(
        is_constant(here) if is_constant(axis) else known.setdefault(axis, here) == here
        for name, shape in listed.items()
        for axis, here in zip(shape, ours[name], strict=True)
    )


def _computes(source: str, input_set: InputSet, graph: Graph) -> bool:
    """Whether the module runs at the set, without memory, and has the Graph's shapes."""
    try:
        with torch.device("meta"), torch.no_grad():
            reference = load_reference(Task("task", source), input_set)
            module, inputs = reference.Model(*reference.get_init_inputs()), reference.get_inputs()
            results = module(*inputs)
    except (UsageError, RuntimeError, ValueError, TypeError, IndexError):
        return False
    results = results if isinstance(results, tuple) else (results,)
    values, held = graph.values, sorted(p.value.shape for p in graph.parameters if p.kind == "parameter")
    return (
        [tuple(x.shape) for x in inputs] == [x.value.shape for x in graph.inputs]
        and sorted(tuple(p.shape) for p in module.parameters()) == held
        and [tuple(y.shape) for y in results] == [values[o].shape for o in graph.outputs if isinstance(o, str)]
    )
