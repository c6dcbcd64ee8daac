"""Calls a plan's ATen nodes with plain torch. Neither kernels nor Python code of a candidate run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.plan.plan import CONSTANT_OP, AtenNode, Special, TensorRef, whole_numbers

ViewOf = Callable[[TensorRef], Tensor]
"""Gives a plan's view as a torch tensor over its memory."""


def call_aten(node: AtenNode, view_of: ViewOf, device: str) -> list[Any]:
    """Results of one node, flattened, in the order of `node.outputs`. Raises whatever torch raises."""
    if node.op == CONSTANT_OP:
        (values, shape), dtype = node.args, node.kwargs["dtype"]
        if not isinstance(values, list | tuple) or not isinstance(dtype, Special):
            raise TypeError(f"{CONSTANT_OP} takes values, a shape and a dtype")
        numbers = [plain_value(v, device) for v in values]
        return [torch.tensor(numbers, dtype=getattr(torch, dtype.value), device=device).reshape(whole_numbers(shape))]
    _, packet, overload = node.op.split(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    args = [_argument(a, view_of, device) for a in node.args]
    return _leaves(operator(*args, **{k: _argument(v, view_of, device) for k, v in node.kwargs.items()}))


def store_aten(node: AtenNode, view_of: ViewOf, device: str) -> None:
    """Call one node and copy each result to its place in memory, unless it is there already."""
    for result, ref in zip(call_aten(node, view_of, device), node.outputs, strict=True):
        if ref is not None and result is not None:
            place = view_of(ref)
            if place.data_ptr() != result.data_ptr():
                place.copy_(result)


def view(memory: Tensor, ref: TensorRef) -> Tensor:
    """A plan's view as a tensor over its storage's bytes (uint8, 1-D)."""
    dtype = getattr(torch, ref.dtype)
    flat = memory[: memory.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return flat.as_strided(ref.shape, ref.stride, flat.storage_offset() + ref.offset)


def plain_value(arg: Any, device: str) -> Any:
    """The value that a `Special` stands for; any other argument as it is."""
    if not isinstance(arg, Special):
        return arg
    if arg.kind in ("float", "complex"):
        return {"float": float, "complex": complex}[arg.kind](arg.value)
    return torch.device(device) if arg.kind == "device" else getattr(torch, arg.value)


def _argument(arg: Any, view_of: ViewOf, device: str) -> Any:
    if isinstance(arg, TensorRef):
        return view_of(arg)
    if isinstance(arg, tuple | list):
        return [_argument(a, view_of, device) for a in arg]
    return plain_value(arg, device)


def _leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple | list) else [value]
