"""Plans and trace specs as JSON, for a channel whose other end is not trusted.

Decoding accepts exactly the shapes and limits written here; anything else raises PlanError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from kernrl.verifier.plan.plan import (
    ITEM_BYTES,
    MAX_NODES,
    Arg,
    AtenNode,
    KernelSource,
    LaunchNode,
    Node,
    Plan,
    Special,
    Storage,
    TensorRef,
    TensorSpec,
    TraceSpec,
    Variant,
)

FORMAT = 1
MAX_STORAGES, MAX_KERNELS, MAX_VARIANTS = 8192, 512, 128
MAX_TTIR_CHARS, MAX_TEXT_CHARS, MAX_ITEMS, MAX_DEPTH, MAX_RANK = 1_000_000, 512, 8192, 8, 16
MAX_STORAGE_BYTES = 1 << 40
MAX_ELEMENTS = 1 << 60
"""Of one view; sizes of expanded dimensions count in full."""
_SPECIAL_KINDS = frozenset(("dtype", "device", "layout", "memory_format", "float", "complex", "triton_dtype", "function"))

T = TypeVar("T")


class PlanError(ValueError):
    """Bytes that are not a plan. The message says what is wrong and where."""


def encode_arg(arg: Arg) -> Any:
    """An argument as JSON values; what JSON cannot express becomes an object with one key."""
    if isinstance(arg, float) and not math.isfinite(arg):
        return {"s": ["float", repr(arg)]}
    if arg is None or isinstance(arg, bool | int | float | str):
        return arg
    if isinstance(arg, tuple):
        return [encode_arg(a) for a in arg]
    if isinstance(arg, list):
        return {"l": [encode_arg(a) for a in arg]}
    if isinstance(arg, dict):
        return {"d": [[name, encode_arg(part)] for name, part in arg.items()]}
    if isinstance(arg, SimpleNamespace):
        return {"n": [[name, encode_arg(part)] for name, part in vars(arg).items()]}
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
    """A trace spec as JSON values."""
    state = {k: encode_arg(v) for k, v in spec.state.items()}
    rest = [spec.input_set, spec.training, spec.precision, spec.target, spec.nesting, spec.modes_differ]
    inputs = {"inputs": encode_arg(spec.inputs), "names": list(spec.names)}
    return {"init": encode_arg(spec.init_inputs), **inputs, "state": state, "rest": rest}


def decode_spec(row: dict[str, Any]) -> TraceSpec:
    """Inverse of `encode_spec`. Specs come from the trusted side, so they are not checked."""
    read = _SpecReader(())
    state = {k: read.tensor_spec(v) for k, v in row["state"].items()}
    init, inputs = read.items(row["init"]), read.items(row["inputs"])
    return TraceSpec(row["rest"][0], init, inputs, state, *row["rest"][1:], names=tuple(row["names"]))


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
    """A backend option, if it is one that the tracer keeps: others could reach ptxas' command line or the linker."""
    allowed = {"options.maxnreg": (int, type(None)), "options.enable_fp_fusion": bool}
    if not isinstance(value, allowed.get(where, ())):
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
        return self.other(tag, body, where, depth)

    def other(self, tag: Any, body: Any, where: str, depth: int) -> Arg:
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
        if ref.numel > MAX_ELEMENTS:
            _fail(f"{where}: a view of more than {MAX_ELEMENTS} elements")
        if ref.numel:
            last = ref.offset + sum((n - 1) * st for n, st in zip(ref.shape, ref.stride, strict=True))
            if (last + 1) * ITEM_BYTES[ref.dtype] > self.storages[ref.storage].nbytes:
                _fail(f"{where}: a view beyond the end of storage {ref.storage}")
        return ref


class _SpecReader(_Reader):
    """Also reads dictionaries and objects with settings, which a constructor or a forward may take and no ATen call."""

    def items(self, value: Any) -> tuple[Arg, ...]:
        arg = self.arg(value, "spec")
        return arg if isinstance(arg, tuple) else _fail(f"spec: a {type(arg).__name__}")

    def tensor_spec(self, value: Any) -> TensorSpec:
        arg = self.arg(value, "state")
        return arg if isinstance(arg, TensorSpec) else _fail(f"state: a {type(arg).__name__}")

    def other(self, tag: Any, body: Any, where: str, depth: int) -> Arg:
        if tag == "d":
            return {name: self.arg(part, where, depth + 1) for name, part in body}
        if tag == "n":
            return SimpleNamespace(**{name: self.arg(part, where, depth + 1) for name, part in body})
        return super().other(tag, body, where, depth)


def _dtype(value: Any) -> str:
    return value if isinstance(value, str) and value in ITEM_BYTES else _fail(f"the dtype {value!r}")


def _dims(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_int(v, where, high=1 << 40) for v in _list(value, where, MAX_RANK))
