"""Races between the programs of one launch, which run in any order: one stores what another stores or loads, too.

The interpreter runs programs in a fixed order, so a result that depends on the order is the same every time here, and varies
on a GPU. Therefore races are found from which elements each program accesses.

Not races: several programs storing numbers that agree up to rounding, and a program loading what it stored itself. A kernel
that uses the result of an atomic may order its programs by it, and is not checked; an atomic whose result is unused orders
nothing.
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
    """The result of a launch depends on the order of its programs."""


@functools.lru_cache(maxsize=128)
def ordered_by_atomics(function: Function) -> bool:
    """Whether a kernel uses the result of an atomic."""
    ops = list(function.walk())
    returned = {value for op in ops if op.name.startswith("tt.atomic") for value in op.results}
    return any(not returned.isdisjoint(op.operands) for op in ops)


class RaceDetector:
    """Records which program accessed which element in one launch, for the storages that the kernel stores to.

    An element is identified by storage, element size and position. Elements are [cases, n], programs int32 [n].
    """

    def __init__(self, stored: frozenset[int], loaded: frozenset[int], cases: int) -> None:
        """`stored`, `loaded`: storages that the kernel may access. The first `cases` cases count."""
        self.cases = cases
        self._both = stored & loaded
        self._tables: dict[tuple[str, int, int], Tensor] = {}

    def load(self, storage: int, elements: Tensor, place: Tensor, programs: Tensor) -> None:
        """Record loads from these places, before they are made. Raises Race."""
        if storage not in self._both:
            return
        writer = self._table("stored", storage, elements)[place]
        foreign = writer != programs
        if bool((foreign & (writer >= 0)).any()):
            raise Race(f"one program loads what another one stores: {_SECOND_LAUNCH}")
        _claim(self._table("loaded", storage, elements), place[foreign], programs[foreign])

    def store(self, storage: int, elements: Tensor, place: Tensor, values: Tensor, programs: Tensor) -> None:
        """Record stores of these values, before they are made. Raises Race."""
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
        """Record atomic updates of these places, before they are made. Raises Race."""
        if bool(_of_others(self._table("stored", storage, elements), place, programs).any()):
            raise Race(f"one program updates by an atomic what another one stores: {_SECOND_LAUNCH}")
        _claim(self._table("updated", storage, elements), place, programs)

    def stored(self, elements: Tensor, place: Tensor, values: Tensor) -> None:
        """After the stores were made, every place must hold its value. Raises Race."""
        if bool(_differ(elements, place, values).any()):
            raise Race(f"several numbers are stored to the same place at once: {_OWN_PLACES}")

    def _table(self, what: str, storage: int, elements: Tensor) -> Tensor:
        """For each element of a storage: the program that did `what` to it, NOBODY, or SEVERAL."""
        key = what, storage, elements.element_size()
        if key not in self._tables:
            self._tables[key] = torch.full((elements.shape[1],), NOBODY, dtype=torch.int32)
        return self._tables[key]


def _of_others(table: Tensor, place: Tensor, programs: Tensor) -> Tensor:
    found = table[place]
    return (found != NOBODY) & (found != programs)


def _claim(table: Tensor, place: Tensor, programs: Tensor) -> None:
    """Enter programs for places. If different programs use a place, now or before, it becomes SEVERAL."""
    found = table[place]
    entry = torch.where((found == NOBODY) | (found == programs), programs, SEVERAL)
    table[place] = entry
    table[place[table[place] != entry]] = SEVERAL


def _differ(elements: Tensor, place: Tensor, values: Tensor) -> Tensor:
    """Whether the elements at these places differ from the values, beyond rounding, in any case: bool [n]."""
    there, values = torch.broadcast_tensors(elements[:, place], values)
    differ = there != values
    if not values.dtype.is_floating_point or not bool(differ.any()):
        return differ.any(0)
    a, b = there.float(), values.float()
    # another order of a sum changes it by a share of the largest number nearby; the store then rounds it, too
    around = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    near = 2 * torch.finfo(values.dtype).eps * b.abs() + 64 * torch.finfo(torch.float32).eps * around
    return (differ & ~((a - b).abs() <= near) & ~(a.isnan() & b.isnan())).any(0)
