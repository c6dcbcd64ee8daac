"""Addresses as text: axes that every access crosses together are one variable, and sizes are parameters of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from kernrl.tasks.solutions.from_graph.emit import Access
from kernrl.tasks.solutions.from_graph.fuse import Axis
from kernrl.tasks.solutions.from_graph.sizes import Names, Size, is_one, kernel_name, times


@dataclass
class Sizes:
    """The sizes that a kernel is given, by name."""

    names: Names
    taken: set[str]
    params: dict[Size, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    """Parameter → what `forward` passes for it."""
    constexpr: set[str] = field(default_factory=set)
    """Parameters by which an index is divided: known when the kernel is compiled, a division costs little."""

    def param(self, size: Size, name: str = "", host: str = "") -> str:
        """The parameter that is a size, or the number where it is one; `host` is what to pass, where that is known."""
        if is_one(size):
            return "1"
        if size not in self.params:
            expression = host or self.names.expression(size)
            if expression.isdigit():
                return expression
            name = kernel_name(name or expression, self.taken)
            self.taken.add(name)
            self.params[size], self.hosts[name] = name, expression
        return self.params[size]

    def divisor(self, size: Size) -> str:
        """As `param`, of a size that an index is divided by."""
        text = self.param(size)
        if not text.isdigit():
            self.constexpr.add(text)
        return text

    def variable(self, size: Size) -> str:
        """A name for an index that runs to a size."""
        wish = self.params.get(size, "").lower()
        name = next(n for n in (wish, *"ijklmno", *(f"i{k}" for k in range(9, 99))) if n and len(n) < 3 and n not in self.taken)
        self.taken.add(name)
        return name

    def factor(self, size: Size) -> str:
        """A factor, as a product of parameters there are, or a new one."""
        if size in self.params or is_one(size):
            return self.param(size)
        if len(set(size)) == 1 and len(size) > 1 and size[0] < 64:
            return str(size[0])
        known = list(self.params)
        for count in (2, 3):
            for parts in combinations(known, count):
                if times(*parts) == size:
                    return " * ".join(self.params[p] for p in parts)
        for p in known:
            ratios = {a / b for a, b in zip(size, p, strict=True)}
            if len(ratios) == 1 and len(size) > 1 and (ratio := ratios.pop()).is_integer():
                return f"{self.params[p]} * {int(ratio)}"
        return self.param(size)


    def divisor_of(self, axes: Sequence[Axis]) -> str:
        """The number of elements of some axes, as a divisor."""
        text = self.factor(times(*(a.size for a in axes)))
        self.constexpr |= {word for word in text.split(" * ") if not word.isdigit()}
        return _wrapped(text)


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
                divisor = sizes.divisor_of(inner)
                text += f" // {divisor}"
            if i:
                text += f" % {_wrapped(sizes.divisor(times(*(a.size for a in run))))}"
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
    return a == times(b, inner.size) and (a != zero) == (b != zero)


def _wrapped(text: str) -> str:
    return f"({text})" if " " in text else text


def address(access: Access, flats: Sequence[Flat], sizes: Sizes) -> str:
    """The address of an access, in elements."""
    terms: list[str] = []
    ordered: list[tuple[int, str]] = []
    for flat in flats:
        for run, variable in zip(flat.runs, flat.variables, strict=True):
            factor = access.factors.get(run[-1])
            if factor is None or not any(factor):
                continue
            text = sizes.factor(factor)
            shown = variable if variable.isidentifier() else f"({variable})"
            ordered.append((-factor[0], shown if text == "1" else f"{shown} * {_wrapped(text)}"))
    terms += [term for _, term in sorted(ordered, key=lambda pair: pair[0])]
    for name, factor in access.extra:
        text = sizes.factor(factor)
        terms.append(name if text == "1" else f"{name} * {_wrapped(text)}")
    text = " + ".join(terms)
    for offset, stride in access.constants:
        negative = all(n < 0 for n in offset)
        pair = [sizes.factor(tuple(abs(n) for n in offset)), sizes.factor(stride)]
        shown = " * ".join(_wrapped(t) if " + " in t or " // " in t or " - " in t else t for t in pair if t != "1") or "1"
        text += f" - {shown}" if negative else f" + {shown}" if text else shown
    return text or "0"
