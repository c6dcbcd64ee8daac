"""The search for decoys: authored launches that change no output. The caller runs the plan; this decides what is left.

Only finite inputs show that a launch matters: an infinity turns `0 · y` into NaN, and makes `where(y > 1e30, y, z)` choose what
it never chooses otherwise. Numbers that overflow have the same effect, so on inputs that are scaled, or changed by a regime,
only elements count that are finite in both outputs. On the task's own inputs all elements count, since NaN and infinity must
then be where the reference has them (a kernel that masks by -inf does nothing else).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.plan.plan import LaunchNode, Plan

T = TypeVar("T")


def authored_launches(plan: Plan) -> list[int]:
    """Positions of the launches in `Plan.nodes`."""
    return [i for i, node in enumerate(plan.nodes) if isinstance(node, LaunchNode)]


def telling(draws: Sequence[Draw]) -> list[int]:
    """Positions of the draws that may show that a launch matters."""
    return [i for i, draw in enumerate(draws) if draw.finite]


def idle_launches(
    launches: Sequence[int], conditions: Iterable[T], unchanged: Callable[[T, list[int]], Sequence[bool]]
) -> list[int]:
    """Those launches without which the outputs stay the same under every condition (other inputs, other memory).

    `unchanged(condition, launches)` says for each whether the outputs are the same when it alone is left out. Conditions are
    taken one at a time, while any launch is left.
    """
    left = list(launches)
    if not left:
        return []
    for condition in conditions:
        left = [launch for launch, same in zip(left, unchanged(condition, left), strict=True) if same]
        if not left:
            return []
    return left


def function_names(plan: Plan, launches: Iterable[int]) -> list[str]:
    """The functions that these nodes launch."""
    nodes = [plan.nodes[i] for i in launches]
    return [plan.kernels[node.variants[0].kernel].function for node in nodes if isinstance(node, LaunchNode)]
