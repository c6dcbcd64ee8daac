"""A Graph as the few kinds of work that kernels are written from: points, reductions, windows, views and library calls.

Norms, softmaxes and means become reductions with points around them; what has no kernel stays a library call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from kernrl.tasks.graph.graph import Graph, Node
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import (
    FEW_CHANNELS,
    Count,
    Op,
    Operand,
    Program,
    Varies,
    broadcast,
    settle_views,
)
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import point_text
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, over, times

Bare = Literal["none", "convolution", "all"]
"""Which products and convolutions leave their bias to a kernel."""


def lower(
    graphs: Sequence[Graph],
    *,
    merged: bool = False,
    bare: Bare = "convolution",
    channels_last: bool = False,
    windows: bool = False,
) -> Program:
    """The work of a Graph.

    Args:
        graphs: The Graph at every input set, the full one first; the same ops in the same order.
        merged: Means with variances, and maxima with sums of exponentials, in one reduction each.
        bare: See `Bare`.
        channels_last: What 2- and 3-dimensional convolutions read is written with the channels innermost.
        windows: Convolutions become kernels, which read so whatever has more than a few channels.
    """
    return _Lowering(graphs, merged, bare, channels_last, windows).run()


class _Lowering:
    def __init__(self, graphs: Sequence[Graph], merged: bool, bare: Bare, channels_last: bool, windows: bool) -> None:
        self.merged, self.bare, self.channels_last, self.windows = merged, bare, channels_last, windows
        self.p = Program(graphs[0], tuple(graphs))
        self.at = 0
        self.same: dict[Any, str] = {}
        """What an op reads and does → what it gives, so that a mean and a deviation share their sums."""
        self.values = [g.values for g in graphs]

    def run(self) -> Program:
        for name, value in self.values[0].items():
            self.p.shapes[name] = tuple(zip(*(v[name].shape for v in self.values), strict=True))
            self.p.dtypes[name] = value.dtype
        for at, node in enumerate(self.p.graph.nodes):
            self.at = at
            self._node(node)
        self.p.outputs = list(self.p.graph.outputs)
        settle_views(self.p)
        return self.p

    def shape(self, name: str) -> Shape:
        return self.p.shapes[name]

    def _operands(self) -> list[Operand]:
        """The operands of the current node, numbers of all sets together."""
        columns = zip(*(g.nodes[self.at].operands for g in self.p.graphs), strict=True)
        found: list[Operand] = []
        for column in columns:
            same = isinstance(column[0], str) or column[0] is None or len(set(column)) == 1
            found.append(column[0] if same else Varies(tuple(map(float, column))))  # pyright: ignore[reportArgumentType]
        return found

    def add(
        self, kind: Any, name: str | tuple[str, ...], shape: Sequence[Size], dtype: str, *operands: Operand, **rest: Any
    ) -> str:
        """Append an op; returns the name of its first result."""
        names = (name,) if isinstance(name, str) else name
        key = (kind, operands, str(sorted(rest.items())))
        alone = kind == "point" and names[0].endswith(("_mean", "_m2", "_max", "_total"))
        if kind in ("point", "reduce") and key in self.same and not alone and not any(n in self.values[0] for n in names):
            return self.same[key]
        self.same.setdefault(key, names[0])
        for each in names:
            self.p.shapes[each], self.p.dtypes[each] = tuple(shape), dtype
        self.p.ops.append(Op(kind, names, operands, node=self.at, **rest))
        return names[0]

    def point(self, name: str, text: str, *operands: Operand, dtype: str = "float32") -> str:
        shapes = [self.shape(o) for o in operands if isinstance(o, str)]
        return self.add("point", name, broadcast(shapes), dtype, *operands, text=text)

    def reshape(self, name: str, x: str, shape: Sequence[Size]) -> str:
        return self.add("view", name, shape, self.p.dtypes[x], x, how="reshape")

    def reduce(self, name: str | tuple[str, str], how: str, x: str, dims: Sequence[int]) -> str:
        names = (name,) if isinstance(name, str) else name
        if all(is_one(self.shape(x)[d]) for d in dims):  # of one element
            for each, text in zip(names, ALONE.get(how, ("{0}",)), strict=True):
                self.point(each, text, x)
            return names[0]
        shape = [self.one if d in dims else s for d, s in enumerate(self.shape(x))]
        return self.add("reduce", name, shape, self.p.dtypes[x], x, how=how, dims=tuple(dims))

    @property
    def one(self) -> Size:
        return (1,) * self.p.sets

    def _node(self, node: Node) -> None:
        name, shape, dtype = node.value.name, self.shape(node.value.name), node.value.dtype
        operands = self._operands()
        rule = getattr(self, f"_{node.op}", None) or getattr(self, f"_{node.kind}", None)
        floats = ("float32", "bfloat16", "float16")
        whole = all(self.p.dtypes[o] in floats for o in node.reads) or (
            dtype in floats and all(self.p.dtypes[o] in (*floats, "int64", "int32") for o in node.reads)
        )
        if node.kind == "pointwise" and node.op not in ("prelu", "batch_norm_eval"):
            text = point_text(node.op, tuple(operands), dict(node.attributes))
            if text and node.reads and (whole or node.op in ANY_DTYPE) and dtype in STORED:
                self.add("point", name, shape, dtype, *operands, text=text)
                return
        elif rule and (whole or node.kind in ("view", "create")) and rule(node, name, operands) is not None:
            return
        self.add("library", tuple(r.name for r in node.results), shape, dtype, *operands)
        for r in node.results:  # `add` gave all of them one shape
            self.p.shapes[r.name] = tuple(zip(*(v[r.name].shape for v in self.values), strict=True))
            self.p.dtypes[r.name] = r.dtype

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

    # made of nothing

    def _full(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        dtype = node.value.dtype
        if dtype not in ("float32", "bool", "int64"):
            return None
        text = "{0}" if dtype != "float32" or isinstance(operands[0], Varies) else repr(float(operands[0]))  # pyright: ignore[reportArgumentType]
        return self.add("point", name, self.shape(name), dtype, operands[0], text=text)

    # products and convolutions

    def _bias(self, node: Node, name: str, operands: list[Operand], axis: int) -> str | None:
        kinds = {"product": ("all",), "convolution": ("all", "convolution")}
        if len(operands) < 3 or operands[2] is None or self.bare not in kinds[node.kind]:
            return None
        shape = self.shape(name)
        made = self.add("library", f"{name}_raw", shape, node.value.dtype, *operands[:2], None)
        bias: str = operands[2]  # pyright: ignore[reportAssignmentType]
        return self.point(name, "{0} + {1}", made, self._along(f"{name}_bias", bias, axis, len(shape)))

    def _product(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        return self._bias(node, name, operands, len(self.shape(name)) - 1) if node.op == "linear" else None

    def _convolution(self, node: Node, name: str, operands: list[Operand]) -> str | None:
        rank = len(self.shape(name))
        if self._turns(node, rank):
            x: str = operands[0]  # pyright: ignore[reportAssignmentType]
            if f"{x}_last" not in self.p.last:
                self.p.last[self.point(f"{x}_last", "{0}", x)] = None
            operands = [f"{x}_last", *operands[1:]]
            if not self.windows and (self.bare == "none" or operands[2] is None):
                return self.add("library", name, self.shape(name), node.value.dtype, *operands)
        if self.windows and operands[2] is None:  # so that some kernel reads it
            return self.point(name, "{0}", self.add("library", f"{name}_raw", self.shape(name), node.value.dtype, *operands))
        return self._bias(node, name, operands, rank - 1 - int(node.op[-2]))

    def _turns(self, node: Node, rank: int) -> bool:
        """A convolution reads an image with the channels innermost."""
        if not self.channels_last or rank != 2 + int(node.op[-2]):
            return False
        if not self.windows:
            return rank in (4, 5)
        return self.shape(node.reads[0])[1][0] // node["groups"] >= FEW_CHANNELS

    def _along(self, name: str, x: str, axis: int, rank: int) -> str:
        """A vector laid along one axis of `rank`."""
        after = rank - 1 - axis
        return self.reshape(name, x, [*self.shape(x), *[self.one] * after]) if after else x

    # reductions

    def _finished(self, node: Node, name: str, keep: str) -> str:
        """A reduction's result without its axes of size 1, where the node drops them."""
        return keep if self.shape(keep) == self.shape(name) and keep == name else self.reshape(name, keep, self.shape(name))

    def _count(self, x: str, dims: Sequence[int]) -> Count:
        return Count(times(self.one, *(self.shape(x)[d] for d in dims)))

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
        return None

    def _moments(self, name: str, x: str, dims: Sequence[int]) -> tuple[str, str, str]:
        """(mean, sum of squared deviations, deviations); E[x²] − E[x]² would lose the digits of a shifted input."""
        n = self._count(x, dims)
        if self.merged:
            mean = self.reduce((f"{name}_mean", f"{name}_m2"), "moments", x, dims)
            return mean, f"{mean.removesuffix('_mean')}_m2", self.point(f"{name}_d", "{0} - {1}", x, mean)
        mean = self.point(f"{name}_mean", "{0} / {1}", self.reduce(f"{name}_sum", "sum", x, dims), n)
        d = self.point(f"{name}_d", "{0} - {1}", x, mean)
        return mean, self.reduce(f"{name}_m2", "sum", self.point(f"{name}_sq", "{0} * {0}", d), dims), d

    def _expsum(self, name: str, x: str, dims: Sequence[int]) -> tuple[str, str, str]:
        """(maximum, sum of exponentials of the distances to it, these exponentials)."""
        if self.merged:
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

    # pools

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


ALONE = {"moments": ("{0}", "{0} * 0.0"), "expsum": ("{0}", "{0} * 0.0 + 1.0")}
"""What a reduction gives of a single element, where that is not the element."""
ANY_DTYPE = ("cast", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "where")
STORED = ("float32", "bool")
"""What a kernel's values may be."""

assert all(op in OPS for op in ANY_DTYPE)
