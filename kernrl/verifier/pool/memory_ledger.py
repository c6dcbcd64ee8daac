"""Memory of one GPU: what a candidate is planned to take, and who may take it when."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kernrl.tasks.task import FULL
from kernrl.verifier.judge.memory_estimate import SetMemory
from kernrl.verifier.replay.device_memory import block_bytes
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.shared_outputs import shared_bytes

CONTEXT_BYTES = 768 << 20
"""Of a process on the GPU: its context, and the workspaces of cuBLAS and cuDNN."""

SMALL_BYTES = 128 << 20
"""A candidate whose plans hold less than this is not worth a rehearsal."""

GUESSED_FACTOR = 6
"""What each process is guessed to take without a rehearsal, in multiples of what the candidate's plans hold."""

SLACK = 0.05
"""Share of the memory that is left free: allocators leave gaps."""

GIB = 1 << 30

W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Planned:
    """Bytes at the peak of judging one candidate, by process."""

    replay: int
    judge: int
    task: int
    """What the task takes by itself, whatever the candidate does; 0 where that is only guessed."""
    sure: int
    """Of the total, what is no guess."""

    @property
    def total(self) -> int:
        return self.replay + self.judge


def is_small(job: Job) -> bool:
    """Whether a candidate is planned without a rehearsal."""
    return max(job.held_bytes.values(), default=0) < SMALL_BYTES


def planned(job: Job, sets: Mapping[str, SetMemory | None], baselines: bool) -> Planned:
    """The peaks of both processes. `sets`: the rehearsal of each input set on the GPU; None where there can be none."""
    shared = shared_bytes(job)
    replay = judge = alone = 0
    held = sum(found.inputs for found in sets.values() if found)
    for name in job.plans:
        found, own = sets.get(name), block_bytes(job.temporary_bytes[name])
        draws = sum(draw.input_set == name for draw in job.draws) + (1 + job.spot_checks if name == FULL and baselines else 0)
        if found is None:
            need = GUESSED_FACTOR * job.held_bytes[name]
            replay, judge = max(replay, own + need), max(judge, need)
            continue
        kept = held - found.inputs
        timed = found.eager_peak if name == FULL and baselines else found.inputs
        checked = found.inputs + found.block + found.block // 4 + found.workspace  # it may convolve as the reference does
        once = kept + max(found.making_peak, found.drawing_peak, checked, timed)
        replay, judge = max(replay, own + once), max(judge, found.judge_peak(draws))
        alone = max(alone, once + found.output + judge)
    if all(sets.get(name) for name in job.plans):
        return Planned(replay + shared, judge, alone + shared, replay + shared + judge)
    return Planned(replay + shared, judge, 0, shared + max(job.temporary_bytes.values()))


def least_bytes(full: SetMemory) -> int:
    """What judging any candidate of a task takes at its full set, by the rehearsal: two draws, and two while it is timed."""
    once = max(full.making_peak, full.drawing_peak, full.inputs + full.block + full.block // 4 + full.workspace)
    return once + full.output + full.judge_peak(4) + 2 * full.output


def usable_bytes(free_bytes: float, lanes: int) -> float:
    """Of a GPU's free memory, what candidates may take beside the processes of so many lanes."""
    return (free_bytes - 2 * lanes * CONTEXT_BYTES) * (1 - SLACK)


class MemoryLedger(Generic[W]):
    """Admits candidates to lanes by what they are planned to take. Thread-safe; first come, first served.

    A lane that is idle keeps what it has made for its last task, until another one needs the room.
    """

    def __init__(self, total_bytes: float, release: Callable[[W], None]):
        """`release`: have an idle lane give back all that it keeps."""
        self.total_bytes, self._release = total_bytes, release
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._held: OrderedDict[W, int] = OrderedDict()
        """Bytes of each lane, running or idle; the one that ran least recently first."""
        self._running: set[W] = set()

    def held_bytes(self) -> int:
        """Of all lanes."""
        with self._changed:
            return sum(self._held.values())

    @contextlib.contextmanager
    def admitted(self, lane: W, nbytes: int) -> Iterator[None]:
        """Wait until there is room beside what runs, and take it for one candidate. What exceeds the GPU runs alone."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._queue[0] is ticket and self._fits(lane, nbytes))
                self._held[lane] = nbytes
                self._held.move_to_end(lane)
                self._running.add(lane)
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(lane)
                self._changed.notify_all()

    def released(self, lane: W) -> None:
        """Note that a lane holds nothing any more."""
        with self._changed:
            self._held.pop(lane, None)
            self._changed.notify_all()

    def _fits(self, lane: W, nbytes: int) -> bool:
        others = {one: held for one, held in self._held.items() if one != lane}
        if self._running and nbytes + sum(others[one] for one in others if one in self._running) > self.total_bytes:
            return False
        for one in others:
            if nbytes + sum(others.values()) <= self.total_bytes:
                break
            if one not in self._running and others[one]:
                self._release(one)
                self._held[one] = others[one] = 0
        return True


def gib(nbytes: float) -> str:
    """`12.3 GiB`."""
    return f"{nbytes / GIB:.1f} GiB"
