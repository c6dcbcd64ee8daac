"""Tensors whose elements share memory: `expand` gives an axis a stride of zero."""

from __future__ import annotations

from torch import Tensor


def unexpanded(tensor: Tensor) -> Tensor:
    """One of the elements that an expanded input has many times in one place, along each axis: what can be written to."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        tensor = tensor.narrow(axis, 0, 1) if size > 1 and stride == 0 else tensor
    return tensor
