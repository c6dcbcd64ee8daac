"""Client of the GPU process."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.base.verdict import Speedup
from kernrl.verifier.judge.draws import Seeds
from kernrl.verifier.pool.backend import CalibratedGpu, Outcome
from kernrl.verifier.pool.gpu_process import GpuService
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.timing import NoiseBand
from kernrl.verifier.rpc.multiplexed import MultiplexedClient

PROCESS = "kernrl.verifier.pool.gpu_process"


class GpuClient(CalibratedGpu):
    """A `Gpu` in a process of its own. When that dies, the calls under way fail, and the next one starts another."""

    def __init__(self, device: str, **settings: Any):
        """`settings` are `Gpu`'s. Raises InfrastructureError when the GPU cannot be used."""
        self._settings = settings | {"device": device}
        self._process: MultiplexedClient[GpuService] = MultiplexedClient(
            "the GPU process", PROCESS, self._first, {"compiled": settings.get("compilers", 0) > 0}
        )
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._seeds, self._load = Seeds(), 0
        self._noise: NoiseBand | None = None
        self._gpu_info: dict[str, str] = self._process.ask(GpuService.gpu_info)

    def _first(self) -> dict[str, Any]:
        """The first message to each process: `Gpu`'s settings, and the noise if an earlier process has calibrated it."""
        return self._settings | {"noise": self._noise}

    @property
    def pid(self) -> int | None:
        """The process that runs, or ran last."""
        return self._process.pid

    @property
    def gpu_info(self) -> dict[str, str]:
        """`Gpu.gpu_info`."""
        return self._gpu_info

    @property
    def noise(self) -> NoiseBand:
        """`Gpu.noise`."""
        known = self._noise = self._noise or self._process.ask(GpuService.noise)
        return known

    def seed(self, task_key: str) -> int:
        """`Gpu.seed`. Drawn here, so that a group keeps its seed when the process is replaced."""
        return self._seeds.next(task_key)

    def load(self) -> int:
        """Jobs there, running and waiting."""
        return self._load

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        """`Gpu.run`."""
        with self._lock:
            self._load += 1
        try:
            return self._process.ask(GpuService.run, job, baselines, task_key)
        finally:
            with self._lock:
                self._load -= 1

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """`Gpu.untimed`."""
        number = next(self._numbers)
        self._process.ask(GpuService.hold, number)
        try:
            yield
        finally:
            with contextlib.suppress(InfrastructureError):  # the process is lost, and with it what it held
                self._process.ask(GpuService.release, number)

    def doing(self) -> str:
        """`Gpu.doing`; '' while nothing is under way."""
        return self._process.ask(GpuService.doing) if self._load else ""

    def restarts(self) -> int:
        """`Gpu.restarts` of the present process."""
        return self._process.ask(GpuService.restarts)

    def twins(self, pairs: int, slowdown: float = 0.0) -> list[Speedup]:
        """`Gpu.twins`."""
        return self._process.ask(GpuService.twins, pairs, slowdown)

    def close(self) -> None:
        """End the process and all that it started, for good."""
        self._process.close()
