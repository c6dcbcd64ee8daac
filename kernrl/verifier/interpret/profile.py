"""Counts what the launches of a plan do at its own sizes: sectors, arithmetic, trips. Nothing is computed and no memory held.

A few programs of a launch are run with addresses and masks as they are and numbers that mean nothing, and stand for the
others. Of a loop three trips are run: the third stands for all that follow. What depends on loaded numbers is taken at its
worst: both sides of a branch run, a mask keeps everything, and a loop has unknown trips. So the work is bounded by the length
of the kernel's text, whatever the grid and the trips.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.interpret.checked_memory import STORAGE_BITS
from kernrl.verifier.interpret.launch_interpreter import LaunchInterpreter, TooSlow, read_type, result_type
from kernrl.verifier.plan.evaluate import plain_value
from kernrl.verifier.plan.kernel_flops import dot_flops
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, LaunchNode, Plan, TensorRef, Variant, walk_refs
from kernrl.verifier.plan.price import LaunchProfile, Profiles
from kernrl.verifier.plan.ttir import Block, Function, Op, TtirError, parse

SECTOR_BYTES = 32
SAMPLED, SAMPLED_FOR_COVERAGE = 4, 64
"""Programs of a launch that are run."""
WHILE_TRIPS = 64
"""Trips of a `while` that are run; with more it counts as unknown."""
PROFILE_S = 3.0
"""Time limit for all launches of a plan; the rest count as unknown."""

_FAILURES = (TtirError, TooSlow, RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError)
"""What a kernel of nonsense may raise; such a launch is unknown."""


def profile_plan(plan: Plan) -> Profiles:
    """A profile for each variant of each launch, by the node's and the variant's position; without those that fail."""
    deadline, found = time.process_time() + PROFILE_S, {}
    for position, node in enumerate(plan.nodes):
        for number, variant in enumerate(node.variants if isinstance(node, LaunchNode) else ()):
            try:
                found[position, number] = profile_launch(plan, variant, deadline)
            except _FAILURES:
                continue
    return found


def uncovered(plan: Plan, profiles: Profiles) -> str:
    """A sentence if the launches cannot store every element of some output; '' if they may."""
    for position, output in enumerate(plan.outputs):
        stored = _stored_at_most(plan, output.storage, profiles)
        if stored < output.numel:  # perhaps the programs that were run are not those that store most
            stored = _stored_at_most(plan, output.storage, {key: _sampled_widely(plan, key) for key in profiles})
        if stored < output.numel:
            few, all_of_it = f"{int(stored):,}", f"{output.numel:,}"
            return f"At the full size forward() stores at most {few} of the {all_of_it} elements of output {position}."
    return ""


def _sampled_widely(plan: Plan, key: tuple[int, int]) -> LaunchProfile | None:
    node = plan.nodes[key[0]]
    assert isinstance(node, LaunchNode)
    try:
        return profile_launch(plan, node.variants[key[1]], time.process_time() + PROFILE_S, SAMPLED_FOR_COVERAGE)
    except _FAILURES:
        return None


def _stored_at_most(plan: Plan, storage: int, profiles: Mapping[tuple[int, int], LaunchProfile | None]) -> float:
    """Upper bound of the elements that the plan's nodes write to a storage; infinite where that is unknown."""
    total = 0.0
    for position, node in enumerate(plan.nodes):
        if isinstance(node, AtenNode):
            refs = [r for a in (*node.outputs, *node.args, *node.kwargs.values()) for r in walk_refs(a)]
            total += math.inf if any(r.storage == storage for r in refs) else 0
        elif any(r.storage == storage for one in node.variants for v in one.args.values() for r in walk_refs(v)):
            seen = [profiles.get((position, number)) for number in range(len(node.variants))]
            total += max(math.inf if p is None or p.unknown_trips else p.stored_at_most.get(storage, 0.0) for p in seen)
    return total


def profile_launch(plan: Plan, variant: Variant, deadline: float, sampled: int = SAMPLED) -> LaunchProfile:
    """Count one launch. Raises TtirError, TooSlow, and whatever torch raises for nonsense."""
    function = parse(plan.kernels[variant.kernel].ttir)
    total = math.prod(variant.grid)
    chosen = sorted({round(i * (total - 1) / max(1, sampled - 1)) for i in range(sampled)}) if total > 1 else [0]
    memory = _CountedMemory(len(chosen))
    run = _Profiler(function, memory, variant.grid, deadline, chosen)
    run.profile([_argument(v) for v in variant.args.values()])
    share = total / len(chosen)
    return LaunchProfile(
        programs=total,
        loaded_bytes={s: float(count.sum()) * SECTOR_BYTES * share for s, count in memory.loaded.items()},
        stored_bytes={s: float(count.sum()) * SECTOR_BYTES * share for s, count in memory.stored.items()},
        stored_at_most={s: float(count.max()) * total for s, count in memory.lanes.items()},
        dot_flops={unit: flops * total for unit, flops in run.dots.items()},
        point_flops=run.points * total,
        rounds=1 + run.rounds,
        pipelined_rounds=run.pipelined,
        unknown_trips=run.unknown,
    )


def _argument(value: Any) -> Tensor:
    if isinstance(value, TensorRef):
        return torch.tensor([[(value.storage << STORAGE_BITS) + value.offset * ITEM_BYTES[value.dtype]]])
    value = plain_value(value, "cpu")
    kind = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float32
    return torch.tensor([[value - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else value]], dtype=kind)


class _CountedMemory:
    """In place of `CheckedMemory`: holds nothing, counts everything."""

    def __init__(self, programs: int) -> None:
        self.cases, self.first_program, self.races, self.in_turn, self.changed = 1, 0, None, False, False
        self.weight, self.programs = 1.0, programs
        self.loads = 0
        self.loaded: dict[int, Tensor] = {}
        """Sectors that each program loads, by storage."""
        self.stored: dict[int, Tensor] = {}
        self.lanes: dict[int, Tensor] = {}
        """Elements that each program stores, by storage."""
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
        shape = (self.programs, -1)
        address, mask = (v.expand(1, self.programs, *v.shape[2:]).reshape(shape) for v in (address, mask))
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
        least = active * dtype.itemsize / SECTOR_BYTES
        found = torch.maximum(distinct.double(), least) * self.weight
        table[number] = table.get(number, torch.zeros(self.programs, dtype=torch.float64)) + found
        if lanes is not None:
            lanes[number] = lanes.get(number, torch.zeros(self.programs, dtype=torch.float64)) + active * self.weight


class _Profiler(LaunchInterpreter):
    """Runs chosen programs for their addresses alone: a float tile is one element, and products are not made."""

    def __init__(
        self, function: Function, memory: _CountedMemory, grid: tuple[int, int, int], deadline: float, chosen: Sequence[int]
    ) -> None:
        super().__init__(function, memory, grid, deadline)  # pyright: ignore[reportArgumentType]
        self.counted, self.programs = memory, torch.tensor(chosen)
        self.loaded = loaded_values(function)
        self.dots: dict[str, float] = {}
        self.points = self.rounds = self.pipelined = 0.0
        self.unknown = False

    def profile(self, arguments: Sequence[Tensor]) -> None:
        self.values = dict(zip(self.function.params, arguments, strict=True))
        self._body(torch.ones(1, len(self.programs), dtype=torch.bool))

    def _operation(self, op: Op, active: Tensor) -> Sequence[Any]:
        self.points += self.counted.weight * _point_flops(op.name, op.text)
        if op.name == "scf.for":
            return self._counted_for(op, active)
        if op.name == "scf.while":
            return self._counted_while(op, active)
        if op.name == "scf.if" and op.operands[0] in self.loaded:
            return self._both(op, active)
        if op.name == "tt.dot":
            flops, unit = dot_flops(op)
            self.dots[unit] = self.dots.get(unit, 0.0) + flops * self.counted.weight
            return [_one(op)]
        if op.name in ("tt.reduce", "tt.scan", "tt.histogram", "tt.gather"):
            return [torch.ones(1, 1, *[1] * len(t.shape)).to(t.dtype) for t in _result_types(op)]
        if op.name in ("tt.assert", "llvm.intr.assume"):
            return []
        if op.name in ("tt.descriptor_load", "tt.descriptor_store"):
            return self._through_descriptor(op, active)
        if op.name in ("tt.load", "tt.store"):
            op = self._without_mask(op, 1 if op.name == "tt.load" else 2)
        results = super()._operation(op, active)
        if op.results and op.results[0] in self.loaded and isinstance(results[0], Tensor) and results[0].is_floating_point():
            return [r[(slice(0, 1), slice(0, 1), *[slice(0, 1)] * (r.dim() - 2))] for r in results]
        return results

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
        body, carried = op.regions[0]["entry"], [self._of(v) for v in op.operands[3:]]
        trips = torch.where(active, torch.div(high - low + step - 1, step, rounding_mode="floor").clamp(min=0), 0)
        most, before = int(trips.max()), self.counted.weight
        mean = float(trips.double().mean())
        for trip in range(min(most, 3)):
            self.counted.weight = before if trip < 2 else before * max(1.0, mean - 2)
            self.values[body.args[0]] = low + step * trip
            for argument, value in zip(body.args[1:], carried, strict=True):
                self.values[argument] = value
            carried = self._trip(op, body, active & (trips > trip), carried)
        self.counted.weight = before
        return carried

    def _counted_while(self, op: Op, active: Tensor) -> Sequence[Any]:
        """Three trips of a loop that counts, the third standing for the rest; else up to `WHILE_TRIPS`."""
        test, body = op.regions[0]["entry"], op.regions[1]["entry"]
        carried, going, before = [self._of(v) for v in op.operands], active, self.counted.weight
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
            self.counted.weight = before * (1.0 if left is None else max(1.0, float((left * going).double().mean())))
            for argument, value in zip(body.args, passed, strict=True):
                self.values[argument] = value
            carried = self._trip(op, body, going, carried)
            if left is not None or unknown:  # where a loop's length depends on loaded numbers, one trip was counted
                self.unknown |= unknown
                break
        else:
            self.unknown = True
        self.counted.weight = before
        return passed

    def _gap(self, test: Block, condition: int) -> Tensor | None:
        """How far the two sides of a loop's comparison are apart, [1, programs]; None for another condition."""
        found = next((inner for inner in test.ops if condition in inner.results), None)
        if found is None or found.name != "arith.cmpi" or found.text.split(",")[0].strip() not in ("slt", "sgt", "sle", "sge"):
            return None
        left, right = (self._of(v) for v in found.operands)
        return (left.long() - right.long()).expand(1, len(self.programs))

    def _trip(self, op: Op, body: Block, going: Tensor, carried: list[Any]) -> list[Any]:
        loads = self.counted.loads
        last = self.block(body, going)
        if self.counted.loads > loads:
            if any(inner.name == "tt.dot" for inner in body.ops):
                self.pipelined += self.counted.weight
            else:
                self.rounds += self.counted.weight
        return [self._merge(going, self._of(v), old) for v, old in zip(last.operands, carried, strict=True)]


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
        _spread(function.body, found)
        for label, values in _branches(function.body):
            found.update(a for a, v in zip(function.body[label].args, values, strict=False) if v in found)
        if len(found) == before:
            return frozenset(found)


def _branches(body: Mapping[str, Block]) -> list[tuple[str, list[int]]]:
    jumps = [block.ops[-1] for block in body.values() if block.ops and block.ops[-1].name == "cf.br"]
    return [(label, op.operands) for op in jumps for label in re.findall(r"\^(\w+)", op.text) if label in body]


def _spread(blocks: Mapping[str, Block], found: set[int]) -> None:
    for block in blocks.values():
        for op in block.ops:
            source = op.name in ("tt.load", "tt.descriptor_load", "tt.descriptor_gather") or op.name.startswith("tt.atomic")
            if source or any(v in found for v in op.operands):
                found.update(op.results)
            for region in op.regions:
                _enter(op, region, found)
                _spread(region, found)


def _enter(op: Op, region: Mapping[str, Block], found: set[int]) -> None:
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
