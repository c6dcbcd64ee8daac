"""Which lane takes which candidate: what a lane has made for a task serves the task's next candidates."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernrl.verifier.pool.lane import Lane

LEFT_WAITING = 2
"""So many candidates wait for one lane before another, idle, makes anew what it takes to help."""

MOST_PASSED = 32
"""How often the candidate that has waited longest lets one that came later go first."""

MOST_HOMES = 256
"""Tasks whose lanes are remembered."""


@dataclass(slots=True)
class _Waiting:
    task_key: str
    dealt: threading.Event = field(default_factory=threading.Event)
    lane: Lane | None = None
    passed: int = 0


class Homes:
    """Deals candidates to lanes as lanes become free, not as candidates come: so that a task stays where it is at home, and
    no lane is idle while there is work for it."""

    def __init__(self, lanes: Sequence[Lane]):
        self._lanes = list(lanes)
        self._mutex = threading.Lock()
        self._free = list(lanes)
        self._waiting: list[_Waiting] = []
        self._homes: OrderedDict[str, list[Lane]] = OrderedDict()
        self._last: dict[Lane, str] = {}
        """The task each lane is at, or was at last: a lane that is short of memory keeps no more than that."""

    def load(self) -> int:
        """Candidates at work and waiting."""
        with self._mutex:
            return len(self._waiting) + len(self._lanes) - len(self._free)

    @contextlib.contextmanager
    def lane(self, task_key: str) -> Iterator[Lane]:
        """A lane for a candidate of a task, once there is one."""
        me = _Waiting(task_key)
        with self._mutex:
            self._waiting.append(me)
            self._deal()
        me.dealt.wait()
        assert me.lane is not None
        try:
            yield me.lane
        finally:
            with self._mutex:
                self._free.append(me.lane)
                self._free.sort(key=self._lanes.index)  # a lane that has not been needed yet is not started for nothing
                self._deal()

    def _deal(self) -> None:
        for lane in list(self._free):
            one = self._next(lane)
            if one is None:
                continue
            if one is not self._waiting[0]:
                self._waiting[0].passed += 1
            self._waiting.remove(one)
            self._free.remove(lane)
            homes = self._homes.setdefault(one.task_key, [])
            self._homes.move_to_end(one.task_key)
            if lane not in homes:
                homes.append(lane)
            if len(self._homes) > MOST_HOMES:
                self._homes.popitem(last=False)
            self._last[lane] = one.task_key
            one.lane = lane
            one.dealt.set()

    def _next(self, lane: Lane) -> _Waiting | None:
        """Who of those that wait is best served here: a candidate of the task before, of another at home here, of one at home
        nowhere, or of one whose homes are busy and have enough to do."""
        if self._waiting and self._waiting[0].passed >= MOST_PASSED:
            return self._waiting[0]
        homes = [(one, self._homes.get(one.task_key, ())) for one in self._waiting]
        queued = Counter(home for _, at in homes for home in at)
        ranked = (
            lambda one, _: one.task_key == self._last.get(lane),
            lambda _, at: lane in at,
            lambda _, at: not at,
            lambda _, at: all(queued[home] >= LEFT_WAITING and home not in self._free for home in at),
        )
        return next((one for suits in ranked for one, at in homes if suits(one, at)), None)
