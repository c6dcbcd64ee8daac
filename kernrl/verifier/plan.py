"""Plan: what a candidate's `forward` does for one set of input shapes, as data that cannot act.

A plan is an ordered list of nodes over numbered storages. Tensors are views of a storage (dtype, shape, stride, offset), so
views need no nodes of their own and aliasing is visible. The process that writes a plan is untrusted: `decode` accepts
only plain JSON of exactly this shape, and everything a plan claims is checked again before it is replayed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

FORMAT = 1

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""The dtypes a plan may name, and their sizes in bytes."""

CONSTANT_OP = "kernrl.constant"
"""The one op that is not ATen's: args (values, flat; shape), kwargs dtype; a tensor written out in the source."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of memory the plan works on."""

    kind: Literal["input", "state", "temp"]
    nbytes: int
    source: int | str | None = None
    """Position in `forward`'s tensor inputs, the reference's `state_dict` key, or None for a temporary."""


@dataclass(frozen=True, slots=True)
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
        """Bytes of distinct memory the view covers at most: an expanded dimension (stride 0) counts once."""
        return (
            math.prod(n if st or n == 0 else 1 for n, st in zip(self.shape, self.stride, strict=True)) * ITEM_BYTES[self.dtype]
        )


Arg = Any
"""An argument: None, bool, int, finite float, str, TensorRef, TensorSpec, `Special`, or a tuple or list of these."""


@dataclass(frozen=True, slots=True)
class Special:
    """An argument that plain JSON cannot carry: a torch dtype, device, layout, memory format, or an inf/nan float."""

    kind: Literal["dtype", "device", "layout", "memory_format", "float", "complex", "triton_dtype", "function"]
    value: str


@dataclass(frozen=True, slots=True)
class AtenNode:
    """One ATen call, such as `aten.addmm.default`, with the views its results are."""

    op: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    outputs: tuple[TensorRef | None, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make a launch: a kernel, its grid, and its runtime arguments by name in the order of the signature."""

    kernel: int  # index into Plan.kernels
    grid: tuple[int, int, int]
    args: dict[str, Arg]


@dataclass(frozen=True, slots=True)
class LaunchNode:
    """One launch of an authored Triton kernel. Autotuned kernels carry every configuration; the trusted side picks."""

    variants: tuple[Variant, ...]


Node = AtenNode | LaunchNode


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One specialisation of one authored kernel, as Triton's own IR; machine code is made by a trusted compiler."""

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


@dataclass(frozen=True, slots=True)
class Plan:
    """The recorded forward of one candidate at one input set."""

    input_set: str
    storages: tuple[Storage, ...]
    setup: tuple[Node, ...]
    """Nodes of the constructor that make constants (no parameter involved); run once, untimed."""
    nodes: tuple[Node, ...]
    outputs: tuple[TensorRef, ...]
    """What `forward` returned, flattened."""
    kernels: tuple[KernelSource, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, stride and dtype of a tensor, without its values."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """All that a sandbox is told of a task: enough to call `ModelNew`, nothing of the answer."""

    input_set: str
    init_inputs: tuple[Arg, ...]
    """What `get_init_inputs` returned: plain values."""
    inputs: tuple[Arg, ...]
    """`forward`'s arguments; tensors as TensorSpec."""
    state: dict[str, TensorSpec]
    """The reference's parameters and buffers by `state_dict` key, in order."""
    training: bool
    """True when the reference module is left in training mode (batch norm then normalises by batch statistics)."""
    precision: str
    target: str
    """Architecture compiled for, such as `sm_90`."""


# --- JSON --------------------------------------------------------------------------------------------------------

MAX_NODES, MAX_STORAGES, MAX_KERNELS, MAX_VARIANTS = 4096, 8192, 512, 128
MAX_TTIR_CHARS, MAX_TEXT_CHARS, MAX_ITEMS, MAX_DEPTH, MAX_RANK = 1_000_000, 512, 8192, 8, 16
MAX_STORAGE_BYTES = 1 << 40
_SPECIAL_KINDS = frozenset(("dtype", "device", "layout", "memory_format", "float", "complex", "triton_dtype", "function"))

T = TypeVar("T")


class PlanError(ValueError):
    """Bytes that are no plan. The message says where they stop being one."""


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
    elif isinstance(arg, tuple | list):
        for item in arg:
            yield from tensor_specs(item)


def encode_arg(arg: Arg) -> Any:
    """An argument as JSON values; what JSON cannot say is a one-key object."""
    if isinstance(arg, float) and not math.isfinite(arg):
        return {"s": ["float", repr(arg)]}
    if arg is None or isinstance(arg, bool | int | float | str):
        return arg
    if isinstance(arg, tuple):
        return [encode_arg(a) for a in arg]
    if isinstance(arg, list):
        return {"l": [encode_arg(a) for a in arg]}
    if isinstance(arg, TensorRef):
        return {"t": [arg.storage, arg.dtype, arg.shape, arg.stride, arg.offset]}
    if isinstance(arg, TensorSpec):
        return {"spec": [arg.dtype, arg.shape, arg.stride]}
    if isinstance(arg, Special):
        return {"s": [arg.kind, arg.value]}
    raise TypeError(f"a plan cannot hold a {type(arg).__name__}")


def _encode_node(node: Node) -> dict[str, Any]:
    if isinstance(node, AtenNode):
        kwargs = {k: encode_arg(v) for k, v in node.kwargs.items()}
        return {"op": node.op, "args": encode_arg(node.args), "kwargs": kwargs, "out": encode_arg(node.outputs)}
    return {"variants": [[v.kernel, v.grid, {k: encode_arg(a) for k, a in v.args.items()}] for v in node.variants]}


def encode(plan: Plan) -> bytes:
    """A plan as JSON. `decode` is its inverse."""
    row = {
        "format": FORMAT,
        "input_set": plan.input_set,
        "storages": [[s.kind, s.nbytes, s.source] for s in plan.storages],
        "setup": [_encode_node(n) for n in plan.setup],
        "nodes": [_encode_node(n) for n in plan.nodes],
        "outputs": encode_arg(plan.outputs),
        "kernels": [
            {
                "function": k.function,
                "ttir": k.ttir,
                "signature": k.signature,
                "constexprs": {n: encode_arg(v) for n, v in k.constexprs.items()},
                "launch": [k.num_warps, k.num_stages, k.num_ctas],
                "options": {n: encode_arg(v) for n, v in k.options.items()},
            }
            for k in plan.kernels
        ],
    }
    return json.dumps(row, allow_nan=False).encode()


def encode_spec(spec: TraceSpec) -> dict[str, Any]:
    """What a sandbox is told, as JSON values."""
    state = {k: encode_arg(v) for k, v in spec.state.items()}
    rest = [spec.input_set, spec.training, spec.precision, spec.target]
    return {"init": encode_arg(spec.init_inputs), "inputs": encode_arg(spec.inputs), "state": state, "rest": rest}


def decode_spec(row: dict[str, Any]) -> TraceSpec:
    """Inverse of `encode_spec`; comes from the trusted side, so it is not checked."""
    read = _Reader(())
    state = {k: read.arg(v, "state") for k, v in row["state"].items()}
    return TraceSpec(row["rest"][0], read.arg(row["init"], "init"), read.arg(row["inputs"], "inputs"), state, *row["rest"][1:])


def decode(data: bytes) -> Plan:
    """A plan from untrusted bytes: sizes bounded, numbers finite, every index in range, every view inside its storage.

    Raises PlanError.
    """
    try:
        row = json.loads(data, parse_constant=lambda name: _fail(f"the number {name}"))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not JSON: {error}") from None
    try:
        return _decode(row)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise error if isinstance(error, PlanError) else PlanError(f"malformed: {type(error).__name__}: {error}") from None


def _fail(what: str) -> NoReturn:
    raise PlanError(what)


def _decode(row: Any) -> Plan:
    _fields(row, "plan", {"format", "input_set", "storages", "setup", "nodes", "outputs", "kernels"})
    if row["format"] != FORMAT:
        _fail(f"format {row['format']!r}")
    storages = tuple(_storage(s) for s in _list(row["storages"], "storages", MAX_STORAGES))
    kernels = tuple(_kernel(k) for k in _list(row["kernels"], "kernels", MAX_KERNELS))
    read = _Reader(storages)
    nodes = {part: tuple(read.node(n, len(kernels)) for n in _list(row[part], part, MAX_NODES)) for part in ("setup", "nodes")}
    outputs = tuple(read.ref(o, "outputs") for o in _list(row["outputs"], "outputs", MAX_ITEMS))
    return Plan(_text(row["input_set"], "input_set"), storages, nodes["setup"], nodes["nodes"], outputs, kernels)


def _fields(row: Any, where: str, names: set[str]) -> None:
    if not isinstance(row, dict) or set(row) != names:
        _fail(f"{where}: fields {sorted(row) if isinstance(row, dict) else type(row).__name__}, not {sorted(names)}")


def _list(value: Any, where: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        _fail(f"{where}: no list of at most {most}")
    return value


def _text(value: Any, where: str, most: int = MAX_TEXT_CHARS) -> str:
    if not isinstance(value, str) or len(value) > most:
        _fail(f"{where}: no text of at most {most} characters")
    return value


def _int(value: Any, where: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    if type(value) is not int or not low <= value <= high:
        _fail(f"{where}: {str(value)[:40]} is no integer from {low} to {high}")
    return value


def _table(value: Any, where: str, read: Callable[[Any, str], T]) -> dict[str, T]:
    if not isinstance(value, dict) or len(value) > MAX_TEXT_CHARS:
        _fail(f"{where}: no table of at most {MAX_TEXT_CHARS} entries")
    return {_text(k, where): read(v, f"{where}.{k}") for k, v in value.items()}


def _storage(row: Any) -> Storage:
    kind, nbytes, source = row
    fits = {"input": type(source) is int and source >= 0, "state": isinstance(source, str), "temp": source is None}
    if not fits.get(kind):
        _fail(f"storages: kind {kind!r} with source {source!r}")
    return Storage(kind, _int(nbytes, "storages", high=MAX_STORAGE_BYTES), source)


def _kernel(row: Any) -> KernelSource:
    _fields(row, "kernels", {"function", "ttir", "signature", "constexprs", "launch", "options"})
    warps, stages, ctas = (_int(v, "launch", 1, 64) for v in row["launch"])
    read = _Reader(())
    function = _text(row["function"], "function")
    if not function.isidentifier():
        _fail("a function's name is no name")
    return KernelSource(
        function,
        _text(row["ttir"], "ttir", MAX_TTIR_CHARS),
        _table(row["signature"], "signature", _text),
        _table(row["constexprs"], "constexprs", read.arg),
        warps,
        stages,
        ctas,
        _table(row["options"], "options", _option),
    )


def _option(value: Any, where: str) -> Arg:
    """A backend option, of those that the tracer keeps: others reach ptxas' command line, or what is linked."""
    known = {"options.maxnreg": (int, type(None)), "options.enable_fp_fusion": bool}
    if not isinstance(value, known.get(where, ())):
        _fail(f"{where} = {str(value)[:40]}")
    return value


class _Reader:
    """Reads arguments and nodes that speak of one plan's storages."""

    def __init__(self, storages: tuple[Storage, ...]) -> None:
        self.storages = storages

    def node(self, row: Any, kernels: int) -> Node:
        if isinstance(row, dict) and set(row) == {"variants"}:
            variants = tuple(self._variant(v, kernels) for v in _list(row["variants"], "variants", MAX_VARIANTS))
            return LaunchNode(variants or _fail("a launch without variants"))
        _fields(row, "node", {"op", "args", "kwargs", "out"})
        op = _text(row["op"], "op")
        args = tuple(self.arg(a, op) for a in _list(row["args"], op, MAX_ITEMS))
        outputs = tuple(None if o is None else self.ref(o, op) for o in _list(row["out"], op, MAX_ITEMS))
        return AtenNode(op, args, _table(row["kwargs"], op, self.arg), outputs)

    def _variant(self, row: Any, kernels: int) -> Variant:
        kernel, grid, args = row
        x, y, z = (_int(g, "grid", 1, (1 << 31) - 1) for g in grid)
        return Variant(_int(kernel, "kernel", 0, kernels - 1), (x, y, z), _table(args, "launch", self.arg))

    def ref(self, value: Any, where: str) -> TensorRef:
        arg = self.arg(value, where)
        return arg if isinstance(arg, TensorRef) else _fail(f"{where}: not a tensor")

    def arg(self, value: Any, where: str, depth: int = 0) -> Arg:
        if depth > MAX_DEPTH:
            _fail(f"{where}: nested deeper than {MAX_DEPTH}")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return _int(value, where, -(1 << 63), (1 << 64) - 1)
        if isinstance(value, float):
            return value if math.isfinite(value) else _fail(f"{where}: {value}")
        if isinstance(value, str):
            return _text(value, where)
        if isinstance(value, list):
            return tuple(self.arg(v, where, depth + 1) for v in _list(value, where, MAX_ITEMS))
        if not isinstance(value, dict) or len(value) != 1:
            _fail(f"{where}: a {type(value).__name__}")
        ((tag, body),) = value.items()
        if tag == "l":
            return [self.arg(v, where, depth + 1) for v in _list(body, where, MAX_ITEMS)]
        if tag == "t":
            return self._tensor(body, where)
        if tag == "spec":
            dtype, shape, stride = body
            return TensorSpec(_dtype(dtype), _dims(shape, where), _dims(stride, where))
        if tag == "s":
            kind, text = body
            return Special(kind, _text(text, where)) if kind in _SPECIAL_KINDS else _fail(f"{where}: {kind!r}")
        return _fail(f"{where}: the tag {tag!r}")

    def _tensor(self, body: Any, where: str) -> TensorRef:
        storage, dtype, shape, stride, offset = body
        ref = TensorRef(
            _int(storage, where, 0, len(self.storages) - 1),
            _dtype(dtype),
            _dims(shape, where),
            _dims(stride, where),
            _int(offset, where),
        )
        if len(ref.shape) != len(ref.stride):
            _fail(f"{where}: {len(ref.shape)} sizes with {len(ref.stride)} strides")
        if ref.numel:
            last = ref.offset + sum((n - 1) * st for n, st in zip(ref.shape, ref.stride, strict=True))
            if (last + 1) * ITEM_BYTES[ref.dtype] > self.storages[ref.storage].nbytes:
                _fail(f"{where}: a view beyond the end of storage {ref.storage}")
        return ref


def _dtype(value: Any) -> str:
    return value if isinstance(value, str) and value in ITEM_BYTES else _fail(f"the dtype {value!r}")


def _dims(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_int(v, where, high=1 << 40) for v in _list(value, where, MAX_RANK))
