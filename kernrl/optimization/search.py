"""The search: candidates are proposed, judged as verdicts come, and the best varied, until the budget or the ideas end.

Worked styles come first, then what a model samples beside them, then variants of the best. A variant is chosen by what was
seen: a knob that made other candidates faster when turned up is turned up first.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from kernrl.optimization.trials import Progress, Proposal, Trial, combined, ranked
from kernrl.optimization.variants import Step, variants
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

Ended = Literal["no more ideas", "candidates", "budget", "interrupted"]
"""Why a search ended: nothing left to try, as many candidates as were allowed, no time left, or Ctrl-C."""

TICK_S = 0.2
"""How often a live line is renewed while nothing happens."""

VARIED = 3
"""Of this many of the best candidates, variants are made."""

PATIENCE = {"measured": 16, "modelled": 6}
"""After this many variants in a row without a better one, no more are made. The model sees few of the knobs."""

FINALISTS, FINAL_ROUNDS, FINAL_SHARE = 5, 3, 0.2
"""How many are timed again, how often, and the share of the budget that is kept for it where times are measured."""

PRIOR_GAIN, PRIOR_WEIGHT = 0.03, 1.0
"""What a step is expected to gain (log speedup) before it was tried, and how many tries that counts as."""

BETTER = 0.005
"""Log speedup from which a variant counts as better than all before it."""


class Judge(Protocol):
    """The part of the verifier that a search uses."""

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]: ...


class Samples(Protocol):
    """Candidates that a model writes meanwhile."""

    def poll(self) -> Proposal | None:
        """The next one, None where there is none yet."""
        ...

    @property
    def done(self) -> bool:
        """Whether no more will come."""
        ...

    @property
    def left(self) -> int:
        """How many may still come."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a search may take."""

    candidates: int
    budget_s: float
    measured: bool
    """Whether a GPU takes the times: then the best are timed again, and part of the budget is kept for that."""
    in_flight: int = 3
    """Candidates that are judged at once."""


class Search:
    """One task's search. `run` may be called once; what it found is in `trials`, the finalists' long timings included."""

    def __init__(
        self,
        task: Task,
        judge: Judge,
        limits: Limits,
        *,
        started: float | None = None,
        known: Sequence[Trial] = (),
        on_trial: Callable[[Trial], None] = lambda trial: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ):
        """
        Args:
            started: `time.monotonic()` when the budget began; now if not given.
            known: Trials of an earlier, interrupted search: they are not judged again.
            on_trial: Called with every new trial as it is judged.
        """
        self.task, self.judge, self.limits = task, judge, limits
        self.started = time.monotonic() if started is None else started
        self.trials: list[Trial] = list(known)
        self.finals: dict[str, Verdict] = {}
        """Id → verdict of the long timing, of the finalists."""
        self.ended: Ended = "no more ideas"
        self._on_trial, self._on_progress = on_trial, on_progress
        self._seen = {trial.proposal.key for trial in known}
        self._pending: dict[Future[Verdict], Proposal] = {}
        self._progress = Progress(limits.budget_s)
        self._unimproved = 0
        self._best_before = -math.inf
        for trial in known:
            self._count(trial)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self, first: Iterable[Proposal], samples: Samples | None = None) -> None:
        """Search. Ctrl-C ends it, and leaves what was found."""
        queue = deque(first)
        try:
            self._explore(queue, samples)
            if self.limits.measured:
                self._time_finalists()
        except KeyboardInterrupt:
            self.ended = "interrupted"

    def _explore(self, queue: deque[Proposal], samples: Samples | None) -> None:
        until_s = self.limits.budget_s * (1 - FINAL_SHARE if self.limits.measured else 1)
        while (left_s := until_s - self.spent_s) > 0:
            while len(self._pending) < self.limits.in_flight:
                proposal = self._next(queue, samples)
                if proposal is None:
                    break
                self._submit(proposal)
            waiting = samples is not None and not samples.done
            if not self._pending and not waiting:
                self.ended = "candidates" if self._tried >= self.limits.candidates else "no more ideas"
                return
            self._collect(min(TICK_S, left_s))
        self.ended = "budget"

    def _next(self, queue: deque[Proposal], samples: Samples | None) -> Proposal | None:
        """What to try next; None while nothing can be proposed."""
        if self._tried >= self.limits.candidates:
            return None
        while queue:
            proposal = queue.popleft()
            if proposal.key not in self._seen:
                return proposal
        while samples is not None and (proposal := samples.poll()):
            if proposal.key not in self._seen:
                return proposal
        kept_free = samples.left if samples is not None and not samples.done else 0
        if self._tried + kept_free >= self.limits.candidates:
            return None
        if any(p.origin in ("style", "disk") for p in self._pending.values()):
            return None  # their speeds decide what is varied
        return self._variant()

    def _submit(self, proposal: Proposal) -> None:
        self._seen.add(proposal.key)
        self._pending[self.judge.submit(self.task, proposal.source)] = proposal
        self._report()

    def _collect(self, timeout_s: float) -> None:
        if self._pending:
            done, _ = wait(self._pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
        else:
            time.sleep(timeout_s)
            done = set()
        for future in done:
            proposal = self._pending.pop(future)
            trial = Trial(f"{proposal.origin}-{len(self.trials)}", proposal, future.result(), self.spent_s)
            self.trials.append(trial)
            self._count(trial)
            self._on_trial(trial)
        self._report()

    # --- variants ----------------------------------------------------------------------------------------------------

    def _variant(self) -> Proposal | None:
        """The untried variant of the best candidates with the greatest promise."""
        best = ranked(self.trials)[:VARIED]
        kind = best[0].verdict.timing.kind if best and best[0].verdict.timing else "modelled"
        if not best or self._unimproved >= PATIENCE[kind]:
            return None
        gains, promising = self._gains(), []
        for trial in best:
            for variant in variants(trial.proposal.source):
                proposal = Proposal(variant.source, "variant", variant.name, trial.id, variant.step)
                if proposal.key not in self._seen:
                    promise = math.log(trial.ratio or 1.0) + gains(variant.step)
                    promising.append((promise, -len(promising), proposal))
        return max(promising)[2] if promising else None

    def _gains(self) -> Callable[[Step], float]:
        """What a step has gained so far on average, in log speedup, drawn towards a small hope."""
        by_id = {trial.id: trial for trial in self.trials}
        seen: dict[Step, list[float]] = {}
        for trial in self.trials:
            parent = by_id.get(trial.proposal.parent)
            if parent and parent.ratio:
                # what no longer works tells against its step
                gain = math.log(trial.ratio / parent.ratio) if trial.ratio else -0.5
                seen.setdefault(trial.proposal.step, []).append(gain)
        return lambda step: (PRIOR_GAIN * PRIOR_WEIGHT + sum(seen.get(step, ()))) / (PRIOR_WEIGHT + len(seen.get(step, ())))

    # --- the finalists -----------------------------------------------------------------------------------------------

    def _time_finalists(self) -> None:
        """Judge and time the best again, in turns, each time on new inputs; who fails now is out."""
        finalists = ranked(self.trials)[:FINALISTS]
        found: dict[str, list[Verdict]] = {trial.id: [] for trial in finalists}
        for _ in range(FINAL_ROUNDS):
            for trial in finalists:
                left_s = self.limits.budget_s - self.spent_s
                if left_s <= 0 and all(found.values()):
                    break
                future = self.judge.submit(self.task, trial.proposal.source, fresh=True)
                # one look at each is worth a little more than the budget
                done, _ = wait([future], timeout=max(left_s, 0.05 * self.limits.budget_s))
                if done:
                    found[trial.id].append(future.result())
                self._report()
        for trial in finalists:
            verdicts = found[trial.id]
            wrong = next((v for v in verdicts if not v.correct), None)
            if verdicts:
                self.finals[trial.id] = wrong or combined(verdicts)

    # --- what was found ----------------------------------------------------------------------------------------------

    @property
    def spent_s(self) -> float:
        """Seconds of the budget that are gone."""
        return time.monotonic() - self.started

    @property
    def _tried(self) -> int:
        return len(self.trials) + len(self._pending)

    def best(self) -> list[Trial]:
        """The correct and timed, the fastest first; finalists by their long timing, before all others."""
        finalists = [replace(t, verdict=self.finals[t.id]) for t in self.trials if t.id in self.finals]
        rest = [t for t in self.trials if t.id not in self.finals]
        return [*ranked(finalists), *ranked(rest)]

    def _count(self, trial: Trial) -> None:
        status = str(trial.verdict.status)
        self._progress.judged += 1
        self._progress.correct += trial.verdict.correct
        self._progress.counts[status] = self._progress.counts.get(status, 0) + 1
        value = math.log(trial.ratio) if trial.ratio else -math.inf
        if value > self._best_before + BETTER:
            self._best_before, self._unimproved = value, 0
            self._progress.best = trial
        elif trial.proposal.origin == "variant":
            self._unimproved += 1

    def _report(self) -> None:
        self._progress.tried, self._progress.spent_s = self._tried, self.spent_s
        self._on_progress(self._progress)
