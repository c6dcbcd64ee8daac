"""Addresses as text: axes that every access crosses together are one variable, and sizes are parameters of the kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise

from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis
from kernrl.tasks.solutions.from_graph.lowering.sizes import Names, Size, is_one, times


@dataclass
class Access:
    """Where one load or store goes: factors of axes and loop variables, and a constant."""

    factors: dict[Axis, Size]
    constants: tuple[tuple[Size, Size], ...]
    """(offset, stride) pairs."""
    extra: tuple[tuple[str, Size], ...]
    apart: set[Axis] = field(default_factory=set)
    """Axes along which it goes in steps: a plane need not be so many steps long, even if it is at every set."""
    follows: dict[Axis, Size] = field(default_factory=dict)
    """Axes along which it goes but for a few elements, such as those of an edge, with the strides."""

    @property
    def along(self) -> dict[Axis, Size]:
        """The axes along which it goes, with the strides."""
        return self.factors | self.follows if self.follows else self.factors


def place_moves(access: Access) -> bool:
    """The address is not the tensor's first element."""
    return bool(access.factors or access.constants or access.extra)


@dataclass
class Sizes:
    """The sizes that a kernel is given, by name."""

    names: Names
    taken: set[str]
    texts: dict[Size, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    """Parameter → what `forward` passes for it."""
    constexpr: set[str] = field(default_factory=set)
    """Parameters by which an index is divided: known when the kernel is compiled, a division costs little."""

    def text(self, size: Size) -> str:
        """A size, of parameters that the kernel has from here on."""
        if is_one(size):
            return "1"
        if size not in self.texts:
            expression = self.names.expression(size)
            for word in re.findall(r"[A-Za-z_]\w*", expression):
                self.pass_on(word, word)
            self.texts[size] = expression
        return self.texts[size]

    def pass_on(self, name: str, host: str) -> str:
        """A parameter of the kernel, and what `forward` passes for it."""
        self.hosts[name] = host
        self.taken.add(name)
        return name

    def divisor(self, size: Size) -> str:
        """As `text`, of a size that an index is divided by."""
        text = self.text(size)
        self.constexpr |= set(re.findall(r"[A-Za-z_]\w*", text))
        return wrapped(text)

    def variable(self, size: Size) -> str:
        """A name for an index that runs to a size."""
        wish = self.texts.get(size, "").lower()
        short = [wish] if wish.isidentifier() and len(wish) < 3 else []
        name = next(n for n in chain(short, "ijklmno", (f"i{k}" for k in count(9))) if n not in self.taken)
        self.taken.add(name)
        return name


@dataclass
class Flat:
    """One index of a program's elements, that counts through several axes."""

    variable: str
    axes: list[Axis]
    runs: list[list[Axis]] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)

    def merge(self, accesses: Sequence[Access], pinned: set[Axis]) -> None:
        """Put neighbours together that no access tells apart."""
        self.runs = []
        for axis in self.axes:
            before = self.runs[-1][-1] if self.runs else None
            if before is not None and not {axis, before} & pinned and all(_together(a, before, axis) for a in accesses):
                self.runs[-1].append(axis)
            else:
                self.runs.append([axis])

    def define(self, sizes: Sizes, used: set[Axis]) -> list[str]:
        """Lines that give each run a variable."""
        if len(self.runs) == 1:
            self.variables = [self.variable]
            return []
        lines, self.variables = [], []
        for i, run in enumerate(self.runs):
            if not used & set(run):
                self.variables.append("0")
                continue
            inner = [a for later in self.runs[i + 1 :] for a in later]
            text = self.variable
            if inner:
                text += f" // {sizes.divisor(times(*(a.size for a in inner)))}"
            if i:
                text += f" % {sizes.divisor(times(*(a.size for a in run)))}"
            name = sizes.variable(times(*(a.size for a in run)))
            self.variables.append(name)
            lines.append(f"{name} = {text}")
        return lines

    def run_of(self, axis: Axis) -> int | None:
        """Which run an axis is in."""
        return next((i for i, run in enumerate(self.runs) if axis in run), None)


def _together(access: Access, outer: Axis, inner: Axis) -> bool:
    zero = (0,) * len(outer.size)
    a, b = access.factors.get(outer, zero), access.factors.get(inner, zero)
    return inner not in access.apart and a == times(b, inner.size) and (a != zero) == (b != zero)


def wrapped(text: str) -> str:
    """Text that may stand beside an operator."""
    return f"({text})" if " " in text else text


def address(access: Access, flats: Sequence[Flat], sizes: Sizes) -> str:
    """The address of an access, in elements."""
    terms: list[str] = []
    ordered: list[tuple[int, str]] = []
    for flat in flats:
        if (
            len(flat.runs) > 1
            and all(_together(access, a, b) for a, b in pairwise(flat.axes))
            and access.factors.get(flat.axes[-1])
        ):
            factor = access.factors[flat.axes[-1]]
            text = sizes.text(factor)
            ordered.append((-factor[0], flat.variable if text == "1" else f"{flat.variable} * {wrapped(text)}"))
            continue
        for run, variable in zip(flat.runs, flat.variables, strict=True):
            factor = access.factors.get(run[-1])
            if factor is None or not any(factor):
                continue
            text = sizes.text(factor)
            shown = variable if variable.isidentifier() else f"({variable})"
            ordered.append((-factor[0], shown if text == "1" else f"{shown} * {wrapped(text)}"))
    terms += [term for _, term in sorted(ordered, key=lambda pair: pair[0])]
    for name, factor in access.extra:
        text = sizes.text(factor)
        terms.append(name if text == "1" else f"{name} * {wrapped(text)}")
    text = " + ".join(terms)
    for offset, stride in access.constants:
        negative = all(n < 0 for n in offset)
        pair = [sizes.text(tuple(abs(n) for n in offset)), sizes.text(stride)]
        shown = " * ".join(wrapped(t) if " + " in t or " // " in t or " - " in t else t for t in pair if t != "1") or "1"
        text += f" - {shown}" if negative else f" + {shown}" if text else shown
    return text or "0"
