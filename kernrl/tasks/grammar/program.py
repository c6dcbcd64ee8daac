"""A program: a producer and the chain of ops after it, typed by symbolic shapes and with every number chosen.

The reference text (`reference.py`) and all worked solutions (`solutions/`) are written from this one description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from types import CodeType
from typing import Literal

from kernrl.tasks.grammar.pointwise import Pointwise
from kernrl.tasks.grammar.reductions import Core

RESIDUAL = "residual"
"""The local variable of `forward` that keeps the producer's output for a residual op."""


@cache
def _code(dim: str) -> CodeType:
    """Compiled once: a program's shapes are asked for hundreds of times, and compiling took a fifth of making a task."""
    return compile(dim, "<dimension>", "eval")


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions as Python expressions over the task's constants, and where the channels are."""

    dims: tuple[str, ...]
    layout: Literal["rows", "grid", "flat"]
    """`rows` [..., N] with channels last, `grid` [B, C, *space], or `flat`: channels reduced away."""

    @property
    def channels(self) -> str:
        """The channel count, such as `out_channels`; empty when there are no channels."""
        return {"rows": self.dims[-1], "grid": self.dims[1] if len(self.dims) > 1 else "", "flat": ""}[self.layout]

    @property
    def spatial(self) -> tuple[str, ...]:
        """The dimensions after the channels of a grid."""
        return self.dims[2:] if self.layout == "grid" else ()

    def at(self, constants: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in numbers."""
        return tuple(eval(_code(dim), {"__builtins__": {}}, dict(constants)) for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor an op reads besides its input: where `forward` finds it, and what the kernels call it."""

    host: str
    """`self.norm.weight`, `self.bias_2`, `other`."""
    kind: Literal["channel", "tensor", "residual"]

    @property
    def name(self) -> str:
        """A name for a kernel's pointer: `norm_weight`, `bias_2`, `other`."""
        return self.host.removeprefix("self.").replace(".", "_")


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a program, placed: its numbers, its operands, its spelling and the shapes around it."""

    op: Pointwise | Core
    spelling: str
    """The PyTorch expression with everything but `{x}` filled in."""
    before: Shape
    after: Shape
    values: tuple[float, ...] = ()
    operands: Mapping[str, Operand] = field(default_factory=dict)
    """Placeholder of the op → operand."""
    state: tuple[str, ...] = ()
    """Lines of `__init__` that make parameters, buffers or modules that hold some."""
    module: str = ""
    """The line of `__init__` that makes a module without parameters."""
    window: tuple[int, int] = (0, 0)
    """Size and stride of a pooling window."""
    groups: int = 0

    @property
    def core(self) -> Core | None:
        """The op, when it reduces."""
        return self.op if isinstance(self.op, Core) else None


@dataclass(frozen=True, slots=True)
class Producer:
    """What a program starts from: a layer or a product of the inputs, or nothing (`rows`, `image`)."""

    family: str
    inputs: tuple[tuple[str, tuple[str, ...]], ...]
    """Argument of `forward` → dimensions."""
    after: Shape
    expression: str = "x"
    """The PyTorch expression, such as `self.conv(x)`; `x` alone when there is no producer."""
    state: tuple[str, ...] = ()
    bare: str = ""
    """The same without its bias, for solutions that add the bias in a kernel of theirs; empty when it has none."""
    functional: str = ""
    """Another spelling of `expression` through the functional library."""
    bias: str = ""
    """Host expression of the bias."""
    flops: str = "0"
    """Floating-point operations as an expression over the constants."""
    gemm: tuple[str, str] | None = None
    """(left, right) host expressions of a matrix product, for solutions that write it themselves."""
    right_transposed: bool = False
    """The right factor is stored [N, K], as `nn.Linear` does."""


@dataclass(frozen=True, slots=True)
class Program:
    """A producer, a chain of ops, and the sizes of its three input sets."""

    producer: Producer
    steps: tuple[Step, ...]
    sizes: Mapping[str, Mapping[str, int]]
    """Input set (`full`, `small`, `ragged`) → constant → value."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Constants that no input set changes, such as a kernel size."""

    @property
    def composition(self) -> tuple[str, ...]:
        """The op sequence, which alone decides the split."""
        head = () if self.producer.expression == "x" else (self.producer.family,)
        return head + tuple(step.op.name for step in self.steps)

    @property
    def has_residual(self) -> bool:
        """A later op reads the producer's output again."""
        return any(o.kind == "residual" for step in self.steps for o in step.operands.values())

    @property
    def state(self) -> tuple[str, ...]:
        """The lines of `__init__` that a worked solution must repeat."""
        return self.producer.state + tuple(line for step in self.steps for line in step.state)

    @property
    def inputs(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All arguments of `forward` with their dimensions, the steps' further tensors included."""
        extra = tuple((o.host, s.before.dims) for s in self.steps for o in s.operands.values() if o.kind == "tensor")
        return self.producer.inputs + extra

    def shapes(self) -> Iterator[Shape]:
        """Every value along the chain."""
        yield self.producer.after
        for step in self.steps:
            yield step.after

    def constants(self, input_set: str) -> dict[str, int]:
        """All module-level constants at one input set."""
        return {**self.sizes[input_set], **self.settings}

    def is_valid_at(self, input_set: str) -> bool:
        """Every dimension along the chain is at least 1, groups divide the channels and pooled images keep a window."""
        constants = self.constants(input_set)
        for step in self.steps:
            before = step.before.at(constants)
            if step.groups and eval(step.before.channels, dict(constants)) % step.groups:
                return False
            if step.window[0] and min(before[2:]) < step.window[0]:
                return False
        return all(min(shape.at(constants)) >= 1 for shape in self.shapes())

    def peak_bytes(self, input_set: str = "full") -> int:
        """float32 bytes that eager PyTorch holds at once at most: inputs, the residual, and an op's input and output."""
        constants = self.constants(input_set)
        values = [4 * prod(shape.at(constants)) for shape in self.shapes()]
        inputs = [4 * prod(Shape(dims, "flat").at(constants)) for _, dims in self.inputs]
        residual = values[0] if self.has_residual else 0
        return sum(inputs) + residual + max(a + b for a, b in zip([0, *values], [*values, 0], strict=True))

    def eager_bytes(self, input_set: str = "full") -> int:
        """float32 bytes that eager PyTorch moves: every op reads its tensors and writes its result."""
        constants = self.constants(input_set)
        moved = sum(4 * prod(Shape(dims, "flat").at(constants)) for _, dims in self.producer.inputs)
        moved += 4 * prod(self.producer.after.at(constants))
        for step in self.steps:
            wide = 1 + sum(o.kind != "channel" for o in step.operands.values())
            moved += 4 * (wide * prod(step.before.at(constants)) + prod(step.after.at(constants)))
        return moved

    def flops(self, input_set: str = "full") -> int:
        """Floating-point operations of the producer."""
        return int(eval(self.producer.flops, dict(self.constants(input_set))))
