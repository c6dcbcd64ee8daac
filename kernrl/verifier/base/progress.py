"""Progress of one evaluation: its stage, its results so far, and how a stage ends it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, TypeVar

from kernrl.verifier.base.verdict import ErrorRecord, Rejection, Stage, Timing

T = TypeVar("T")


class Stopped(Exception):
    """A stage rejected the candidate."""

    def __init__(self, rejection: Rejection):
        super().__init__(rejection.reason)
        self.rejection = rejection


class FailedAtDerived(Exception):
    """A candidate fails at a derived input set. Stated sets bind and derived ones inform: the stated ones decide."""

    def __init__(self, rejection: Rejection):
        super().__init__(rejection.reason)
        self.rejection = rejection


class CpuBudget:
    """What is left of a candidate's core-seconds. Stages that run elsewhere are charged what they took, or at most that."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    def spend(self, seconds: float) -> None:
        """Charge a stage."""
        self._left_s -= seconds

    def left(self, least_s: float) -> float:
        """Seconds for the next stage, which has at least that many in any case."""
        return max(self._left_s, least_s)

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Charge a block its wall time, which may include waiting, but no more than these seconds."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.spend(min(time.perf_counter() - begun, seconds))


class Progress:
    """The stage of one evaluation, how long each stage took, and the results so far."""

    def __init__(self, cpu_s: float) -> None:
        """`cpu_s`: core-seconds that the candidate may cost in all."""
        self.stage = Stage.PARSE
        self.sha = ""
        self.seconds: dict[str, float] = {}
        self.cpu = CpuBudget(cpu_s)
        self.plan: dict[str, Any] = {}
        self.memory: dict[str, int] = {}
        self.errors: list[ErrorRecord] = []
        self.timing: Timing | None = None
        self.specialised = ""
        """See `Verdict.specialised`."""
        self.notes: list[str] = []
        self.tf32_products = False
        """Whether a kernel multiplies float32 tiles as TF32."""

    @contextlib.contextmanager
    def at(self, stage: Stage, name: str | None = None) -> Iterator[None]:
        """Within, the evaluation is at this stage, whose seconds are kept under its name or a given one."""
        self.stage, begun = stage, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name or str(stage)] = time.perf_counter() - begun

    def split(self, stage: Stage, seconds: float, rest: str) -> None:
        """Count only so much for a stage that has ended, and what it took beyond that, such as waiting, under another name."""
        whole, self.seconds[str(stage)] = self.seconds[str(stage)], seconds
        self.seconds[rest] = self.seconds.get(rest, 0.0) + max(0.0, whole - seconds)


def passed(result: T | Rejection) -> T:
    """A stage's result. Raises Stopped when it is a Rejection, which ends the funnel."""
    if isinstance(result, Rejection):
        raise Stopped(result)
    return result
