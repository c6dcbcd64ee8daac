"""Which sizes of a Graph belong together: the Graph again at sizes that tell every free axis from every other.

At one input set, two axes of 64 look like one. Here each free axis of an input, and each output width of a weight, is
multiplied by a prime of its own, twice; everything else follows from the ops. Sizes that are equal in all three Graphs
are one axis, and numbers that do not change are constants. Multiples keep what divides dividing: groups, heads, windows.
Heights and widths of images are odd once, where the ops allow it: else a width would be twice what a stride of two makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.size_rules import FreeAxis, SizeAssignment, Tie
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size


def at_distinct_sizes(graph: Graph) -> tuple[Graph, ...]:
    """The Graph, and the same ops at two other choices of its free sizes.

    Sizes that an op needs to be equal, such as those of a residual, become one, and those that are a multiple of another
    stay one. Where an op needs what no rule here knows, sizes that cannot change are constants; where none can, the Graph
    alone is given back.
    """
    images = any(node.kind in ("convolution", "pool") for node in graph.nodes)
    ways = (True, False) if images else (False,)
    for free in (_at_sizes, _at_some_sizes, partial(_at_sizes, derived=True)):
        for odd in ways:
            if found := free(graph, odd=odd):
                return found
    return (graph,)


def at_smaller_sizes(graph: Graph, smaller: Callable[[FreeAxis], int]) -> Graph | None:
    """The Graph with other sizes on its free axes, and on what follows from them; None where an op does not fit them.

    Args:
        smaller: What a free axis shall be.
    """
    for derived in (False, True):
        found = _at_sizes(graph, odd=False, derived=derived, second=smaller)
        if found and all(value.numel for value in found[1].values.values()):
            return found[1]
    return None


def _at_some_sizes(graph: Graph, *, odd: bool) -> tuple[Graph, ...]:
    """The Graph at three choices of those sizes that can change; nothing where none can."""
    fixed, best = _sizes(graph), ()
    for n in sorted(fixed, reverse=True):
        if found := _at_sizes(graph, odd=odd, fixed=fixed - {n}):
            fixed, best = fixed - {n}, found
    return best


def _sizes(graph: Graph) -> frozenset[int]:
    return frozenset(n for value in graph.values.values() for n in value.shape if n > 1)


def _at_sizes(
    graph: Graph,
    *,
    odd: bool,
    fixed: frozenset[int] = frozenset(),
    derived: bool = False,
    second: Callable[[FreeAxis], int] | None = None,
) -> tuple[Graph, ...]:
    """The Graph at three choices of the sizes that are not `fixed`; nothing where that does not hold.

    Args:
        derived: An axis that is as long as what ops made of others follows from those.
        second: As of `SizeAssignment`.
    """
    ties: dict[int, int] = {}
    given: dict[int, Size] = {}
    tied: set[int] = set()
    everything = _sizes(graph)
    for _ in range(40):
        attempt = SizeAssignment(graph, ties, given, tied, fixed, odd, second)
        try:
            return attempt.run()
        except Tie as tie:
            one, other = attempt.axis_of(tie.one), attempt.axis_of(tie.other)
            if one is not None and one == other:  # one axis, once odd and once not: a width that is no width elsewhere
                break
            if one is not None and other is not None:
                ties[max(one, other)] = min(one, other)
            elif derived and tie.other in attempt.axes and given.get(attempt.axes[tie.other]) != tie.one:
                given[attempt.axes[tie.other]] = tie.one
            elif derived and tie.one in attempt.axes and given.get(attempt.axes[tie.one]) != tie.other:
                given[attempt.axes[tie.one]] = tie.other
            elif tie.one[0] == tie.other[0] and tie.one[0] not in tied:
                tied.add(tie.one[0])
            elif tied >= everything:
                break
            else:
                tied |= everything
        except (RuntimeError, ValueError, IndexError, TypeError):
            if tied >= everything:
                break
            tied |= everything
    return ()
