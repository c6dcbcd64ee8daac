"""Pools, convolutions of single channels, and padding: what is read around an element of one's own."""

from __future__ import annotations

from typing import Any

from kernrl.tasks.graph.graph import Node
from kernrl.tasks.solutions.from_graph.lowering.builder import Builder
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import FEW_FILTERS, Operand
from kernrl.tasks.solutions.from_graph.lowering.sizes import over


class Windows(Builder):
    """Rules for what looks around itself."""

    def _pool(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        x, shape = node.reads[0], self.shape(name)
        if "adaptive" in node.op:
            return self._adaptive(node, name, x)
        a: dict[str, Any] = dict(node.attributes)
        rank = len(a["kernel_size"])
        if a["ceil_mode"] or a.get("divisor_override"):
            return None
        window = {k: a.get(k, (1,) * rank) for k in ("kernel_size", "stride", "padding", "dilation")}
        padded = any(a["padding"]) and not a.get("count_include_pad", True)
        how = "max" if "max" in node.op else "avg_inside" if padded else "avg"
        return self.add("window", name, shape, node.value.dtype, x, how=how, window=window)

    def _adaptive(self, node: Node, name: str, x: str) -> str | None:
        """Where the windows are equal, the mean or maximum of them as axes of their own."""
        rank = len(node["output_size"])
        shape, out = self.shape(x), self.shape(name)
        wide, dims = list(shape[:-rank]), []
        for n, m in zip(shape[-rank:], out[-rank:], strict=True):
            width = over(n, m)
            if width is None:
                return None
            wide += [m, width]
            dims.append(len(wide) - 1)
        windows = self.reshape(f"{name}_in", x, wide)
        if "max" in node.op:
            keep = self.reduce(f"{name}_keep", "max", windows, dims)
        else:
            total = self.reduce(f"{name}_sum", "sum", windows, dims)
            keep = self.point(f"{name}_keep", "{0} / {1}", total, self._count(windows, dims))
        return self.reshape(name, keep, out)

    def _taps(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        """A convolution of each channel by itself, or of an image of one channel with few filters."""
        x, w = node.reads[:2]
        rank, shape, kernel = int(node.op[-2]), self.shape(x), self.shape(w)[2:]
        rows: list[dict[str, Any]] = [dict(g.nodes[self.at].attributes) for g in self.p.graphs]
        fixed = ("stride", "padding", "dilation")
        if "transpose" in node.op or len(shape) != rank + 2 or any(row[f] != rows[0][f] for row in rows for f in fixed):
            return None
        groups, filters = tuple(row["groups"] for row in rows), self.shape(w)[0]
        alone = set(shape[1]) == {1} and max(filters) <= FEW_FILTERS
        if any(len(set(size)) > 1 for size in kernel) or not (alone or shape[1] == groups == filters):
            return None
        window = {f: tuple(rows[0][f]) for f in fixed} | {"kernel_size": tuple(size[0] for size in kernel)}
        bias = operands[2]
        raw = name if bias is None else f"{name}_raw"
        made = self.add("window", raw, self.shape(name), node.value.dtype, x, w, how="taps", window=window)
        if not isinstance(bias, str):
            return made
        return self.point(name, "{0} + {1}", made, self._along(f"{name}_bias", bias, 1, rank + 2))

    def _pad(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        x, pads = node.reads[0], node["padding"]
        fixed = all(g.nodes[self.at].attributes == node.attributes for g in self.p.graphs)
        if not self.how.pads or not fixed or min(pads) < 0:
            return None
        rank = len(self.shape(x))
        low = [0] * rank
        for i, n in enumerate(pads[::2]):
            low[rank - 1 - i] = n
        how, value = f"pad_{node['mode']}", float(node["value"] or 0.0)
        dtype = node.value.dtype
        return self.add("window", name, self.shape(name), dtype, x, how=how, dims=tuple(low), scale=value)
