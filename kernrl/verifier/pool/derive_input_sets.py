"""Input sets for tasks that state none: derived once for each source, in processes of their own with a time limit."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import LifoQueue

from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.graph.input_sets import Derived, derived, kept_input_sets, states_sets
from kernrl.tasks.task import Task
from kernrl.verifier.rpc.answers import Died, Failed, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.worker_client import Client

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""Longest that deriving a task's sets may take: a reference may hang."""


class Deriver:
    """The process that lifts references at other sizes."""

    def healthy(self) -> bool:
        """Always true: an exception leaves nothing behind here."""
        return True

    def derive(self, source: str, cache_dir: str | None) -> Derived:
        """What is derived from a task's source."""
        return derived(source, Path(cache_dir) if cache_dir else None)


class InputSets:
    """Completes tasks with derived sets. Thread-safe; a process starts with each task that is new to `cache_dir`."""

    def __init__(self, cache_dir: Path | None, processes: int = 1):
        """`processes`: at most so many tasks are worked on at once, each for seconds of a core."""
        self._cache_dir, self._lock, self._closed = cache_dir, threading.Lock(), False
        self._known: dict[str, Future[Derived]] = {}
        self._server = ForkServer(
            "the fork server of derived input sets", "kernrl.verifier.rpc.worker",
            {"modules": ["kernrl.tasks.graph.input_sets"]}, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        self._processes = [Client(self._server, Deriver, {}, name="derived input sets") for _ in range(processes)]
        self._free: LifoQueue[Client[Deriver]] = LifoQueue()  # the last one that was busy is running
        for process in reversed(self._processes):
            self._free.put(process)

    def complete(self, task: Task) -> Task:
        """The task with small and ragged sets, as far as they can be derived; as it is if it states any besides the full one.

        A task that cannot be lifted goes on with the sets it has.
        """
        if states_sets(task):
            return task
        source = task.pytorch_code
        with self._lock:
            known = self._known.get(source)
            found = known or self._known.setdefault(source, Future())
        if known is None:
            try:
                kept = kept_input_sets(source, self._cache_dir)
                found.set_result(self._derived(task) if kept is None else kept)
            except BaseException as error:
                found.set_exception(error)
                raise
        return found.result().given_to(task)

    def _derived(self, task: Task) -> Derived:
        folder = str(self._cache_dir) if self._cache_dir else None
        process = self._free.get()
        try:
            if not self._closed:
                return process.ask(Deriver.derive, TIMEOUT_S, task.pytorch_code, folder)
        except (UsageError, Failed) as error:
            log.info("%s: no input sets are derived: %s", task.id, error)
        except (TimedOut, Died, InfrastructureError) as error:
            if not self._closed:
                log.warning("%s: no input sets are derived: %s", task.id, error)
                process.kill()
        finally:
            self._free.put(process)
        return Derived()

    def close(self) -> None:
        """End its processes. Tasks that wait for one go on with the sets they have."""
        self._closed = True
        for process in self._processes:
            process.kill()
        self._server.close()
