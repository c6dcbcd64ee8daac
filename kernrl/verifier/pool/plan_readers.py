"""Workers that read plans: warm, one candidate at a time, replaced when a candidate has used one up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from kernrl.errors import InternalError
from kernrl.verifier.plan.reading import CPU_S, Asked, PlanReader, PlansRead, too_long
from kernrl.verifier.pool.worker_exit import rejection_for
from kernrl.verifier.rpc.answers import Died, Ended, Failed, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.worker_client import Client

WALL_S = 60.0
"""Longest wait for a reader that has a core to itself now and then; its CPU seconds end it long before."""


class PlanReaders:
    """Readers, started as they are needed. Thread-safe."""

    def __init__(self, count: int, forks: ForkServer, slots: threading.BoundedSemaphore) -> None:
        """`slots` limits what runs together with other users of the same cores."""
        self._slots = slots
        self.processes = [Client(forks, PlanReader, {}, name="plan reader") for _ in range(count)]
        # the one used last is the warmest
        self._free: queue.LifoQueue[Client[PlanReader]] = queue.LifoQueue()
        for process in reversed(self.processes):
            self._free.put(process)

    def read(self, frames: Sequence[bytes], asked: Asked) -> PlansRead:
        """`PlanReader.read` in one of the workers.

        Raises InternalError for a fault of ours, InfrastructureError where the worker was ended from outside.
        """
        process = self._free.get()
        try:
            with self._slots:
                return self._read(process, frames, asked)
        finally:
            self._free.put(process)

    def _read(self, process: Client[PlanReader], frames: Sequence[bytes], asked: Asked) -> PlansRead:
        try:
            found = process.ask(PlanReader.read, WALL_S, frames, asked)
        except TimedOut:
            return PlansRead([], rejection=too_long(CPU_S), cpu_s=CPU_S)
        except Ended as ended:
            return PlansRead([], rejection=rejection_for(ended, "reading the plan", too_long(CPU_S)), cpu_s=CPU_S)
        except (Died, Failed) as error:
            process.kill()
            raise InternalError(f"the plan reader failed: {error}") from None
        if isinstance(found, InternalError):
            process.kill()
            raise found
        if found.worn:
            process.kill()
        return found

    def close(self) -> None:
        """End every worker; the fork server is its owner's."""
        for process in self.processes:
            process.kill()
