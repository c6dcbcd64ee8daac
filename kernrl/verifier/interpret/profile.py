"""Counts what the launches of a plan do at its own sizes: sectors, arithmetic, trips. Nothing is computed and no memory held.

A few programs of a launch are run with addresses and masks as they are and numbers that mean nothing, and stand for the
others. Of a loop three trips are run: the third stands for all that follow. What depends on loaded numbers is taken at its
worst: both sides of a branch run, a mask keeps everything, and a loop has unknown trips. So the work is bounded by the length
of the kernel's text, whatever the grid and the trips.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.interpret.checked_memory import STORAGE_BITS
from kernrl.verifier.interpret.counted_memory import SECTOR_BYTES, CountedMemory
from kernrl.verifier.interpret.launch_counter import LaunchCounter
from kernrl.verifier.interpret.launch_interpreter import TooSlow
from kernrl.verifier.interpret.store_counter import StoreCounter
from kernrl.verifier.plan.call_aten import plain_value
from kernrl.verifier.plan.launch_time import LaunchProfile, Profiles
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, LaunchNode, Plan, TensorRef, Variant, walk_refs
from kernrl.verifier.plan.ttir import Function, TtirError, parse

SAMPLED, MORE, ROUNDS = 4, 64, 16
"""Programs of a launch that are run; how many more at once, and how often, where those do not store enough."""
PROFILE_S = 3.0
"""Time limit for all launches of a plan; the rest count as unknown."""

_FAILURES = (TtirError, TooSlow, RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError)
"""What a kernel of nonsense may raise; such a launch is unknown."""

Bounds = Mapping[tuple[int, int], Mapping[int, float] | None]
"""Most bytes that each variant of each launch stores, by storage; None where that is unknown."""


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
    bounds: Bounds = {key: None if p.unknown_trips else p.stored_at_most for key, p in profiles.items()}
    for position, output in enumerate(plan.outputs):
        whole = output.numel * ITEM_BYTES[output.dtype]
        stored = _stored_at_most(plan, output.storage, bounds)
        for seen in _seen_widely(plan, bounds) if stored < whole else ():
            stored = _stored_at_most(plan, output.storage, seen)
            if stored >= whole:
                break
        if stored < whole:
            few, all_of_it = f"{int(stored) // ITEM_BYTES[output.dtype]:,}", f"{output.numel:,}"
            return f"At the full size forward() stores at most {few} of the {all_of_it} elements of output {position}."
    return ""


def overflowing(plan: Plan, profiles: Profiles) -> str:
    """A sentence if indices of 32 bits overflow so that other elements are accessed; '' if none is seen to."""
    for (position, number), profile in profiles.items():
        node = plan.nodes[position]
        if profile.overflows and isinstance(node, LaunchNode):
            name = plan.kernels[node.variants[number].kernel].function
            return (
                f"{name}: at the full size an index of 32 bits overflows, and other elements are accessed than are meant. "
                "Widen it before it is multiplied, as in `tl.program_id(0).to(tl.int64)`."
            )
    return ""


def _seen_widely(plan: Plan, bounds: Bounds) -> Iterator[Bounds]:
    """The bounds by every trip, of more and more programs: perhaps those that were run are not those that store most.

    Programs are drawn at random, since what a program does may go by its number's remainder.
    """
    variants: dict[tuple[int, int], Variant] = {}
    for position, number in bounds:
        node = plan.nodes[position]
        assert isinstance(node, LaunchNode)
        variants[position, number] = node.variants[number]
    samples = {key: _samples_of_programs(math.prod(variant.grid)) for key, variant in variants.items()}
    seen: dict[tuple[int, int], Mapping[int, float] | None] = {}
    deadline = time.process_time() + PROFILE_S
    for _ in range(1 + ROUNDS):
        for key, variant in variants.items():
            before, chosen = seen.get(key, {}), next(samples[key], None)
            if bounds[key] is None or before is None:
                seen[key] = None
            elif chosen is not None:
                try:
                    now = _stored_by(plan, variant, deadline, chosen)
                except _FAILURES:
                    seen[key] = None
                else:
                    seen[key] = {s: max(now.get(s, 0.0), before.get(s, 0.0)) for s in {*now, *before}}
        yield seen


def _stored_by(plan: Plan, variant: Variant, deadline: float, chosen: Sequence[int]) -> dict[int, float]:
    """Bytes stored to each storage if every program stores as much as the busiest of these."""
    run = StoreCounter(parse(plan.kernels[variant.kernel].ttir), variant.grid, deadline, chosen)
    run.count([_argument(v) for v in variant.args.values()])
    return {s: float(count.max()) * math.prod(variant.grid) for s, count in run.stored.items()}


def _samples_of_programs(programs: int) -> Iterator[list[int]]:
    """Some programs from the first to the last, then others at random: the same each time, and all where there are few."""
    yield _evenly_spaced(programs)
    order = random.Random(programs).sample(range(programs), min(programs, MORE * ROUNDS))
    yield from (sorted(order[i : i + MORE]) for i in range(0, len(order), MORE))


def _evenly_spaced(programs: int) -> list[int]:
    return sorted({round(i * (programs - 1) / (SAMPLED - 1)) for i in range(SAMPLED)})


def _stored_at_most(plan: Plan, storage: int, bounds: Bounds) -> float:
    """Upper bound of the bytes that the plan's nodes write to a storage; infinite where that is unknown."""
    total = 0.0
    for position, node in enumerate(plan.nodes):
        if isinstance(node, AtenNode):
            refs = [r for a in (*node.outputs, *node.args, *node.kwargs.values()) for r in walk_refs(a)]
            total += math.inf if any(r.storage == storage for r in refs) else 0
        elif any(r.storage == storage for one in node.variants for v in one.args.values() for r in walk_refs(v)):
            seen = [bounds.get((position, number)) for number in range(len(node.variants))]
            total += max(math.inf if bound is None else bound.get(storage, 0.0) for bound in seen)
    return total


def profile_launch(plan: Plan, variant: Variant, deadline: float) -> LaunchProfile:
    """Count one launch. Raises TtirError, TooSlow, and whatever torch raises for nonsense."""
    kernel = plan.kernels[variant.kernel]
    function = parse(kernel.ttir)
    total = math.prod(variant.grid)
    chosen = _evenly_spaced(total)
    memory = CountedMemory(len(chosen))
    run = LaunchCounter(function, memory, variant.grid, deadline, chosen, threads=32 * kernel.num_warps)
    run.count([_argument(v) for v in variant.args.values()])
    share = total / len(chosen)
    return LaunchProfile(
        programs=total,
        loaded_bytes={s: float(count.sum()) * SECTOR_BYTES * share for s, count in memory.loaded.items()},
        stored_bytes={s: float(count.sum()) * SECTOR_BYTES * share for s, count in memory.stored.items()},
        stored_at_most={s: float(count.max()) * total for s, count in memory.lanes.items()},
        dot_flops={unit: flops * total for unit, flops in run.dots.items()},
        turned_flops={unit: flops * total for unit, flops in run.turned.items()},
        point_flops=run.points * total,
        slots=run.all_slots() * total,
        uneven=_uneven(memory),
        reduces=run.reduces,
        tile=run.tile,
        staged_bytes=run.staged,
        rounds=1 + run.rounds,
        pipelined_rounds=run.pipelined,
        unknown_trips=run.unknown,
        overflows=run.overflowed and _other_accesses(function, variant, chosen, deadline),
    )


def _uneven(memory: CountedMemory) -> float:
    """What the busiest of the programs that were run accesses, over their mean."""
    every = [*memory.loaded.values(), *memory.stored.values()]
    total = torch.stack(every).sum(0) if every else torch.zeros(1)
    return float(total.max() / total.mean()) if total.sum() else 1.0


def _other_accesses(function: Function, variant: Variant, chosen: list[int], deadline: float) -> bool:
    """Whether these programs access other elements than they would if their integers of 32 bits did not overflow."""
    kept: list[list[Tensor]] = []
    for wide in (False, True):
        memory = CountedMemory(len(chosen), keep=True)
        run = LaunchCounter(function, memory, variant.grid, deadline, chosen, wide=wide)
        try:
            run.count([_argument(v) for v in variant.args.values()])
        except _FAILURES:  # random numbers, which are made by overflowing, have operations of 32 bits alone
            return False
        kept.append(memory.accessed or [])
    return len(kept[0]) != len(kept[1]) or not all(map(torch.equal, *kept))


def _argument(value: Any) -> Tensor:
    if isinstance(value, TensorRef):
        return torch.tensor([[(value.storage << STORAGE_BITS) + value.offset * ITEM_BYTES[value.dtype]]])
    value = plain_value(value, "cpu")
    kind = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float32
    return torch.tensor([[value - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else value]], dtype=kind)
