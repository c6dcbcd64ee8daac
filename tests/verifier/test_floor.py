"""Which times are too short for a task's data."""

import pytest

from kernrl.verifier.base.verdict import Timing
from kernrl.verifier.correctness import below_floor


@pytest.mark.parametrize(
    ("candidate_us", "baselines", "below"),
    [
        (41.0, {"eager": 120.0}, True),
        (41.0, {"eager": 120.0, "compile": 85.0}, True),
        (79.0, {"eager": 120.0}, False),  # within the margin
        (41.0, {"eager": 55.0}, False),  # eager does all that is asked
        (41.0, {"eager": 120.0, "compile": 50.0}, False),
        (41.0, {}, True),
    ],
)
def test_a_time_is_compared_with_a_floor_that_holds_for_the_baselines(
    candidate_us: float, baselines: dict[str, float], below: bool
) -> None:
    timing = Timing("measured", "NVIDIA H200", candidate_us, baselines, {})
    assert below_floor(timing, 80.1) is below
