"""Races between the programs of one launch, which run in any order: what one stores while another stores or loads it too.

An interpreter runs programs side by side, or one batch after another, so what depends on their order comes out alike every
time; on a GPU it does now and then. What each program touched, however, does not depend on luck.

No races are: numbers that several programs store and that agree up to rounding, and what a program reads back of its own. A
kernel that uses what an atomic returns may order its programs by it, and is not watched; an atomic whose result nobody uses
orders nothing.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernrl.verifier.plan.ttir import Function

NOBODY, SEVERAL = -1, -2

_OWN_PLACES = "give each program places of its own, or add up with tl.atomic_add"
_SECOND_LAUNCH = "write to another buffer, or in a second launch"


class Race(RuntimeError):
    """What a launch computes depends on the order of its programs."""


@functools.lru_cache(maxsize=128)
def ordered_by_atomics(function: Function) -> bool:
    """Whether a kernel uses what an atomic returns."""
    ops = list(function.walk())
    returned = {value for op in ops if op.name.startswith("tt.atomic") for value in op.results}
    return any(not returned.isdisjoint(op.operands) for op in ops)


class Watch:
    """Which program touched which element in one launch, of the storages that the kernel stores to.

    Elements are told apart by storage, size and position. Tensors of elements are [cases, n], of programs int32 [n].
    """

    def __init__(self, stored: frozenset[int], loaded: frozenset[int], cases: int) -> None:
        """Storages that the kernel may store to and load from; how many of the cases count, from the first."""
        self.cases = cases
        self._both = stored & loaded
        self._tables: dict[tuple[str, int, int], Tensor] = {}

    def load(self, storage: int, elements: Tensor, place: Tensor, programs: Tensor) -> None:
        """Some programs are about to load from these places. Raises Race."""
        if storage not in self._both:
            return
        writer = self._table("stored", storage, elements)[place]
        foreign = writer != programs
        if bool((foreign & (writer >= 0)).any()):
            raise Race(f"one program loads what another one stores: {_SECOND_LAUNCH}")
        _claim(self._table("loaded", storage, elements), place[foreign], programs[foreign])

    def store(self, storage: int, elements: Tensor, place: Tensor, values: Tensor, programs: Tensor) -> None:
        """Some programs are about to store these values. Raises Race."""
        for what, happens in (
            ("stored", f"two programs store different numbers to the same place: {_OWN_PLACES}"),
            ("loaded", f"one program stores to what another one loads: {_SECOND_LAUNCH}"),
            ("updated", f"one program stores to what another one updates by an atomic: {_SECOND_LAUNCH}"),
        ):
            table = self._tables.get((what, storage, elements.element_size()))
            others = _of_others(table, place, programs) if table is not None else None
            if others is not None and bool(others.any()) and bool((others & _differ(elements, place, values)).any()):
                raise Race(happens)
        _claim(self._table("stored", storage, elements), place, programs)

    def update(self, storage: int, elements: Tensor, place: Tensor, programs: Tensor) -> None:
        """Some programs are about to update these places by an atomic. Raises Race."""
        if bool(_of_others(self._table("stored", storage, elements), place, programs).any()):
            raise Race(f"one program updates by an atomic what another one stores: {_SECOND_LAUNCH}")
        _claim(self._table("updated", storage, elements), place, programs)

    def stored(self, elements: Tensor, place: Tensor, values: Tensor) -> None:
        """After `store` was done: every place must hold what was meant for it. Raises Race."""
        if bool(_differ(elements, place, values).any()):
            raise Race(f"several numbers are stored to the same place at once: {_OWN_PLACES}")

    def _table(self, what: str, storage: int, elements: Tensor) -> Tensor:
        """For each element of a storage, the program that did so, NOBODY, or SEVERAL."""
        key = what, storage, elements.element_size()
        if key not in self._tables:
            self._tables[key] = torch.full((elements.shape[1],), NOBODY, dtype=torch.int32)
        return self._tables[key]


def _of_others(table: Tensor, place: Tensor, programs: Tensor) -> Tensor:
    found = table[place]
    return (found != NOBODY) & (found != programs)


def _claim(table: Tensor, place: Tensor, programs: Tensor) -> None:
    """Enter programs for places; two that come to the same one, now or before, are SEVERAL."""
    found = table[place]
    entry = torch.where((found == NOBODY) | (found == programs), programs, SEVERAL)
    table[place] = entry
    table[place[table[place] != entry]] = SEVERAL


def _differ(elements: Tensor, place: Tensor, values: Tensor) -> Tensor:
    """Where what lies at these places is not the same number, up to rounding, in some case: bool [n]."""
    there, values = torch.broadcast_tensors(elements[:, place], values)
    differ = there != values
    if not values.dtype.is_floating_point or not bool(differ.any()):
        return differ.any(0)
    a, b = there.float(), values.float()
    # a sum in another order is off by a share of the numbers around; the store then rounds it to its own precision
    around = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    near = 2 * torch.finfo(values.dtype).eps * b.abs() + 64 * torch.finfo(torch.float32).eps * around
    return (differ & ~((a - b).abs() <= near) & ~(a.isnan() & b.isnan())).any(0)
