"""Tiles: how one program of a kernel finds its elements, as source text, and the text of every op on such a tile.

The value is always the variable `x`, its flat index `offs`, its mask `mask` and its channel `c`. A tile is one vector or
one matrix; reductions keep dimensions, so the text of an op is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernrl.tasks.grammar.pointwise import HELPERS, Pointwise
from kernrl.tasks.grammar.program import Operand, Step


@dataclass(frozen=True, slots=True)
class Tile:
    """Addressing of one kernel."""

    setup: tuple[str, ...]
    """Lines that place the program."""
    index: str
    """Variable that runs over the reduced set."""
    arange: str
    step: str
    """Block constant by which `index` advances when the set is walked in chunks."""
    offs: str
    mask: str
    shape: str
    """Of an accumulator."""
    fold: str
    """Reduction over the set, with `{op}` and `{e}`."""
    count: str
    """Number of elements of the set, a size the host passes."""
    channel: str
    """Channel index, as far as there are channels."""
    channel_mask: str
    """Mask for loading one number a channel; empty where the channel is the same for all elements."""
    out_offs: str
    """Index of the one number left after a collapsing op."""
    out_mask: str
    grid: str
    """The launch grid, as a host expression."""
    sizes: dict[str, str] = field(default_factory=dict)
    """Size parameter → host expression; a kernel takes those it names."""

    @property
    def c(self) -> str:
        """The variable that holds the channel: `c`, or one that is there anyway."""
        return self.channel if self.channel.isidentifier() else "c"

    @property
    def channel_line(self) -> list[str]:
        """The line that defines `c`, where one is needed."""
        return [] if self.channel.isidentifier() else [f"c = {self.channel}"]

    @property
    def channel_varies(self) -> bool:
        """The channel differs between the elements of a set."""
        return self.index in self.channel.split()

    def chunk(self, whole: bool) -> list[str]:
        """Lines that define `index`, `mask` and `offs`."""
        start = "" if whole else "start + "
        return [f"{self.index} = {start}{self.arange}", f"mask = {self.mask}", f"offs = {self.offs}"]

    @property
    def at(self) -> At:
        return At(self.c, self.channel_mask)

    def reduce(self, op: str, expression: str) -> str:
        return self.fold.format(op=op, e=expression)


@dataclass(frozen=True, slots=True)
class At:
    """Where the current elements lie: the texts that index an operand."""

    c: str = "c"
    channel_mask: str = "mask"
    offs: str = "offs"
    mask: str = "mask"

    def load(self, operand: Operand) -> str:
        """Load an operand of the current elements."""
        if operand.kind == "channel":
            return load(operand.name, self.c, self.channel_mask)
        return load(operand.name, self.offs, self.mask)


def load(pointer: str, offs: str, mask: str) -> str:
    """A masked load of a tensor."""
    return f"tl.load({pointer}_ptr + {offs}, mask={mask})" if mask else f"tl.load({pointer}_ptr + {offs})"


def point_lines(steps: Iterable[Step], at: At) -> list[str]:
    """`x = …` for each of some pointwise steps."""
    lines = []
    for step in steps:
        assert isinstance(step.op, Pointwise)
        numbers = dict(zip("ab", step.values, strict=False))
        loads = {key: at.load(operand) for key, operand in step.operands.items()}
        lines.append("x = " + step.op.triton.format(x="x", **numbers, **loads))
    return lines


def affine_line(step: Step, at: At) -> list[str]:
    """`x = x * weight + bias`, as far as the step has them."""
    loads = [at.load(operand) for operand in step.operands.values()]
    return ["x = x * " + " + ".join(loads)] if loads else []


def core_lines(step: Step, tile: Tile) -> list[str]:
    """A reducing step on a tile that holds the whole set. Masked lanes may hold anything before and after."""
    core = step.core
    assert core is not None
    total, top, n = (lambda e: tile.reduce("sum", e)), (lambda e: tile.reduce("max", e)), tile.count
    lowest = 'tl.where(mask, x, float("-inf"))'
    lines = {
        # two-pass variance: E[x^2] - E[x]^2 would lose the digits of a shifted input
        "norm": [
            f"mean = {total('tl.where(mask, x, 0.0)')} / {n}",
            "x = tl.where(mask, x - mean, 0.0)",
            f"var = {total('x * x')} / {n}",
            "x = x * tl.rsqrt(var + 1e-5)",
        ],
        "rms": [f"ms = {total('tl.where(mask, x * x, 0.0)')} / {n}", "x = x * tl.rsqrt(ms + 1e-5)"],
        "softmax": [f"x = {lowest}", f"x = tl.exp(x - {top('x')})", f"x = x / {total('x')}"],
        "log_softmax": [f"x = {lowest}", f"x = x - {top('x')}", f"x = x - tl.log({total('tl.exp(x)')})"],
        "sum": [f"x = {total('tl.where(mask, x, 0.0)')}"],
        "mean": [f"x = {total('tl.where(mask, x, 0.0)')} / {n}"],
        "max": [f"x = {top(lowest)}"],
        "min": [f"x = {tile.reduce('min', lowest.replace('-inf', 'inf'))}"],
        "logsumexp": [f"x = {lowest}", f"m = {top('x')}", f"x = m + tl.log({total('tl.exp(x - m)')})"],
    }[core.body]
    return lines + affine_line(step, tile.at)


def helpers_of(steps: Iterable[Step]) -> set[str]:
    """Names of the helper functions that steps call."""
    return {step.op.helper for step in steps if isinstance(step.op, Pointwise) and step.op.helper} & set(HELPERS)


def uses_channel(steps: Iterable[Step]) -> bool:
    """Some step reads one number a channel."""
    return any(operand.kind == "channel" for step in steps for operand in step.operands.values())
