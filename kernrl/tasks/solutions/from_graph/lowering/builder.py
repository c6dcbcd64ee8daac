"""What every rule of lowering builds on: ops are appended to a program, and those that compute the same are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Count, Op, Operand, Program, Varies, broadcast
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape, Size, is_one, times

Bare = Literal["none", "convolution", "all"]
"""Which products and convolutions leave their bias to a kernel."""
LONGEST_SET, LONGEST_SET_LAST = 16384, 1024
"""What is reduced in one go, where reductions are cut in two levels: less of images with the channels innermost, of which a
program has many sets side by side."""
LONGEST_ROW, LONGEST_ROW_LAST, SHORTEST_ROW, SHORTEST_ROW_LAST = 8192, 512, 64, 8
"""Of a reduction in two levels, what the first reduces."""


@dataclass(frozen=True, slots=True)
class How:
    """What a program is to be like."""

    merged: bool = False
    """Means with variances, and maxima with sums of exponentials, in one reduction each."""
    bare: Bare = "convolution"
    channels_last: bool = False
    """What 2- and 3-dimensional convolutions read is written with the channels innermost."""
    windows: bool = False
    """Convolutions become kernels, which read so whatever has more than a few channels."""
    pads: bool = False
    """Padding is a way of reading, and no call of the library."""
    direct: bool = False
    """Convolutions of each channel by itself, and products of few terms or with one column, are sums in kernels."""
    levels: bool = False
    """Long reductions are reductions of rows, and then of what these leave."""


class Builder:
    """A program as it grows."""

    def __init__(self, graphs: Sequence[Graph], how: How) -> None:
        self.how = how
        self.p = Program(graphs[0], tuple(graphs))
        self.at = 0
        self.same: dict[Any, str] = {}
        """What an op reads and does → what it gives, so that a mean and a deviation share their sums."""
        self.values = [g.values for g in graphs]

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
            texts = ALONE.get(how, ("{0}",))
            first, *_ = [self.point(each, text, x) for each, text in zip(names, texts, strict=True)]
            return first
        if len(names) == 1 and (cut := self.cut(x, dims)):
            x, dims = self._reduced(f"{names[0]}_rows", how, x, cut[0]), cut[1]
        return self._reduced(name, how, x, dims)

    def _reduced(self, name: str | tuple[str, str], how: str, x: str, dims: Sequence[int]) -> str:
        shape = [self.one if d in dims else s for d, s in enumerate(self.shape(x))]
        return self.add("reduce", name, shape, self.p.dtypes[x], x, how=how, dims=tuple(dims))

    def cut(self, x: str, dims: Sequence[int]) -> tuple[list[int], list[int]] | None:
        """(the dimensions that a first reduction goes over, those left to a second); None where one reduction will do."""
        shape, inner, width = self.shape(x), list[int](), 1
        last = self.how.channels_last
        count = prod(shape[d][0] for d in dims)
        if not self.how.levels or count <= (LONGEST_SET_LAST if last else LONGEST_SET):
            return None
        for d in range(len(shape) - 1, -1, -1):
            if d not in dims or width * shape[d][0] > (LONGEST_ROW_LAST if last else LONGEST_ROW):
                break
            width *= shape[d][0]
            inner.insert(0, d)
        outer = [d for d in dims if d not in inner]
        least = SHORTEST_ROW_LAST if last else SHORTEST_ROW
        return (inner, outer) if width >= least and any(not is_one(shape[d]) for d in outer) else None

    @property
    def one(self) -> Size:
        return (1,) * self.p.sets

    def _along(self, name: str, x: str, axis: int, rank: int) -> str:
        """A vector laid along one axis of `rank`."""
        after = rank - 1 - axis
        return self.reshape(name, x, [*self.shape(x), *[self.one] * after]) if after else x

    def _count(self, x: str, dims: Sequence[int]) -> Count:
        return Count(times(self.one, *(self.shape(x)[d] for d in dims)))


ALONE = {"moments": ("{0}", "{0} * 0.0"), "expsum": ("{0}", "{0} * 0.0 + 1.0")}
"""What a reduction gives of a single element, where that is not the element."""
