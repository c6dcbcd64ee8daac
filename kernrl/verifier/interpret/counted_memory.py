"""Stands in for memory while a launch is counted: holds nothing, and counts every access."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernrl.verifier.interpret.checked_memory import STORAGE_BITS
from kernrl.verifier.interpret.issue_slots import COPY_SLOTS, SINGLE_SLOTS, VECTOR_SLOTS, in_vectors

SECTOR_BYTES = 32
WARP_LANES = 32


class CountedMemory:
    """In place of `CheckedMemory`: holds nothing, counts everything."""

    def __init__(self, programs: int, *, keep: bool = False) -> None:
        """With `keep`, every access is kept in `accessed`."""
        self.accessed: list[Tensor] | None = [] if keep else None
        """Of each access the addresses [programs, elements], -1 where it is masked."""
        self.cases, self.first_program, self.races, self.in_turn, self.changed = 1, 0, None, False, False
        self.weight, self.programs = 1.0, programs
        """Trips that the present one stands for, in the mean over programs."""
        self.trips = torch.ones(programs, dtype=torch.float64)
        """The same for each program."""
        self.loads = 0
        self.slots, self.ahead = 0.0, False
        """Lanes that accesses occupy in one program (`issue_slots.py`); whether loads are asked for ahead."""
        self.elements = self.singles = 0.0
        """Accessed by one program; of these, not together with others."""
        self.loaded: dict[int, Tensor] = {}
        """Sectors that each program loads, by storage."""
        self.stored: dict[int, Tensor] = {}
        self.lanes: dict[int, Tensor] = {}
        """Bytes of the elements that each program stores, by storage."""
        self._made = torch.Generator().manual_seed(0)

    def load(
        self, address: Tensor, mask: Tensor, other: Tensor | None, dtype: torch.dtype, *, volatile: bool = False
    ) -> Tensor:
        self.loads += 1
        self._count(self.loaded, address, mask, dtype)
        if dtype.is_floating_point or dtype == torch.bool:
            return torch.ones(1, 1, *[1] * (address.dim() - 2)).to(dtype)
        # indices that are likely to be all different
        return torch.randint(0, 1 << min(20, 8 * dtype.itemsize - 1), address.shape, generator=self._made).to(dtype)

    def store(self, address: Tensor, value: Tensor, mask: Tensor) -> None:
        self._count(self.stored, address, mask, value.dtype, self.lanes)

    def update(self, kind: str, address: Tensor, value: Tensor, mask: Tensor, compared: Tensor | None = None) -> Tensor:
        # an atomic travels to the second-level cache and back
        self._count(self.loaded, address, mask, value.dtype)
        self._count(self.stored, address, mask, value.dtype, self.lanes)
        return torch.zeros(1, 1, *[1] * (address.dim() - 2), dtype=value.dtype)

    def _count(
        self,
        table: dict[int, Tensor],
        address: Tensor,
        mask: Tensor,
        dtype: torch.dtype,
        lanes: dict[int, Tensor] | None = None,
    ) -> None:
        if address.numel():
            elements = self.weight * math.prod(torch.broadcast_shapes(address.shape, mask.shape)[2:])
            vectors = in_vectors(address, mask, dtype.itemsize)
            self.slots += elements * (VECTOR_SLOTS if vectors else COPY_SLOTS if self.ahead else SINGLE_SLOTS)
            self.elements += elements
            self.singles += 0.0 if vectors else elements
        shape = (self.programs, -1)
        address, mask = (v.expand(1, self.programs, *v.shape[2:]).reshape(shape) for v in (address, mask))
        if self.accessed is not None:
            self.accessed.append(torch.where(mask, address, -1))
        storages = address >> STORAGE_BITS
        for number in storages[:, 0].unique().tolist():  # programs may take their pointers from different branches
            self._count_storage(table, number, address, mask & (storages == number), dtype, lanes)

    def _count_storage(
        self,
        table: dict[int, Tensor],
        number: int,
        address: Tensor,
        mask: Tensor,
        dtype: torch.dtype,
        lanes: dict[int, Tensor] | None,
    ) -> None:
        active = mask.sum(1).double()
        sectors = torch.where(mask, address // SECTOR_BYTES, -1).sort(1).values
        distinct = (sectors[:, 1:] != sectors[:, :-1]).sum(1) + 1 - (sectors[:, 0] == -1).long()
        least = active / WARP_LANES  # an access of a warp takes a sector at least
        found = torch.maximum(distinct.double(), least) * self.weight
        table[number] = table.get(number, torch.zeros(self.programs, dtype=torch.float64)) + found
        if lanes is not None:
            lanes[number] = (
                lanes.get(number, torch.zeros(self.programs, dtype=torch.float64)) + active * dtype.itemsize * self.trips
            )
