"""What PyTorch code would do: numbered storages, and the nodes that read and write them.

Everything runs on meta tensors: shapes and aliasing are real, memory is not. `recording` puts on the modes that write here.
The sandbox uses it for candidates, the trusted side for references. No CUDA tensor is ever made, so it works on CPU and CUDA
builds of torch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions, storage_key
from kernrl.verifier.plan.overlap import span_bytes
from kernrl.verifier.plan.plan import CONSTANT_OP, MAX_NODES, AtenNode, Node, Special, Storage, TensorRef, TensorSpec
from kernrl.verifier.trace.constant_tensors import constant_value
from kernrl.verifier.trace.untraceable import Untraceable

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
MAX_CONSTANT_ITEMS = 4096
FAKE_ADDRESS_BITS = 46
"""What `data_ptr()` returns in a trace lies between 2^46 and 2^47, where nothing else does."""

_MARKED = "a tensor is conjugated or negated by a mark alone, which a plan cannot hold: call resolve_conj(), or use a kernel"

LISTS, _PLAIN = (list, tuple), (bool, int, float, str, complex)
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
        self.copies: dict[int, Any] | None = None
        """Storages (by key) and their copies, while a module is copied."""
        self.handed: list[tuple[list[torch.Tensor], list[Any]]] = []
        """Inputs and outputs of each call, and what they stood for when it ended."""
        self.parameters: set[int] = set()
        """Tensors (by id) in the places of parameters, which are computed from these."""
        self._parts: dict[int, tuple[int, int]] = {}
        """Of inputs that are parts of larger tensors: bytes that lie before them in their storage, and their own."""

    def adopt(self, tensor: torch.Tensor, kind: str = "temp", source: int | str | None = None) -> int:
        """Number a tensor's storage. A known storage keeps its number; a `kind` other than temp replaces its kind."""
        key = storage_key(tensor)
        known = self._index.get(key)
        if known is not None and kind == "temp":
            if known not in self._parts or self.storages[known].kind != "temp":
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
            number, (offset, _) = self.adopt(tensor), self.extent(tensor)
            return TensorRef(number, dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), offset)

    def extent(self, tensor: torch.Tensor) -> tuple[int, int]:
        """A tensor's offset in its storage, and that storage's bytes; a part of a larger tensor is taken for a whole one."""
        with no_torch_functions():
            memory, offset = tensor.untyped_storage(), int(tensor.storage_offset())
            if (found := self._parts.get(self._index.get(memory._cdata, -1))) is None:
                return offset, memory.nbytes()
            return offset - found[0] // tensor.itemsize, found[1]

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

    def part(self, spec: TensorSpec, source: int, before: int, after: int) -> torch.Tensor:
        """An input as a view of a larger tensor, with so many bytes before and after it, which a plan knows nothing of."""
        with no_torch_functions(), torch._C._DisableTorchDispatch():
            dtype = getattr(torch, spec.dtype)
            own = span_bytes(spec)
            larger = torch.empty((before + own + after) // dtype.itemsize, dtype=dtype, device=META)
            tensor = larger.as_strided(spec.shape, spec.stride, before // dtype.itemsize)
            self._parts[self.adopt(tensor, "input", source)] = before, own
        return tensor

    def placed_alike(self, result: torch.Tensor, operands: Sequence[torch.Tensor]) -> None:
        """Take a result for a whole tensor, too, that lies where a part lay in its own memory (`diagonal_scatter`)."""

        def place(tensor: torch.Tensor) -> tuple[Any, ...]:
            return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset()

        if not self._parts or not result.storage_offset():
            return
        for operand in operands:
            found = self._parts.get(self._index.get(storage_key(operand), -1))
            if found and place(operand) == place(result):
                number = self.adopt(result)
                self._parts[number] = found
                self.storages[number] = replace(self.storages[number], nbytes=found[1])

    def copy_of(self, tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        """What `copy.deepcopy` makes of a tensor on a GPU: a view of a copy of its memory, which others of its views share."""
        if not tensor.is_leaf:
            raise RuntimeError("only leaves of autograd's graph can be copied")  # as torch says
        assert self.copies is not None
        with torch.no_grad():
            key, memory = storage_key(tensor), tensor.untyped_storage()
            if key not in self.copies:
                self.copies[key] = torch.empty(memory.nbytes(), dtype=torch.uint8, device=META).untyped_storage()
            made = torch.empty(0, dtype=tensor.dtype, device=META)
            made.set_(self.copies[key], tensor.storage_offset(), tensor.shape, tensor.stride())
        if key in self.on_cpu:
            self.on_cpu.add(storage_key(made))
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return made

    def record(self, node: Node) -> None:
        """Append a node. Raises Untraceable beyond the number that a plan may hold."""
        if len(self.nodes) >= MAX_NODES:
            raise Untraceable(f"forward() does more than {MAX_NODES} operations: put loops over elements into the kernel")
        self.nodes.append(node)

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
        if isinstance(value, LISTS):
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


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


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


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, in lists and tuples inside one another."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, LISTS):
        for item in tree:
            yield from tensors_in(item)
