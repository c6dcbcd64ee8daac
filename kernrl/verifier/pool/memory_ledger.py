"""Memory of one GPU: what a candidate is planned to take, and who may take it when."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from kernrl.tasks.task import FULL
from kernrl.verifier.judge.memory_estimate import SetMemory
from kernrl.verifier.judge.truth.slices import Slices
from kernrl.verifier.replay.device_memory import block_bytes
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.shared_outputs import shared_bytes

CONTEXT_BYTES = 768 << 20
"""Of a process on the GPU: its context, and the workspaces of cuBLAS and cuDNN."""

PROCESS_SHARE = 0.25
"""Most of a GPU's free memory that goes to processes by themselves."""

SMALL_BYTES = 128 << 20
"""A candidate whose plans hold less than this is not worth a rehearsal."""

GUESSED_FACTOR = 6
"""What each process is guessed to take without a rehearsal, in multiples of what the candidate's plans hold."""

SLACK = 0.05
"""Share of the memory that is left free: allocators leave gaps."""

GAPS, LIBRARY_BYTES = 0.1, 512 << 20
"""What a process may hold beyond its plan: a share of it in gaps between blocks, and buffers of libraries and of the clock."""

MAX_OVERTAKEN = 128
"""How often the candidate that waits first may be overtaken by ones whose lane already holds what they need."""

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
    most_replay: int | None = None
    most_judge: int | None = None
    """What each process may take from the GPU: its peak, what its graphs keep, and what allocators leave unused. None where
    the peaks are guessed."""
    slices: Mapping[str, Slices] = field(default_factory=dict)
    """By input set, in what the judge is planned to run its float64 reference; whole where a set is missing."""

    @property
    def total(self) -> int:
        return self.replay + self.judge

    @property
    def most(self) -> int:
        """What both processes will hold at most, as far as that is known."""
        return (self.most_replay or self.replay) + (self.most_judge or self.judge)

    @property
    def limited(self) -> bool:
        """Whether the processes are held to what they may take; not where that is a guess."""
        return self.most_replay is not None and self.most_judge is not None

    def at_least(self, replay: int, judge: int) -> Planned:
        """With room for what the processes were seen to hold."""
        if self.most_replay is None or self.most_judge is None:
            return replace(self, replay=max(self.replay, replay), judge=max(self.judge, judge))
        return replace(self, most_replay=max(self.most_replay, replay), most_judge=max(self.most_judge, judge))

    def with_most(self, nbytes: float) -> Planned:
        """With as much room for both processes together, in the ratio of what they may take now."""
        if self.most_replay is None or self.most_judge is None:
            return self
        share = nbytes / self.most
        return replace(self, most_replay=int(share * self.most_replay), most_judge=int(share * self.most_judge))


def is_small(job: Job) -> bool:
    """Whether a candidate is planned without a rehearsal."""
    return max(job.held_bytes.values(), default=0) < SMALL_BYTES


def planned(job: Job, sets: Mapping[str, SetMemory | None], baselines: int) -> Planned:
    """The peaks of both processes. `sets`: the rehearsal of each input set on the GPU; None where there can be none.
    `baselines`: how many the candidate is timed against."""
    shared = shared_bytes(job)
    replay = judge = alone = most = 0
    held = sum(found.inputs for found in sets.values() if found)
    for name in job.plans:
        found, own = sets.get(name), block_bytes(job.temporary_bytes[name])
        timed = baselines if name == FULL else 0
        draws = sum(draw.input_set == name for draw in job.draws) + (1 + job.spot_checks if timed else 0)
        if found is None:
            need = GUESSED_FACTOR * job.held_bytes[name]
            replay, judge = max(replay, own + need), max(judge, need)
            continue
        kept = held - found.inputs
        compared = found.inputs + found.block + found.block // 8
        checked = compared + found.workspace  # it may convolve as the reference does
        once = kept + max(found.making_peak, found.drawing_peak, checked, found.eager_peak if timed else found.inputs)
        replay, judge = max(replay, own + once), max(judge, found.judge_peak(draws))
        alone = max(alone, once + found.output + judge)
        most = max(most, own + once)
        if timed:
            # graphs keep what they have allocated, beside what a draw takes, or the next baseline's first run
            graphs = found.workspace + found.eager_peak - found.inputs
            library = found.inputs + found.workspace + job.library_bytes[name]  # its calls once more, to time each
            meanwhile = max(found.drawing_peak, compared, library, found.eager_peak if timed > 1 else 0)
            most = max(most, own + kept + graphs + meanwhile)
    slices = {name: found.slices for name, found in sets.items() if found and found.slices}
    if all(sets.get(name) for name in job.plans):
        mosts = int((1 + GAPS) * most) + shared + LIBRARY_BYTES, int((1 + GAPS) * judge) + LIBRARY_BYTES
        return Planned(replay + shared, judge, alone + shared, replay + shared + judge, *mosts, slices)
    return Planned(replay + shared, judge, 0, shared + max(job.temporary_bytes.values()), slices=slices)


def least_bytes(full: SetMemory) -> int:
    """What judging any candidate of a task takes at its full set, by the rehearsal: two draws, and two while it is timed."""
    once = max(full.making_peak, full.drawing_peak, full.inputs + full.block + full.block // 8 + full.workspace)
    return once + full.output + full.judge_peak(4) + 2 * full.output


def crew(free_bytes: float, lanes: int, compilers: int) -> tuple[int, int]:
    """How many of so many lanes and compiling processes a GPU has: on a small one, they must leave room for candidates."""
    most = int(PROCESS_SHARE * free_bytes / CONTEXT_BYTES)
    compilers = min(compilers, max(1, most // 3))
    return max(1, min(lanes, (most - compilers) // 2)), compilers


def usable_bytes(free_bytes: float, lanes: int, compilers: int = 0) -> float:
    """Of a GPU's free memory, what candidates may take beside the processes of so many lanes, and those that compile."""
    return (free_bytes - (2 * lanes + compilers) * CONTEXT_BYTES) * (1 - SLACK)


@dataclass(frozen=True, slots=True)
class Granted:
    """What one candidate was admitted for."""

    nbytes: float
    alone: bool
    """Whether no other lane is at work, or holds what it could give back."""


@dataclass(slots=True, eq=False)
class _Ticket(Generic[W]):
    lane: W
    nbytes: float
    wished: float
    alone: bool
    overtaken: int = 0


class MemoryLedger(Generic[W]):
    """Admits candidates to lanes by what the lane's processes will hold at most. Thread-safe; first come, first served.

    What a lane was admitted for counts as taken until its processes have given it back or are gone: what it keeps for its
    task's next candidates is memory that nobody else can have. So a lane's next candidate enters at once if it needs no more
    than that. The candidate that waits first has idle lanes give back what they keep.
    """

    def __init__(self, total_bytes: float, release: Callable[[W], int], busy: Callable[[W], bool] = lambda lane: False):
        """`release`: have a lane that is not at work give back what it keeps, and return what it still holds; must not raise.
        `busy`: whether a candidate has been assigned to a lane, which may be about to enter. Who changes that calls `wake`."""
        self.total_bytes, self._release, self._busy = total_bytes, release, busy
        self._changed = threading.Condition()
        self._queue: deque[_Ticket[W]] = deque()
        self._held: OrderedDict[W, float] = OrderedDict()
        """Bytes of each lane, at work or not; the one that began least recently first."""
        self._working: set[W] = set()
        self._releasing: set[W] = set()
        self._bare: set[W] = set()
        """Lanes that have given back all they can."""
        self._alone = False

    def held_bytes(self, lane: W | None = None) -> float:
        """Of one lane, or of all."""
        with self._changed:
            return sum(self._held.values()) if lane is None else self._held.get(lane, 0)

    def waiting(self) -> list[W]:
        """Lanes whose candidates wait, the first in the queue first."""
        with self._changed:
            return [ticket.lane for ticket in self._queue]

    @contextlib.contextmanager
    def admitted(self, lane: W, nbytes: float, *, wished: float = 0, alone: bool = False) -> Iterator[Granted]:
        """Wait until there is room for so many bytes, and take it for one candidate.

        `wished`: take as much as this where it is free and nobody waits for it. `alone`: before all that wait, and with all the
        memory there is. What exceeds the GPU runs alone, in its turn.
        """
        ticket = _Ticket(lane, nbytes, max(nbytes, wished), alone or nbytes > self.total_bytes)
        try:
            if not self._goes_on(ticket):
                self._wait(ticket, first=alone)
            yield Granted(self.held_bytes(lane), ticket.alone)
        finally:
            with self._changed:
                self._working.discard(lane)
                self._alone = self._alone and bool(self._working)
                self._changed.notify_all()

    def released(self, lane: W, left: float = 0) -> None:
        """Note that a lane's processes now hold no more than this."""
        with self._changed:
            self._held[lane] = left
            self._bare.add(lane)
            self._changed.notify_all()

    def wake(self) -> None:
        """Look again: what `busy` says of a lane has changed."""
        with self._changed:
            self._changed.notify_all()

    def _goes_on(self, ticket: _Ticket[W]) -> bool:
        """Enter at once if the lane holds enough already, or keeps something and there is room for more, and if the candidate
        that waits first has not been overtaken too often."""
        with self._changed:
            first = self._queue[0] if self._queue else None
            held = self._held.get(ticket.lane, 0)
            room = self.total_bytes - self._others(ticket, self._held)
            more = ticket.lane in self._held and ticket.lane not in self._bare and ticket.nbytes <= room
            enough = (ticket.nbytes <= held or more) and ticket.lane not in self._releasing
            if ticket.alone or self._alone or not enough or (first and (first.alone or first.overtaken >= MAX_OVERTAKEN)):
                return False
            if first:
                first.overtaken += 1
            self._enter(ticket)
            return True

    def _wait(self, ticket: _Ticket[W], *, first: bool) -> None:
        with self._changed:
            (self._queue.appendleft if first else self._queue.append)(ticket)
            self._changed.notify_all()  # a lane that waits can be asked for what it keeps
        try:
            while (victim := self._entered(ticket)) is not None:
                left = 0.0
                try:
                    left = self._release(victim)
                finally:
                    with self._changed:
                        self._releasing.discard(victim)
                        self.released(victim, left)
        finally:
            with self._changed:
                if ticket in self._queue:  # it has not entered
                    self._queue.remove(ticket)
                    self._changed.notify_all()

    def _entered(self, ticket: _Ticket[W]) -> W | None:
        """Wait until the ticket has entered (None), or until this lane has to give back first."""
        with self._changed:
            while True:
                if self._queue[0] is ticket and ticket.lane not in self._releasing:
                    if self._has_room(ticket):
                        self._queue.popleft()
                        self._enter(ticket)
                        self._changed.notify_all()
                        return None
                    if not self._releasing and (victim := self._victim(ticket)) is not None:
                        self._releasing.add(victim)
                        return victim
                self._changed.wait()

    def _enter(self, ticket: _Ticket[W]) -> None:
        lane, taken = ticket.lane, ticket.nbytes
        if ticket.alone:
            taken = self.total_bytes
        elif not self._queue:
            taken = max(taken, min(ticket.wished, self.total_bytes - self._others(ticket, self._held)))
        self._held[lane] = max(self._held.get(lane, 0), taken)
        self._held.move_to_end(lane)
        self._working.add(lane)
        self._bare.discard(lane)
        self._alone = ticket.alone

    def _has_room(self, ticket: _Ticket[W]) -> bool:
        if self._alone:
            return False
        need = max(ticket.nbytes, self._held.get(ticket.lane, 0))
        if not ticket.alone and need + self._others(ticket, self._held) <= self.total_bytes:
            return True
        # idle lanes that have given back all they can still hold something, which cannot be avoided
        return not self._working and not self._releasing and not any(map(self._keeps, self._asked(ticket)))

    def _victim(self, ticket: _Ticket[W]) -> W | None:
        """A lane that should give back what it keeps, the least recently used one; None where that would not make room yet."""
        idle = [lane for lane in self._asked(ticket) if self._keeps(lane) and self._is_idle(lane)]
        idle.sort(key=self._busy)  # a lane whose candidate waits for more will need what it keeps
        if ticket.alone:
            return idle[0] if idle and not self._working else None
        rest = [lane for lane in self._held if lane not in idle]
        if self._working and ticket.nbytes + self._others(ticket, rest) > self.total_bytes:
            return None
        return idle[0] if idle else None

    def _asked(self, ticket: _Ticket[W]) -> list[W]:
        return [lane for lane in self._held if lane != ticket.lane]

    def _others(self, ticket: _Ticket[W], lanes: Iterable[W]) -> float:
        return sum(self._held[lane] for lane in lanes if lane != ticket.lane)

    def _keeps(self, lane: W) -> bool:
        """Whether it has something to give back."""
        return self._held[lane] > 0 and lane not in self._bare

    def _is_idle(self, lane: W) -> bool:
        """Whether it neither works nor is about to: one that waits for more memory is idle, too."""
        if lane in self._working or lane in self._releasing:
            return False
        return any(ticket.lane == lane for ticket in self._queue) or not self._busy(lane)


def gib(nbytes: float) -> str:
    """`12.3 GiB`."""
    return f"{nbytes / GIB:.1f} GiB"
