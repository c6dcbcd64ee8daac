"""Schedules drawn anew for a fixture."""

import sys

import pytest
from support import ROOT, suite

from kernrl.verifier.funnel import StagedEvaluator

sys.path.insert(0, str(ROOT / "scripts"))

from prove_schedules import Schedules  # pyright: ignore[reportMissingImports]


@pytest.mark.slow
def test_running_statistics_may_be_left_alone(cpu_evaluator: StagedEvaluator) -> None:
    [fixture] = [fixture for fixture in suite.honest() if fixture.name == "batchnorm_running_left_alone"]
    refused, faults = Schedules(cpu_evaluator, 1).refusals(fixture, 4)
    assert refused == 0
    assert not faults
