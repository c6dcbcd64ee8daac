"""A GPU process whose GPU is made up; tests name this module where `GpuClient` names the real one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.pool.gpu_process import GpuService, serve, worker_fork_server
from kernrl.verifier.rpc.answers import OutOfMemory
from kernrl.verifier.rpc.frames import ObjectChannel


class MadeUpGpu:
    """Does what its jobs, which are words, say."""

    def __init__(self, device: str, *, noise: Any = None, **settings: Any):
        if settings.get("broken"):
            raise InfrastructureError("the GPU is not well")
        compiled = str(settings["forked_for"]["compiled"])
        self.gpu_info = {"gpu": "made up", "device": device, "pid": str(os.getpid()), "compiled": compiled}
        self.noise = noise or "measured"
        self._released = threading.Event()

    def run(self, job: str, baselines: list[str], task_key: str) -> Any:
        if job == "dies":
            os._exit(9)
        if job == "waits for the release":
            return self._released.wait(20)
        if job == "waits":
            time.sleep(60)
        if job in ("usage", "memory", "broken", "odd"):
            kinds = {"usage": UsageError, "memory": OutOfMemory, "broken": InfrastructureError, "odd": ZeroDivisionError}
            raise kinds[job]("as asked")
        return job, baselines, task_key

    def twins(self, pairs: int, slowdown: float) -> list[float]:
        return [slowdown] * pairs

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        yield
        self._released.set()

    def close(self) -> None: ...


class MadeUpService(GpuService):
    def make(self) -> Any:
        return MadeUpGpu(**self.settings)


def main(sock: socket.socket, settings: dict[str, Any]) -> None:
    """As the real one, but nothing is forked."""
    channel = ObjectChannel(sock)
    serve(channel, MadeUpService(worker_fork_server(**settings), channel.recv() | {"forked_for": settings}))
