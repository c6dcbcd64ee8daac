"""The fastest that is known of each task of a run, and how fast a candidate is against it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kernrl.verifier.base.verdict import Speedup, Verdict


@dataclass
class BestKnown:
    """Of each task the fastest correct candidate so far, by its speedup against eager: two verdicts may be of different hours,
    in which the GPU's clock differed, and each has its own time of eager beside it.

    A candidate is known from the next step on: a step's rewards do not depend on the order in which its verdicts come. One that
    is faster only within the noise is not taken in; otherwise the luckiest time of many would be the one to beat.
    """

    modelled: bool = False
    """Count modelled speedups as measured ones."""
    fastest: dict[str, Speedup] = field(default_factory=dict)
    """Task id → speedup against eager. Only of tasks for which a candidate is faster than every baseline."""

    def speed_x(self, verdict: Verdict) -> float:
        """The speed of a correct candidate against the faster of the baselines and the fastest candidate before it.

        1 where it is within the noise of the fastest, or was not timed.
        """
        return min(against_baselines(verdict, self.modelled), self._against_earlier(verdict))

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take in the verdicts of a step, in an order that is the same when the step is repeated."""
        for verdict in verdicts:
            speedup = verdict.speedup()
            if verdict.correct and speedup and self.speed_x(verdict) > 1:
                self.fastest[verdict.task_id] = speedup

    def _against_earlier(self, verdict: Verdict) -> float:
        timing, now, before = verdict.timing, verdict.speedup(), self.fastest.get(verdict.task_id)
        if timing is None or now is None or before is None:
            return math.inf
        if timing.kind == "modelled":
            return now.value / before.value if self.modelled else 1.0
        band = math.exp(timing.noise)
        clear = now.low / before.high > band or now.high / before.low < 1 / band
        return now.value / before.value if clear else 1.0


def verdicts_until(step: int, samples: Iterable[dict[str, Any]]) -> list[Verdict]:
    """The verdicts of a run's steps up to one, in the order in which the run took them in.

    Args:
        samples: the lines of `samples.jsonl`. Of a step that was repeated, those of the last time count.
    """
    rows = {row["id"]: row for row in samples if row["step"] <= step}
    in_order = sorted(rows.values(), key=lambda row: (row["step"], row["group"], row["turn"], row["member"]))
    return [Verdict.from_json(row["verdict"]) for row in in_order]


def against_baselines(verdict: Verdict, modelled: bool) -> float:
    """The speedup against the fastest of the baselines; 1 where it is within the noise, modelled while `modelled` is False, or
    not known."""
    timing = verdict.timing
    if timing is None or not timing.speedups_x:
        return 1.0
    least = min(timing.speedups_x.values(), key=lambda speedup: speedup.value)
    counts = modelled if timing.kind == "modelled" else least.significant
    return least.value if counts else 1.0
