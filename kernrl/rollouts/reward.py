"""Rewards: pure functions of a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kernrl.verifier.base.verdict import Speedup, Status, Verdict

Preset = Literal["hierarchical", "best-of-n", "milestones", "log-speed"]

UNKNOWN = (Status.INFRA_ERROR, Status.NEEDS_GPU)
"""The candidate could not be judged: no reward, and no part in any loss."""

NO_PROGRAM = (Status.NO_CODE, Status.SYNTAX_ERROR)

MILESTONE_MARGIN_X = 1.05
"""How much faster than a baseline counts as a milestone."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and its parts."""

    value: float
    parts: dict[str, float]
    """The numbers that `value` was computed from."""


def reward(
    verdict: Verdict,
    preset: Preset = "hierarchical",
    *,
    baseline: str | None = None,
    cap_x: float = 3.0,
    authored_share: bool = False,
    modelled: bool = False,
) -> Reward | None:
    """The reward of a verdict; None where the candidate could not be judged.

    With c = 1 for a correct candidate and 0 otherwise, and s its speedup, at most `cap_x`, and 1 where it lies within the
    noise:

    - `hierarchical`: syntax · (0.7 c + 0.3 s / cap_x · c), between 0 and 1.
    - `best-of-n`: c + 0.3 s · c.
    - `milestones`: −1 for a wrong one, 1 for a correct one, 2 when it is 5 % faster than eager, 3 when also 5 % faster than
      torch.compile (CUDA Agent, arXiv 2602.24286).
    - `log-speed`: c · max(0.1, 1 + ln s): twice as fast is worth as much more as half as fast is worth less, and a slow
      correct candidate still beats a wrong one.

    Args:
        baseline: which speedup s is; by default the first that was timed.
        cap_x: the highest speedup that is rewarded, so that one outlier does not dominate a group.
        authored_share: multiply what speed adds to correctness by the share of the device time spent in the candidate's
            own Triton kernels, so that wrapping library calls does not pay.
        modelled: count a modelled speedup as a measured one. A model knows how much memory traffic a candidate saves, not
            how well its kernels run.
    """
    if verdict.status in UNKNOWN:
        return None
    correct = float(verdict.correct)
    syntax = float(verdict.status not in NO_PROGRAM)
    speed_x = min(_speed_x(verdict, baseline, modelled), cap_x) if verdict.correct else 0.0
    share = 1.0 - verdict.timing.unfused_share if authored_share and verdict.timing else 1.0
    parts = {"syntax": syntax, "correct": correct, "speed_x": speed_x, "share": share}
    if preset == "hierarchical":
        value = syntax * (0.7 * correct + 0.3 * share * speed_x / cap_x)
    elif preset == "best-of-n":
        value = correct + 0.3 * share * speed_x
    elif preset == "milestones":
        value = 1.0 + share * _milestones(verdict, modelled) if verdict.correct else -1.0
    else:
        value = correct * max(0.1, 1.0 + share * math.log(max(speed_x, 1e-3)))
    return Reward(value, parts)


def _speed_x(verdict: Verdict, baseline: str | None, modelled: bool) -> float:
    """The speedup to reward: 1 where there is none, it lies within the noise, or it is modelled and `modelled` is False."""
    timed = verdict.timing.speedups_x if verdict.timing else {}
    found = timed.get(baseline) if baseline else next(iter(timed.values()), None)
    return found.value if found and _counts(verdict, found, modelled) else 1.0


def _counts(verdict: Verdict, speedup: Speedup, modelled: bool) -> bool:
    """Whether a speedup was measured beyond the noise, or is modelled and may count."""
    return speedup.significant or (modelled and verdict.timing is not None and verdict.timing.kind == "modelled")


def _milestones(verdict: Verdict, modelled: bool) -> int:
    reached = 0
    for baseline in ("eager", "compile"):
        speedup = verdict.speedup(baseline)
        if speedup is None or not _counts(verdict, speedup, modelled) or speedup.value < MILESTONE_MARGIN_X:
            break
        reached += 1
    return reached
