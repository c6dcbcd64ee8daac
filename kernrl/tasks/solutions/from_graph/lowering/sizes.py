"""Sizes at all input sets of a task at once, and how `forward` says them.

A size is a tuple: what it is at the full set, the small one, the ragged one. Two dimensions are the same where they are
equal at every set, so a number that belongs to the shapes (a group's width, `x.shape[-1]`) is told from a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

Size = tuple[int, ...]
Shape = tuple[Size, ...]


class CannotWriteError(Exception):
    """There is no rule for a Graph, or for a style of it; the message says why."""


def ones(like: Size) -> Size:
    """The size 1."""
    return (1,) * len(like)


def is_one(size: Size) -> bool:
    """1 at every set."""
    return size.count(1) == len(size)


def times(*sizes: Size) -> Size:
    """Their product; at least one."""
    return tuple(map(math.prod, zip(*sizes, strict=True)))


def over(a: Size, b: Size) -> Size | None:
    """a / b, or None where b does not divide a at every set."""
    found = []
    for x, y in zip(a, b, strict=True):
        if y == 0 or x % y:
            return None
        found.append(x // y)
    return tuple(found)


def numel(shape: Sequence[Size], sets: int) -> Size:
    """How many elements."""
    return times((1,) * sets, *shape)


LETTERS = {1: "N", 2: "MN", 3: "BLD", 4: "BCHW", 5: "BCDHW"}
"""Names for the dimensions of a tensor, by its rank."""


@dataclass
class Names:
    """How `forward` says sizes: names for the dimensions of the tensors it has, and expressions of those."""

    taken: set[str]
    """Names that mean something else already."""
    named: dict[Size, str] = field(default_factory=dict)
    axes_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name → the tensor (as an expression) and the dimension that it is read from."""
    ranks: dict[str, int] = field(default_factory=dict)
    live: list[tuple[str, Shape]] = field(default_factory=list)
    """The tensors there are so far, as expressions, with their shapes."""
    pending: list[str] = field(default_factory=list)
    """Names that are used, and not assigned yet."""
    windows: dict[Size, tuple[Size, int, int]] = field(default_factory=dict)
    """Size behind a pool or convolution → (size n before it, m, stride): `(n - m) // stride + 1`."""
    spread: dict[Size, tuple[Size, int, int]] = field(default_factory=dict)
    """Size behind a transposed convolution → (size n before it, m, stride): `n * stride + m`."""
    cuts: dict[Size, tuple[Size, int]] = field(default_factory=dict)
    """Size of a slice → (size n before it, m): `n - m`."""
    divisors: list[int] = field(default_factory=list)
    """By what dimensions are divided: numbers of groups and pieces."""
    lines: dict[str, str] = field(default_factory=dict)
    """Name → the expression that it is assigned, where it is no tensor's dimension."""

    def add(self, tensor: str, shape: Shape) -> None:
        """From here on, `forward` has this tensor."""
        # dimensions are read from what flows rather than from parameters
        first = len(self.live) if tensor.startswith("self.") else sum(not t.startswith("self.") for t, _ in self.live)
        self.live.insert(first, (tensor, shape))
        self.ranks[tensor] = len(shape)

    def dim(self, size: Size) -> str | None:
        """The name of a dimension, where some tensor has it."""
        if size in self.named:
            return self.named[size]
        for tensor, shape in self.live:
            if size in shape:
                at = shape.index(size)
                letters = LETTERS.get(len(shape), "NMLKJI"[: len(shape)])
                name = self.free(letters[at] if at < len(letters) else "N")
                self.named[size] = name
                self.axes_of[name] = (tensor, at)
                self.pending.append(name)
                return name
        return None

    def has_name(self, size: Size) -> bool:
        """Whether `dim` has a name for a dimension of some tensor."""
        return True

    def free(self, base: str) -> str:
        """`base`, numbered when it is taken; it is taken from here on."""
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}" if len(base) > 2 else f"{base}{number}"
        self.taken.add(name)
        return name

    def expression(self, size: Size) -> str:
        """Python that gives a size. Raises CannotWriteError where nothing at hand does."""
        if is_one(size):
            return "1"
        if len(set(size)) == 1 and len(size) > 1 and size[0] < 8:
            batch = any(not tensor.startswith("self.") and shape[:1] == (size,) for tensor, shape in self.live)
            return self.dim(size) or "1" if batch else str(size[0])
        if size in self.windows and self.dim(size) is None:
            return self._behind_window(size)
        if size in self.spread and self.dim(size) is None:
            before, plus, stride = self.spread[size]
            return self._line("O", size, f"{self.expression(before)} * {stride} {'-' if plus < 0 else '+'} {abs(plus)}")
        if size in self.cuts and self.dim(size) is None:
            before, minus = self.cuts[size]
            return f"({self.expression(before)} - {minus})"
        first = next(iter(size))
        constant = len(set(size)) == 1 and len(size) > 1
        if name := self.dim(size):
            return name
        if constant and first <= 64:
            return str(first)
        found = self._composed(size) if all(size) else None
        if found is None and len(set(size)) == 1:
            found = str(first)
        if found is None:
            raise CannotWriteError(f"no tensor has the size {size}")
        return found

    def _behind_window(self, size: Size) -> str:
        before, minus, stride = self.windows[size]
        text = self.expression(before) + (f" - {minus}" if minus > 0 else f" + {-minus}" if minus else "")
        text = f"({text}) // {stride} + 1" if stride > 1 else f"{text} + 1" if minus != 1 else self.expression(before)
        return self._line("O", size, text)

    def _line(self, base: str, size: Size, text: str) -> str:
        """A name for a size that is computed."""
        name = self.free(base)
        self.named[size], self.lines[name] = name, text
        self.pending.append(name)
        return name

    def _composed(self, size: Size) -> str | None:
        """A size as a product or quotient of dimensions."""
        dims = list(dict.fromkeys(s for _, shape in self.live for s in shape if not is_one(s) and self.has_name(s)))
        for _, shape in self.live:  # neighbours first: `H * W`
            for i in range(len(shape)):
                for j in range(i + 2, len(shape) + 1):
                    if times(*shape[i:j]) == size and all(is_one(s) or self.has_name(s) for s in shape[i:j]):
                        return " * ".join(str(self.dim(s)) for s in shape[i:j] if not is_one(s))
        for a in [
            *self.windows,
            *self.spread,
            *self.cuts,
        ]:  # before multiples of what a window looks at, which are right only where it fits exactly
            rest = over(size, a)
            if rest and (parts := self._factors(rest, dims, 5)):
                return " * ".join(self.expression(p) for p in [*parts, a])
        for a in dims:
            whole = [(x / y) for x, y in zip(a, size, strict=True)]
            if len(set(whole)) == 1 and len(size) > 1:
                if whole[0] > 1 and whole[0].is_integer():
                    return f"{self.dim(a)} // {int(whole[0])}"
                if (1 / whole[0]).is_integer():
                    return f"{self.dim(a)} * {int(1 / whole[0])}"
        for a in dims:
            for b in dims:
                if over(a, b) == size:
                    return f"({self.dim(a)} // {self.dim(b)})"
        axes, dims = dims, [*dims, *self.windows, *self.spread, *self.cuts]
        if parts := self._factors(size, dims, 6):
            return " * ".join(self.expression(p) for p in parts)
        for a in dims:
            for divisor in self.divisors:
                part = over(a, (divisor,) * len(a))
                rest = over(size, part) if part else None
                if rest and (parts := [] if is_one(rest) else self._factors(rest, dims, 4)) is not None:
                    return " * ".join([*(self.expression(p) for p in parts), f"({self.expression(a)} // {divisor})"])
        for by in (*range(2, 10), *(n for n in self.divisors if n > 9)):  # a step of a pool, pixels of a channel
            rest = over(size, (by,) * len(size))
            if rest and (parts := self._factors(rest, dims, 5)):
                return " * ".join([*(self.expression(p) for p in parts), str(by)])
        shares = [part for a in dims for divisor in self.divisors if (part := over(a, (divisor,) * len(a)))]
        if (parts := self._factors(size, dict.fromkeys([*dims, *shares]), 5)) and len(parts) > 1:  # windows that are a share
            return " * ".join(f"({self.expression(p)})" for p in parts)
        for tensor, shape in self.live:
            whole = over(times((1,) * len(size), *shape), size)
            if whole and len(set(whole)) == 1:
                return self._line("R", size, f"{tensor}.numel() // {whole[0]}")
        for a in axes:
            gap = [x - y for x, y in zip(size, a, strict=True)]
            if len(set(gap)) == 1 and len(size) > 1 and abs(gap[0]) < 64:
                return f"({self.dim(a)} {'+' if gap[0] > 0 else '-'} {abs(gap[0])})"
        near = [tuple(n + by for n in a) for a in axes if len(set(a)) > 1 for by in (-1, 1)]
        for by in (1, 2):  # pairs of different rows, each once or twice
            if parts := self._factors(times(size, (by,) * len(size)), dict.fromkeys([*dims, *near]), 4):
                product = " * ".join(self.expression(p) for p in parts)
                return product if by == 1 else f"({product} // 2)"
        return None

    def _factors(self, size: Size, dims: Iterable[Size], most: int) -> list[Size] | None:
        """Dimensions whose product is a size."""
        dims = list(dims)
        for i, d in enumerate(dims):
            rest = over(size, d)
            if rest is not None and is_one(rest):
                return [d]
            if rest is not None and most > 1 and (more := self._factors(rest, dims[i:], most - 1)):
                return [d, *more]
        return None

    def number(self, values: Sequence[float]) -> str:
        """Python of a number that differs between the sets: a size or a product of sizes, its root, logarithm or inverse."""
        dims = list(dict.fromkeys(s for _, shape in self.live for s in shape if not is_one(s)))
        pairs, squares = [times(a, b) for a, b in combinations(dims, 2)], [times(a, a) for a in dims]
        spans = [(tensor, shape[i:j]) for tensor, shape in self.live for i, j in combinations(range(len(shape) + 1), 2)]
        runs = [times(*span) for tensor, span in spans if len(span) > 2 or len(span) == self.ranks[tensor] == 2]
        for size in dict.fromkeys([*dims, *runs]):  # a batch that no set changes is a factor, rather than a number
            if found := self._of(size, values):
                return found
        for size in dict.fromkeys([*dims, *pairs, *squares, *runs]):
            if found := self._of(size, values, multiples=True):
                return found
        for size in dims:  # the size that a convolution would give: `2 * H - 1`
            if fit := _line(size, values):
                step, shift = fit
                return f"float({step} * {self.expression(size)} {'-' if shift < 0 else '+'} {abs(shift)})"
        for text, function, inverse in NUMBERS:
            if (size := _size_of(values, function, inverse)) and (found := self._composed(size)):
                return text.format(found)
        raise CannotWriteError(f"no size explains the numbers {tuple(values)}")

    def _of(self, size: Size, values: Sequence[float], *, multiples: bool = False) -> str | None:
        """Python that gives numbers of a size; of some multiple of it as well, if asked."""
        for text, function, _ in NUMBERS:
            made = [function(n) for n in size]
            ratios = [v / m if m else math.nan for v, m in zip(values, made, strict=True)]
            plain = math.isclose(ratios[0], 1.0, rel_tol=1e-9)
            if (plain or multiples) and all(math.isclose(r, ratios[0], rel_tol=1e-9) for r in ratios):
                inner = text.format(self.expression(size))
                return inner if plain else f"{float(f'{ratios[0]:.12g}')!r} * {inner}"
        return None

    def unpack(self) -> list[str]:
        """Lines that assign the names used since the last call."""
        lines = []
        plain = [name for name in self.pending if name in self.axes_of]
        tensors = dict.fromkeys(self.axes_of[name][0] for name in plain)
        for tensor in tensors:
            mine = {self.axes_of[name][1]: name for name in plain if self.axes_of[name][0] == tensor}
            if len(mine) == 1 or self.ranks[tensor] == 1:
                lines += [f"{name} = {tensor}.shape[{at}]" for at, name in mine.items()]
            else:
                lines.append(", ".join(mine.get(i, "_") for i in range(self.ranks[tensor])) + f" = {tensor}.shape")
        lines += [f"{name} = {self.lines[name]}" for name in self.pending if name in self.lines]
        self.pending.clear()
        return lines


def _line(size: Size, values: Sequence[float]) -> tuple[int, int] | None:
    """(a, b) of small whole numbers with value = a size + b at every set, of which two or more differ."""
    (n, v), pairs = (size[0], values[0]), list(zip(size, values, strict=True))
    m, w = next(((m, w) for m, w in pairs if m != n), (n, v))
    step = (w - v) / (m - n) if m != n else 0.0
    shift = v - step * n
    whole = step.is_integer() and float(shift).is_integer() and 1 <= step <= 8 and abs(shift) < 64
    return (int(step), int(shift)) if whole and all(step * m + shift == w for m, w in pairs) else None


def _size_of(values: Sequence[float], function: Callable[[int], float], inverse: Callable[[float], float]) -> Size | None:
    """The size that a function gives these numbers of, where there is one."""
    try:
        size = tuple(round(inverse(v)) for v in values)
        made = [function(n) for n in size]
    except (ArithmeticError, ValueError):
        return None
    fits = min(size) > 0 and all(math.isclose(m, v, rel_tol=1e-9) for m, v in zip(made, values, strict=True))
    return size if fits else None


NUMBERS: tuple[tuple[str, Callable[[int], float], Callable[[float], float]], ...] = (
    ("float({})", float, float),
    ("({}) ** 0.5", lambda n: n**0.5, lambda v: v**2),
    ("({}) ** -0.5", lambda n: n**-0.5, lambda v: v**-2),
    ("1.0 / ({})", lambda n: 1.0 / n, lambda v: 1.0 / v),
    ("math.log({})", math.log, math.exp),
    ("1.0 / math.log({})", lambda n: 1.0 / math.log(n) if n > 1 else math.nan, lambda v: math.exp(1.0 / v)),
    ("({} - 1.0)", lambda n: n - 1.0, lambda v: v + 1.0),
    ("1.0 / ({} - 1.0)", lambda n: 1.0 / (n - 1.0) if n > 1 else math.nan, lambda v: 1.0 / v + 1.0),
)
"""Python of a size → what it gives, and what takes that back to the size."""
