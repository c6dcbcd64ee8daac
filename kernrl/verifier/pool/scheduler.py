"""Which worker takes which candidate: what a worker has prepared for a task serves the task's next candidates."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

STEAL_QUEUE, COSTLY_STEAL_QUEUE = 2, 8
"""Queue length at which an idle worker takes a candidate whose task another worker has cached; the same where that costs
seconds, as for a task of gigabytes, or one whose baseline is compiled: a usual group stays together."""

MAX_OVERTAKEN, COSTLY_MAX_OVERTAKEN = 32, 256
"""How often the candidate that has waited longest is overtaken by later ones; the same where another worker would have to
prepare for seconds: the last of a usual group is overtaken by those of every other worker's group."""

MAX_TASKS = 256
"""Tasks whose workers are remembered."""

W = TypeVar("W", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Waiting(Generic[W]):
    task_key: Hashable
    steal_queue: int
    most_overtaken: int
    assigned: threading.Event = field(default_factory=threading.Event)
    worker: W | None = None
    overtaken: int = 0


class AffinityScheduler(Generic[W]):
    """Assigns candidates to workers (lanes of a GPU, interpreter processes) as workers become free.

    A task's candidates go to workers that have prepared for it, while no worker is idle that could help.
    """

    def __init__(self, workers: Sequence[W], *, max_tasks: int = MAX_TASKS):
        self._workers = list(workers)
        self._max_tasks = max_tasks
        self._mutex = threading.Lock()
        self._free = list(workers)
        self._waiting: list[_Waiting[W]] = []
        self._cached_by: OrderedDict[Hashable, list[W]] = OrderedDict()
        """Workers that have prepared for a task; the task used least recently first."""
        self._last: dict[W, Hashable] = {}
        """Each worker's present or last task: a worker that is short of memory keeps no more than that."""

    def load(self) -> int:
        """Candidates assigned and waiting."""
        with self._mutex:
            return len(self._waiting) + len(self._workers) - len(self._free)

    def tasks(self) -> int:
        """Tasks whose workers are remembered."""
        with self._mutex:
            return len(self._cached_by)

    def is_busy(self, worker: W) -> bool:
        """Whether a candidate has been assigned to a worker."""
        with self._mutex:
            return worker not in self._free

    def workers_of(self, task_key: Hashable) -> list[W]:
        """The workers that have prepared for a task."""
        with self._mutex:
            return list(self._cached_by.get(task_key, ()))

    @contextlib.contextmanager
    def worker(self, task_key: Hashable, *, costly: bool = False) -> Iterator[W]:
        """Wait for a worker for one candidate of a task, and have it alone. `costly`: preparing for the task takes seconds."""
        limits = (COSTLY_STEAL_QUEUE, COSTLY_MAX_OVERTAKEN) if costly else (STEAL_QUEUE, MAX_OVERTAKEN)
        mine = _Waiting[W](task_key, *limits)
        with self._mutex:
            self._waiting.append(mine)
            self._assign()
        mine.assigned.wait()
        assert mine.worker is not None
        try:
            yield mine.worker
        finally:
            with self._mutex:
                self._free.append(mine.worker)
                self._free.sort(key=self._workers.index)  # the first ones first: a worker that is not needed is not started
                self._assign()

    def _assign(self) -> None:
        for worker in list(self._free):
            one = self._next(worker)
            if one is None:
                continue
            if one is not self._waiting[0]:
                self._waiting[0].overtaken += 1
            self._waiting.remove(one)
            self._free.remove(worker)
            cached_by = self._cached_by.setdefault(one.task_key, [])
            self._cached_by.move_to_end(one.task_key)
            if worker not in cached_by:
                cached_by.append(worker)
            if len(self._cached_by) > self._max_tasks:
                self._cached_by.popitem(last=False)
            self._last[worker] = one.task_key
            one.worker = worker
            one.assigned.set()

    def _next(self, worker: W) -> _Waiting[W] | None:
        """The best candidate for a free worker: of its last task, else of a task that it has cached, else of a task that no
        worker has cached, else of one whose workers are all busy with queues of its `steal_queue` or more."""
        if self._waiting and self._waiting[0].overtaken >= self._waiting[0].most_overtaken:
            return self._waiting[0]
        waiting = [(one, self._cached_by.get(one.task_key, [])) for one in self._waiting]
        queued = Counter(other for _, cached_by in waiting for other in cached_by)
        ranked = (
            lambda one, _: one.task_key == self._last.get(worker),
            lambda _, cached_by: worker in cached_by,
            lambda _, cached_by: not cached_by,
            lambda one, cached_by: all(queued[w] >= one.steal_queue and w not in self._free for w in cached_by),
        )
        return next((one for suits in ranked for one, cached_by in waiting if suits(one, cached_by)), None)
