"""Records what PyTorch code would do, without doing it.

Everything runs on meta tensors: shapes and aliasing are real, memory is not. Under `Recorder.recording`, a function mode
makes them look like CUDA tensors (`x.is_cuda`, `x.device`, `device="cuda"`, `.to("cuda")`), and a dispatch mode records each
ATen call over numbered storages. The sandbox uses it for candidates, the trusted side for references. No CUDA tensor is ever
made, so it works on CPU and CUDA builds of torch.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.compat import (
    called_directly,
    has_default_device,
    mode_depth,
    no_dispatch,
    no_torch_functions,
    redraws,
    storage_key,
)
from kernrl.verifier.plan.aten import BAGS, base_name
from kernrl.verifier.plan.plan import CONSTANT_OP, MAX_NODES, AtenNode, Node, Special, Storage, TensorRef, TensorSpec
from kernrl.verifier.trace.constant_tensors import constant_value
from kernrl.verifier.trace.convolution_layout import CONVOLUTIONS, as_cudnn_writes

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
MAX_CONSTANT_ITEMS = 4096
FAKE_ADDRESS_BITS = 46
"""What `data_ptr()` returns in a trace lies between 2^46 and 2^47, where nothing else does."""


class Untraceable(RuntimeError):
    """The code needs a tensor's value, or does what a plan cannot express. The message says what to write instead."""

    last: ClassVar[Untraceable | None] = None
    """The one raised last, kept because code may catch it: that would select a path that never runs outside the trace."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        Untraceable.last = self


@contextlib.contextmanager
def none_swallowed() -> Iterator[None]:
    """Raise Untraceable if code within catches one and goes on."""
    Untraceable.last = None
    yield
    if (swallowed := Untraceable.last) is not None:
        raise Untraceable(f"{swallowed}; it must not be caught")


ADVICE = ", which cannot be traced: decide from shapes, or do it in the kernel"
VALUE_NEEDED = "forward() reads a tensor's value on the host ({what})" + ADVICE

WITHOUT_SHAPE = (
    "makes a tensor whose shape depends on numbers, or whose shape torch does not know without them: "
    "do it in a kernel, or by operations whose results have a known size, such as scatter_add, where and masks"
)


def without_shape(error: BaseException) -> str:
    """The operator that cannot be called on tensors without values, of torch's exception; '' if it is another one."""
    text = str(error).strip()
    lower = text.lower()
    without = "meta tensor" in lower or "'meta' backend" in lower or "internal assert failed" in lower
    if not without and not (isinstance(error, NotImplementedError) and "meta" in lower):
        return ""
    named = re.search(r"(aten::\w+|torch\.\w+\(\)|'aten::\w+)", text) or re.search(r"(\w+) a meta tensor", text)
    return named.group(1).strip("'") if named else "an operation"


# Uninitialised allocation: storages appear, but nothing is computed.
_EMPTY = frozenset(f"aten.{n}" for n in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"))
_TURNING = frozenset(f"aten.{n}" for n in ("squeeze_", "unsqueeze_", "transpose_", "t_", "resize_"))
"""In-place calls that change a tensor's shape and strides, and no number."""
_MARKED = "a tensor is conjugated or negated by a mark alone, which a plan cannot hold: call resolve_conj(), or use a kernel"
_ON_HOST = {
    "aten._local_scalar_dense.default": ".item() or a condition on a tensor",
    "aten.equal.default": "torch.equal, or a check of torch's own",
}
"""Operators that bring a number to the host, and what of the code asks for them."""
_BATCH_NORM = frozenset(("aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"))


_LISTS, _PLAIN = (list, tuple), (bool, int, float, str, complex)
"""For `isinstance`: to write `list | tuple` makes an object each time, and this is asked for each argument of each call."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Recorder:
    """Storages and nodes recorded so far."""

    current: ClassVar[Recorder | None] = None
    """The one that records."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.nodes: list[Node] = []
        self._index: dict[int, int] = {}
        self._alive: list[Any] = []
        self.on_cpu: set[int] = set()
        """Storages (by key) that would be in host memory in a real run."""
        self.factory_device = CUDA
        self.nesting = ""
        """How the tensors are nested that forward returned."""
        self.foreign: set[int] = set()
        """Storages (by key) of other recordings, which were made once and live on, and whether one of them is used here."""
        self.uses_foreign = False
        self.frozen = False
        """Whether a candidate that asks is told that parameters need no gradients."""
        self.statistics: set[int] = set()
        """Storages of running statistics, which every call in training mode changes."""

    def adopt(self, tensor: torch.Tensor, kind: str = "temp", source: int | str | None = None) -> int:
        """Number a tensor's storage. A known storage keeps its number; a `kind` other than temp replaces its kind."""
        key = storage_key(tensor)
        known = self._index.get(key)
        if known is not None and kind == "temp":
            self._grow(known, tensor.untyped_storage().nbytes())
            return known
        storage = Storage(kind, tensor.untyped_storage().nbytes(), source)  # pyright: ignore[reportArgumentType]
        if known is not None:
            self.storages[known] = storage
            return known
        self.uses_foreign |= key in self.foreign
        self._index[key] = len(self.storages)
        self.storages.append(storage)
        # if it were freed, its key could be reused
        self._alive.append(tensor.untyped_storage())
        return self._index[key]

    def _grow(self, number: int, nbytes: int) -> None:
        """Note that a storage was resized. It keeps what it holds, and the rest of it is uninitialised."""
        storage = self.storages[number]
        if nbytes > storage.nbytes:
            if storage.kind != "temp":
                raise Untraceable("the memory of an input or a parameter is resized: make a new tensor")
            self.storages[number] = replace(storage, nbytes=nbytes)

    def storage_keys(self) -> Iterable[int]:
        """Of every storage."""
        return self._index

    def ref(self, tensor: torch.Tensor) -> TensorRef:
        """A tensor as a view of its storage. Raises Untraceable for one whose numbers are others than those in memory."""
        with no_torch_functions():
            if tensor.is_conj() or tensor.is_neg():
                raise Untraceable(_MARKED)
            return self._place_of(tensor)

    def _place_of(self, tensor: torch.Tensor) -> TensorRef:
        with no_torch_functions():
            number = self.adopt(tensor)
            return TensorRef(
                number, dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
            )

    def resolved(self, tensor: torch.Tensor, into: TensorRef | None = None) -> TensorRef:
        """Record that what is conjugated, or negated, by a mark alone is computed, where it is read."""
        with no_torch_functions():
            if tensor.is_conj() and tensor.is_neg():
                raise Untraceable(_MARKED)
            op = "aten.conj_physical.default" if tensor.is_conj() else "aten.neg.default"
            of = self._place_of(tensor)
            into = into or self.ref(self.empty(TensorSpec(of.dtype, of.shape, _dense(of.shape))))
        self.record(AtenNode(op, (of,), {}, (into,)))
        return into

    def empty(self, spec: TensorSpec, kind: str = "temp", source: int | str | None = None) -> torch.Tensor:
        """A meta tensor of a spec, its storage numbered."""
        with no_torch_functions(), torch._C._DisableTorchDispatch():  # it is no operation of the code
            dtype = getattr(torch, spec.dtype)
            tensor = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=META)
            self.adopt(tensor, kind, source)
        return tensor

    def record(self, node: Node) -> None:
        """Append a node. Raises Untraceable beyond the number that a plan may hold."""
        if len(self.nodes) >= MAX_NODES:
            raise Untraceable(f"forward() does more than {MAX_NODES} operations: put loops over elements into the kernel")
        self.nodes.append(node)

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Within, ATen calls of this thread are recorded and nothing is computed."""
        before, Recorder.current = Recorder.current, self
        try:
            with _LookLikeCuda(self), _RecordAten(self):
                depth = mode_depth()
                yield self
                if mode_depth() != depth and has_default_device():
                    raise Untraceable(
                        "the code leaves torch.set_default_device on: say where tensors are made, by device=x.device"
                    )
                if mode_depth() != depth:
                    raise Untraceable("the code leaves a mode of torch on: leave its block again, or do without")
        finally:
            Recorder.current = before

    def is_cpu(self, tensor: torch.Tensor) -> bool:
        with no_torch_functions():
            return storage_key(tensor) in self.on_cpu

    @contextlib.contextmanager
    def factory_on(self, device: torch.device) -> Iterator[None]:
        """Within, tensors made on the meta device count as made on `device`."""
        before, self.factory_device = self.factory_device, CPU if device.type == "cpu" else CUDA
        try:
            yield
        finally:
            self.factory_device = before

    def constant(self, real: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A meta tensor for a small tensor whose values are written into the plan."""
        with no_torch_functions():
            if real.numel() > MAX_CONSTANT_ITEMS:
                raise Untraceable(
                    f"a tensor of {real.numel()} values is written out in Python: make it with operations such as torch.arange"
                )
            with no_dispatch():
                real = real.detach().contiguous()
                values = tuple(_plain(v) for v in real.flatten().tolist())
                if any(type(v) is int and v >> FAKE_ADDRESS_BITS == 1 for v in values):
                    raise Untraceable("a tensor of addresses cannot be traced: pass each tensor as an argument of its own")
                meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=META)
            shape = tuple(real.shape)
        dtype = Special("dtype", dtype_name(real.dtype))
        self.record(AtenNode(CONSTANT_OP, (values, shape), {"dtype": dtype}, (self.ref(meta),)))
        self.place(meta, device)
        return meta

    def constant_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a tensor in host memory that depends on nothing but the code; None for any other."""
        return constant_value(self.ref(tensor), self.nodes, self.storages) if self.is_cpu(tensor) else None

    def place(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Remember on which device this storage would be in a real run."""
        with no_torch_functions():
            key = storage_key(tensor)
            self.adopt(tensor)
        self.on_cpu.discard(key)
        if device.type == "cpu":
            self.on_cpu.add(key)

    def arg(self, value: Any) -> Any:
        """An argument of an ATen call as the plan stores it."""
        if isinstance(value, torch.Tensor):
            return self.resolved(value) if value.is_conj() or value.is_neg() else self.ref(value)
        if isinstance(value, _LISTS):
            return tuple(self.arg(v) for v in value)
        if isinstance(value, torch.dtype):
            return Special("dtype", dtype_name(value))
        if isinstance(value, torch.device):
            return Special("device", "cuda")
        if isinstance(value, torch.layout):
            return Special("layout", str(value).removeprefix("torch."))
        if isinstance(value, torch.memory_format):
            return Special("memory_format", str(value).removeprefix("torch."))
        if value is None or isinstance(value, _PLAIN):
            return _plain(value)
        raise Untraceable(f"an argument of type {type(value).__name__} cannot be recorded")


def exact(value: Any) -> Any:
    """A number of a class of its own, which may compare as it likes, as Python's own; other values as they are."""
    if type(value) in (bool, int, float):
        return value
    if isinstance(value, int):
        return int.__pos__(value)
    return float.__pos__(value) if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    value = exact(value)
    if isinstance(value, complex):
        return Special("complex", repr(value))
    if isinstance(value, float) and not math.isfinite(value):
        return Special("float", repr(value))
    return value


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, _LISTS):
        for item in tree:
            yield from _tensors(item)


@called_directly
class _RecordAten(TorchDispatchMode):
    """Records ATen calls; makes every new tensor on the meta device."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        with no_torch_functions():
            return self._call(func, args, dict(kwargs or {}))

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        recorder, operator = self.recorder, _operator(func)
        name = operator.name
        if name in _ON_HOST:
            raise Untraceable(VALUE_NEEDED.format(what=_ON_HOST[name]))
        args = tuple(self._to_meta(a) for a in args)
        kwargs = {k: self._to_meta(v) for k, v in kwargs.items()}
        inputs = [*_tensors(args), *_tensors(list(kwargs.values()))]
        device = self._device(name, inputs, kwargs)
        if operator.takes_device and (not inputs or kwargs.get("device") is not None):
            kwargs["device"] = META
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False  # what is made in host memory is made on the GPU, where nothing can be pinned
        if name in _BATCH_NORM and args[5]:
            # in training mode the output does not depend on the running statistics, and a plan does not change state
            args = (*args[:3], None, None, *args[5:])
        before = {storage_key(t) for t in inputs}
        outputs = func(*args, **kwargs)
        if name in CONVOLUTIONS and device is CUDA:
            outputs = as_cudnn_writes(outputs, *args[:2])
        results = list(_tensors(outputs))
        fresh = [t for t in results if storage_key(t) not in before]
        for tensor in fresh:
            recorder.place(tensor, device)
        if operator.computes_nothing or (not fresh and not operator.is_mutable):
            return outputs
        if _counts_batches(name, args, recorder):
            return outputs
        flat = list(_flat(outputs))
        if (name in _BATCH_NORM and not args[5]) or base_name(name) in BAGS:
            # of the statistics that it saves in training, or of what it tells of its bags, devices make tensors of other shapes
            flat[1:] = [None] * len(flat[1:])
        refs = tuple(recorder.ref(t) if isinstance(t, torch.Tensor) else None for t in flat)
        if name == "aten.clone.default" and (args[0].is_conj() or args[0].is_neg()):
            recorder.resolved(args[0], refs[0])
            return outputs
        recorder.record(AtenNode(name, recorder.arg(args), {k: recorder.arg(v) for k, v in kwargs.items()}, refs))
        return outputs

    def _to_meta(self, value: Any) -> Any:
        """A real tensor as a constant of the plan; other values as they are."""
        if isinstance(value, torch.Tensor) and value.device.type != "meta":
            return self.recorder.constant(value, CPU)
        if isinstance(value, _LISTS):
            return type(value)(self._to_meta(v) for v in value)
        return value

    def _device(self, name: str, inputs: list[torch.Tensor], kwargs: dict[str, Any]) -> torch.device:
        """The device of the results in a real run. Raises RuntimeError for mixed devices, as a real run would."""
        wanted = kwargs.get("device")
        if wanted is not None:
            return self.recorder.factory_device if wanted.type == "meta" else CPU if wanted.type == "cpu" else CUDA
        if not inputs:
            return CPU
        on_cpu = {storage_key(t) in self.recorder.on_cpu for t in inputs if t.dim() > 0} or {
            storage_key(t) in self.recorder.on_cpu for t in inputs
        }
        if len(on_cpu) == 2 and not name.startswith("aten.copy"):
            raise RuntimeError(
                f"{name}: tensors on cuda:0 and cpu are mixed: make constants with device=x.device, or register them as buffers"
            )
        return CPU if on_cpu == {True} else CUDA


@dataclass(frozen=True, slots=True)
class _Operator:
    """What is asked of an ATen operator at each call."""

    name: str
    takes_device: bool
    is_mutable: bool
    computes_nothing: bool


@functools.cache
def _operator(func: Any) -> _Operator:
    """Read once: a schema is slow to read."""
    schema = func._schema
    takes_device = any(a.name == "device" for a in schema.arguments)
    return _Operator(str(func), takes_device, schema.is_mutable, str(func.overloadpacket) in _EMPTY | _TURNING)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, _LISTS):
        return [leaf for o in outputs for leaf in _flat(o)]
    return [outputs]


def _counts_batches(name: str, args: Any, recorder: Recorder) -> bool:
    """Whether this updates batch norm's step counter, an integer of the state that no output depends on."""
    if name != "aten.add_.Tensor" or args[0].dim() or args[0].dtype != torch.int64:
        return False
    storage = recorder.storages[recorder.adopt(args[0])]
    return storage.kind == "state" and str(storage.source).endswith("num_batches_tracked")


def _named(place: torch.device | str | int) -> torch.device:
    """A device; torch would ask a driver which kind the one of this number is."""
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


_VALUES = {
    name: what
    for what, names in {
        ".item()": ("item", "__float__", "__int__", "__index__", "__complex__"),
        ".tolist() or .numpy()": ("tolist", "numpy", "__array__"),
        "a condition on a tensor": ("__bool__",),
        ".cpu()": ("cpu",),
        "torch.allclose, which belongs in a test": ("allclose",),
        "torch.istft, which looks at its window's numbers": ("istft",),
    }.items()
    for name in names
}


_OF_SEVERAL = ("allclose", "istft")
"""Of these, the first operand alone does not say what they give."""


_BY_GRADIENTS = frozenset((
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.linalg.matmul,
    torch.nn.functional.linear, torch.nn.functional.embedding_bag, torch.embedding_bag,
))  # fmt: skip
"""They call other operators where an operand needs gradients."""


def _computed_for_nothing(value: Any) -> Any:
    """An operand that autograd knows nothing of, so that what is called is the same in every mode. A parameter stays one."""
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        return value.detach()
    return value


class _LookLikeCuda(TorchFunctionMode):
    """Makes meta tensors answer Python code as CUDA tensors would, above dispatch."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args)
        if name in _VALUES and args and isinstance(args[0], torch.Tensor):
            if name == "cpu" and self.recorder.is_cpu(args[0]):
                return args[0]
            if name == "__bool__" and redraws(sys._getframe(1)):
                return False  # numbers that are out of range; what a parameter starts as is no part of a plan
            if name not in _OF_SEVERAL and (real := self.recorder.constant_value(args[0])) is not None:
                with no_torch_functions(), no_dispatch():
                    return func(real, *args[1:], **kwargs)
            raise Untraceable(VALUE_NEEDED.format(what=_VALUES[name]))
        if func in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy):
            return self._literal(func, args, kwargs)
        if func is torch.Tensor.new_tensor:
            device = CPU if self.recorder.is_cpu(args[0]) else CUDA
            return self._literal(torch.tensor, args[1:], {"dtype": args[0].dtype, "device": device, **kwargs})
        if func in (torch.Tensor.to, torch.Tensor.cuda):
            return self._move(func, args, kwargs)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func in _BY_GRADIENTS:
            args = tuple(map(_computed_for_nothing, args))
            kwargs = {k: _computed_for_nothing(v) for k, v in kwargs.items()}
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            with no_torch_functions(), no_dispatch():
                name = torch.empty(0, dtype=args[0].dtype).type()
            return name if self.recorder.is_cpu(args[0]) else name.replace("torch.", "torch.cuda.")
        if func is torch.Tensor.is_inference:
            return torch.is_inference_mode_enabled()
        if func is torch.Tensor.get_device:
            return -1 if self.recorder.is_cpu(args[0]) else 0
        if func is torch.Tensor.data_ptr:
            # host code may test alignment with it; a launch refuses it as an argument
            ref = self.recorder.ref(args[0])
            with no_torch_functions():
                return (1 << FAKE_ADDRESS_BITS) + (ref.storage << 32) + ref.offset * args[0].element_size()
        if kwargs.get("device") is not None and func is not torch.Tensor.to:
            # torch would look for a CUDA driver before it calls any mode
            with self.recorder.factory_on(_named(kwargs["device"])):
                return func(*args, **{**kwargs, "device": META})
        return func(*args, **kwargs)

    def _attribute(self, func: Any, args: Any) -> Any:
        owner = func.__self__
        if owner is torch.Tensor.device:
            return CPU if self.recorder.is_cpu(args[0]) else CUDA
        if owner is torch.Tensor.is_cuda:
            return not self.recorder.is_cpu(args[0])
        if owner is torch.Tensor.is_cpu:
            return self.recorder.is_cpu(args[0])
        if owner is torch.Tensor.is_meta:
            return False
        if owner is torch.Tensor.requires_grad and self.recorder.frozen and isinstance(args[0], torch.nn.Parameter):
            return func(*args) and not sys._getframe(2).f_code.co_filename.endswith("candidate.py")
        return func(*args)

    def _literal(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        place = kwargs.pop("device", None)
        device = CPU if place is None else _named(place)
        data = args[0]
        if isinstance(data, torch.Tensor):
            return data.to(device=device, dtype=kwargs.get("dtype"))
        if any(True for _ in _tensors(data)):
            raise Untraceable(
                VALUE_NEEDED.format(what="a tensor inside torch.tensor([...])") + "; torch.stack keeps it a tensor"
            )
        kwargs.pop("requires_grad", None)
        kwargs.pop("pin_memory", None)
        with no_torch_functions(), no_dispatch():
            real = func(*args, **kwargs)
        return self.recorder.constant(real, CUDA if device.type == "cuda" else CPU)

    def _move(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """`.to(...)` and `.cuda()`: free if the tensor is there already, otherwise a copy."""
        tensor, rest = args[0], list(args[1:])
        wanted: torch.device | None = CUDA if func is torch.Tensor.cuda else None
        if wanted is not None:
            rest, kwargs = [], {}
        if rest and isinstance(rest[0], torch.Tensor):
            wanted = CPU if self.recorder.is_cpu(rest[0]) else CUDA
            rest[0] = rest[0].dtype
        elif rest and (rest[0] is None or (isinstance(rest[0], str | torch.device | int) and not isinstance(rest[0], bool))):
            place = rest.pop(0)
            wanted = _named(place) if place is not None else None
        if rest and rest[0] is None:  # a module's `to` gives no dtype to integers, and none that is not asked for
            rest = [tensor.dtype, *rest[1:]]
        if kwargs.get("device") is not None:
            wanted = _named(kwargs["device"])
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
        if wanted is not None and wanted.type not in ("cuda", "cpu"):
            raise Untraceable(f"there is no {wanted} here: keep tensors on the input's device")
        is_cpu = self.recorder.is_cpu(tensor)
        if wanted is not None and wanted.type == "cpu" and not is_cpu:
            raise Untraceable(VALUE_NEEDED.format(what='.to("cpu")'))
        if rest or kwargs:
            tensor = torch.Tensor.to(tensor, *rest, **kwargs)
        if wanted is not None and wanted.type == "cuda" and is_cpu:
            tensor = tensor.clone()
            self.recorder.place(tensor, CUDA)
        return tensor
