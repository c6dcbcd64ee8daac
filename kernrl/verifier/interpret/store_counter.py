"""Bounds what some programs of a launch store, by every trip of their loops whose masks and branches differ.

`LaunchCounter` runs three trips of a loop, so it misses a store in the last trip, and inner loops that grow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.interpret.checked_memory import STORAGE_BITS
from kernrl.verifier.interpret.counted_memory import CountedMemory
from kernrl.verifier.interpret.descriptors import Descriptor
from kernrl.verifier.interpret.launch_counter import LaunchCounter
from kernrl.verifier.interpret.launch_interpreter import LaunchInterpreter
from kernrl.verifier.interpret.ttir_types import read_type, result_type
from kernrl.verifier.plan.ttir import Block, Function, Op, TtirError, walk

_STORES = {"tt.store": 2, "tt.atomic_rmw": 2, "tt.atomic_cas": -1, "tt.descriptor_store": -1, "tt.descriptor_reduce": -1}
"""Operations that change memory, with the place of their mask; a mask in the same place is an operand or left out."""
_NOTHING = torch.zeros(1, 1, dtype=torch.int32)
"""In place of every value that says nothing of what is stored."""


class StoreCounter(LaunchCounter):
    """Counts bytes stored, for each program. Only what masks, branches and lengths of loops need is computed.

    Raises TtirError where a loop's length depends on loaded numbers.
    """

    def __init__(self, function: Function, grid: tuple[int, int, int], deadline: float, chosen: Sequence[int]) -> None:
        super().__init__(function, CountedMemory(len(chosen)), grid, deadline, chosen)
        self.needed = needed_values(function)
        self.stored: dict[int, Tensor] = {}
        """Bytes that each program stores, by storage."""
        self.times = torch.ones(len(chosen), dtype=torch.float64)
        """Of each program, the trips that the present one stands for."""

    def _operation(self, op: Op, active: Tensor) -> Sequence[Any]:
        if op.name in _STORES:
            self._count_store(op, active)
            return [self._made(op)] if op.results else []
        if op.name in ("tt.assert", "llvm.intr.assume"):
            return []
        if not any(r in self.needed for r in op.results) and not _stores(op):
            return [_NOTHING] * len(op.results)
        if op.name in ("scf.for", "scf.while"):
            return self._every_trip(op, active)
        if op.name == "scf.if":
            return self._both(op, active) if op.operands[0] in self.loaded else self._if(op, active)
        if op.name == "tt.addptr":  # whose storage it is, is all that counts
            return [self._of(op.operands[0])]
        if op.results and op.results[0] in self.loaded:
            return [self._made(op) for _ in op.results]
        return LaunchInterpreter._operation(self, op, active)

    def _made(self, op: Op) -> Any:
        """In place of a loaded number: a mask or a branch that depends on it is taken for whatever stores most."""
        kind = result_type(op)
        return torch.ones(1, 1, *[1] * len(kind.shape)).to(kind.dtype) if not kind.pointer else self._of(op.operands[0])

    def _every_trip(self, op: Op, active: Tensor) -> Sequence[Any]:
        if op.name == "scf.for":
            if any(v in self.loaded for v in op.operands[:3]):
                raise TtirError("a loop whose length depends on loaded numbers")
            if any(v in self.needed for v in op.regions[0]["entry"].args):
                return self._for(op, active)
            return self._equal_trips(op, active)
        if op.regions[0]["entry"].ops[-1].operands[0] in self.loaded:
            raise TtirError("a loop whose length depends on loaded numbers")
        return self._while(op, active)

    def _equal_trips(self, op: Op, active: Tensor) -> Sequence[Any]:
        """One trip of a loop stands for all where nothing goes by their number."""
        low, high, step = (self._of(v).long() for v in op.operands[:3])
        trips = torch.div(high - low + step - 1, step, rounding_mode="floor").clamp(min=0)
        before, self.times = self.times, self.times * trips.expand(1, len(self.programs))[0]
        self.block(op.regions[0]["entry"], active & (trips > 0))
        self.times = before
        return [_NOTHING] * len(op.results)

    def _merge(self, mask: Tensor, new: Any, old: Any) -> Any:
        return new if new is _NOTHING or old is _NOTHING else super()._merge(mask, new, old)

    def _count_store(self, op: Op, active: Tensor) -> None:
        programs = len(self.programs)
        target = self._of(op.operands[0])
        if isinstance(target, Descriptor):
            lanes = self._lanes_of_block(op, target, active)
            address, size = target.base, target.block.dtype.itemsize
        else:
            kind = read_type(op.types)
            size = read_type(f"tensor<{kind.element}>").dtype.itemsize
            shape, place = kind.shape, _STORES[op.name]
            mask = op.operands[place] if 0 <= place < len(op.operands) else None
            here = active.reshape(*active.shape, *[1] * len(shape))
            kept = here if mask is None or mask in self.loaded else here & self._of(mask)
            lanes = kept.expand(1, programs, *shape).reshape(programs, -1).sum(1)
            address = target
        storages = (address.reshape(*address.shape[:2], -1)[..., 0] >> STORAGE_BITS).expand(1, programs)[0]
        for number in storages.unique().tolist():
            before = self.stored.get(number, torch.zeros(programs, dtype=torch.float64))
            self.stored[number] = before + torch.where(storages == number, lanes, 0) * self.times * size

    def _lanes_of_block(self, op: Op, target: Descriptor, active: Tensor) -> Tensor:
        programs = len(self.programs)
        indices = op.operands[1 : 1 + len(target.block.shape)]
        if op.operands[0] in self.loaded:
            return active.expand(1, programs)[0] * math.prod(target.block.shape)
        # a block at a loaded place may lie inside whole
        starts = [torch.zeros(1, 1, dtype=torch.int64) if v in self.loaded else self._of(v) for v in indices]
        _, mask = self._through(target, starts, active)
        return mask.expand(1, programs, *target.block.shape).reshape(programs, -1).sum(1)


def _stores(op: Op) -> bool:
    return op.name in _STORES or any(inner.name in _STORES for region in op.regions for inner in walk(region))


@functools.lru_cache(maxsize=128)
def needed_values(function: Function) -> frozenset[int]:
    """Values that where, whether and how often something is stored depends on; of an address, only its storage counts."""
    needed: set[int] = set()
    while True:
        before = len(needed)
        _need(function.body, needed)
        for block in function.body.values():
            for last in block.ops[-1:]:
                if last.name == "cf.br" and any(a in needed for b in function.body.values() for a in b.args):
                    needed.update(last.operands)
        if len(needed) == before:
            return frozenset(needed)


def _need(blocks: Mapping[str, Block], needed: set[int]) -> None:
    for block in blocks.values():
        for op in reversed(block.ops):
            for region in op.regions:
                _need(region, needed)
            if op.name in ("scf.for", "scf.while", "scf.if"):
                _need_through(op, needed)
            elif op.name in _STORES:
                needed.update(_where_stored(op))
            elif op.name == "cf.cond_br":
                needed.add(op.operands[0])
            elif any(r in needed for r in op.results):
                needed.update(op.operands[:1] if op.name in ("tt.addptr", "tt.load") else op.operands)
                needed.update(v for region in op.regions for inner in walk(region) for v in (*inner.operands, *inner.results))


def _where_stored(op: Op) -> list[int]:
    """The address and the mask, or the descriptor and the indices."""
    if op.name.startswith("tt.descriptor"):
        return op.operands[:-1]
    place = _STORES[op.name]
    return [op.operands[0], *(op.operands[place : place + 1] if place > 0 else [])]


def _need_through(op: Op, needed: set[int]) -> None:
    """What goes into, around and out of a loop or branch is needed together."""
    ends = [region["entry"].ops[-1].operands if region["entry"].ops else [] for region in op.regions]
    if op.name == "scf.if":
        needed.add(op.operands[0])
        together = [(op.results, *ends)]
    elif op.name == "scf.for":
        needed.update(op.operands[:3])
        together = [(op.results, op.regions[0]["entry"].args[1:], op.operands[3:], ends[0])]
    else:
        test, body = (region["entry"] for region in op.regions)
        needed.update(ends[0][:1])
        together = [(test.args, op.operands, ends[1]), (body.args, ends[0][1:], op.results)]
    for lists in together:
        for position in range(max(map(len, lists))):
            same = [values[position] for values in lists if position < len(values)]
            if any(v in needed for v in same):
                needed.update(same)
