"""Input sets for tasks that state none: derived once for each source, in a process of their own with a time limit."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.graph.input_sets import kept_input_sets, states_sets, with_input_sets
from kernrl.tasks.task import InputSet, Task
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

    def complete(self, task: Task, cache_dir: str | None) -> tuple[InputSet, ...]:
        """The task's input sets, with those derived."""
        return with_input_sets(task, Path(cache_dir) if cache_dir else None).input_sets


class InputSets:
    """Completes tasks with derived sets. Thread-safe; its process starts with the first task that is new to `cache_dir`."""

    def __init__(self, cache_dir: Path | None):
        self._cache_dir, self._lock = cache_dir, threading.Lock()
        self._known: dict[str, tuple[InputSet, ...]] = {}
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
            return replace(task, input_sets=(*task.input_sets, *self._known[source]))

    def _derived(self, task: Task) -> tuple[InputSet, ...]:
        folder = str(self._cache_dir) if self._cache_dir else None
        bare = Task(id=task.id, pytorch_code=task.pytorch_code)
        try:
            return self._process.ask(Deriver.complete, TIMEOUT_S, bare, folder)[1:]
        except (UsageError, Failed) as error:
            log.info("%s: no input sets are derived: %s", task.id, error)
        except (TimedOut, Died, InfrastructureError) as error:
            log.warning("%s: no input sets are derived: %s", task.id, error)
            self._process.kill()
        return ()

    def close(self) -> None:
        """End its processes."""
        self._process.kill()
        self._server.close()
