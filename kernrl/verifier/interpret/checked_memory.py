"""The virtual memory of interpreted kernels: byte addresses of storages, with every access checked.

Every case (a run of the plan on numbers of its own) has such a memory with the same layout, so addresses are the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.interpret import atomics
from kernrl.verifier.interpret.races import RaceDetector

STORAGE_BITS = 40
"""Storage `i` begins at address `i << 40`."""

ALIGN_BYTES = 16


class Fault(RuntimeError):
    """An access that a GPU would fault on: out of bounds or misaligned."""


class CheckedMemory:
    """The storages that a kernel can access, by number, for each case.

    Addresses and masks are [cases, ...], or [1, ...] if all cases agree; values have a row for each case, or one for all.
    """

    def __init__(self, sizes: Sequence[int], cases: int) -> None:
        """`sizes` in bytes. The memory is uninitialised: the caller fills it, by `bytes_of`."""
        self._sizes, self.cases = sizes, cases
        self.races: RaceDetector | None = None
        """The race detector of the current launch, or None."""
        self.first_program = 0
        """Number of the first program in the current batch."""
        self.in_turn = False
        """Whether programs run one at a time, so that the old value of an atomic is what the hardware might return."""
        self.changed = False
        """Set by every store, and by every atomic that changes something."""
        self._blocks = [torch.empty(cases, -(-n // ALIGN_BYTES) * ALIGN_BYTES, dtype=torch.uint8) for n in sizes]

    def bytes_of(self, storage: int, case: int) -> Tensor:
        """One case's storage, uint8 [its size]."""
        return self._blocks[storage][case, : self._sizes[storage]]

    def kept(self, cases: Sequence[int]) -> list[Tensor]:
        """A copy of some cases' memory, for `restore`."""
        return [block[list(cases)] for block in self._blocks] if cases else []

    def restore(self, cases: Sequence[int], kept: Sequence[Tensor]) -> None:
        """Put these cases' memory back."""
        for block, before in zip(self._blocks if cases else (), kept, strict=True):
            block[list(cases)] = before

    def load(
        self, address: Tensor, mask: Tensor, other: Tensor | None, dtype: torch.dtype, *, volatile: bool = False
    ) -> Tensor:
        """Elements at byte addresses where `mask` holds, else `other` (or 0): a row for each case. Raises Fault and Race."""
        if volatile and self.races:
            self.races.volatile_load()
        return self._load(address, mask, other, dtype, None if volatile else self.races)

    def _load(
        self, address: Tensor, mask: Tensor, other: Tensor | None, dtype: torch.dtype, races: RaceDetector | None
    ) -> Tensor:
        shape = (self.cases, *address.shape[1:])
        if other is not None:
            result = other.expand(shape).clone(memory_format=torch.contiguous_format).view(self.cases, -1)
        else:
            result = torch.zeros(self.cases, math.prod(shape[1:]), dtype=dtype)
        for storage, whole, place, where, case in self._places(address, mask, dtype, "a load"):
            if races:
                first = _first(case)
                races.load(storage, whole, place[first], self._programs(where[first], address))
            if case is None:
                result[:, where] = whole.index_select(1, place)  # twice as fast as whole[:, place]
            else:
                result[case, where] = whole[case, place]
        return result.view(shape)

    def store(self, address: Tensor, value: Tensor, mask: Tensor) -> None:
        """Write elements at byte addresses where `mask` holds. Raises Fault and Race."""
        races, self.changed = self.races, True
        rows = value.shape[0] if address.shape[0] == 1 else self.cases
        values = value.expand(rows, *address.shape[1:]).reshape(rows, -1)
        for storage, whole, place, where, case in self._places(address, mask, value.dtype, "a store"):
            new = values.index_select(1, where) if case is None else values[case, where]
            first, counted = _first(case), races.cases if races and case is None else 1
            shown = new[:counted] if case is None else values[:1, where[first]]
            if races:
                races.store(storage, whole[:counted], place[first], shown, self._programs(where[first], address))
            if case is None:
                whole[:, place] = new
            else:
                whole[case, place] = new
            if races:
                races.stored(whole[:counted], place[first], shown)

    def update(self, kind: str, address: Tensor, value: Tensor, mask: Tensor, compared: Tensor | None = None) -> Tensor:
        """An atomic read-modify-write, or a compare-and-swap (`kind` `cas`); returns what was there before.

        Raises Fault, Race and TtirError."""
        before = self._load(address, mask, None, value.dtype, None).view(self.cases, -1)
        shape = (self.cases, *address.shape[1:])
        address, mask = address.expand(shape), mask.expand(shape)
        values = value.expand(shape).reshape(self.cases, -1)
        asked = None if compared is None else compared.expand(shape).reshape(self.cases, -1)
        for storage, whole, place, where, case in self._places(address, mask, value.dtype, "an atomic"):
            if self.races:
                first = _first(case)
                self.races.update(storage, whole, place[first], self._programs(where[first], address))
            case = torch.zeros_like(place) if case is None else case  # there is only one
            # the memory of all cases is contiguous, row after row
            flat, position, new = whole.view(-1), case * whole.shape[1] + place, values[case, where]
            if asked is not None:
                old = atomics.compare_and_swap(flat, position, asked[case, where], new)
            elif self.in_turn:
                old = atomics.update_in_turn(kind, flat, position, new)
            else:
                atomics.update(kind, flat, position, new)
                continue
            before[case, where] = old
            self.changed |= not torch.equal(old, flat[position])
        return before.view(shape)

    def _places(
        self, address: Tensor, mask: Tensor, dtype: torch.dtype, what: str
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor | None]]:
        """For each storage that is accessed: its number, its elements [cases, n], the positions accessed, the indices of their
        addresses, and the case of each (None if all cases agree). Raises Fault."""
        if address.shape[0] == 1:
            case, where = None, mask.reshape(-1).nonzero().squeeze(1)
            asked = address.reshape(-1)[where]
        else:
            case, where = mask.reshape(self.cases, -1).nonzero(as_tuple=True)
            asked = address.reshape(self.cases, -1)[case, where]
        if not where.numel():
            return
        lowest, highest = (int(a) >> STORAGE_BITS for a in torch.aminmax(asked))
        if lowest == highest:  # nearly always
            yield (lowest, *self._within(lowest, asked, dtype, what), where, case)
            return
        numbers = asked >> STORAGE_BITS
        for number in torch.unique(numbers).tolist():
            inside = (numbers == number).nonzero().squeeze(1)
            yield (
                number,
                *self._within(number, asked[inside], dtype, what),
                where[inside],
                None if case is None else case[inside],
            )

    def _within(self, number: int, address: Tensor, dtype: torch.dtype, what: str) -> tuple[Tensor, Tensor]:
        """The elements of a storage, and the positions of addresses in it."""
        if not 0 <= number < len(self._sizes):
            raise Fault(f"{what} out of bounds: byte 0 of a buffer of 0")
        offset = address & ((1 << STORAGE_BITS) - 1)
        size, furthest = self._sizes[number], int(offset.max())
        # a pointer just before its storage falls at the end of the storage below
        if furthest + dtype.itemsize > size:
            raise Fault(f"{what} out of bounds: byte {furthest} of a buffer of {size}")
        position = offset // dtype.itemsize
        if dtype.itemsize > 1 and not torch.equal(position * dtype.itemsize, offset):
            raise Fault(f"{what} at a misaligned address")
        return self._blocks[number].view(dtype), position

    def _programs(self, where: Tensor, address: Tensor) -> Tensor:
        """Program numbers of flat positions in addresses [cases, programs, ...]."""
        tile = math.prod(address.shape[2:])
        return (where // tile + self.first_program).to(torch.int32)


def _first(case: Tensor | None) -> Any:
    """Index of the first case's accesses where cases differ; it stands for all cases."""
    return slice(None) if case is None else case == 0
