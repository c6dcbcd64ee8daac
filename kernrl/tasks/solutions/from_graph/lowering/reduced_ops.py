"""Reductions, norms and softmaxes as sums, maxima and points around them."""

from __future__ import annotations

from collections.abc import Sequence

from kernrl.tasks.graph.graph import Node
from kernrl.tasks.solutions.from_graph.lowering.builder import Builder
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Operand
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import power_text
from kernrl.tasks.solutions.from_graph.lowering.sizes import is_one, over, times


class Norms(Builder):
    """Rules for what goes over a whole set."""

    def _finished(self, node: Node, name: str, keep: str) -> str:
        """A reduction's result without its axes of size 1, where the node drops them."""
        return keep if self.shape(keep) == self.shape(name) and keep == name else self.reshape(name, keep, self.shape(name))

    def _reduction(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        if node.op not in ("sum", "mean", "amax", "amin", "logsumexp", "var", "std", "norm"):
            return None
        x, dims = node.reads[0], node["dim"]
        keep = name if node["keepdim"] else f"{name}_keep"
        n = self._count(x, dims)
        if node.op in ("sum", "amax", "amin"):
            keep = self.reduce(keep, {"sum": "sum", "amax": "max", "amin": "min"}[node.op], x, dims)
        elif node.op == "mean":
            keep = self.point(keep, "{0} / {1}", self.reduce(f"{name}_sum", "sum", x, dims), n)
        elif node.op == "logsumexp":
            top, total = self._expsum(name, x, dims)[:2]
            keep = self.point(keep, "{0} + tl.log({1})", top, total)
        elif node.op == "norm":
            found = self._vector_norm(node, name, keep, x, dims)
            if found is None:
                return None
            keep = found
        else:
            if float(node["correction"]) not in (0.0, 1.0):
                return None
            m2 = self._moments(name, x, dims)[1]
            divided = "{0} / {1}" if node["correction"] == 0 else "{0} / ({1} - 1)"
            keep = self.point(keep, divided if node.op == "var" else f"tl.sqrt({divided})", m2, n)
        return self._finished(node, name, keep)

    def _vector_norm(self, node: Node, name: str, keep: str, x: str, dims: tuple[int, ...]) -> str | None:
        p = node["p"]
        if p == 1:
            return self.reduce(keep, "sum", self.point(f"{name}_abs", "tl.abs({0})", x), dims)
        if p == 2:
            total = self.reduce(f"{name}_sum", "sum", self.point(f"{name}_sq", "{0} * {0}", x), dims)
            return self.point(keep, "tl.sqrt({0})", total)
        if p in (float("inf"), float("-inf")):
            return self.reduce(keep, "max" if p > 0 else "min", self.point(f"{name}_abs", "tl.abs({0})", x), dims)
        if p <= 0:
            return None
        power = self.point(f"{name}_power", power_text(p), self.point(f"{name}_abs", "tl.abs({0})", x))
        return self.point(keep, power_text(1 / p), self.reduce(f"{name}_sum", "sum", power, dims))

    def _moments(self, name: str, x: str, dims: Sequence[int]) -> tuple[str, str, str]:
        """(mean, sum of squared deviations, deviations); E[x²] − E[x]² would lose the digits of a shifted input."""
        n = self._count(x, dims)
        if self.how.merged:
            mean = self.reduce((f"{name}_mean", f"{name}_m2"), "moments", x, dims)
            return mean, f"{mean.removesuffix('_mean')}_m2", self.point(f"{name}_d", "{0} - {1}", x, mean)
        if cut := self.cut(x, dims):
            return self._moments_of_rows(name, x, *cut)
        mean = self.point(f"{name}_mean", "{0} / {1}", self.reduce(f"{name}_sum", "sum", x, dims), n)
        d = self.point(f"{name}_d", "{0} - {1}", x, mean)
        return mean, self.reduce(f"{name}_m2", "sum", self.point(f"{name}_sq", "{0} * {0}", d), dims), d

    def _moments_of_rows(self, name: str, x: str, rows: Sequence[int], rest: Sequence[int]) -> tuple[str, str, str]:
        """As `_moments`, from the mean and the deviations of each row."""
        n, count = self._count(x, rows), self._count(x, rest)
        of_row = self.point(f"{name}_row_mean", "{0} / {1}", self._reduced(f"{name}_row_sum", "sum", x, rows), n)
        d = self.point(f"{name}_row_d", "{0} - {1}", x, of_row)
        m2_of_row = self._reduced(f"{name}_row_m2", "sum", self.point(f"{name}_row_sq", "{0} * {0}", d), rows)
        mean = self.point(f"{name}_mean", "{0} / {1}", self._reduced(f"{name}_sum", "sum", of_row, rest), count)
        off = self.point(f"{name}_off", "{0} + {2} * ({1} - {3}) * ({1} - {3})", m2_of_row, of_row, n, mean)
        m2 = self._reduced(f"{name}_m2", "sum", off, rest)
        return mean, m2, self.point(f"{name}_d", "{0} - {1}", x, mean)

    def _expsum(self, name: str, x: str, dims: Sequence[int]) -> tuple[str, str, str]:
        """(maximum, sum of exponentials of the distances to it, these exponentials)."""
        if self.how.merged:
            top = self.reduce((f"{name}_max", f"{name}_total"), "expsum", x, dims)
            total = f"{top.removesuffix('_max')}_total"
            return top, total, self.point(f"{name}_exp", "tl.exp({0} - {1})", x, top)
        top = self.reduce(f"{name}_max", "max", x, dims)
        e = self.point(f"{name}_exp", "tl.exp({0} - {1})", x, top)
        return top, self.reduce(f"{name}_total", "sum", e, dims), e

    # normalizations

    def _softmax(self, node: Node, name: str, operands: list[Operand]) -> str:
        _, total, e = self._expsum(name, node.reads[0], node["dim"])
        return self.point(name, "{0} / {1}", e, total)

    def _log_softmax(self, node: Node, name: str, operands: list[Operand]) -> str:
        top, total, _ = self._expsum(name, node.reads[0], node["dim"])
        log = self.point(f"{name}_log", "tl.log({0})", total)
        return self.point(name, "({0} - {1}) - {2}", node.reads[0], top, log)

    def _normed(self, name: str, x: str, dims: Sequence[int], eps: float, weight: Operand, bias: Operand) -> str:
        _, m2, d = self._moments(name, x, dims)
        rstd = self.point(f"{name}_rstd", f"tl.rsqrt({{0}} / {{1}} + {eps!r})", m2, self._count(x, dims))
        return self._affine(name, d, rstd, weight, bias)

    def _affine(self, name: str, d: str, rstd: str, weight: Operand, bias: Operand) -> str:
        operands, text = [d, rstd], "{0} * {1}"
        for operand, sign in ((weight, "*"), (bias, "+")):
            if operand is not None:
                text += f" {sign} {{{len(operands)}}}"
                operands.append(operand)  # pyright: ignore[reportArgumentType]
        return self.point(name, text, *operands)

    def _layer_norm(self, node: Node, name: str, operands: list[Operand]) -> str:
        weight, bias = [*operands[1:], None, None][:2]
        return self._normed(name, node.reads[0], node["dim"], node["eps"], weight, bias)

    def _rms_norm(self, node: Node, name: str, operands: list[Operand]) -> str:
        x, weight = node.reads[0], [*operands[1:], None][0]
        total = self.reduce(f"{name}_sum", "sum", self.point(f"{name}_sq", "{0} * {0}", x), node["dim"])
        rstd = self.point(f"{name}_rstd", f"tl.rsqrt({{0}} / {{1}} + {node['eps']!r})", total, self._count(x, node["dim"]))
        return self._affine(name, x, rstd, weight, None)

    def _channels(self, name: str, operands: Sequence[Operand], rank: int, after: int) -> list[Operand]:
        """Vectors of one number a channel, laid along the channels with `after` axes behind them."""
        return [
            self._along(f"{name}_c{i}", o, rank - 1 - after, rank) if isinstance(o, str) else o for i, o in enumerate(operands)
        ]

    def _batch_norm(self, node: Node, name: str, operands: list[Operand]) -> str:
        rank = len(self.shape(name))
        weight, bias = self._channels(name, operands[1:3], rank, rank - 2)
        dims = [d for d in range(rank) if d != 1]
        return self._normed(name, node.reads[0], dims, node["eps"], weight, bias)

    def _instance_norm(self, node: Node, name: str, operands: list[Operand]) -> str:
        rank = len(self.shape(name))
        weight, bias = self._channels(name, [*operands[1:], None, None][:2], rank, rank - 2)
        return self._normed(name, node.reads[0], range(2, rank), node["eps"], weight, bias)

    def _group_norm(self, node: Node, name: str, operands: list[Operand]) -> str:
        x, groups = node.reads[0], tuple(g.nodes[self.at]["num_groups"] for g in self.p.graphs)
        batch, channels, *rest = self.shape(x)
        width = over(channels, groups)
        assert width is not None
        wide = self.reshape(f"{name}_in", x, [batch, groups, width, *rest])
        parts: list[Operand] = []
        for i, o in enumerate([*operands[1:], None, None][:2]):
            shape = [groups, width, *[self.one] * len(rest)]
            parts.append(self.reshape(f"{name}_c{i}", o, shape) if isinstance(o, str) else None)
        normed = self._normed(f"{name}_g", wide, range(2, 3 + len(rest)), node["eps"], parts[0], parts[1])
        return self.reshape(name, normed, self.shape(name))

    def _batch_norm_eval(self, node: Node, name: str, operands: list[Operand]) -> str:
        rank = len(self.shape(name))
        mean, var, weight, bias = self._channels(name, [*operands[1:], None, None][:4], rank, rank - 2)
        d = self.point(f"{name}_d", "{0} - {1}", node.reads[0], mean)
        rstd = self.point(f"{name}_rstd", f"tl.rsqrt({{0}} + {node['eps']!r})", var)
        return self._affine(name, d, rstd, weight, bias)

    def _prelu(self, node: Node, name: str, operands: list[Operand]) -> str:
        x, slope = node.reads
        rank = len(self.shape(x))
        if rank > 2 and not is_one(times(self.one, *self.shape(slope))):
            slope = self._along(f"{name}_c", slope, 1, rank)
        return self.point(name, "tl.where({0} > 0, {0}, {0} * {1})", x, slope)
