"""The finals of a search: its best candidates, judged and timed again at length, beside each other and every baseline."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager

from kernrl.optimization.search.budget import TICK_S, WRITE_SHARE, Budget
from kernrl.optimization.search.judging import Judge
from kernrl.optimization.search.trials import Trial, combined, ranked
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status, Verdict

FINALISTS, FINAL_ROUNDS = 5, 3
"""How many are timed again, and how often."""

FINALS_AT_ONCE = 2
"""Finalists in the verifier at once: while one is timed, the next is traced and judged."""

EARLY_GAIN = 0.03
"""Log speedup over what was timed as a finalist before the finals, from which another is, too."""


class Finals:
    """The finalists of one search, and what was timed as one before."""

    def __init__(self, task: Task, judge: Judge, quiet: threading.Lock | None):
        """`judge`: of the finalists, perhaps against further baselines; `quiet`: held by what keeps the GPU busy besides."""
        self.task, self.judge, self._quiet = task, judge, quiet
        self.verdicts: dict[str, Verdict] = {}
        """Id of a trial → verdict of the long timing."""
        self._early: dict[Future[Verdict], Trial] = {}
        """What is or was timed as a finalist before the finals, the latest last."""

    def prepare(self, source: str) -> None:
        """Have the baselines compiled, which takes seconds: the judge is shown a candidate whose verdict is not looked at."""
        self.judge.submit(self.task, source)

    def time_early(self, trials: Sequence[Trial]) -> None:
        """Have the best so far timed as a finalist, unless one nearly as fast was or is."""
        best = next(iter(ranked(trials)), None)
        last = next(reversed(self._early), None)
        if best is None or (last and not last.done()):
            return
        if last is None or _gain(best, self._early[last]) > EARLY_GAIN:
            self._early[self._asked(best)] = best

    def run(self, trials: Sequence[Trial], budget: Budget, going_on: Callable[[], None]) -> None:
        """Judge and time the best again, in turns, each time on new inputs; who fails now is out.

        `going_on` is called meanwhile; what it raises ends the finals, and no verdict counts.
        """
        finalists = ranked(trials)[:FINALISTS]
        with self._quietly(budget):
            found = self._timed(finalists, budget.part(1 - WRITE_SHARE), going_on)
        for trial in finalists:
            verdicts = found[trial.id]
            wrong = next((v for v in verdicts if not v.correct), None)
            if verdicts:
                self.verdicts[trial.id] = wrong or combined(verdicts)
        if not self.verdicts:
            self._keep_early(finalists)

    def _timed(self, finalists: Sequence[Trial], until: Budget, going_on: Callable[[], None]) -> dict[str, list[Verdict]]:
        """Verdicts of as many rounds as there is time for, by the id of the trial."""
        found: dict[str, list[Verdict]] = {trial.id: [] for trial in finalists}
        waiting, running = deque([*finalists] * FINAL_ROUNDS), dict[Future[Verdict], Trial]()
        while (waiting or running) and until.left_s > 0:
            going_on()
            while waiting and len(running) < FINALS_AT_ONCE and until.left_s > 0:
                trial = waiting.popleft()
                running[self._asked(trial)] = trial
            for future in wait(running, timeout=min(TICK_S, max(until.left_s, 0.0)), return_when=FIRST_COMPLETED).done:
                trial, verdict = running.pop(future), future.result()
                if verdict.status is not Status.INFRA_ERROR:  # says nothing of it
                    found[trial.id].append(verdict)
        going_on()
        return found

    def _keep_early(self, finalists: Sequence[Trial]) -> None:
        """Where no finalist was timed, take what was timed before, if it is nearly as fast as the best."""
        done = [(trial, future.result()) for future, trial in self._early.items() if future.done()]
        if not done:
            return
        trial, verdict = done[-1]
        if _gain(finalists[0], trial) <= EARLY_GAIN and verdict.status is not Status.INFRA_ERROR:
            self.verdicts[trial.id] = verdict

    def _asked(self, trial: Trial) -> Future[Verdict]:
        return self.judge.submit(self.task, trial.proposal.source, fresh=True)

    @contextmanager
    def _quietly(self, budget: Budget) -> Iterator[None]:
        """Within, nothing else that `quiet` guards runs; without it where half of what is left is spent on waiting."""
        half, got = budget.left_s / 2, False
        while self._quiet and not got and budget.left_s > half:
            got = self._quiet.acquire(timeout=TICK_S)
        try:
            yield
        finally:
            if self._quiet and got:
                self._quiet.release()


def _gain(one: Trial, other: Trial) -> float:
    """Log speedup of one over another, both with a time."""
    return math.log((one.ratio or 1.0) / (other.ratio or 1.0))
