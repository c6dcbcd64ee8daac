"""What the funnel asks for: something that judges on a GPU, and something that does what comes before.

Both are implemented on this machine (`local`, `gpu_client`) and on a Ray cluster (`ray`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.verdict import ErrorRecord, Rejection, Speedup, Stage
from kernrl.verifier.interpret.interpret_server import Judged, SmallJob
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource, TraceSpec
from kernrl.verifier.plan.reading import Asked, PlansRead
from kernrl.verifier.pool.task_facts import TaskFacts
from kernrl.verifier.replay.job import Job, Measured
from kernrl.verifier.replay.timing import NoiseBand
from kernrl.verifier.trace.tracer import Traced


@dataclass(slots=True)
class Outcome:
    """What the GPU said of one job."""

    stage: Stage
    rejection: Rejection | None = None
    errors: list[ErrorRecord] = field(default_factory=list)
    """Records of `Judge.compare`."""
    measured: Measured | None = None
    memory: dict[str, int] = field(default_factory=dict)
    """See `Verdict.memory`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By what they were spent on."""

    @contextlib.contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add a block's seconds to `seconds[name]`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


class GpuBackend(Protocol):
    """One GPU that judges candidates. Thread-safe: many are judged at once."""

    @property
    def gpu_info(self) -> dict[str, str]:
        """Its name, architecture, UUID and memory, and the driver's version; see `ReplayServer.gpu_info`."""
        ...

    @property
    def noise(self) -> NoiseBand:
        """How far a program may seem from itself here; calibrated on first use. Raises InfrastructureError."""
        ...

    def seed(self, task_key: str) -> int:
        """The secret seed of the draws for one more candidate of a task; see `Seeds`."""
        ...

    def load(self) -> float:
        """Jobs here, running and waiting."""
        ...

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        """Correctness, then time. Raises InfrastructureError, and UsageError for a task whose reference does not run."""
        ...

    def doing(self) -> str:
        """What it is at, for people: `timing a_task`; '' where nothing is under way or it is not known."""
        ...

    def untimed(self) -> contextlib.AbstractContextManager[None]:
        """While inside, the caller keeps the GPU busy: nothing is timed."""
        ...

    def close(self) -> None:
        """End its processes, for good."""
        ...


class CalibratedGpu(GpuBackend, Protocol):
    """A GPU whose clock can be examined."""

    def twins(self, pairs: int, slowdown: float = 0.0) -> list[Speedup]:
        """Speedups of the same program over itself, or over itself made slower by that share: what the noise band is worth."""
        ...


class Front(Protocol):
    """What comes before the GPU, or replaces it. Thread-safe. Every method raises InfrastructureError."""

    def facts(self, task: Task, precision: str, device: Device, *, on_gpu: bool) -> TaskFacts:
        """See `FactsGatherers.gather`."""
        ...

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> Traced | Rejection:
        """See `Tracer.trace`."""
        ...

    def read(self, frames: Sequence[bytes], asked: Asked) -> PlansRead:
        """See `PlanReaders.read`."""
        ...

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        """See `Compiler.compile`."""
        ...

    def interpret(self, job: SmallJob) -> Judged:
        """See `Interpreters.judge`."""
        ...

    def close(self) -> None:
        """End its processes, for good."""
        ...
