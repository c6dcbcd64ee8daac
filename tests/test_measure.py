"""Which timed calls are judged: a kernel that cheats in some of its calls and not in others cannot count on the gaps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernrl.verifier.spotcheck import SPOT_CHECKS, SpotChecks


def judged_calls(calls: int) -> tuple[set[int], SpotChecks]:
    """Which of a number of timed calls are judged, with everything but the lot replaced."""
    now = {"call": -1}
    judged: set[int] = set()
    flag = torch.zeros((), dtype=torch.bool)

    def put(_: Any) -> str:
        judged.add(now["call"])
        return "place"

    server = SimpleNamespace(
        outbox=SimpleNamespace(clear=lambda: None, put=put),
        arena=SimpleNamespace(overrun=lambda: flag),
        job=SimpleNamespace(draws={7: "draw"}),
    )
    opened = SimpleNamespace(runner=SimpleNamespace(prepare=lambda poison: None), run=lambda: None, outputs=lambda: ["y"])
    inputs = SimpleNamespace(
        draw=lambda draw: None, refresh=lambda: None, snapshot=lambda: None, written=lambda snapshot: flag
    )  # fmt: skip
    spot = SpotChecks(server, opened, inputs, [7])  # pyright: ignore[reportArgumentType]
    for call in range(calls):
        now["call"] = call
        spot.before()
        spot.after()
    return judged, spot


def test_the_last_call_is_judged_too_and_no_more_than_the_outbox_holds() -> None:
    for _ in range(50):
        judged, spot = judged_calls(100)
        among = len(judged)
        spot.last()
        assert 1 <= among <= SPOT_CHECKS
        assert len(spot.result.asked) == len(spot.result.shown) == among + 1
        assert len(spot.flags) == 2 * len(spot.result.asked)


@pytest.mark.parametrize(
    ("calls", "cheated", "least"), [(3, {1, 2}, 0.7), (11, set(range(3, 11)), 0.7), (31, set(range(8, 31)), 0.7)]
)
def test_cheating_in_a_run_of_calls_is_mostly_seen(calls: int, cheated: set[int], least: float) -> None:
    seen = sum(bool(judged_calls(calls)[0] & cheated) for _ in range(600))
    assert seen / 600 > least
