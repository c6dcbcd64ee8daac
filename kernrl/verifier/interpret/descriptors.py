"""Tensor descriptors: what `tt.make_tensor_descriptor` makes, and the addresses that a block of one has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernrl.verifier.interpret.ttir_types import Type, read_type
from kernrl.verifier.plan.ttir import Op, TtirError


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor: base address, sizes and strides in elements (each [cases, programs]), and the block it moves."""

    base: Tensor
    shape: list[Tensor]
    stride: list[Tensor]
    block: Type

    def addresses(self, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Byte addresses of the block that begins at the indices, and a mask of those inside the tensor."""
        rank = len(self.block.shape)
        address = self.base.reshape(*self.base.shape, *[1] * rank)
        mask = torch.ones(1, dtype=torch.bool)
        for axis, (size, index) in enumerate(zip(self.block.shape, indices, strict=True)):
            along = index.long().unsqueeze(-1) + torch.arange(size)
            along = along.reshape(*index.shape, *[1] * axis, size, *[1] * (rank - 1 - axis))
            limit, stride = (v.reshape(*v.shape, *[1] * rank) for v in (self.shape[axis], self.stride[axis]))
            mask = mask & (along >= 0) & (along < limit)
            address = address + along * stride * self.block.dtype.itemsize
        address, mask = torch.broadcast_tensors(address, mask)
        return address, mask


def make_descriptor(op: Op, operands: Sequence[Tensor]) -> Descriptor:
    """`tt.make_tensor_descriptor`. Raises TtirError for a kind that is unknown."""
    rank = (len(operands) - 1) // 2
    base, *rest = operands
    # `<tensor<64x32xf32>>`, and `<64x32xf32>` from triton 3.9 on
    found = re.search(r"<((?:\d+x)+\w+)>>?\s*$", op.types)
    if found is None or "PAD_NAN" in op.text:
        raise TtirError("a descriptor of an unknown kind")
    shape, stride = rest[:rank], rest[rank:]
    return Descriptor(base, [s.long() for s in shape], [s.long() for s in stride], read_type(f"tensor<{found[1]}>"))
