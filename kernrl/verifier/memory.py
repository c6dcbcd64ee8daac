"""The imaginary memory that interpreted kernels address: a checked byte address for every element of every storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernrl.verifier.ttir import TtirError

STORAGE_BITS = 40
"""Storage `i` begins at address `i << 40`."""


class Fault(RuntimeError):
    """The kernel did what a GPU would fault on: an access out of bounds or misaligned."""


@dataclass(slots=True)
class Memory:
    """The storages a kernel can reach, as flat byte tensors by number."""

    storages: Mapping[int, Tensor]

    def flat(self, address: Tensor, dtype: torch.dtype, what: str) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(elements of a storage, positions of addresses in it, which addresses those are); addresses [n] are checked."""
        lowest, highest = (int(a) >> STORAGE_BITS for a in torch.aminmax(address))
        if lowest == highest:  # as nearly always
            return [(*self._within(lowest, address, dtype, what), torch.arange(len(address)))]
        parts = []
        numbers = address >> STORAGE_BITS
        for number in torch.unique(numbers).tolist():
            inside = (numbers == number).nonzero().squeeze(1)
            parts.append((*self._within(number, address[inside], dtype, what), inside))
        return parts

    def _within(self, number: int, address: Tensor, dtype: torch.dtype, what: str) -> tuple[Tensor, Tensor]:
        """The elements of a storage, and the positions in it of addresses that all begin there."""
        offset = address & ((1 << STORAGE_BITS) - 1)
        storage = self.storages.get(number)
        if storage is None:
            raise Fault(f"{what} out of bounds: byte 0 of a buffer of 0")
        size, furthest = storage.numel(), int(offset.max())
        # a pointer a little before its storage lies at the end of the one below
        if furthest + dtype.itemsize > size:
            raise Fault(f"{what} out of bounds: byte {furthest} of a buffer of {size}")
        position = offset // dtype.itemsize
        if dtype.itemsize > 1 and not torch.equal(position * dtype.itemsize, offset):
            raise Fault(f"{what} at a misaligned address")
        return storage[: size // dtype.itemsize * dtype.itemsize].view(dtype), position

    def load(self, address: Tensor, mask: Tensor, other: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Elements at byte addresses where `mask` holds, else `other` (or 0)."""
        if other is not None:
            result = torch.broadcast_to(other, address.shape).contiguous().clone()
        else:
            result = torch.zeros(address.shape, dtype=dtype)
        where = mask.reshape(-1).nonzero().squeeze(1)
        if where.numel():
            flat = result.view(-1)
            for whole, position, inside in self.flat(address.reshape(-1)[where], dtype, "a load"):
                flat[where[inside]] = whole[position]
        return result

    def store(self, address: Tensor, value: Tensor, mask: Tensor) -> None:
        """Write elements at byte addresses where `mask` holds."""
        where = mask.reshape(-1).nonzero().squeeze(1)
        if where.numel():
            values = torch.broadcast_to(value, address.shape).reshape(-1)[where]
            for whole, position, inside in self.flat(address.reshape(-1)[where], value.dtype, "a store"):
                whole[position] = values[inside]

    def update(self, kind: str, address: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """An atomic read-modify-write; returns what was there before."""
        before = self.load(address, mask, None, value.dtype)
        where = mask.reshape(-1).nonzero().squeeze(1)
        if where.numel():
            values = torch.broadcast_to(value, address.shape).reshape(-1)[where]
            for whole, position, inside in self.flat(address.reshape(-1)[where], value.dtype, "an atomic"):
                _combine(kind, whole, position, values[inside])
        return before


def _combine(kind: str, whole: Tensor, position: Tensor, values: Tensor) -> None:
    if kind in ("add", "fadd"):
        whole.index_put_((position,), values, accumulate=True)
    elif kind in ("max", "min"):
        whole.scatter_reduce_(0, position, values, {"max": "amax", "min": "amin"}[kind])
    elif kind == "exch":
        whole[position] = values
    elif kind in ("and", "or", "xor") and position.unique().numel() == position.numel():
        operate = {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}[kind]
        whole[position] = operate(whole[position], values)
    else:
        raise TtirError(f"the atomic {kind}")
