"""A Graph as the few kinds of work that kernels are written from: points, reductions, windows, views and library calls.

Norms, softmaxes and means become reductions with points around them; what has no kernel stays a library call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kernrl.tasks.graph.graph import Graph, Node
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.solutions.from_graph.lowering.builder import How
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import (
    COMPUTED,
    FEW_CHANNELS,
    Op,
    Operand,
    Program,
    Varies,
    settle_views,
)
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import literal, point_text
from kernrl.tasks.solutions.from_graph.lowering.reduced_ops import Norms
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size
from kernrl.tasks.solutions.from_graph.lowering.small_products import SmallProducts
from kernrl.tasks.solutions.from_graph.lowering.windowed_ops import Windows


def lower(graphs: Sequence[Graph], how: How | None = None, written: Collection[str] = ()) -> Program:
    """The work of a Graph.

    Args:
        graphs: The Graph at every input set, the full one first; the same ops in the same order.
        written: Values that must be in memory; views among them are copied.
    """
    return _Lowering(graphs, how or How()).run(written)


class _Lowering(Norms, Windows, SmallProducts):
    def run(self, written: Collection[str]) -> Program:
        for name, value in self.values[0].items():
            self.p.shapes[name] = tuple(zip(*(v[name].shape for v in self.values), strict=True))
            self.p.dtypes[name] = value.dtype
        for at, node in enumerate(self.p.graph.nodes):
            self.at = at
            self._node(node)
        self.p.outputs = list(self.p.graph.outputs)
        settle_views(self.p, written, as_asked=self.how.pads)
        return self.p

    def _node(self, node: Node) -> None:
        name, shape, dtype = node.value.name, self.shape(node.value.name), node.value.dtype
        operands = self._operands()
        rule = getattr(self, f"_{node.op}", None) or getattr(self, f"_{node.kind}", None)
        whole = all(self.p.dtypes[o] in COMPUTED for o in node.reads) or (
            dtype in COMPUTED and all(self.p.dtypes[o] in (*COMPUTED, "int64", "int32") for o in node.reads)
        )
        whole = whole and all(map(all, (n for o in node.reads for n in self.shape(o))))  # none without elements
        if node.kind == "pointwise" and node.op not in ("prelu", "batch_norm_eval"):
            text = point_text(node.op, tuple(operands), dict(node.attributes))
            if text and node.reads and (whole or node.op in ANY_DTYPE) and dtype in STORED:
                text = text if node.op in ANY_DTYPE else self._in_floats(text, operands)
                self.add("point", name, shape, dtype, *operands, text=text)
                return
        elif rule and (whole or node.kind in ("view", "create")) and rule(node, name, operands) is not None:
            return
        self.add("library", tuple(r.name for r in node.results), shape, dtype, *operands)
        for r in node.results:  # `add` gave all of them one shape
            self.p.shapes[r.name] = tuple(zip(*(v[r.name].shape for v in self.values), strict=True))
            self.p.dtypes[r.name] = r.dtype

    def _in_floats(self, text: str, operands: list[Operand]) -> str:
        """An expression in which whole numbers become floats."""
        for i, o in enumerate(operands):
            if isinstance(o, str) and self.p.dtypes[o] not in COMPUTED:
                text = text.replace(f"{{{i}}}", f"{{{i}}}.to(tl.float32)")
        return text

    # views

    def _view(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        x, shape = node.reads[0], self.shape(name)
        if node.op in ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze"):
            return self.reshape(name, x, shape)
        if node.op == "permute":
            return self.add("view", name, shape, self.p.dtypes[x], x, how="permute", dims=node["dims"])
        if node.op == "expand":
            return self.add("view", name, shape, self.p.dtypes[x], x, how="expand")
        d = node["dim"]
        rows = [dict(g.nodes[self.at].attributes) for g in self.p.graphs]
        if node.op == "select":
            cut = [self.one if i == d else s for i, s in enumerate(self.shape(x))]
            start = tuple(row["index"] for row in rows)
            part = self.add("view", f"{name}_cut", cut, self.p.dtypes[x], x, how="slice", dims=(d,), start=start)
            return self.reshape(name, part, shape)
        if node.op == "chunk":
            start = tuple(row["index"] * n for row, n in zip(rows, shape[d], strict=True))
            return self.add("view", name, shape, self.p.dtypes[x], x, how="slice", dims=(d,), start=start)
        start = tuple(row["start"] for row in rows)
        return self.add("view", name, shape, self.p.dtypes[x], x, how="slice", dims=(d,), start=start, step=node["step"])

    def _pixel_shuffle(self, node: Node, name: str, operands: list[Operand]) -> str:
        x, r = node.reads[0], (node["upscale_factor"],) * self.p.sets
        *lead, _, h, w = self.shape(x)
        channels = self.shape(name)[-3]
        n = len(lead)
        wide = self.reshape(f"{name}_wide", x, [*lead, channels, r, r, h, w])
        dims = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
        turned = self.add(
            "view", f"{name}_turned", [*lead, channels, h, r, w, r], self.p.dtypes[x], wide, how="permute", dims=dims
        )
        return self.reshape(name, turned, self.shape(name))

    def _pixel_unshuffle(self, node: Node, name: str, operands: list[Operand]) -> str:
        x, r = node.reads[0], (node["downscale_factor"],) * self.p.sets
        *lead, channels, _, _ = self.shape(x)
        *_, h, w = self.shape(name)
        n = len(lead)
        wide = self.reshape(f"{name}_wide", x, [*lead, channels, h, r, w, r])
        dims = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
        turned = self.add(
            "view", f"{name}_turned", [*lead, channels, r, r, h, w], self.p.dtypes[x], wide, how="permute", dims=dims
        )
        return self.reshape(name, turned, self.shape(name))

    def _repeat(self, node: Node, name: str, operands: list[Operand]) -> str:
        x, repeats = node.reads[0], node["repeats"]
        shape = [self.one] * (len(repeats) - len(self.shape(x))) + [*self.shape(x)]
        # each repeated axis has one of size 1 in front, which is expanded
        apart, wide = list[Size](), list[Size]()
        for times, size in zip(repeats, shape, strict=True):
            apart += [self.one, size] if times > 1 else [size]
            wide += [(times,) * self.p.sets, size] if times > 1 else [size]
        parted = self.reshape(f"{name}_parted", x, apart)
        expanded = self.add("view", f"{name}_wide", wide, self.p.dtypes[x], parted, how="expand")
        return self.reshape(name, expanded, self.shape(name))

    # made of nothing

    def _full(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        dtype = node.value.dtype
        readers = [other.kind for other in self.p.graph.nodes if name in other.reads]
        if dtype not in ("float32", "bool", "int64") or (readers and set(readers) == {"unknown"}):
            return None  # a kernel for what library calls alone read, and perhaps overwrite, would seem to do nothing
        text = "{0}" if dtype != "float32" or isinstance(operands[0], Varies) else literal(float(operands[0]))  # pyright: ignore[reportArgumentType]
        return self.add("point", name, self.shape(name), dtype, operands[0], text=text)

    # products and convolutions

    def _bias(self, node: Node, name: str, operands: list[Operand], axis: int) -> str | None:
        kinds = {"product": ("all",), "convolution": ("all", "convolution")}
        if len(operands) < 3 or operands[2] is None or self.how.bare not in kinds[node.kind]:
            return None
        shape = self.shape(name)
        made = self.add("library", f"{name}_raw", shape, node.value.dtype, *operands[:2], None)
        bias: str = operands[2]  # pyright: ignore[reportAssignmentType]
        return self.point(name, "{0} + {1}", made, self._along(f"{name}_bias", bias, axis, len(shape)))

    def _product(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        if self.how.direct and (made := self._small(node, name, operands)):
            return made
        return self._bias(node, name, operands, len(self.shape(name)) - 1) if node.op == "linear" else None

    def _convolution(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        rank = len(self.shape(name))
        if self.how.direct and (made := self._taps(node, name, operands)):
            return made
        if self._turns(node, rank):
            x: str = operands[0]  # pyright: ignore[reportAssignmentType]
            operands = [self._channels_innermost(x), *operands[1:]]
            if not self.how.windows and (self.how.bare == "none" or operands[2] is None):
                return self.add("library", name, self.shape(name), node.value.dtype, *operands)
        if self.how.windows and operands[2] is None:  # so that some kernel reads it
            return self.point(name, "{0}", self.add("library", f"{name}_raw", self.shape(name), node.value.dtype, *operands))
        return self._bias(node, name, operands, rank - 1 - int(node.op[-2]))

    def _channels_innermost(self, x: str) -> str:
        """A copy of an image, in that order: one in the image's own, such as its maximum over an axis of size 1, is another."""
        name = f"{x}_last"
        if name not in self.p.last:
            self.p.shapes[name], self.p.dtypes[name] = self.shape(x), self.p.dtypes[x]
            self.p.ops.append(Op("point", (name,), (x,), text="{0}", node=self.at))
            self.p.last[name] = None
        return name

    def _turns(self, node: Node, rank: int) -> bool:
        """A convolution reads an image with the channels innermost."""
        if not self.how.channels_last or rank != 2 + int(node.op[-2]):
            return False
        if not self.how.windows:
            return rank in (4, 5)
        return self.shape(node.reads[0])[1][0] // node["groups"] >= FEW_CHANNELS


ANY_DTYPE = ("cast", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "where")
STORED = ("float32", "bool")
"""What a kernel's values may be."""

assert all(op in OPS for op in ANY_DTYPE)
