"""Modelled time of one launch, from what it was seen to do (`interpret/profile.py`).

A launch takes as long as the resource that it uses longest: device memory, the L2 cache, instruction issue or tensor cores. Few
programs use few multiprocessors, and the last programs run alone. A program also waits, for memory in every trip of a loop and
for its threads in every reduction. The programs that a multiprocessor holds at once wait at the same time; how many it holds
is limited by warps, registers and shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernrl.verifier.base.devices import Device
from kernrl.verifier.plan.library_time import BANDWIDTH_SHARE, LATENCY_US, WARPS, peak
from kernrl.verifier.plan.plan import KernelSource

CACHE_BYTES_PER_US = 48e3
"""What a multiprocessor gets from the second-level cache: 46 to 52 kB were measured on an H200 in products of many tiles."""
LONE_FACTOR = 2.0
"""How much more a multiprocessor gets from either memory while the others ask for nothing."""
CACHED_LATENCY_US = 0.35
"""From asking the second-level cache to the answer, about half of what device memory takes."""
ISSUE_SHARE = 1.0
"""Of the instructions that a multiprocessor can issue, those that it does."""
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


def launch_us(seen: LaunchProfile, kernel: KernelSource, memory_bytes: float, device: Device) -> float:
    """Time of a launch, without what launching costs. `memory_bytes` cross device memory, the rest comes from the cache."""
    per_processor = max(1.0, float(seen.programs)) / device.sm_count
    busiest = math.ceil(per_processor) / per_processor  # times what a multiprocessor has to do on average
    sectors = sum(seen.loaded_bytes.values()) + sum(seen.stored_bytes.values())
    share = min(1.0, LONE_FACTOR / busiest)  # of what the memories give, where a few multiprocessors ask
    busy = max(
        memory_bytes / (device.bandwidth_gb_s * 1e3 * BANDWIDTH_SHARE * share),
        sectors / (device.sm_count * CACHE_BYTES_PER_US * share),
        busiest * seen.slots / (ISSUE_SHARE * device.fp32_tflops * 1e6 / 2),
        busiest * _products_us(seen, kernel, device),
    )
    held = held_programs(seen, kernel, device)
    if per_processor <= held:  # all begin at once, and the last to end decides
        busy *= seen.uneven
    waves = max(1.0, per_processor / held)
    from_memory = min(1.0, memory_bytes / sectors) if sectors else 0.0
    latency = CACHED_LATENCY_US + (LATENCY_US - CACHED_LATENCY_US) * from_memory
    waits = waves * (START_US + seen.rounds * latency + seen.reduces * REDUCE_US)
    busy = max(busy, waves * latency * seen.pipelined_rounds / max(1, kernel.num_stages - 1))
    together = max(1.0, min(held, max(1.0, per_processor)) * kernel.num_warps / SCHEDULERS)
    trips = max(1.0, seen.rounds + seen.pipelined_rounds)
    last = sectors / max(1, seen.programs) / trips / (LONE_FACTOR * CACHE_BYTES_PER_US)
    return max(busy, waits) + min(busy, waits) / together + last


def held_programs(seen: LaunchProfile, kernel: KernelSource, device: Device) -> int:
    """Programs that a multiprocessor holds at once."""
    threads = 32 * kernel.num_warps
    registers = min(255, 24 + 2 * seen.tile / threads)
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
