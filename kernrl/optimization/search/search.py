"""The search: candidates are proposed, judged as verdicts come, and the best varied, until the budget or the ideas end.

Worked styles come first, as they are written, and what a model samples beside them, then variants of the best. A variant is
chosen by what was seen: a knob that made other candidates faster when turned up is turned up first.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Literal

from kernrl.optimization.search.budget import TICK_S, WRITE_SHARE, Budget
from kernrl.optimization.search.finals import Finals
from kernrl.optimization.search.judging import Judge
from kernrl.optimization.search.trials import Progress, Proposal, Source, Trial, ranked
from kernrl.optimization.search.variants import Step, variants
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

Ended = Literal["no more ideas", "candidates", "budget", "interrupted"]
"""Why a search ended: nothing left to try, as many candidates as were allowed, no time left, or Ctrl-C."""

VARIED = 3
"""Of this many of the best candidates, variants are made."""

MOST_VARIANTS = 256
"""Of one candidate: a chain of a hundred launches has thousands, each as long as the chain."""

PATIENCE = {"measured": 16, "modelled": 6}
"""After this many variants in a row without a better one, no more are made. The model sees few of the knobs."""

FINAL_SHARE = 0.2
"""Share of the budget that is kept for the finals where times are measured."""

MOST_FINAL_SHARE, VERDICTS_KEPT, LAST_VERDICTS = 0.4, 3, 5
"""Where verdicts take long, time is kept for so many of them, up to this share: without one against every baseline, little can
be said of the module. How long they take is seen from the last ones: the first wait for processes to start."""

EARLY_SHARE = 0.5
"""Share of the budget after which the best so far is timed against every baseline, in case the finals are not reached."""

PRIOR_GAIN, PRIOR_WEIGHT = 0.03, 1.0
"""What a step is expected to gain (log speedup) before it was tried, and how many tries that counts as."""

BETTER = 0.005
"""Log speedup from which a variant counts as better than all before it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a search may try."""

    candidates: int
    measured: bool
    """Whether a GPU takes the times: then the best are timed again, and part of the budget is kept for that."""
    in_flight: int = 3
    """Candidates that are judged at once."""


class Search:
    """One task's search, in one round or more; what it found is in `trials` and, of the finalists' long timing, in `finals`."""

    def __init__(
        self,
        task: Task,
        judge: Judge,
        limits: Limits,
        budget: Budget,
        *,
        finals_judge: Judge | None = None,
        quiet: threading.Lock | None = None,
        known: Sequence[Trial] = (),
        numbered: int = 0,
        on_trial: Callable[[Trial], None] = lambda trial: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ):
        """
        Args:
            budget: Nothing is waited for after its end.
            finals_judge: Judges the finalists, against further baselines; `judge` if not given.
            quiet: Held by what keeps the GPU busy besides; the finalists are timed when it is free.
            known: Trials of an earlier, interrupted search: they are not judged again.
            numbered: How many numbers of trials are taken, those included of which nothing is known.
            on_trial: Called with every new trial as it is judged.
        """
        self.task, self.judge, self.limits, self.budget = task, judge, limits, budget
        self._finals = Finals(task, finals_judge or judge, quiet)
        self._further = self._finals.judge is not judge
        """Whether the finals have baselines of their own."""
        self.trials: list[Trial] = list(known)
        self.ended: Ended = "no more ideas"
        self._on_trial, self._on_progress = on_trial, on_progress
        self._seen = {trial.proposal.key for trial in known}
        self._numbered = max(numbered, len(known))
        self._pending: dict[Future[Verdict], tuple[Proposal, float]] = {}
        """What is judged, and when that was asked, in seconds of the budget."""
        self._verdict_s: deque[float] = deque(maxlen=LAST_VERDICTS)
        """How long the last verdicts took that came with a time."""
        self._shown = ""
        """The candidate that the judge of the finals has seen."""
        self._made_ready = False
        self._variants: dict[str, list[Proposal]] = {}
        """Trial id → what is one step away from it."""
        self._progress = Progress(budget.seconds)
        self._earlier_s = 0.0
        """Seconds of earlier rounds."""
        self._unimproved = 0
        self._best_before = -math.inf
        for trial in known:
            self._count(trial)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(
        self,
        first: Iterable[Proposal] = (),
        styles: Source | None = None,
        samples: Source | None = None,
        *,
        final: bool = True,
    ) -> None:
        """Search. Ctrl-C ends it, and leaves what was found.

        Args:
            first: Tried before all others.
            styles: Worked solutions: no variant is made before all of them are judged.
            samples: Of a model.
            final: Whether the best are timed again, where times are measured.
        """
        queue, final = deque(first), final and self.limits.measured
        self._unimproved = 0
        try:
            self._explore(queue, styles, samples, final=final)
            if final:
                for source in (styles, samples):
                    if source is not None:
                        source.stop()
                self._finals.run(self.trials, self.budget, self._while_timing)
        except KeyboardInterrupt:
            self.ended = "interrupted"

    def go_on(self, budget: Budget, candidates: int, on_progress: Callable[[Progress], None]) -> None:
        """Take another budget and another count for a further round."""
        self._earlier_s = self.spent_s
        self.budget, self.limits, self._on_progress = budget, replace(self.limits, candidates=candidates), on_progress
        self._progress.budget_s = self.budget_s

    def add(self, proposal: Proposal, verdict: Verdict) -> None:
        """Count a candidate that was judged elsewhere."""
        if proposal.key in self._seen:
            return
        self._seen.add(proposal.key)
        trial = Trial(f"{proposal.origin}-{self._numbered}", proposal, verdict, self.spent_s)
        self._numbered += 1
        self.trials.append(trial)
        self._count(trial)
        self._on_trial(trial)

    def _explore(self, queue: deque[Proposal], styles: Source | None, samples: Source | None, *, final: bool) -> None:
        sources = [source for source in (styles, samples) if source is not None]

        def left_s() -> float:
            return self.budget.left_s - self._kept_s(final)

        while left_s() > 0:
            self._require_going_on()
            while len(self._pending) < self.limits.in_flight and left_s() > 0:
                proposal = self._next(queue, styles, samples)
                if proposal is None:
                    break
                self._submit(proposal)
            full = self._tried >= self.limits.candidates
            if not self._pending and (full or all(source.done for source in sources)):
                self.ended = "candidates" if full else "no more ideas"
                return
            if final and self._further and self.budget.spent_s > EARLY_SHARE * self.budget.seconds:
                self._finals.time_early(self.trials)
            self._collect(min(TICK_S, max(left_s(), 0.0)))
        self._require_going_on()
        self.ended = "budget"

    def _kept_s(self, final: bool) -> float:
        """Seconds of the budget that are not for exploring."""
        share, seconds = 0.0, self.budget.seconds
        if final:
            verdicts_s = VERDICTS_KEPT * median(self._verdict_s) if self._verdict_s else 0.0
            share = min(max(FINAL_SHARE, verdicts_s / seconds), MOST_FINAL_SHARE)
        return (WRITE_SHARE + share) * seconds

    def _require_going_on(self) -> None:
        if self.budget.stopped:
            raise KeyboardInterrupt

    def _while_timing(self) -> None:
        self._report()
        self._require_going_on()

    def _next(self, queue: deque[Proposal], styles: Source | None, samples: Source | None) -> Proposal | None:
        """What to try next; None while nothing can be proposed."""
        if self._tried >= self.limits.candidates:
            return None
        while queue:
            proposal = queue.popleft()
            if proposal.key not in self._seen:
                return proposal
        kept_free = samples.left if samples is not None and not samples.done else 0
        room = self._tried + kept_free < self.limits.candidates
        for source in (styles if room else None, samples):
            while source is not None and (proposal := source.poll()):
                if proposal.key not in self._seen:
                    return proposal
        if not room:
            return None
        if styles and not styles.done:
            return None
        if any(p.origin in ("style", "disk") for p, _ in self._pending.values()) and len(ranked(self.trials)) < VARIED:
            return None  # their speeds decide what is varied; a last one that takes long to compile holds nothing up
        return self._variant()

    def _submit(self, proposal: Proposal) -> None:
        self._seen.add(proposal.key)
        self._pending[self.judge.submit(self.task, proposal.source)] = proposal, self.spent_s
        if not self._shown:
            self._show(proposal)
        self._report()

    def _collect(self, timeout_s: float) -> None:
        if self._pending:
            done, _ = wait(self._pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
        else:
            time.sleep(timeout_s)
            done = set()
        for future in done:
            proposal, asked_s = self._pending.pop(future)
            self._seen.discard(proposal.key)
            self.add(proposal, future.result())
            if self.trials[-1].ratio is not None:
                self._verdict_s.append(self.spent_s - asked_s)
            self._make_ready(proposal)
        self._report()

    def _make_ready(self, proposal: Proposal) -> None:
        """Have the further baselines compiled, which takes seconds: the judge of the finals is shown the first candidate at
        once, and the first right one where that is another."""
        if not self._made_ready and self.trials[-1].ratio is not None:
            self._made_ready = True
            if proposal.source != self._shown:
                self._show(proposal)

    def _show(self, proposal: Proposal) -> None:
        if self._further:
            self._shown = proposal.source
            self._finals.prepare(proposal.source)

    # --- variants ----------------------------------------------------------------------------------------------------

    def _variant(self) -> Proposal | None:
        """The untried variant of the best candidates with the greatest promise."""
        best = ranked(self.trials)[:VARIED]
        kind = best[0].verdict.timing.kind if best and best[0].verdict.timing else "modelled"
        if not best or self._unimproved >= PATIENCE[kind]:
            return None
        gains, promising = self._gains(), []
        for trial in best:
            for proposal in self._variants_of(trial):
                if proposal.key not in self._seen:
                    promise = math.log(trial.ratio or 1.0) + gains(proposal.step)
                    promising.append((promise, -len(promising), proposal))
        return max(promising)[2] if promising else None

    def _variants_of(self, trial: Trial) -> list[Proposal]:
        if trial.id not in self._variants:
            found = islice(variants(trial.proposal.source), MOST_VARIANTS)
            p = trial.proposal
            of = f"{p.of}, {p.name}" if p.of else p.name
            self._variants[trial.id] = [Proposal(v.source, "variant", v.name, trial.id, v.step, of) for v in found]
        return self._variants[trial.id]

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

    # --- what was found ----------------------------------------------------------------------------------------------

    @property
    def spent_s(self) -> float:
        """Seconds of all rounds."""
        return self._earlier_s + self.budget.spent_s

    @property
    def budget_s(self) -> float:
        """Seconds at which the round ends, counted as `spent_s` is."""
        return self._earlier_s + self.budget.seconds

    @property
    def _tried(self) -> int:
        return len(self.trials) + len(self._pending)

    @property
    def finals(self) -> dict[str, Verdict]:
        """Id of a trial → verdict of the long timing, of the finalists."""
        return self._finals.verdicts

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
