"""What a rule of algebra sees of a Graph, and how it gives its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.views import reshape
from kernrl.tasks.graph.graph import Graph, Node, Operand, Value

Make = Callable[["Into"], str]
"""Writes the other form into a Graph that grows, and names the value that it gives."""


class Sight:
    """A Graph as rules look at it: from a node back to what it reads."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values, self.producers = graph.values, graph.producers

    @cached_property
    def _reads(self) -> Counter[str]:
        held = [o for o in self.graph.outputs if isinstance(o, str)]
        return Counter([*held, *(r for node in self.graph.nodes for r in dict.fromkeys(node.reads))])

    def node(self, operand: Operand, *ops: str) -> Node | None:
        """The node that gives an operand, where its op is one of `ops`."""
        found = self.producers.get(operand) if isinstance(operand, str) else None
        return found if found and found.op in ops else None

    def sole(self, operand: Operand, *ops: str) -> Node | None:
        """As `node`, where nothing else reads the value: then it need not exist."""
        found = self.node(operand, *ops)
        return found if found and self._reads[found.value.name] == 1 else None

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """The shape of an operand; a number has none."""
        return self.values[operand].shape if isinstance(operand, str) else ()

    def constant_along(self, operand: Operand, dims: Sequence[int], rank: int) -> bool:
        """An operand that broadcasts to `rank` dimensions does not vary along `dims`."""
        shape = self.shape(operand)
        return all(d < rank - len(shape) or shape[d - rank + len(shape)] == 1 for d in dims)


class Into:
    """A Builder that takes operands by the names that they have in the Graph before."""

    def __init__(self, b: Builder, names: dict[str, str]) -> None:
        self.b, self.names = b, names

    def old(self, operand: Operand) -> Operand:
        """An operand of the Graph before, by its new name."""
        return self.names[operand] if isinstance(operand, str) else operand

    def add(self, op: str, *operands: Operand, **attributes: object) -> str:
        """A node on operands of the new Graph."""
        return self.b.add(op, *operands, **attributes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value of the new Graph."""
        return self.b.value(name).shape

    def shaped(self, name: str, like: Value | Sequence[int]) -> str:
        """A value in the shape of the value that it replaces."""
        return reshape(self.b, name, like.shape if isinstance(like, Value) else like)

    def along(self, vector: str, axis: int, rank: int) -> str:
        """A vector laid along one axis of `rank`."""
        return reshape(self.b, vector, [*self.shape(vector), *[1] * (rank - 1 - axis)])


Rule = Callable[[Sight, Node], Make | None]
"""Looks at one node, and says how to give its value otherwise, or None."""
