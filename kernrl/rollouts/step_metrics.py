"""Metrics of a step's attempts, and alarms for signs of reward hacking."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from kernrl.rollouts.collect import Attempt, Collected
from kernrl.rollouts.fall_of_correctness import Correctness
from kernrl.rollouts.reward import UNKNOWN
from kernrl.verifier.base.verdict import Status, Verdict

SUSPICIOUS_SPEEDUP_X = 10.0
"""Speedup from which a person should look: a fusion rarely gains as much."""

POLICY_ALARM = 0.1
"""Share of attempts refused for breaking the rules from which a step raises an alarm."""

DUPLICATES_ALARM = 0.75
"""Share of attempts that repeat another's source from which a step raises an alarm."""

LENGTH_DRIFT_ALARM = 0.5
"""Relative change of the mean length since the run's first step from which a step raises an alarm."""


def speed_geomean_x(verdicts: Sequence[Verdict]) -> float | None:
    """Geometric mean of the first baseline's speedups over the correct and timed; None where there are none."""
    logs = [math.log(x) for v in verdicts for x in _speedup_x(v)]
    return math.exp(fmean(logs)) if logs else None


def _speedup_x(verdict: Verdict) -> list[float]:
    """The first baseline's, if the verdict is correct and timed."""
    timed = verdict.timing.speedups_x if verdict.correct and verdict.timing else {}
    return [speedup.value for speedup in timed.values()][:1]


def step_metrics(collected: Collected, first_length: float | None = None, before: Correctness | None = None) -> dict[str, Any]:
    """The metrics of one step's attempts.

    Args:
        first_length: mean length in tokens of the run's first step, against which drift is measured.
        before: how many attempts were correct in the steps before; None raises no alarm of fewer.

    Returns:
        `reward`, `correct`, `fast_1` (see `Verdict.faster`), `fast_1_plain` (every win counted) and `truncated` as means over
        the attempts that could be judged, and `tasks`, the number of groups with such attempts; `speed_geomean_x`; `modelled`,
        whether speeds are the roofline model's; lengths in tokens; `statuses`; `unknown`, the number that could not be judged,
        and `internal_errors`, those of them that are faults of the verifier itself; and `alarms`, sentences for a person.
    """
    attempts = collected.attempts
    judged = [a for a in attempts if a.verdict.status not in UNKNOWN]
    verdicts = [a.verdict for a in judged]
    lengths = [len(a.rollout.token_ids) for a in attempts]
    length = fmean(lengths) if lengths else 0.0
    correct, asked = _mean([v.correct for v in verdicts]), len({a.group for a in judged})
    modelled = any(v.timing and v.timing.kind == "modelled" for v in verdicts)
    return {
        "tasks": asked,
        "attempts": len(attempts),
        "unknown": len(attempts) - len(judged),
        "internal_errors": (faults := sum(a.verdict.internal_error for a in attempts)),
        "reward": _mean([a.reward.value for a in judged if a.reward]),
        "correct": correct,
        "fast_1": _mean([v.faster() for v in verdicts]),
        "fast_1_plain": _mean([any(x > 1 for x in _speedup_x(v)) for v in verdicts]),
        "speed_geomean_x": speed_geomean_x(verdicts),
        "modelled": modelled,
        "length": length,
        "longest": max(lengths, default=0),
        "truncated": _mean([a.rollout.finish == "length" for a in attempts]),
        "duplicates": (duplicates := _mean([a.repeated for a in attempts])),
        "statuses": dict(Counter(str(a.verdict.status) for a in attempts)),
        "alarms": [
            *alarms(judged, duplicates or 0.0, length, first_length),
            *(before.alarms(correct, asked) if before else []),
            *fault_alarm(faults),
        ],
    }


def alarms(judged: Sequence[Attempt], duplicates: float, length: float, first_length: float | None) -> list[str]:
    """Sentences on broken rules, implausible speedups, repeated answers and drifting lengths."""
    found = []
    refused = _mean([a.verdict.status in (Status.POLICY, Status.DECOY) for a in judged]) or 0.0
    if refused >= POLICY_ALARM:
        found.append(f"{refused:.0%} of the attempts broke the rules")
    speedups = [s.value for a in judged if a.verdict.correct and (s := a.verdict.speedup()) is not None]
    if speedups and max(speedups) >= SUSPICIOUS_SPEEDUP_X:
        found.append(f"a speedup of {max(speedups):.0f}× was credited")
    if duplicates >= DUPLICATES_ALARM:
        found.append(f"{duplicates:.0%} of the attempts repeat another's source")
    if first_length and abs(length / first_length - 1) >= LENGTH_DRIFT_ALARM:
        found.append(f"replies are {length / first_length:.1f} times as long as in the first step")
    return found


def fault_alarm(faults: int) -> list[str]:
    """A sentence where the verifier itself failed on an attempt."""
    return [f"the verifier itself failed on {faults} of the attempts; the log has the traceback"] if faults else []


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
