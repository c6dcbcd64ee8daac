"""The front on this machine: what gathers facts of tasks, tracer, plan readers, compiler and interpreters share its cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.compile.compiler import Compiler
from kernrl.verifier.interpret.interpret_server import Judged, SmallJob, warm_up
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource, TraceSpec
from kernrl.verifier.plan.reading import Asked, PlansRead
from kernrl.verifier.pool.backend import Front
from kernrl.verifier.pool.facts_gatherers import FactsGatherers
from kernrl.verifier.pool.interpreters import Interpreters
from kernrl.verifier.pool.plan_readers import PlanReaders
from kernrl.verifier.pool.task_facts import TaskFacts
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.processes import dotted
from kernrl.verifier.trace.tracer import Traced, Tracer

_MODULES = (
    "kernrl.verifier.pool.task_facts",
    "kernrl.verifier.plan.reading",
    "kernrl.verifier.interpret.interpret_server",
    "kernrl.verifier.judge.cpu_server",
)


_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
}
"""The most that glibc comes to by itself after tensors of 32 MiB. Until then it gives the memory of each tensor back to the
kernel, which clears it, page by page, for the next one."""


def cpu_fork_server() -> ForkServer:
    """The fork server of what gathers facts of tasks, plan readers, interpreters and their judges."""
    return ForkServer(
        "the interpreters' fork server", "kernrl.verifier.rpc.worker", {"modules": _MODULES, "warm_up": [dotted(warm_up)]},
        env=_KEEP_MEMORY | os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


class LocalFront(Front):
    """At most `slots` candidates are traced, read, compiled or interpreted at once."""

    def __init__(
        self, slots: int, *, target: str, cache_dir: Path | None, require_sandbox: bool, interpreter: dict[str, bool]
    ):  # fmt: skip
        """`interpreter`: settings of `Interpreters`."""
        shared = threading.BoundedSemaphore(slots)
        kernels = cache_dir / "cubins" if cache_dir else None
        self._tracer = Tracer(slots, target=target, require_sandbox=require_sandbox, slots=shared)
        self._compiler = Compiler(slots, targets=(target,), cache_dir=kernels, require_sandbox=require_sandbox, slots=shared)
        self.fork_server = cpu_fork_server()
        self.gatherers = FactsGatherers(slots, self.fork_server, shared)
        self.readers = PlanReaders(slots, self.fork_server, shared)
        self.interpreters = Interpreters(slots, interpreter, self.fork_server, shared)

    def start(self) -> None:
        """Start the sandboxes, and return when they are warm. Raises InfrastructureError."""
        self.fork_server.start(wait=False)
        with ThreadPoolExecutor(2) as pool:  # each imports torch and triton in a process of its own
            try:
                list(pool.map(lambda part: part.start(), (self._tracer, self._compiler)))
            except KeyboardInterrupt:  # which is not to wait for them
                self.close()
                raise

    def facts(self, task: Task, precision: str, device: Device, *, on_gpu: bool) -> TaskFacts:
        """See `FactsGatherers.gather`."""
        return self.gatherers.gather(task, precision, device, on_gpu=on_gpu)

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> Traced | Rejection:
        """See `Tracer.trace`."""
        return self._tracer.trace(source, specs, timeout_s)

    def read(self, frames: Sequence[bytes], asked: Asked) -> PlansRead:
        """See `PlanReaders.read`."""
        return self.readers.read(frames, asked)

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        """See `Compiler.compile`."""
        return self._compiler.compile(kernels, target, timeout_s)

    def interpret(self, job: SmallJob) -> Judged:
        """See `Interpreters.judge`."""
        return self.interpreters.judge(job)

    def close(self) -> None:
        """End every process."""
        for part in (self._tracer, self._compiler, self.gatherers, self.readers, self.interpreters, self.fork_server):
            part.close()
