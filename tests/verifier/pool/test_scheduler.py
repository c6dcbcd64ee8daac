"""Which worker a candidate is assigned to. Workers are names here, and nothing waits for a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from kernrl.verifier.pool.scheduler import MAX_OVERTAKEN, MAX_TASKS, STEAL_QUEUE, AffinityScheduler


class Candidates:
    """Candidates that came, the worker of each, and how to finish one."""

    def __init__(self, workers: str) -> None:
        self.scheduler = AffinityScheduler(list(workers))
        self.assigned: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self._finish: dict[str, Callable[[], None]] = {}

    def come(self, *tasks: str) -> None:
        """One candidate after another, named by its task's first letter."""
        for task in tasks:
            waiting = self.scheduler.load()
            threading.Thread(target=self._take, args=(task,), daemon=True).start()
            while self.scheduler.load() == waiting:
                pass

    def _take(self, task: str) -> None:
        stack = ExitStack()
        worker = stack.enter_context(self.scheduler.worker(task[0]))
        with self._changed:
            self.assigned.append((task, worker))
            self._finish[task] = stack.close
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[str, str]]:
        """What has been assigned, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.assigned) >= count, 10)
            return sorted(self.assigned)

    def finish(self, task: str) -> None:
        self._finish.pop(task)()


def test_a_task_stays_with_its_worker_while_others_wait() -> None:
    candidates = Candidates("xy")
    candidates.come("a1", "b1", "c1", "b2", "a2")
    assert candidates.wait(2) == [("a1", "x"), ("b1", "y")]
    candidates.finish("b1")
    assert candidates.wait(3)[-1] == ("b2", "y"), "before c1, which came first"
    candidates.finish("a1")
    candidates.wait(4)
    assert ("a2", "x") in candidates.assigned
    candidates.finish("a2")
    candidates.wait(5)
    assert ("c1", "x") in candidates.assigned


def test_a_worker_finishes_a_task_before_it_resumes_another() -> None:
    candidates = Candidates("x")
    for task, before in (("a1", None), ("b1", "a1")):
        candidates.come(task)
        if before:
            candidates.finish(before)
    candidates.wait(2)
    candidates.come("a2", "b2")
    candidates.finish("b1")
    assert dict(candidates.wait(3)).keys() == {"a1", "b1", "b2"}


def test_an_idle_worker_steals_only_when_enough_wait() -> None:
    candidates = Candidates("xy")
    candidates.come("a1", *(f"a{2 + i}" for i in range(STEAL_QUEUE - 1)))
    assert candidates.wait(1) == [("a1", "x")]
    assert candidates.scheduler.load() == STEAL_QUEUE
    candidates.come("a9")
    assert candidates.wait(2) == [("a1", "x"), ("a2", "y")]


def test_a_candidate_goes_to_the_idle_worker_that_has_its_task_cached() -> None:
    candidates = Candidates("xyz")
    candidates.come("a1", "b1")
    candidates.wait(2)
    candidates.finish("b1")
    candidates.finish("a1")
    candidates.come("b2")
    assert candidates.wait(3)[-1] == ("b2", "y"), "though x is idle too"


def test_no_candidate_is_overtaken_for_ever() -> None:
    candidates = Candidates("x")
    candidates.come("a0", "b0")
    for i in range(MAX_OVERTAKEN):
        candidates.come(f"a{i + 1}")
        candidates.finish(f"a{i}")
        candidates.wait(i + 2)
    assert "b0" not in dict(candidates.assigned)
    candidates.come("a99")
    candidates.finish(f"a{MAX_OVERTAKEN}")
    candidates.wait(MAX_OVERTAKEN + 2)
    assert "b0" in dict(candidates.assigned)


def test_only_so_many_tasks_are_remembered() -> None:
    scheduler = AffinityScheduler(["x"])
    for i in range(MAX_TASKS + 5):
        with scheduler.worker(f"task {i}"):
            pass
    assert scheduler.tasks() == MAX_TASKS
    assert scheduler.load() == 0


def test_the_last_of_a_costly_group_is_not_moved_for_being_overtaken() -> None:
    """While other workers go on with their groups, it is overtaken more often than it would be if preparing were cheap."""
    scheduler, release = AffinityScheduler(list("ab")), threading.Event()
    served: list[str] = []

    def candidate() -> None:
        with scheduler.worker("task", costly=True) as worker:
            served.append(worker)
            release.wait(10)

    threads = [threading.Thread(target=candidate) for _ in range(2)]
    for i, thread in enumerate(threads):
        thread.start()
        while scheduler.load() <= i:
            pass
    for i in range(2 * MAX_OVERTAKEN):
        with scheduler.worker("another", costly=True) as worker:
            assert worker == "b", i
    release.set()
    for thread in threads:
        thread.join(10)
    assert served == ["a", "a"]


def test_a_group_of_a_costly_task_stays_with_its_worker() -> None:
    """Eight candidates of one task, with a worker idle: it would spend seconds on preparing what one has."""
    scheduler, release = AffinityScheduler(list("ab")), threading.Event()
    served: list[str] = []

    def candidate() -> None:
        with scheduler.worker("task", costly=True) as worker:
            served.append(worker)
            release.wait(10)

    threads = [threading.Thread(target=candidate) for _ in range(8)]
    for thread in threads:
        thread.start()
    while scheduler.load() < len(threads):
        pass
    assert scheduler.workers_of("task") == ["a"]
    release.set()
    for thread in threads:
        thread.join(10)
    assert served == ["a"] * 8
