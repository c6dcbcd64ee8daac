"""Input sets for tasks that state none: derived once for each source, in a process of their own with a time limit."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

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
    """Completes tasks with derived sets. Thread-safe; its process starts with the first task that is new to `cache_dir`."""

    def __init__(self, cache_dir: Path | None):
        self._cache_dir, self._lock = cache_dir, threading.Lock()
        self._known: dict[str, Derived] = {}
        self._server = ForkServer(
            "the fork server of derived input sets", "kernrl.verifier.rpc.worker",
            {"modules": ["kernrl.tasks.graph.input_sets"]}, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        self._process = Client(self._server, Deriver, {}, name="derived input sets")

    def complete(self, task: Task) -> Task:
        """The task with small and ragged sets, as far as they can be derived; as it is if it states any besides the full one.

        A task that cannot be lifted goes on with the sets it has.
        """
        if states_sets(task):
            return task
        with self._lock:
            source = task.pytorch_code
            if source not in self._known:
                kept = kept_input_sets(source, self._cache_dir)
                self._known[source] = self._derived(task) if kept is None else kept
            return self._known[source].given_to(task)

    def _derived(self, task: Task) -> Derived:
        folder = str(self._cache_dir) if self._cache_dir else None
        try:
            return self._process.ask(Deriver.derive, TIMEOUT_S, task.pytorch_code, folder)
        except (UsageError, Failed) as error:
            log.info("%s: no input sets are derived: %s", task.id, error)
        except (TimedOut, Died, InfrastructureError) as error:
            log.warning("%s: no input sets are derived: %s", task.id, error)
            self._process.kill()
        return Derived()

    def close(self) -> None:
        """End its processes."""
        self._process.kill()
        self._server.close()
