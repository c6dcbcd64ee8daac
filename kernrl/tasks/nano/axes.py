"""One letter for each axis of a Graph, in the order of the listing: prompt, kernels and `forward` all say the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.solutions.from_graph.lowering.sizes import Names, Size, is_one

LETTERS = "ABCDEGHLMNPQRSTUVWXYZ"
"""Less F, which is torch.nn.functional, and I, J, K and O, whose small letters kernels use."""


def shapes_of(graphs: Sequence[Graph]) -> dict[str, tuple[Size, ...]]:
    """Name → shape at all sets, of every value."""
    values = [g.values for g in graphs]
    return {name: tuple(zip(*(v[name].shape for v in values), strict=True)) for name in values[0]}


def is_constant(size: Size) -> bool:
    """The same at every set; a Graph that has but one is all constants."""
    return size.count(size[0]) == len(size)


def axis_letters(graphs: Sequence[Graph]) -> dict[Size, str]:
    """Size → letter, of the sizes that are no constants, in order of their first appearance; 21 at most."""
    found: dict[Size, str] = {}
    for shape in shapes_of(graphs).values():
        for size in shape:
            if not is_constant(size) and size not in found and len(found) < len(LETTERS):
                found[size] = LETTERS[len(found)]
    return found


@dataclass
class AxisNames(Names):
    """`Names` whose dimensions are the listing's letters, read off as soon as `forward` has a tensor with a new one."""

    letters: dict[Size, str] = field(default_factory=dict)

    def add(self, tensor: str, shape: tuple[Size, ...]) -> None:
        """From here on, `forward` has this tensor."""
        super().add(tensor, shape)
        fresh = [size for size in shape if size in self.letters and size not in self.named]
        if fresh and not tensor.startswith("self."):
            self._take(tensor, shape)

    def dim(self, size: Size) -> str | None:
        """The letter of an axis, where some tensor has it; a constant's own number."""
        if is_constant(size):
            return str(size[0])
        if size not in self.named and size in self.letters:
            tensor, shape = next(((t, shape) for t, shape in self.live if size in shape), ("", ()))
            self._take(tensor, shape)
        return self.named.get(size)

    def has_name(self, size: Size) -> bool:
        """Quotients, such as the channels of a group, are no axes of the listing."""
        return is_constant(size) or size in self.named or size in self.letters

    def _take(self, tensor: str, shape: tuple[Size, ...]) -> None:
        """Name all axes of a tensor, known or not, in one line that reads as its line of the listing."""
        words = [self.letters.get(size, "_") for size in shape]
        self.named |= {size: word for size, word in zip(shape, words, strict=True) if word != "_"}
        if shape:
            self.pending.append(f"{', '.join(words)}{',' if len(words) == 1 else ''} = {tensor}.shape")

    def _behind_window(self, size: Size) -> str:
        """A pool's size has its letter too."""
        if size not in self.letters:
            return super()._behind_window(size)
        before, minus, stride = self.windows[size]
        text = self.expression(before) + (f" - {minus}" if minus > 0 else f" + {-minus}" if minus else "")
        name = self.named[size] = self.letters[size]
        self.lines[name] = f"({text}) // {stride} + 1"
        self.pending.append(name)
        return name

    def expression(self, size: Size) -> str:
        """Python that gives a size; a constant is written out."""
        return str(size[0]) if is_constant(size) or is_one(size) else super().expression(size)

    def unpack(self) -> list[str]:
        """Lines that assign the names used since the last call."""
        lines = [f"{name} = {self.lines[name]}" if name in self.lines else name for name in self.pending]
        self.pending.clear()
        return lines
