"""How a search uses the verifier: its processes start while the module is read, and a first look costs one baseline.

`torch.compile` takes seconds for a module that it has not seen, and as long to time as eager does. So candidates are looked
at against the first baseline alone; the finalists are timed against all of them, which are made ready meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol

from kernrl.config.verifier import Baselines
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.correctness import PlanJudge
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.verifier import HardenedVerifier

CORES_A_TASK, MOST_AT_ONCE = 4, 4
"""Tasks that are searched side by side: one for so many cores, since its candidates are traced and compiled on them; and so
many at most, since only one candidate is timed at a time."""


WARM_UP_S = 60.0
"""Longest that searches wait for a first verdict before they begin."""

FIRST_TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1.0


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""


class Judge(Protocol):
    """The part of the verifier that a search uses."""

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]: ...


class Judges:
    """The judges of a run. A context manager, inside the verifier's own."""

    def __init__(self, verifier: HardenedVerifier):
        self.verifier = verifier
        self._first: Look | None = None
        self._last: Look | None = None
        self._making = threading.Lock()

    def start_ahead(self) -> None:
        """Start the verifier's processes in the background; whoever needs them waits for them, and is told what went wrong."""

        def start() -> None:
            with contextlib.suppress(Exception):
                self.verifier.evaluator.start()

        threading.Thread(target=start, name="starting the verifier", daemon=True).start()

    def warm_up(self) -> None:
        """Start the verifier, and on a GPU judge a candidate of no task: the first lift and the first verdict take seconds
        that later ones do not."""
        self.verifier.evaluator.start()
        if self.verifier.evaluator.gpus:
            with contextlib.suppress(Exception):  # whatever is wrong here is met again, and told, with the first task
                task = Task("warm-up", FIRST_TASK)
                self.first.submit(task, write_solutions(task)[0].triton_code).result(WARM_UP_S)

    @property
    def first(self) -> Judge:
        """Judges as the verifier does, and times against the first baseline alone; the verifier itself where that is all.

        The verifier must have started.
        """
        verifier = self.verifier
        measured = bool(verifier.evaluator.gpus)  # by the model, a baseline costs nothing
        if not measured or len(verifier.config.baseline) < 2 or verifier.config.executor != "local":
            return verifier
        with self._making:
            if self._first is None:
                self._first = Look(verifier, verifier.config.baseline[:1])
            return self._first

    @property
    def last(self) -> Judge:
        """Judges as the verifier does, and times at length: against every baseline, and a program against itself to see the
        noise at that time. The verifier itself where times are modelled, or are taken on other machines.

        The verifier must have started.
        """
        verifier = self.verifier
        if not verifier.evaluator.gpus or verifier.config.executor != "local":
            return verifier
        with self._making:
            if self._last is None:
                self._last = Look(verifier, verifier.config.baseline, at_length=True)
            return self._last

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for look in (self._first, self._last):
            if look is not None:
                look.close()


class Look(HardenedVerifier):
    """A verifier on another one's processes that times in its own way. Its verdicts are cached by its baselines."""

    def __init__(self, whole: HardenedVerifier, baselines: Baselines, *, at_length: bool = False):
        super().__init__(whole.config.model_copy(update={"baseline": baselines}))
        self.evaluator = _SameProcesses.of(whole.evaluator, baselines, at_length)
        self.input_sets = whole.input_sets

    def close(self) -> None:
        """Drop what is being judged; the processes stay."""
        self.evaluator.close()
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._cache.close()


class _SameProcesses(StagedEvaluator):
    """An evaluator that has started in another one's name."""

    @classmethod
    def of(cls, whole: StagedEvaluator, baselines: Baselines, at_length: bool) -> _SameProcesses:
        """With the processes, the facts and the locks of `whole`, and these baselines."""
        assert whole.front
        mine = copy.copy(whole)
        mine.__class__ = cls
        assert isinstance(mine, cls)
        mine.config = whole.config.model_copy(update={"baseline": baselines})
        given = (mine.config, mine.defences, mine._device, whole.front, whole.gpus)
        mine._plan_judge = PlanJudge(*given, at_length=at_length)
        return mine

    def close(self) -> None:
        """What ends from now on is no fault."""
        self._closed = True


def tasks_at_once(verifier: HardenedVerifier) -> int:
    """Tasks that this machine searches side by side."""
    return max(1, min(MOST_AT_ONCE, verifier.evaluator.workers // CORES_A_TASK))
