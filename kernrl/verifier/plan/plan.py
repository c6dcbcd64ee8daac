"""Plan: what a candidate's `forward` does for one set of input shapes, as data that cannot act.

A plan is an ordered list of nodes over numbered storages. Tensors are views of a storage (dtype, shape, stride, offset), so
views need no nodes and aliasing is visible. The process that writes a plan is untrusted: `codec.decode` accepts only plain
JSON of exactly this shape, and `checks.check_plan` checks what the plan claims before it is replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Literal, TypeAlias

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""The dtypes a plan may name, and their sizes in bytes."""

MAX_NODES = 4096
"""Operations a plan may hold."""

CONSTANT_OP = "kernrl.constant"
"""The only op that is not ATen's: a tensor written out in the source. args (flat values, shape), kwargs dtype."""


# No slots: plans go from process to process, and a frozen class with slots is pickled by Python, at twice the cost.


@dataclass(frozen=True)
class Storage:
    """A block of memory the plan works on."""

    kind: Literal["input", "state", "temp"]
    nbytes: int
    source: int | str | None = None
    """Position in `forward`'s tensor inputs, the reference's `state_dict` key, or None for a temporary."""


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a storage. Shape, stride and offset count elements."""

    storage: int
    dtype: str
    """torch's name without the prefix: `float32`, `bfloat16`, `int64`, …"""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Upper bound of the distinct bytes that the view covers: an expanded dimension (stride 0) counts once."""
        return (
            math.prod(n if st or n == 0 else 1 for n, st in zip(self.shape, self.stride, strict=True)) * ITEM_BYTES[self.dtype]
        )


Arg: TypeAlias = "bool | int | float | str | TensorRef | TensorSpec | Special | Args | dict[str, Arg] | SimpleNamespace | None"
Args: TypeAlias = "tuple[Arg, ...] | list[Arg]"
"""An argument: None, bool, int, finite float, str, TensorRef, TensorSpec, `Special`, or a tuple or list of these; of a
spec also a dict of these, or a SimpleNamespace: the settings that an object holds."""


@dataclass(frozen=True)
class Special:
    """An argument that plain JSON cannot carry: a torch dtype, device, layout, memory format, or an inf/nan float."""

    kind: Literal["dtype", "device", "layout", "memory_format", "float", "complex", "triton_dtype", "function"]
    value: str


@dataclass(frozen=True)
class AtenNode:
    """One ATen call, such as `aten.addmm.default`; its results are views of storages."""

    op: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    outputs: tuple[TensorRef | None, ...]


@dataclass(frozen=True)
class Variant:
    """One configuration of a launch: kernel, grid, and runtime arguments by name, in the order of the signature."""

    kernel: int  # index into Plan.kernels
    grid: tuple[int, int, int]
    args: dict[str, Arg]


@dataclass(frozen=True)
class LaunchNode:
    """One launch of an authored Triton kernel. An autotuned one has a variant for each configuration; replay chooses."""

    variants: tuple[Variant, ...]


Node = AtenNode | LaunchNode


@dataclass(frozen=True)
class KernelSource:
    """One specialisation of one authored kernel, as Triton's IR; the verifier compiles it."""

    function: str
    """The Python name of the `@triton.jit` function."""
    ttir: str
    signature: dict[str, str]
    """Runtime parameter → Triton type (`*fp32`, `i32`, `fp32`, …), in launch order, without constexprs and folded values."""
    constexprs: dict[str, Arg]
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    options: dict[str, Arg] = field(default_factory=dict)
    """Further backend options that change the machine code (`maxnreg`, `enable_fp_fusion`, …)."""
    parameters: tuple[str, ...] = ()
    """Types of the runtime parameters as the IR states them (`*f32`, `i32`, …); known once the IR has been read."""
    takes_extreme: bool = False
    """Whether it takes a maximum or a minimum; known once the IR has been read, since replay is not given the IR."""


@dataclass(frozen=True)
class Plan:
    """The recorded forward of one candidate at one input set."""

    input_set: str
    storages: tuple[Storage, ...]
    setup: tuple[Node, ...]
    """The constructor's nodes that make constants, from no parameter; run once, untimed."""
    nodes: tuple[Node, ...]
    outputs: tuple[TensorRef, ...]
    """What `forward` returned, flattened."""
    kernels: tuple[KernelSource, ...]


@dataclass(frozen=True)
class TensorSpec:
    """Shape, stride and dtype of a tensor, without its values."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class TraceSpec:
    """All that a sandbox learns about a task: enough to call `ModelNew`, nothing about the answer."""

    input_set: str
    init_inputs: tuple[Arg, ...]
    """What `get_init_inputs` returned: plain values."""
    inputs: tuple[Arg, ...]
    """`forward`'s arguments; tensors as TensorSpec."""
    state: dict[str, TensorSpec]
    """The reference's parameters and buffers by `state_dict` key, in order."""
    training: bool
    """Whether the reference module is in training mode (batch norm then normalises by batch statistics)."""
    precision: str
    target: str
    """Architecture compiled for, such as `sm_90`."""
    nesting: str = ""
    """How the reference nests the tensors it returns (`base.nested.nesting`); empty if that is not known."""
    modes_differ: bool | None = None
    """Whether the reference does something else in the other mode (train or eval); None if that is not known."""
    names: tuple[str, ...] = ()
    """What the reference's forward calls its arguments."""

    @property
    def statistics(self) -> tuple[str, ...]:
        """Running statistics, in the order of the state, which every call in training mode changes."""
        names = ("running_mean", "running_var")
        return tuple(name for name in self.state if name.endswith(names)) if self.training else ()


def whole(arg: Arg) -> int:
    """An argument that is a whole number. Raises TypeError for any other."""
    if isinstance(arg, bool) or not isinstance(arg, int):
        raise TypeError(f"{arg!r} is no whole number")
    return arg


def whole_numbers(arg: Arg) -> tuple[int, ...]:
    """An argument that is a list or tuple of whole numbers. Raises TypeError for any other."""
    if not isinstance(arg, list | tuple):
        raise TypeError(f"{arg!r} is no list of whole numbers")
    return tuple(whole(n) for n in arg)


def walk_refs(arg: Arg) -> Iterator[TensorRef]:
    """Every TensorRef inside an argument, in order."""
    if isinstance(arg, TensorRef):
        yield arg
    elif isinstance(arg, tuple | list):
        for item in arg:
            yield from walk_refs(item)


def tensor_specs(arg: Arg) -> Iterator[TensorSpec]:
    """Every TensorSpec inside an argument, in order: the tensor inputs of `TraceSpec.inputs`, as storages number them."""
    if isinstance(arg, TensorSpec):
        yield arg
    elif isinstance(arg, tuple | list | dict):
        for item in arg.values() if isinstance(arg, dict) else arg:
            yield from tensor_specs(item)
