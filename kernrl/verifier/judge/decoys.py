"""The search for decoys: authored launches that change no output. The caller runs the plan; this decides what is left.

Only finite inputs show that a launch matters: an infinity turns `0 · y` into NaN, and makes `where(y > 1e30, y, z)` choose what
it never chooses otherwise. Numbers that overflow have the same effect, so on inputs that are scaled, or changed by a regime,
only elements count that are finite in both outputs. On the task's own inputs all elements count, since NaN and infinity must
then be where the reference has them (a kernel that masks by -inf does nothing else).

The maximum that a softmax subtracts changes no output either, as long as the exponentials stay in range, and behind a norm they
always do. So a kernel that takes a maximum or a minimum is asked more: whether outputs change where its result is a number near
the end of the range (`BOUND_FILLS`). There the exponentials of an honest answer are all 0, or all infinite, for one such number
as for another. What only adds a share of the result that rounds away otherwise gives another output for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.plan.plan import LaunchNode, Node, Plan

T = TypeVar("T")

BOUND_FILLS = (0x6B, 0x7B)
"""Bytes that fill memory with large finite numbers: 2.8e26 and 1.3e36 as float32 and bfloat16, 3,800 and 61,000 as float16."""


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


def without_bounds(plan: Plan, idle: Sequence[int], is_bound: Callable[[list[int]], Sequence[bool]]) -> list[int]:
    """Those launches that seem idle, less those whose maximum keeps exponentials in range.

    `is_bound(launches)` says for each whether the outputs, all elements of them, change in memory of `BOUND_FILLS` when it
    alone is left out, and to the same for both.
    """
    extremes = [i for i in idle if _takes_extreme(plan, plan.nodes[i])]
    if not extremes:
        return list(idle)
    bounds = {launch for launch, bound in zip(extremes, is_bound(extremes), strict=True) if bound}
    return [i for i in idle if i not in bounds]


def _takes_extreme(plan: Plan, node: Node) -> bool:
    return isinstance(node, LaunchNode) and any(plan.kernels[v.kernel].takes_extreme for v in node.variants)


def function_names(plan: Plan, launches: Iterable[int]) -> list[str]:
    """The functions that these nodes launch."""
    nodes = [plan.nodes[i] for i in launches]
    return [plan.kernels[node.variants[0].kernel].function for node in nodes if isinstance(node, LaunchNode)]
