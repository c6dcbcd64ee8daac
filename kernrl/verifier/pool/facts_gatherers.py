"""Workers that gather the facts of tasks: warm, one task at a time."""

from __future__ import annotations

import queue
import threading

from kernrl.errors import InfrastructureError, InternalError, UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.pool.task_facts import FactsGatherer, TaskFacts
from kernrl.verifier.rpc.answers import Died, Ended, Failed, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.worker_client import Client

TIMEOUT_S = 300.0
"""Longest that a task may take: its reference runs once for each input set, on tensors without memory."""


class FactsGatherers:
    """Processes, started as they are needed. Thread-safe."""

    def __init__(self, count: int, forks: ForkServer, slots: threading.BoundedSemaphore) -> None:
        """`slots` limits what runs together with other users of the same cores."""
        self._slots = slots
        self.processes = [Client(forks, FactsGatherer, {}, name="task facts") for _ in range(count)]
        # the one used last is the warmest
        self._free: queue.LifoQueue[Client[FactsGatherer]] = queue.LifoQueue()
        for process in reversed(self.processes):
            self._free.put(process)

    def gather(self, task: Task, precision: str, device: Device, *, on_gpu: bool) -> TaskFacts:
        """`gather_facts` in one of the workers.

        Raises:
            UsageError: the task's reference does not run, hangs, or ends its process.
            InternalError: a fault of ours.
            InfrastructureError: the worker was ended from outside.
        """
        process = self._free.get()
        try:
            with self._slots:
                return process.ask(FactsGatherer.gather, TIMEOUT_S, task, precision, device, on_gpu)
        except TimedOut:
            raise UsageError(f"{task.id}: the reference takes more than {TIMEOUT_S:g} s on tensors without memory.") from None
        except Ended as ended:
            if ended.code is None or ended.code == -9:  # which a reference does not do to itself
                raise InfrastructureError(f"{task.id}: {ended}") from None
            raise UsageError(f"{task.id}: the reference ends its process (exit code {ended.code}).") from None
        except (Died, Failed) as error:
            process.kill()
            raise InternalError(f"the facts of {task.id} cannot be gathered: {error}", str(error)) from None
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End every worker; the fork server is its owner's."""
        for process in self.processes:
            process.kill()
