"""A GPU for tests on machines without one: it judges nothing, and shows what the funnel asks of a GPU."""

from __future__ import annotations

from typing import Any

from kernrl.verifier.base.verdict import Stage
from kernrl.verifier.pool.backend import Outcome
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.timing import NoiseBand


class StandIn:
    """A GPU that finds everything right, and remembers what it was asked."""

    def __init__(self, *arguments: Any, **settings: Any):
        self.gpu_info = {"gpu": "NVIDIA H200", "arch": "sm_90", "driver": "0", "uuid": "none"}
        self.noise = NoiseBand(((1.0, 0.0),))
        self.jobs: dict[str, Job] = {}

    def start(self) -> None: ...

    def close(self) -> None: ...

    def doing(self) -> str:
        return ""

    def load(self) -> int:
        return 0

    def seed(self, task_key: str) -> int:
        return 7

    def run(self, job: Job, baselines: Any, task_key: str) -> Outcome:
        self.jobs[job.task.id] = job
        return Outcome(Stage.TIMING, errors=[{"input_set": "full", "regime": "nominal", "excess": 0.1}])
