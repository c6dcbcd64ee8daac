"""What runs in Ray's workers: actors that hold what a single machine uses. `ray` calls them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernrl.config import VerifierConfig
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.interpret.interpret_server import Judged, SmallJob
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource, TraceSpec
from kernrl.verifier.plan.reading import Asked, PlansRead
from kernrl.verifier.pool.backend import Outcome
from kernrl.verifier.pool.gpu import LANES, Gpu
from kernrl.verifier.pool.gpu_process import worker_fork_server
from kernrl.verifier.pool.local import LocalFront
from kernrl.verifier.pool.ray_actor import AboutGpu, Actor
from kernrl.verifier.pool.task_facts import TaskFacts
from kernrl.verifier.replay.compiled_reference import MODES
from kernrl.verifier.replay.job import Job
from kernrl.verifier.trace.tracer import Traced


class FrontActor(Actor):
    """What gathers facts of tasks, tracer, plan readers, compiler and interpreters on one node."""

    def __init__(self, config: VerifierConfig, cache_dir: Path | None, target: str, slots: int, interpreter: dict[str, bool]):
        self._front = LocalFront(
            slots, target=target, cache_dir=cache_dir, require_sandbox=config.require_sandbox, interpreter=interpreter
        )
        self._front.start()

    def facts(self, task: Task, precision: str, device: Device, on_gpu: bool) -> TaskFacts:
        return self._front.facts(task, precision, device, on_gpu=on_gpu)

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> Traced | Rejection:
        return self._front.trace(source, specs, timeout_s)

    def read(self, frames: Sequence[bytes], asked: Asked) -> PlansRead:
        return self._front.read(frames, asked)

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        return self._front.compile(kernels, target, timeout_s)

    def interpret(self, job: SmallJob) -> Judged:
        return self._front.interpret(job)


class GpuActor(Actor):
    """The lanes of the one GPU that Ray gave this worker. Its lock keeps other programs off, by the GPU's UUID."""

    def __init__(self, config: VerifierConfig, cache_dir: Path | None, redraw_parameters: bool):
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        compiled = any(name in MODES for name in config.baseline)
        self._gpu = Gpu(
            worker_fork_server(compiled=compiled), device, lanes=LANES, cache_dir=cache_dir, timeout_s=config.gpu_timeout_s,
            redraw_parameters=redraw_parameters, memory_share=config.gpu_memory_share,
            compilers=int(compiled),
        )  # fmt: skip

    def about(self) -> AboutGpu:
        """See `Actor.about`."""
        return self._gpu.gpu_info, self._gpu.noise

    def seed(self, task_key: str) -> int:
        return self._gpu.seed(task_key)

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        return self._gpu.run(job, baselines, task_key)
