"""Lifting many tasks at once: a Graph takes 0.1 s of one core, and a step of training asks for tens of new ones."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from queue import SimpleQueue
from typing import TYPE_CHECKING

from kernrl.signals import blocked_interrupts
from kernrl.tasks.task import Task
from kernrl.tasks.worker_pool import apart_from_main

if TYPE_CHECKING:
    from kernrl.tasks.nano.form import Lifted

log = logging.getLogger(__name__)

FEWEST_CORES = 4
MOST_WORKERS = 8
"""Each takes 250 MB of memory for torch."""


def worker_count() -> int:
    """Half of the cores, up to MOST_WORKERS; none on a small machine, where they would gain little."""
    cores = len(os.sched_getaffinity(0))
    return min(MOST_WORKERS, cores // 2) if cores >= FEWEST_CORES else 0


class Lifter:
    """Processes that lift the tasks which are asked next, side by side, into what `form.ask` and `form.candidate` read.

    They start in the background; while none is free, tasks are lifted here as well. Ctrl-C does not reach them. What is left
    out is lifted where it is asked: a task that has no Graph, which is when its error is raised, and one whose worker died.
    """

    def __init__(self, workers: int):
        self._workers: dict[Connection, BaseProcess] = {}
        self._idle: SimpleQueue[Connection | None] = SimpleQueue()
        self._threads = ThreadPoolExecutor(max(1, workers), "lift")  # each waits for one worker at a time
        spawned = multiprocessing.get_context("spawn")
        if workers:
            ensure_running()  # it would start with the first worker, and unblock Ctrl-C in this thread as it does
        for _ in range(workers):
            ours, theirs = spawned.Pipe()
            process = spawned.Process(target=_serve, args=(theirs,), daemon=True)
            with theirs, blocked_interrupts(), apart_from_main():
                process.start()
            self._workers[ours] = process
        self._told = workers
        """How many there are, as far as the log says."""
        for worker in list(self._workers):
            self._threads.submit(self._begin, worker)

    def __call__(self, tasks: Sequence[Task]) -> None:
        """Lift the tasks that are not lifted yet."""
        for _ in self.each(tasks):
            pass

    def each(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """The tasks in order, each when it is lifted or left out."""
        if not self._told:
            yield from tasks
            return
        from kernrl.tasks.nano.form import is_lifted, keep, source_of

        new = dict.fromkeys(source_of(task) for task in tasks if not is_lifted(task))
        coming = {source: self._threads.submit(self._lift, source) for source in new} if len(new) > 1 else {}
        for task in tasks:
            source = source_of(task)
            lifting = coming.pop(source, None)
            if lifting:
                # what no worker has taken yet can be cancelled
                found = _lift_here(source) if lifting.cancel() else lifting.result()
                if found:
                    keep(source, found)
            yield task
        if len(self._workers) < self._told:  # said here: while this thread lifts, what other threads print is lost
            self._told = len(self._workers)
            log.warning("a process that lifts tasks has died; %d are left", self._told)

    def close(self) -> None:
        """End the processes, whatever they are at: nothing of theirs is to be saved."""
        workers = list(self._workers.items())
        self._told = 0
        for _, process in workers:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for connection, process in workers:
            process.join()
            connection.close()

    def _begin(self, worker: Connection) -> None:
        """Wait until a worker is ready; as many threads do as there are, so that no task waits in one."""
        try:
            worker.recv()
            self._idle.put(worker)
        except (EOFError, OSError):
            self._lose(worker)

    def _lift(self, source: tuple[str, str]) -> Lifted | None:
        """Have a worker lift a source; None where it left it out, or died."""
        worker = self._idle.get()
        if worker is None:
            self._idle.put(None)
            return None
        try:
            worker.send(source)
            found = worker.recv()
        except (EOFError, OSError):
            self._lose(worker)
            return None
        self._idle.put(worker)
        return found

    def _lose(self, worker: Connection) -> None:
        self._workers.pop(worker, None)
        if not self._workers:
            self._idle.put(None)  # for those who wait for one


def _lift_here(source: tuple[str, str]) -> Lifted | None:
    """What is lifted of a source; None where it is left out."""
    from kernrl.tasks.nano.form import lift_source

    with suppress(Exception):
        return lift_source(*source)


def _serve(asked: Connection) -> None:
    """Answer each source with what was lifted of it, or None; until the other end is closed, by its process's end at last."""
    import torch

    import kernrl.tasks.nano.form  # so that it is loaded  # noqa: F401

    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        asked.send("ready")
        while True:
            asked.send(_lift_here(asked.recv()))
