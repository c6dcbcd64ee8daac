"""Modelled time of one launch, from what it was seen to do (`interpret/profile.py`).

A launch takes as long as the resource that it uses longest: device memory, the L2 cache, instruction issue or tensor cores. Of
small storages, a multiprocessor has in its L1 cache what it has loaded once. Few programs use few multiprocessors, and the last
programs run alone; few warps leave the schedulers idle. A program also waits, for memory in every trip of a loop and for its
threads in every reduction. The programs that a multiprocessor holds at once wait at the same time; how many it holds is limited
by warps, registers and shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernrl.verifier.base.devices import Device
from kernrl.verifier.plan.library_time import BANDWIDTH_SHARE, WARPS, peak
from kernrl.verifier.plan.plan import KernelSource

CACHE_BYTES_PER_US = 48e3
"""What a multiprocessor gets from the second-level cache: 46 to 52 kB were measured on an H200 in products of many tiles."""
LONE_FACTOR = 2.0
"""How much more a multiprocessor gets from either memory while the others ask for nothing."""
NEAR_BYTES = 128 << 10
"""Of a multiprocessor's first-level cache, for storages that all programs load and none stores into: half of an H200's."""
MEMORY_LATENCY_US, CACHED_LATENCY_US = 1.0, 0.35
"""From asking device memory to the answer, while many ask; and from asking the second-level cache."""
ISSUE_SHARE, ISSUE_WARPS = 0.8, 32
"""Of the instructions that a multiprocessor can issue, those that it does with so many warps; with fewer, by the root of their
share."""
DOT_SHARE = {"half": 0.7, "tf32": 0.7, "fp32": 0.28}
"""What `tl.dot` reaches of the vendor's rate: 0.72 to 0.79 was measured on an H200 under tf32, with `ieee` far less."""
IEEE_OUTPUTS = 18
"""Outputs of a thread at which `ieee` reaches half of that, since it reads operands anew for each few of them. From 0.05 of the
rate at 4 outputs to 0.25 at 64 was measured on an H200."""
TURNED_SHARE = {"half": 0.6, "tf32": 0.19, "fp32": 0.47}
"""The same for operands that do not lie along the axis that is summed. Tensor cores read tf32 that way alone; multiply-adds of
float32 read the other way better."""
START_US = 0.5
"""From a program's start to its first load, and from its last store to the next program's start."""
REDUCE_US = 0.2
"""A reduction over threads: shuffles, shared memory and two barriers."""
SCHEDULERS = 4
"""Of a multiprocessor: each goes on with another of its warps while one waits."""
REGISTERS = 65536
"""Of a multiprocessor; a thread has 255 at most."""
LAST_SHARE = 0.5
"""Of the data of a program's last trip, what arrives when nothing else is left to do."""


@dataclass(frozen=True, slots=True)
class LaunchProfile:
    """What one launch was seen to do, summed over its programs."""

    programs: int
    loaded_bytes: Mapping[int, float]
    """32-byte sectors loaded, in bytes, by storage; each access of each trip counts."""
    stored_bytes: Mapping[int, float]
    stored_at_most: Mapping[int, float]
    """Most bytes stored, by storage, if all programs are alike and a loop's later trips are like its third."""
    dot_flops: Mapping[str, float]
    turned_flops: Mapping[str, float]
    """Of these, the ones whose operands do not lie along the axis that is summed."""
    point_flops: float
    slots: float
    """Lanes of instructions (`interpret/issue_slots.py`)."""
    uneven: float
    """What the busiest program accesses, over the mean."""
    reduces: float
    """Reductions that a program makes, one after another."""
    tile: int
    """Elements of a program's largest tile of numbers."""
    staged_bytes: float
    """Both operands of a program's largest `tl.dot`."""
    rounds: float
    """How often a program waits for memory, one wait after another."""
    pipelined_rounds: float
    """The same in loops whose loads the compiler asks for ahead: around a `tl.dot`, and with `num_stages` of their own."""
    unknown_trips: bool
    """Whether a loop's length depends on loaded numbers."""
    overflows: bool = False
    """Whether indices of 32 bits overflow, so that other elements are accessed than are meant."""


Profiles = Mapping[tuple[int, int], LaunchProfile]
"""By position of the node in the plan, and of the variant in the node."""


def launch_us(
    seen: LaunchProfile, kernel: KernelSource, memory_bytes: float, device: Device, sizes: Mapping[int, int]
) -> float:
    """Time of a launch, without what launching costs. `memory_bytes` cross device memory, the rest comes from the caches.

    Args:
        sizes: Bytes by storage; those of other storages are not taken to be in the L1 cache.
    """
    per_processor = max(1.0, float(seen.programs)) / device.sm_count
    busiest = math.ceil(per_processor) / per_processor  # times what a multiprocessor has to do on average
    sectors = sum(seen.loaded_bytes.values()) + sum(seen.stored_bytes.values()) - _near_bytes(seen, sizes, device)
    share = min(1.0, LONE_FACTOR / busiest)  # of what the memories give, where a few multiprocessors ask
    held = held_programs(seen, kernel, device)
    side_by_side = min(float(held), max(1.0, per_processor))
    issued = ISSUE_SHARE * math.sqrt(min(1.0, side_by_side * kernel.num_warps / ISSUE_WARPS))
    busy = max(
        memory_bytes / (device.bandwidth_gb_s * 1e3 * BANDWIDTH_SHARE * share),
        sectors / (device.sm_count * CACHE_BYTES_PER_US * share),
        busiest * seen.slots / (issued * device.fp32_tflops * 1e6 / 2),
        busiest * _products_us(seen, kernel, device),
    )
    if per_processor <= held:  # all begin at once, and the last to end decides
        busy *= seen.uneven
    waves = max(1.0, per_processor / held)
    from_memory = min(1.0, memory_bytes / sectors) if sectors else 0.0
    latency = CACHED_LATENCY_US + (MEMORY_LATENCY_US - CACHED_LATENCY_US) * from_memory
    waits = waves * (START_US + seen.rounds * latency + seen.reduces * REDUCE_US)
    busy = max(busy, waves * latency * seen.pipelined_rounds / max(1, kernel.num_stages - 1))
    # the warps of a program wait for each other, those of different programs do not
    together = max(1.0, side_by_side * math.sqrt(kernel.num_warps / SCHEDULERS))
    trips = max(1.0, seen.rounds + seen.pipelined_rounds)
    last = LAST_SHARE * sectors / max(1, seen.programs) / trips / (LONE_FACTOR * CACHE_BYTES_PER_US)
    return max(busy, waits) + min(busy, waits) / together + last


def _near_bytes(seen: LaunchProfile, sizes: Mapping[int, int], device: Device) -> float:
    """Of what is loaded, what is in the L1 cache: small storages, after the first time on each multiprocessor."""
    near, taken = 0.0, 0
    for storage in sorted((s for s in seen.loaded_bytes if s in sizes and s not in seen.stored_bytes), key=sizes.__getitem__):
        taken += sizes[storage]
        if taken > NEAR_BYTES:
            break
        first = sizes[storage] * min(device.sm_count, seen.programs)
        near += max(0.0, seen.loaded_bytes[storage] - first)
    return near


def held_programs(seen: LaunchProfile, kernel: KernelSource, device: Device) -> int:
    """Programs that a multiprocessor holds at once."""
    threads = 32 * kernel.num_warps
    registers = min(255, 24 + seen.tile / threads)
    shared = seen.staged_bytes * max(1, kernel.num_stages)
    limits = (32, WARPS / kernel.num_warps, REGISTERS / (threads * registers), device.shared_bytes / shared if shared else 32)
    return max(1, int(min(limits)))


def _products_us(seen: LaunchProfile, kernel: KernelSource, device: Device) -> float:
    total, outputs = 0.0, max(1.0, seen.tile / (32 * kernel.num_warps))
    for unit, flops in seen.dot_flops.items():
        turned = min(flops, seen.turned_flops.get(unit, 0.0))
        share = DOT_SHARE[unit] * (outputs / (outputs + IEEE_OUTPUTS) if unit == "fp32" else 1.0)
        total += ((flops - turned) / share + turned / TURNED_SHARE[unit]) / peak(device, unit)
    return total
