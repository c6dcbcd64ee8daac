"""Interpreter processes of this machine: plans at small shapes are judged in them, without a GPU."""

from __future__ import annotations

import os
import threading
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.interpret.server import CpuServer, Judged, SmallJob, warm_up
from kernrl.verifier.pool.scheduler import AffinityScheduler
from kernrl.verifier.rpc.answers import Died, Failed, TimedOut
from kernrl.verifier.rpc.client import Client
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.processes import dotted

GRACE_S = 2.0
"""What a process may take beyond a candidate's time: single calls of torch, the reference's among them, are not cut short."""

MAX_TASKS = 4096
"""Tasks whose process is remembered."""


class Interpreters:
    """Interpreter processes, started as they are needed. A group's candidates go to one that has kept their answers."""

    def __init__(self, count: int, settings: dict[str, Any], slots: threading.BoundedSemaphore | None = None):
        """`settings` are `CpuServer`'s. `slots` limits what runs together with other users of the same cores."""
        self._slots = slots or threading.BoundedSemaphore(count)
        self.fork_server = ForkServer(
            "the interpreters' fork server", "kernrl.verifier.rpc.worker", {"warm_up": [dotted(warm_up)]},
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        self.processes = [Client(self.fork_server, CpuServer, settings, name="interpreter") for _ in range(count)]
        self._scheduler = AffinityScheduler(self.processes, max_tasks=MAX_TASKS)

    def judge(self, job: SmallJob) -> Judged:
        """`CpuServer.judge` in one of the processes. Raises InfrastructureError when that breaks."""
        with self._scheduler.worker((job.task.id, job.task.pytorch_code)) as process, self._slots:
            try:
                return process.ask(CpuServer.judge, job.timeout_s + GRACE_S, job)
            except TimedOut as error:
                return Judged(Unable(Status.TIMEOUT, f"The interpreter gave {error}."))
            except (Died, Failed) as error:
                process.kill()
                raise InfrastructureError(f"the interpreter process failed: {error}") from None

    def close(self) -> None:
        """End every process, for good."""
        for process in self.processes:
            process.kill()
        self.fork_server.close()
