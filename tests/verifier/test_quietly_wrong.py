"""Candidates that are wrong in the way models are wrong are refused, already without a GPU."""

from __future__ import annotations

import pytest
from support import EXHAUSTIVE, suite

from kernrl.verifier.funnel import StagedEvaluator

FIXTURES = {fixture.name: fixture for fixture in suite.quietly_wrong()}
JUDGED = sorted(FIXTURES) if EXHAUSTIVE else sorted(FIXTURES)[::2]
"""By day every second."""


def test_there_are_a_hundred_and_sixty() -> None:
    """A mutation that changes nothing would be its honest origin."""
    assert len(FIXTURES) >= 160
    honest = {fixture.source for fixture in suite.honest()}
    assert len({fixture.source for fixture in FIXTURES.values()} - honest) == len(FIXTURES)


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_is_refused(name: str, cpu_evaluator: StagedEvaluator) -> None:
    verdict = cpu_evaluator.evaluate(FIXTURES[name].task, FIXTURES[name].source)
    assert not suite.quietly_accepted(FIXTURES[name], verdict)
