"""A conductor whose GPU is made up: python tests/support/gpu_process_stand_in.py FD."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import kernrl.verifier.pool.gpu
from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.pool import gpu_process
from kernrl.verifier.rpc.process import OutOfMemory


class StandIn:
    """Does what its jobs, which are words, say."""

    def __init__(self, nursery: Any, device: str, *, noise: Any = None, **settings: Any):
        if settings.get("broken"):
            raise InfrastructureError("the GPU is not well")
        self.facts = {"gpu": "made up", "device": device, "pid": str(os.getpid())}
        self.noise = noise or "measured"
        self._free, self._left = threading.Event(), threading.Event()

    def run(self, job: str, baselines: list[str], task_key: str) -> Any:
        if job == "dies":
            os._exit(9)
        if job == "waits for who holds it":
            return self._left.wait(20)
        if job == "waits":
            time.sleep(60)
        if job in ("usage", "memory", "odd"):
            raise {"usage": UsageError, "memory": OutOfMemory, "odd": ZeroDivisionError}[job]("as asked")
        return job, baselines, task_key

    def twins(self, pairs: int, slowdown: float) -> list[float]:
        return [slowdown] * pairs

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        yield
        self._left.set()

    def close(self) -> None: ...


class NoNursery:
    """Nothing is forked here."""

    def start(self) -> None: ...

    def close(self) -> None: ...


if __name__ == "__main__":
    kernrl.verifier.pool.gpu.Gpu = StandIn  # pyright: ignore[reportAttributeAccessIssue]
    gpu_process.Nursery = NoNursery  # pyright: ignore[reportAttributeAccessIssue]
    gpu_process.main(int(sys.argv[1]))
