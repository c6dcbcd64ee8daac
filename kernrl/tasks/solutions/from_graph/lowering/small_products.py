"""Products that a kernel computes on its way: of few terms, or with few columns."""

from __future__ import annotations

from kernrl.tasks.graph.graph import Node
from kernrl.tasks.solutions.from_graph.lowering.builder import Builder
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Operand
from kernrl.tasks.solutions.from_graph.lowering.sizes import is_one

FEW_TERMS = 8
"""With more, a product is worth a library call, or a tile of its own."""
FEW_COLUMNS, LONGEST_SUM = 8, 512
"""Of a layer with so many features at most, a program has all sums of a row side by side, and reads the row once."""


class SmallProducts(Builder):
    """Rules for products as points and sums."""

    def _small(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        x, y = node.reads[:2]
        left, right = self.shape(x), self.shape(y)
        if node.op not in ("linear", "matmul") or len(left) < 2 or (len(right) < 2 and node.op == "linear"):
            return None
        bias = operands[2] if len(operands) > 2 else None
        raw = name if bias is None else f"{name}_raw"
        across = 0 if node.op == "linear" else -1
        if len(right) < 2 or is_one(right[across]):
            made = self._one_column(raw, x, y, turned=node.op == "matmul" and len(right) > 1)
        elif max(left[-1]) <= FEW_TERMS and len(set(left[-1])) == 1:
            made = self._few_terms(raw, x, y, left[-1][0], node.op == "linear")
        elif node.op == "linear" and max(right[0]) <= FEW_COLUMNS and max(left[-1]) <= LONGEST_SUM:
            made = self._few_columns(raw, x, y)
        else:
            return None
        return self.point(name, "{0} + {1}", made, bias) if isinstance(bias, str) else made

    def _one_column(self, name: str, x: str, column: str, *, turned: bool) -> str:
        """A sum over the last axis."""
        rank = len(self.shape(column))
        if turned:
            *batch, terms, one = self.shape(column)
            dims = (*range(rank - 2), rank - 1, rank - 2)
            column = self.add(
                "view", f"{name}_row", [*batch, one, terms], self.p.dtypes[column], column, how="permute", dims=dims
            )
        terms = self.point(f"{name}_terms", "{0} * {1}", x, column)
        axis = len(self.shape(terms)) - 1
        if rank > 1:
            return self.reduce(name, "sum", terms, [axis])
        return self.reshape(name, self.reduce(f"{name}_keep", "sum", terms, [axis]), self.shape(terms)[:-1])

    def _few_columns(self, name: str, x: str, weight: str) -> str:
        """A sum over the last axis for each row of the weight."""
        *lead, terms = self.shape(x)
        wide = self.reshape(f"{name}_in", x, [*lead, self.one, terms])
        products = self.point(f"{name}_terms", "{0} * {1}", wide, weight)
        total = self.reduce(f"{name}_keep", "sum", products, [len(lead) + 1])
        return self.reshape(name, total, [*lead, self.shape(weight)[0]])

    def _few_terms(self, name: str, x: str, y: str, count: int, linear: bool) -> str:
        """A sum that is written out."""
        total = ""
        for k in range(count):
            a = self._term(f"{name}_a{k}", x, -1, k)
            b = self._term(f"{name}_b{k}", y, 1 if linear else -2, k)
            if linear:
                b = self.reshape(f"{name}_w{k}", b, self.shape(y)[:1])
            at = name if k == count - 1 else f"{name}_sum{k}"
            total = self.point(at, "{0} + {1} * {2}", total, a, b) if k else self.point(at, "{0} * {1}", a, b)
        return total

    def _term(self, name: str, x: str, dim: int, at: int) -> str:
        shape = list(self.shape(x))
        dim %= len(shape)
        shape[dim] = self.one
        start = (at,) * self.p.sets
        return self.add("view", name, shape, self.p.dtypes[x], x, how="slice", dims=(dim,), start=start)
