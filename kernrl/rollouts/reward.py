"""Rewards: pure functions of a verdict, and of what is known of its task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kernrl.rollouts.best_known import BestKnown
from kernrl.verifier.base.verdict import Speedup, Status, Verdict

Preset = Literal["hierarchical", "best-of-n", "milestones", "log-speed", "best-known"]

UNKNOWN = (Status.INFRA_ERROR, Status.NEEDS_GPU)
"""The candidate could not be judged: no reward, and no part in any loss."""

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
    authored_share: bool = True,
    modelled: bool = False,
    known: BestKnown | None = None,
) -> Reward | None:
    """The reward of a verdict; None where the candidate could not be judged.

    With c = 1 for a correct candidate and 0 otherwise, s its speedup, at most `cap_x`, and 1 where it lies within the noise,
    and a its authored share (see `authored_share_of`), or 1 under `authored_share=False`:

    - `hierarchical`: c · (0.5 + 0.2 (a − d) + 0.3 a f), between 0 and 1, where f = ln s / ln cap_x for what is faster, else 0,
      and d = −ln s / ln cap_x, at most 1, for what is slower, else 0.
    - `best-of-n`: c + 0.3 a s · c.
    - `milestones`: −1 for a wrong one, 1 for a correct one, 1 + a when it is 5 % faster than eager, 1 + 2 a when also 5 %
      faster than torch.compile (CUDA Agent, arXiv 2602.24286).
    - `log-speed`: c · max(0.1, 0.8 + 0.2 a + a ln s), and ln s whole where s < 1: twice as fast is worth as much more as half
      as fast is worth less, and a slow correct candidate still beats a wrong one.
    - `best-known`: the same, where s is the speed against the fastest that is known of the task: the faster of its baselines,
      and what `known` has.

    Args:
        baseline: which speedup s is; by default the first that was timed.
        cap_x: the highest speedup that is rewarded, so that one outlier does not dominate a group.
        authored_share: whether a counts, so that library operators with a copy at their end earn less than a fused kernel.
        modelled: count a modelled speedup as a measured one. A model knows how much memory traffic a candidate saves, not
            how well its kernels run.
        known: of `best-known`: the fastest candidates before; the baselines alone by default.
    """
    if verdict.status in UNKNOWN:
        return None
    correct = float(verdict.correct)
    against = (
        (known or BestKnown(modelled)).speed_x(verdict) if preset == "best-known" else _speed_x(verdict, baseline, modelled)
    )
    speed_x = min(against, cap_x) if verdict.correct else 0.0
    share = authored_share_of(verdict) if authored_share and verdict.correct else 1.0
    parts = {"correct": correct, "speed_x": speed_x, "share": share}
    log_speed = math.log(max(speed_x, 1e-3))
    if preset == "milestones":
        value = 1.0 + share * _milestones(verdict, modelled) if verdict.correct else -1.0
    elif not verdict.correct:
        value = 0.0
    elif preset == "hierarchical":
        # a cap at or below 1 rewards no speed
        gain = max(-1.0, log_speed / math.log(cap_x)) if cap_x > 1 else min(0.0, log_speed)
        value = 0.5 + 0.2 * (share + max(-1.0, min(gain, 0.0))) + 0.3 * share * max(gain, 0.0)
    elif preset == "best-of-n":
        value = 1.0 + 0.3 * share * speed_x
    else:
        value = max(0.1, 0.8 + 0.2 * share + (share if log_speed > 0 else 1.0) * log_speed)
    return Reward(value, parts)


def authored_share_of(verdict: Verdict) -> float:
    """Of the device time that is not a library's product or convolution, the share in the candidate's own kernels.

    A matrix product is left to the library by the best kernels too; an activation, a norm or a reduction that PyTorch runs is
    what the candidate was asked to write. Times are those of the plan's price, which no noise moves. Where a verdict has no
    prices, the share of the measured time outside the authored kernels decides; 1 where that is not known either.
    """
    nodes = [n for n in verdict.plan.get("nodes") or () if n.get("kind") in ("authored", "unfused")]
    total_us = sum(n["us"] for n in nodes)
    if total_us > 0:
        return sum(n["us"] for n in nodes if n["kind"] == "authored") / total_us
    return 1.0 - verdict.timing.unfused_share if verdict.timing else 1.0


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
