"""Where one evaluation is: the stage, what it took, what is known so far, and how a stage ends it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kernrl.verifier.base.verdict import Rejection, Stage, Timing


class Stopped(Exception):
    """A stage said no."""

    def __init__(self, rejection: Rejection):
        super().__init__(rejection.reason)
        self.rejection = rejection


class Progress:
    """Where one evaluation is, and how long each stage took."""

    def __init__(self) -> None:
        self.stage = Stage.PARSE
        self.sha = ""
        self.seconds: dict[str, float] = {}
        self.plan: dict[str, Any] = {}
        self.errors: list[dict[str, Any]] = []
        self.timing: Timing | None = None

    @contextlib.contextmanager
    def at(self, stage: Stage, name: str | None = None) -> Iterator[None]:
        self.stage, begun = stage, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name or str(stage)] = time.perf_counter() - begun


def passed(result: Any) -> Any:
    """A stage's result, or its Rejection raised to end the funnel."""
    if isinstance(result, Rejection):
        raise Stopped(result)
    return result
