"""Runs a few programs of a launch for their addresses and masks alone: counts sectors, arithmetic and trips of loops."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.interpret.counted_memory import CountedMemory
from kernrl.verifier.interpret.issue_slots import (
    INTEGER,
    OTHER,
    SINGLE_INTEGER,
    counts_places,
    exchange_slots,
    issue_slots,
    tile_elements,
)
from kernrl.verifier.interpret.launch_interpreter import LaunchInterpreter
from kernrl.verifier.interpret.ttir_types import read_type, result_type
from kernrl.verifier.plan.kernel_flops import dot_flops
from kernrl.verifier.plan.ttir import Block, Function, Op

AHEAD_SHARE = 0.7
"""Of a wait for memory, what is left in a loop with `num_stages` of its own: 0.7 to 1 was measured on an H200."""
WHILE_TRIPS = 64
"""Trips of a `while` that are run; with more it counts as unknown."""


class LaunchCounter(LaunchInterpreter):
    """Runs chosen programs for their addresses alone: a float tile is one element, and products are not made."""

    def __init__(
        self,
        function: Function,
        memory: CountedMemory,
        grid: tuple[int, int, int],
        deadline: float,
        chosen: Sequence[int],
        *,
        wide: bool = False,
        threads: int = 128,
    ) -> None:
        """With `wide`, integers of 32 bits do not overflow. `threads`: of one program."""
        super().__init__(function, memory, grid, deadline)  # pyright: ignore[reportArgumentType]
        self.counted, self.programs = memory, torch.tensor(chosen)
        self.loaded = loaded_values(function)
        self.dots: dict[str, float] = {}
        self.turned: dict[str, float] = {}
        """Of `dots`, those whose operands do not lie along the axis that is summed."""
        self.points = self.rounds = self.pipelined = self.slots = self.places = self.reduces = 0.0
        """`slots` without accesses and without whole numbers, whose operations are `places`."""
        self.threads, self.tile, self.staged = threads, 0, 0.0
        """Elements of the largest tile of numbers; bytes of both operands of the largest product."""
        self._along: dict[int, int] = {}
        """The axis along which a loaded tile of two axes lies in memory."""
        self.unknown = False
        self.wide, self.overflowed = wide, False
        """Whether some integer of 32 bits overflowed that does not depend on loaded numbers."""

    def count(self, arguments: Sequence[Tensor]) -> None:
        self.values = dict(zip(self.function.params, arguments, strict=True))
        self._body(torch.ones(1, len(self.programs), dtype=torch.bool))

    def _operation(self, op: Op, active: Tensor) -> Sequence[Any]:
        self.points += self.counted.weight * _point_flops(op.name, op.text)
        slots = self.counted.weight * issue_slots(op.name, op.text, self.threads)
        if counts_places(op.name):
            self.places += slots / OTHER
        else:
            self.slots += slots
        if op.name.startswith(("math.", "tt.reduce")) or (op.name.startswith("arith.") and op.name.endswith("f")):
            self.tile = max(self.tile, tile_elements(op.text))
        self._follow(op)
        if op.name in _WRAPS and op.results[0] not in self.loaded and result_type(op).dtype == torch.int32:
            return [self._wrapped(op)]
        if op.name == "scf.for":
            return self._counted_for(op, active)
        if op.name == "scf.while":
            return self._counted_while(op, active)
        if op.name == "scf.if" and op.operands[0] in self.loaded:
            return self._both(op, active)
        if op.name == "tt.dot":
            return self._dot(op)
        if op.name in ("tt.reduce", "tt.scan", "tt.histogram", "tt.gather"):
            self.reduces += self.counted.weight
            self.slots += self.counted.weight * exchange_slots(op.text, self.threads)
            return [torch.ones(1, 1, *[1] * len(t.shape)).to(t.dtype) for t in _result_types(op)]
        if op.name in ("tt.assert", "llvm.intr.assume"):
            return []
        if op.name in ("tt.descriptor_load", "tt.descriptor_store"):
            return self._through_descriptor(op, active)
        if op.name in ("tt.load", "tt.store"):
            op = self._without_mask(op, 1 if op.name == "tt.load" else 2)
        if op.name == "tt.load":
            self._see_axis(op)
        results = super()._operation(op, active)
        if op.results and op.results[0] in self.loaded and isinstance(results[0], Tensor) and results[0].is_floating_point():
            return [r[(slice(0, 1), slice(0, 1), *[slice(0, 1)] * (r.dim() - 2))] for r in results]
        return results

    def all_slots(self) -> float:
        """Lanes that one program occupies (`issue_slots.py`)."""
        alone = self.counted.singles / self.counted.elements if self.counted.elements else 0.0
        return self.slots + self.counted.slots + self.places * (INTEGER + alone * (SINGLE_INTEGER - INTEGER))

    def _dot(self, op: Op) -> Sequence[Any]:
        flops, unit = dot_flops(op)
        self.dots[unit] = self.dots.get(unit, 0.0) + flops * self.counted.weight
        if any(self._along.get(v, depth) != depth for v, depth in zip(op.operands[:2], (1, 0), strict=True)):
            self.turned[unit] = self.turned.get(unit, 0.0) + flops * self.counted.weight
        shapes = [t.shape for t in (read_type(part) for part in _TILE.findall(op.types)[:2])]
        size = 2 if unit == "half" else 4
        self.staged = max(self.staged, float(size * sum(math.prod(shape) for shape in shapes)))
        return [_one(op)]

    def _see_axis(self, op: Op) -> None:
        """Note along which of two axes a tile lies in memory."""
        address = self._of(op.operands[0])
        if not isinstance(address, Tensor) or address.dim() != 4 or min(address.shape[2:]) < 2:
            return
        steps = (address[0, 0, 1, 0] - address[0, 0, 0, 0], address[0, 0, 0, 1] - address[0, 0, 0, 0])
        self._along[op.results[0]] = int(abs(int(steps[1])) <= abs(int(steps[0])))

    def _follow(self, op: Op) -> None:
        """What is made of a tile, element by element, lies as it does; what is transposed, the other way."""
        if op.name == "tt.dot" or not op.results or op.name.startswith("scf."):
            return
        found = next((self._along[v] for v in op.operands if v in self._along), None)
        if found is not None and op.name != "tt.load":
            self._along[op.results[0]] = 1 - found if op.name == "tt.trans" else found

    def _wrapped(self, op: Op) -> Tensor:
        """A sum, difference or product of integers of 32 bits."""
        exact = _WRAPS[op.name](*(self._of(v).long() for v in op.operands))
        if self.wide:
            return exact
        result = exact.to(torch.int32)
        self.overflowed = self.overflowed or not torch.equal(result.long(), exact)
        return result

    def _through_descriptor(self, op: Op, active: Tensor) -> Sequence[Any]:
        descriptor, *indices = (self._of(v) for v in op.operands)
        rank = len(descriptor.block.shape)
        address, mask = self._through(descriptor, indices[:rank], active)
        if op.name == "tt.descriptor_load":
            self.counted.load(address, mask, None, descriptor.block.dtype)
            return [_one(op)]
        self.counted.store(address, torch.ones(1, dtype=descriptor.block.dtype), mask)
        return []

    def _without_mask(self, op: Op, position: int) -> Op:
        """The access without a mask that depends on loaded numbers: it may keep everything."""
        if len(op.operands) > position and op.operands[position] in self.loaded:
            return Op(op.name, op.operands[:position], op.results, op.text)
        return op

    def _targets(self, last: Op, here: Tensor) -> list[tuple[str, Tensor, list[Any]]]:
        targets = super()._targets(last, here)
        if last.name == "cf.cond_br" and last.operands[0] in self.loaded:
            return [(label, here, values) for label, _, values in targets]
        return targets

    def _both(self, op: Op, active: Tensor) -> Sequence[Any]:
        results: list[Any] = [None] * len(op.results)
        for region in op.regions:
            last = self.block(region["entry"], active)
            results = [self._of(v) for v in last.operands] or results
        return results

    def _counted_for(self, op: Op, active: Tensor) -> Sequence[Any]:
        self.unknown |= any(v in self.loaded for v in op.operands[:3])
        low, high, step = (self._of(v) for v in op.operands[:3])
        if self.wide:
            low = low.long()
        body, carried = op.regions[0]["entry"], [self._of(v) for v in op.operands[3:]]
        trips = torch.where(active, torch.div(high - low + step - 1, step, rounding_mode="floor").clamp(min=0), 0)
        most, before = int(trips.max()), (self.counted.weight, self.counted.trips)
        # the last trip counts nothing, and shows the largest indices
        for trip in (*range(min(most, 3)), *([most - 1] if most > 3 else [])):
            self._stand_for(before, (trips - 2).clamp(min=1) if trip == 2 else torch.tensor([[int(trip < 2)]]))
            self.values[body.args[0]] = low + step * trip
            for argument, value in zip(body.args[1:], carried, strict=True):
                self.values[argument] = value
            carried = self._trip(op, body, active & (trips > trip), carried)
        self.counted.weight, self.counted.trips = before
        return carried

    def _counted_while(self, op: Op, active: Tensor) -> Sequence[Any]:
        """Three trips of a loop that counts, the third standing for the rest; else up to `WHILE_TRIPS`."""
        test, body = op.regions[0]["entry"], op.regions[1]["entry"]
        carried, going = [self._of(v) for v in op.operands], active
        before = self.counted.weight, self.counted.trips
        gaps: list[Tensor | None] = []
        passed: list[Any] = []
        for trip in range(WHILE_TRIPS):
            for argument, value in zip(test.args, carried, strict=True):
                self.values[argument] = value
            condition = self.block(test, going)
            passed = [self._of(v) for v in condition.operands[1:]]
            unknown = condition.operands[0] in self.loaded
            going = going if unknown else going & self._of(condition.operands[0])
            if not going.any():
                break
            gaps.append(self._gap(test, condition.operands[0]))
            left = _trips_left(gaps) if trip == 2 and not unknown else None
            self._stand_for(before, torch.ones(1, 1) if left is None else left * going)
            for argument, value in zip(body.args, passed, strict=True):
                self.values[argument] = value
            carried = self._trip(op, body, going, carried)
            if left is not None or unknown:  # where a loop's length depends on loaded numbers, one trip was counted
                self.unknown |= unknown
                break
        else:
            self.unknown = True
        self.counted.weight, self.counted.trips = before
        return passed

    def _stand_for(self, before: tuple[float, Tensor], trips: Tensor) -> None:
        """Have what is counted next stand for so many trips, [1, programs], within what a loop around this one stands for."""
        weight, each = before
        self.counted.weight = weight * max(float(trips.bool().any()), float(trips.double().mean()))
        self.counted.trips = each * trips.double().reshape(-1)

    def _gap(self, test: Block, condition: int) -> Tensor | None:
        """How far the two sides of a loop's comparison are apart, [1, programs]; None for another condition."""
        found = next((inner for inner in test.ops if condition in inner.results), None)
        if found is None or found.name != "arith.cmpi" or found.text.split(",")[0].strip() not in ("slt", "sgt", "sle", "sge"):
            return None
        left, right = (self._of(v) for v in found.operands)
        return (left.long() - right.long()).expand(1, len(self.programs))

    def _trip(self, op: Op, body: Block, going: Tensor, carried: list[Any]) -> list[Any]:
        loads, around_dot = self.counted.loads, any(inner.name == "tt.dot" for inner in body.ops)
        before, self.counted.ahead = self.counted.ahead, around_dot or "tt.num_stages" in op.text
        last = self.block(body, going)
        self.counted.ahead = before
        if self.counted.loads > loads:
            if around_dot:
                self.pipelined += self.counted.weight
            else:  # where the loop says how far ahead to ask, some of the wait is hidden
                self.rounds += self.counted.weight * (AHEAD_SHARE if "tt.num_stages" in op.text else 1.0)
        return [self._merge(going, self._of(v), old) for v, old in zip(last.operands, carried, strict=True)]


_WRAPS = {"arith.addi": torch.add, "arith.subi": torch.sub, "arith.muli": torch.mul}


def _trips_left(gaps: Sequence[Tensor | None]) -> Tensor | None:
    """Trips until a gap that shrinks by the same step each trip closes; None if it does not."""
    first, second, third = gaps
    if first is None or second is None or third is None or not torch.equal(second - first, third - second):
        return None
    step = third - second
    if bool(((step == 0) | (third.sign() == step.sign())).any()):
        return None
    return torch.div(third, -step, rounding_mode="trunc") + (third % step != 0).long()


def _one(op: Op) -> Tensor:
    kind = result_type(op)
    return torch.ones(1, 1, *[1] * len(kind.shape)).to(kind.dtype)


def _result_types(op: Op) -> list[Any]:
    """The types after the last arrow, one or several."""
    after = op.types.rpartition("->")[2].strip()
    return [read_type(part) for part in re.split(r", (?=tensor|[a-z])", after.strip("()"))]


_SHAPES = re.compile(r"tensor<((?:\d+x)+)")
_TILE = re.compile(r"tensor<[^>]+>")


@functools.lru_cache(maxsize=4096)
def _point_flops(name: str, text: str) -> float:
    """Element-wise and reduction arithmetic of one operation."""
    if not (name.startswith("math.") or (name.startswith("arith.") and name.endswith("f")) or name in ("tt.reduce", "tt.scan")):
        return 0.0
    return max((math.prod(map(int, m[1].split("x")[:-1])) for m in _SHAPES.finditer(text)), default=1)


@functools.lru_cache(maxsize=128)
def loaded_values(function: Function) -> frozenset[int]:
    """Values that depend on what was loaded from memory."""
    found: set[int] = set()
    while True:
        before = len(found)
        _mark_loaded(function.body, found)
        for label, values in _branches(function.body):
            found.update(a for a, v in zip(function.body[label].args, values, strict=False) if v in found)
        if len(found) == before:
            return frozenset(found)


def _branches(body: Mapping[str, Block]) -> list[tuple[str, list[int]]]:
    jumps = [block.ops[-1] for block in body.values() if block.ops and block.ops[-1].name == "cf.br"]
    return [(label, op.operands) for op in jumps for label in re.findall(r"\^(\w+)", op.text) if label in body]


def _mark_loaded(blocks: Mapping[str, Block], found: set[int]) -> None:
    """Add to `found` what is loaded in these blocks, and what is computed of it."""
    for block in blocks.values():
        for op in block.ops:
            source = op.name in ("tt.load", "tt.descriptor_load", "tt.descriptor_gather") or op.name.startswith("tt.atomic")
            if source or any(v in found for v in op.operands):
                found.update(op.results)
            for region in op.regions:
                _mark_carried(op, region, found)
                _mark_loaded(region, found)


def _mark_carried(op: Op, region: Mapping[str, Block], found: set[int]) -> None:
    """What a loop carries in and around, and what a region yields."""
    entry = region["entry"]
    last = entry.ops[-1] if entry.ops else None
    yielded = (last.operands[1:] if last.name == "scf.condition" else last.operands) if last else []
    if op.name == "scf.for":
        inside, initial = entry.args[1:], op.operands[3:]
        if any(v in found for v in op.operands[:3]):
            found.add(entry.args[0])
    else:
        inside, initial = entry.args, op.operands
    for values in (initial, yielded):
        found.update(a for a, v in zip(inside, values, strict=False) if v in found)
    if op.name == "scf.while":
        for other in op.regions:
            found.update(a for a, v in zip(other["entry"].args, yielded, strict=False) if v in found)
    found.update(r for r, v in zip(op.results, yielded, strict=False) if v in found)
