"""The dispatch mode that records each ATen call, and computes nothing: every new tensor is made on the meta device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.compat import called_directly, no_torch_functions, storage_key
from kernrl.verifier.plan.aten import BAGS, base_name
from kernrl.verifier.plan.plan import AtenNode
from kernrl.verifier.trace.convolution_layout import CONVOLUTIONS, as_cudnn_writes
from kernrl.verifier.trace.recorder import CPU, CUDA, LISTS, META, Recorder, tensors_in
from kernrl.verifier.trace.untraceable import VALUE_NEEDED, Untraceable

# Uninitialised allocation: storages appear, but nothing is computed.
_EMPTY = frozenset(f"aten.{n}" for n in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"))
_TURNING = frozenset(f"aten.{n}" for n in ("squeeze_", "unsqueeze_", "transpose_", "t_", "resize_"))
"""In-place calls that change a tensor's shape and strides, and no number."""
_ON_HOST = {
    "aten._local_scalar_dense.default": ".item() or a condition on a tensor",
    "aten.equal.default": "torch.equal, or a check of torch's own",
}
"""Operators that bring a number to the host, and what of the code asks for them."""
_INDEXED = frozenset(("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default"))
"""Operators of `x[i, j]`, which takes indices in host memory where x is on the GPU."""
_BATCH_NORM = frozenset(("aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"))


@called_directly
class RecordAten(TorchDispatchMode):
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
        inputs = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
        device = self._device(name, self._without_host_indices(args) if name in _INDEXED else inputs, kwargs)
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
        results = list(tensors_in(outputs))
        fresh = [t for t in results if storage_key(t) not in before]
        for tensor in fresh:
            recorder.place(tensor, device)
            recorder.placed_alike(tensor, inputs)
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
        if isinstance(value, LISTS):
            return type(value)(self._to_meta(v) for v in value)
        return value

    def _without_host_indices(self, args: Any) -> list[torch.Tensor]:
        """The operands of an indexed tensor, less indices that may lie in host memory."""
        x, indices, *values = args
        held = [i for i in tensors_in(indices) if self._on_host(x) or not self._on_host(i)]
        return [x, *held, *tensors_in(values)]

    def _on_host(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in self.recorder.on_cpu

    def _device(self, name: str, inputs: list[torch.Tensor], kwargs: dict[str, Any]) -> torch.device:
        """The device of the results in a real run. Raises RuntimeError for mixed devices, as a real run would."""
        wanted = kwargs.get("device")
        if wanted is not None:
            return self.recorder.factory_device if wanted.type == "meta" else CPU if wanted.type == "cpu" else CUDA
        if not inputs:
            return CPU
        on_cpu = {self._on_host(t) for t in inputs if t.dim() > 0} or {self._on_host(t) for t in inputs}
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


def _flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, LISTS):
        return [leaf for o in outputs for leaf in _flat(o)]
    return [outputs]


def _counts_batches(name: str, args: Any, recorder: Recorder) -> bool:
    """Whether this updates batch norm's step counter, an integer of the state that no output depends on."""
    if name != "aten.add_.Tensor" or args[0].dim() or args[0].dtype != torch.int64:
        return False
    return str(recorder.storages[recorder.adopt(args[0])].source).endswith("num_batches_tracked")
