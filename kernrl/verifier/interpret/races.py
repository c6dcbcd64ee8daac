"""Races between the programs of one launch, which run in any order: one stores what another stores or loads, too.

The interpreter runs programs in some order, so a result that depends on the order varies on a GPU alone. Therefore races are
found from which elements each program accesses, at the granularity of the smallest element that a storage is accessed with.

Not races: several programs storing numbers that agree up to rounding, and a program loading what it stored itself.

Where programs order themselves by atomics (`order_matters`) they run one after another, in an order drawn at random. There,
what one program did before an atomic of its own happens before what a later program does after an atomic of its own (each
atomic counts as acquire and release, and a volatile load as acquire); anything else still races.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernrl.verifier.plan.ttir import Function, Op

NOBODY, SEVERAL = -1, -2

_OWN_PLACES = "give each program places of its own, or add up with tl.atomic_add"
_SECOND_LAUNCH = "write to another buffer, or in a second launch"
_SYNCHRONISE = "read it in a second launch, or after an atomic that says that it is complete"

_COMMUTE = ({"max", "umin"}, {"min", "umax"})
"""Pairs of atomics that come to the same in any order on a float's bits: `tl.atomic_max` of floats is `max` and `umin`."""


class Race(RuntimeError):
    """The result of a launch depends on the order of its programs."""


@functools.lru_cache(maxsize=128)
def order_matters(function: Function) -> bool:
    """Whether a kernel's programs may tell in which order they run: it uses the old value of an atomic, exchanges values, mixes
    kinds of atomics that do not commute, or loads what others change meanwhile (a volatile load)."""
    ops = list(function.walk())
    atomics = [op for op in ops if op.name.startswith("tt.atomic")]
    returned = {value for op in atomics for value in op.results}
    kinds = {atomic_kind(op) for op in atomics}
    if kinds & {"cas", "exch"} or (len(kinds) > 1 and kinds not in _COMMUTE):
        return True
    if any(op.name == "tt.load" and "isVolatile = true" in op.text for op in ops):
        return True
    return any(not returned.isdisjoint(op.operands) for op in ops)


def atomic_kind(op: Op) -> str:
    """`fadd`, `umax`, `cas`, …"""
    return "cas" if op.name == "tt.atomic_cas" else op.text.split(",")[0].strip()


class RaceDetector:
    """Records which program accessed which element in one launch, for the storages that the kernel stores to.

    Elements are [cases, n], programs int32 [n].
    """

    def __init__(self, stored: frozenset[int], loaded: frozenset[int], cases: int, ordered: int = 0) -> None:
        """`stored`, `loaded`: storages that the kernel may access. The first `cases` cases count. `ordered`: the number of
        programs if they run one after another, else 0."""
        self.cases = cases
        self._both = stored & loaded
        self._tables: dict[tuple[str, int], Tensor] = {}
        self._grains: dict[int, int] = {}
        """Bytes for each entry of a storage's tables."""
        self._order = _Order(ordered) if ordered else None

    def begin(self, program: int) -> None:
        """The next of the programs that run one after another begins."""
        if self._order:
            self._order.program, self._order.acquired = program, False

    def volatile_load(self) -> None:
        """The program looked at what others have done so far."""
        if self._order:
            self._order.acquired = True

    def load(self, storage: int, elements: Tensor, place: Tensor, programs: Tensor) -> None:
        """Record loads from these places, before they are made. Raises Race."""
        if storage not in self._both:
            return
        entries, programs = self._entries(storage, elements, place, programs)
        if self._unordered("updated", storage, entries, programs).any():
            raise Race(f"one program loads what another one updates by an atomic: {_SYNCHRONISE}")
        writer = self._table("stored", storage, elements)[entries]
        foreign = writer != programs
        if bool((self._unordered("stored", storage, entries, programs) & (writer >= 0)).any()):
            raise Race(f"one program loads what another one stores: {_SECOND_LAUNCH}")
        self._claim("loaded", storage, elements, entries[foreign], programs[foreign])

    def store(self, storage: int, elements: Tensor, place: Tensor, values: Tensor, programs: Tensor) -> None:
        """Record stores of these values, before they are made. Raises Race."""
        if not len(place):  # every lane is masked
            return
        entries, owners = self._entries(storage, elements, place, programs)
        for what, happens in (
            ("stored", f"two programs store different numbers to the same place: {_OWN_PLACES}"),
            ("loaded", f"one program stores to what another one loads: {_SECOND_LAUNCH}"),
            ("updated", f"one program stores to what another one updates by an atomic: {_SECOND_LAUNCH}"),
        ):
            others = self._unordered(what, storage, entries, owners).view(len(place), -1).any(1)
            if bool(others.any()) and bool((others & _differ(elements, place, values)).any()):
                raise Race(happens)
        self._claim("stored", storage, elements, entries, owners)

    def update(self, storage: int, elements: Tensor, place: Tensor, programs: Tensor) -> None:
        """Record atomic updates of these places, before they are made. Raises Race."""
        entries, programs = self._entries(storage, elements, place, programs)
        if self._order:
            self._order.synchronise()
        if self._unordered("stored", storage, entries, programs).any():
            raise Race(f"one program updates by an atomic what another one stores: {_SECOND_LAUNCH}")
        if self._unordered("loaded", storage, entries, programs).any():
            raise Race(f"one program updates by an atomic what another one loads: {_SYNCHRONISE}")
        self._claim("updated", storage, elements, entries, programs)

    def stored(self, elements: Tensor, place: Tensor, values: Tensor) -> None:
        """After the stores were made, every place must hold its value. Raises Race."""
        if bool(_differ(elements, place, values).any()):
            raise Race(f"several numbers are stored to the same place at once: {_OWN_PLACES}")

    def _entries(self, storage: int, elements: Tensor, place: Tensor, programs: Tensor) -> tuple[Tensor, Tensor]:
        """The table entries of elements, one after another, with their programs."""
        size = elements.element_size()
        grain = self._grains.setdefault(storage, size)
        if size < grain:  # from now on in smaller steps
            for key in [key for key in self._tables if key[1] == storage]:
                self._tables[key] = self._tables[key].repeat_interleave(grain // size)
            if self._order:
                self._order.refine(storage, grain // size)
            self._grains[storage] = grain = size
        ratio = size // grain
        if ratio == 1:
            return place, programs
        return (place.unsqueeze(1) * ratio + torch.arange(ratio)).view(-1), programs.repeat_interleave(ratio)

    def _table(self, what: str, storage: int, elements: Tensor) -> Tensor:
        """For each entry of a storage: the program that did `what` to it, NOBODY, or SEVERAL."""
        key = what, storage
        if key not in self._tables:
            size = elements.shape[1] * elements.element_size() // self._grains[storage]
            self._tables[key] = torch.full((size,), NOBODY, dtype=torch.int32)
        return self._tables[key]

    def _unordered(self, what: str, storage: int, entries: Tensor, programs: Tensor) -> Tensor:
        """Whether another program did `what` there, with nothing that orders it before this access: bool [entries]."""
        table = self._tables.get((what, storage))
        if table is None:
            return torch.zeros(len(entries), dtype=torch.bool)
        found = table[entries]
        others = (found != NOBODY) & (found != programs)
        if self._order and bool(others.any()):
            others &= ~self._order.happened_before(what, storage, entries, found)
        return others

    def _claim(self, what: str, storage: int, elements: Tensor, entries: Tensor, programs: Tensor) -> None:
        """Enter programs for entries. If different programs use one, now or before, it becomes SEVERAL."""
        table = self._table(what, storage, elements)
        found = table[entries]
        if self._order:
            self._order.claim(what, storage, entries, found, len(table))
            table[entries] = programs
            return
        entry = torch.where((found == NOBODY) | (found == programs), programs, SEVERAL)
        table[entries] = entry
        table[entries[table[entries] != entry]] = SEVERAL


class _Order:
    """What happens before what, where programs run one after another."""

    def __init__(self, programs: int) -> None:
        self._releases = torch.zeros(programs, dtype=torch.int32)
        """Atomics that each program has made so far."""
        self._before: dict[tuple[str, int], Tensor] = {}
        """For each entry: the atomics that its last program had made before."""
        self._loose: dict[tuple[str, int], Tensor] = {}
        """Whether some program did something there, and no atomic afterwards."""
        self.program, self.acquired = 0, False

    def synchronise(self) -> None:
        """The current program makes an atomic."""
        self._releases[self.program] += 1
        self.acquired = True

    def happened_before(self, what: str, storage: int, entries: Tensor, found: Tensor) -> Tensor:
        if not self.acquired:
            return torch.zeros_like(found, dtype=torch.bool)
        return self._released(what, storage, entries, found) & ~self._loose[what, storage][entries]

    def claim(self, what: str, storage: int, entries: Tensor, found: Tensor, size: int) -> None:
        key = what, storage
        if key not in self._before:
            self._before[key] = torch.zeros(size, dtype=torch.int32)
            self._loose[key] = torch.zeros(size, dtype=torch.bool)
        left = (found != NOBODY) & (found != self.program) & ~self._released(what, storage, entries, found)
        self._loose[key][entries[left]] = True
        # an atomic is its own release
        self._before[key][entries] = self._releases[self.program] - int(what == "updated")

    def refine(self, storage: int, ratio: int) -> None:
        for tables in (self._before, self._loose):
            for key in [key for key in tables if key[1] == storage]:
                tables[key] = tables[key].repeat_interleave(ratio)

    def _released(self, what: str, storage: int, entries: Tensor, found: Tensor) -> Tensor:
        return self._releases[found.clamp(min=0).long()] > self._before[what, storage][entries]


def _differ(elements: Tensor, place: Tensor, values: Tensor) -> Tensor:
    """Whether the elements at these places differ from the values, beyond rounding, in any case: bool [n]."""
    there, values = torch.broadcast_tensors(elements.index_select(1, place), values)
    differ = there != values
    if not values.dtype.is_floating_point or not bool(differ.any()):
        return differ.any(0)
    a, b = there.float(), values.float()
    # another order of a sum changes it by a share of the largest number nearby; the store then rounds it, too
    around = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    near = 2 * torch.finfo(values.dtype).eps * b.abs() + 64 * torch.finfo(torch.float32).eps * around
    return (differ & ~((a - b).abs() <= near) & ~(a.isnan() & b.isnan())).any(0)
