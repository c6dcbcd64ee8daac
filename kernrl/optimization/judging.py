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

from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.correctness import PlanJudge
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.verifier import HardenedVerifier

CORES_A_TASK, MOST_AT_ONCE = 4, 4
"""Tasks that are searched side by side: one for so many cores, since its candidates are traced and compiled on them; and so
many at most, since only one candidate is timed at a time."""


class Judge(Protocol):
    """The part of the verifier that a search uses."""

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]: ...


class Judges:
    """The judges of a run. A context manager, inside the verifier's own."""

    def __init__(self, verifier: HardenedVerifier):
        self.verifier = verifier
        self._first: FirstLook | None = None
        self._making = threading.Lock()

    def start_ahead(self) -> None:
        """Start the verifier's processes in the background; whoever needs them waits for them, and is told what went wrong."""

        def start() -> None:
            with contextlib.suppress(Exception):
                self.verifier.evaluator.start()

        threading.Thread(target=start, name="starting the verifier", daemon=True).start()

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
                self._first = FirstLook(verifier)
            return self._first

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._first is not None:
            self._first.close()


class FirstLook(HardenedVerifier):
    """A verifier on another one's processes that times against the first of its baselines. Its verdicts are cached apart."""

    def __init__(self, whole: HardenedVerifier):
        super().__init__(whole.config.model_copy(update={"baseline": whole.config.baseline[:1]}))
        self.evaluator = _SameProcesses.of(whole.evaluator, self.config.baseline)
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
    def of(cls, whole: StagedEvaluator, baselines: tuple[str, ...]) -> _SameProcesses:
        """With the processes, the facts and the locks of `whole`, and these baselines."""
        assert whole.front
        mine = copy.copy(whole)
        mine.__class__ = cls
        assert isinstance(mine, cls)
        mine.config = whole.config.model_copy(update={"baseline": baselines})
        mine._plan_judge = PlanJudge(mine.config, mine.defences, mine._device, whole.front, whole.gpus)
        return mine

    def close(self) -> None:
        """What ends from now on is no fault."""
        self._closed = True


def tasks_at_once(verifier: HardenedVerifier) -> int:
    """Tasks that this machine searches side by side."""
    return max(1, min(MOST_AT_ONCE, verifier.evaluator.workers // CORES_A_TASK))
