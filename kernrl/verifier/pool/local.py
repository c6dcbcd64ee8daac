"""The front on this machine: tracer, compiler and interpreters, which share its cores."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.compile.client import Compiler
from kernrl.verifier.interpret.server import Judged, SmallJob
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource, Plan, TraceSpec
from kernrl.verifier.pool.interpreters import Interpreters
from kernrl.verifier.trace.client import Tracer


class LocalFront:
    """See `backend.Front`. At most `slots` candidates are traced, compiled or interpreted at once."""

    def __init__(
        self, slots: int, *, target: str, cache_dir: Path | None, require_sandbox: bool, interpreter: dict[str, bool]
    ):  # fmt: skip
        """`interpreter`: settings of `CpuServer`."""
        shared = threading.BoundedSemaphore(slots)
        kernels = cache_dir / "cubins" if cache_dir else None
        self._tracer = Tracer(slots, target=target, require_sandbox=require_sandbox, slots=shared)
        self._compiler = Compiler(slots, targets=(target,), cache_dir=kernels, require_sandbox=require_sandbox, slots=shared)
        self.interpreters = Interpreters(slots, interpreter, shared)

    def start(self) -> None:
        """Start the sandboxes, and return when they are warm. Raises InfrastructureError."""
        with ThreadPoolExecutor(2) as pool:  # each imports torch and triton in a process of its own
            list(pool.map(lambda part: part.start(), (self._tracer, self._compiler)))

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> list[Plan] | Rejection:
        """See `Tracer.trace`."""
        return self._tracer.trace(source, specs, timeout_s)

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        """See `Compiler.compile`."""
        return self._compiler.compile(kernels, target, timeout_s)

    def interpret(self, job: SmallJob) -> Judged:
        """See `Interpreters.judge`."""
        return self.interpreters.judge(job)

    def close(self) -> None:
        """End every process."""
        for part in (self._tracer, self._compiler, self.interpreters):
            part.close()
