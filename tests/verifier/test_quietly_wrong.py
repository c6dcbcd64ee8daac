"""Candidates that are wrong in the way models are wrong are refused, already without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import suite

from kernrl.config import VerifierConfig
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.funnel import StagedEvaluator

FIXTURES = {fixture.name: fixture for fixture in suite.quietly_wrong()}
QUICK = sorted(FIXTURES)[::4]


@pytest.fixture(scope="module")
def evaluator() -> Iterator[StagedEvaluator]:
    made = StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=2))
    yield made
    made.close()


@pytest.fixture(scope="module")
def quick(evaluator: StagedEvaluator) -> dict[str, Verdict]:
    return suite.judge_all(evaluator.evaluate, [FIXTURES[n] for n in QUICK], 2)


@pytest.fixture(scope="module")
def rest(evaluator: StagedEvaluator) -> dict[str, Verdict]:
    return suite.judge_all(evaluator.evaluate, [f for n, f in FIXTURES.items() if n not in QUICK], 2)


def test_there_are_a_hundred_and_sixty() -> None:
    """A mutation that changes nothing would be its honest origin."""
    assert len(FIXTURES) >= 160
    honest = {fixture.source for fixture in suite.honest()}
    assert len({fixture.source for fixture in FIXTURES.values()} - honest) == len(FIXTURES)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_is_refused(name: str, quick: dict[str, Verdict]) -> None:
    assert not suite.quietly_accepted(FIXTURES[name], quick[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FIXTURES) - set(QUICK)))
def test_is_refused_too(name: str, rest: dict[str, Verdict]) -> None:
    assert not suite.quietly_accepted(FIXTURES[name], rest[name])
