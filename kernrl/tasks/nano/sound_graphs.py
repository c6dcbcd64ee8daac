"""Which random Graphs make tasks: those whose outputs tell a right kernel from a wrong one.

Nothing keeps a random Graph from the logarithm of a negative number, an exponential that overflows, or a sigmoid of millions
that is 1 everywhere. So a Graph is run on random numbers at small sizes before it becomes a task: its outputs must be finite,
differ from a constant and from its inputs, follow each input and each op, and stay what they are when numbers are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import Any

import torch
from torch import Tensor

from kernrl.tasks.graph.costs import product_flops
from kernrl.tasks.graph.graph import Graph, Parameter
from kernrl.tasks.graph.run import evaluate, run
from kernrl.tasks.nano.distinct_axes import at_smaller_sizes

SMALLEST = (6, 12, 24, 48, 96)
"""Least sizes of the axes that are made smaller, tried in turn: windows and strides need some room."""

MOST_ELEMENTS, MOST_FLOPS = 2**18, 2**27
"""Of the small Graph: all its values together, and its products."""

WIDE_ELEMENTS, WIDE_FLOPS = 2**19, 2**28
"""Of the Graph of which only as many axes are smaller as must be: sums and products over long axes grow large."""

ROUNDED = 2.0**-11
"""Relative error of a number in tf32."""

SPREAD = 0.02
"""Least standard deviation of an output over its size, and least difference from an input. The judge allows 8 roundings of
the size, 0.004."""

ILL = 0.05
"""Most that outputs may move, over their deviation, when inputs and parameters are rounded to tf32."""

INEXACT = 1e-4
"""Most that float32 may be off from float64, over the output's size."""

LARGEST = 1e30
"""Magnitudes beyond it are near overflow."""


def why_unsound(graph: Graph, seed: int) -> str:
    """Why a Graph makes no task, in a word or two; '' for one that does.

    Args:
        seed: Of the numbers that it is run on.
    """
    small = smaller(graph, MOST_ELEMENTS, MOST_FLOPS)
    if small is None:
        return "no small sizes"
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if why := _why_unsound(small, generator):
            return why
        wide = smaller(graph, WIDE_ELEMENTS, WIDE_FLOPS, batch_first=True)
        return _why_inexact(_Numbers.drawn(wide, generator)) if wide else ""


def smaller(graph: Graph, elements: int, flops: int, *, batch_first: bool = False) -> Graph | None:
    """The Graph at sizes that come to at most so many elements of all values, and FLOPs of products; None where none fit.

    Args:
        batch_first: Make smaller only what must be, the first axis of the inputs before others; else all axes are.
    """
    divides = divisor(graph, 4)
    sizes = sorted({n for held in (*graph.inputs, *graph.parameters) for n in held.value.shape if n > 8}, reverse=True)
    firsts = [x.value.shape[0] for x in graph.inputs if len(x.value.shape) > 1]

    def least(n: int, floor: int) -> int:
        unit = gcd(n, divides)
        floor = min(floor, 4) if n in firsts else floor
        return min(n, -(-floor // unit) * unit)

    def fits(found: Graph | None) -> bool:
        return found is not None and elements_of(found) <= elements and product_flops(found) <= flops

    if batch_first:
        found, chosen = graph, {}
        for n in sorted(sizes, key=lambda n: (n not in firsts, -n)):
            if fits(found):
                break
            for floor in (2 if n in firsts else 8, *SMALLEST):
                if again := _at(graph, chosen | {n: least(n, floor)}):
                    chosen, found = chosen | {n: least(n, floor)}, again
                    break
        return found if fits(found) else None
    for floor in SMALLEST:
        chosen = {n: least(n, floor) for n in sizes}
        if found := _at(graph, chosen):
            break
    else:
        return None
    for n in sizes:  # those that need less room
        for lower in SMALLEST[: SMALLEST.index(floor)]:
            if fits(found):
                return found
            if again := _at(graph, chosen | {n: least(n, lower)}):
                chosen, found = chosen | {n: least(n, lower)}, again
                break
    return found if fits(found) else None


def _at(graph: Graph, smaller: Mapping[int, int]) -> Graph | None:
    """`smaller`: size of a free axis → what it shall be; others stay."""
    return at_smaller_sizes(graph, lambda axis: smaller.get(axis.size, axis.size))


def divisor(graph: Graph, least: int = 1) -> int:
    """What sizes must go on dividing by: groups, pieces and factors, and `least`."""
    found = least
    for node in graph.nodes:
        a: Mapping[str, Any] = dict(node.attributes)
        for name in ("num_groups", "groups", "chunks", "upscale_factor", "downscale_factor"):
            found = lcm(found, a.get(name, 1)) if a.get(name, 1) <= 64 else found
        if node.op in ("unflatten", "reshape"):
            found = lcm(found, *(n for n in a.get("sizes", a.get("shape", ())) if 1 < n <= 16))
    return found


def elements_of(graph: Graph) -> int:
    """Of all its values together."""
    return sum(value.numel for value in graph.values.values())


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A Graph, and the numbers that it is run on, in float64."""

    graph: Graph
    inputs: Sequence[Tensor]
    parameters: Mapping[str, Tensor]

    @classmethod
    def drawn(cls, graph: Graph, generator: torch.Generator) -> _Numbers:
        """Numbers as a task's own: a normal distribution, and buffers around one."""
        return cls(
            graph,
            [_normal(x.value.shape, generator) for x in graph.inputs],
            {p.path: _parameter(p, generator) for p in graph.parameters},
        )

    def results(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        inputs = [x.to(dtype) for x in self.inputs]
        parameters = {name: p.to(dtype) for name, p in self.parameters.items()}
        found = run(self.graph, inputs, parameters, double=dtype == torch.float64)
        return [y.double() for y in found if isinstance(y, Tensor)]

    def mapped(self, change: Callable[[Tensor], Tensor]) -> _Numbers:
        """With every number changed."""
        return _Numbers(self.graph, [change(x) for x in self.inputs], {n: change(p) for n, p in self.parameters.items()})


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def _parameter(p: Parameter, generator: torch.Generator) -> Tensor:
    drawn = _normal(p.value.shape, generator)
    if p.kind == "buffer":
        return torch.rand(p.value.shape, generator=generator, dtype=torch.float64) + 0.5
    return drawn / max(1.0, prod(p.value.shape[1:]) ** 0.5) if len(p.value.shape) > 1 else drawn


def _why_unsound(graph: Graph, generator: torch.Generator) -> str:
    numbers = _Numbers.drawn(graph, generator)
    if why := _why_inexact(numbers):
        return why
    right = numbers.results()
    for y in right:
        size, spread = _size(y), _spread(y)
        if size == 0 or (y.numel() > 1 and spread < SPREAD * size):
            return "constant"
    first = numbers.inputs[0]
    if any(y.shape == first.shape and _size(y - first) < SPREAD * _size(y) for y in right):
        return "a copy"
    rounded = numbers.mapped(
        lambda x: x * (1 + ROUNDED * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))
    ).results()
    if any(not _size(a - b) <= ILL * _scale(b) for a, b in zip(rounded, right, strict=True)):
        return "ill-conditioned"
    for at, x in enumerate(numbers.inputs):
        inputs = [*numbers.inputs[:at], _normal(x.shape, generator), *numbers.inputs[at + 1 :]]
        moved = _Numbers(graph, inputs, numbers.parameters).results()
        if all(not _size(a - b) > SPREAD * _scale(b) for a, b in zip(moved, right, strict=True)):
            return "an input that does not matter"
    return _why_idle(numbers, right, generator)


def _why_idle(numbers: _Numbers, right: Sequence[Tensor], generator: torch.Generator) -> str:
    """An op whose result may be half as much off, and no output shows it: beside a mask of -1e9, say."""
    graph = numbers.graph
    known: dict[str, Any] = {x.value.name: t for x, t in zip(graph.inputs, numbers.inputs, strict=True)}
    known |= {p.value.name: numbers.parameters[p.path] for p in graph.parameters}
    for node in graph.nodes:
        [known[node.value.name]] = evaluate(node, [known[o] if isinstance(o, str) else o for o in node.operands], double=True)
    for at, node in enumerate(graph.nodes):
        value = known[node.value.name]
        if node.kind in ("view", "create") or not value.is_floating_point():
            continue
        noise = torch.rand(value.shape, generator=generator, dtype=value.dtype) - 0.5
        changed = known | {node.value.name: value * (1 + noise)}
        for later in graph.nodes[at + 1 :]:
            operands = [changed[o] if isinstance(o, str) else o for o in later.operands]
            if any(o in changed and changed[o] is not known[o] for o in later.reads):
                [changed[later.value.name]] = evaluate(later, operands, double=True)
        moved = [changed[o].double() for o in graph.outputs if isinstance(o, str)]
        if all(not _size(a - b) > SPREAD * _scale(b) for a, b in zip(moved, right, strict=True)):
            return "an op that does not matter"
    return ""


def _why_inexact(numbers: _Numbers) -> str:
    wide, plain = numbers.results(), numbers.results(torch.float32)
    for y, z in zip(wide, plain, strict=True):
        if not (torch.isfinite(y).all() and torch.isfinite(z).all()) or float(y.abs().max()) > LARGEST:
            return "not finite"
        if _size(y - z) > INEXACT * _scale(y):
            return "inexact"
    return ""


def _size(y: Tensor) -> float:
    """Root of the mean square."""
    return float(y.square().mean().sqrt())


def _spread(y: Tensor) -> float:
    return float(y.std(correction=0))


def _scale(y: Tensor) -> float:
    """What an error is measured by: the deviation, or the size of a single number."""
    return _spread(y) if y.numel() > 1 else _size(y)
