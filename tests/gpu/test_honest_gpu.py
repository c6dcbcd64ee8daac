"""No honest candidate is refused where candidates are replayed and timed.

python -m pytest -m gpu tests/gpu/test_honest_gpu.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support import suite

from kernrl.config import VerifierConfig
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.funnel import StagedEvaluator

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

HONEST = {fixture.name: fixture for fixture in suite.honest()}


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, Verdict]]:
    evaluator = StagedEvaluator(VerifierConfig(device="cuda", cache=False))
    yield suite.judge_all(evaluator.evaluate, list(HONEST.values()), evaluator.workers)
    evaluator.close()


@pytest.mark.parametrize("name", sorted(HONEST))
def test_honest_code_is_correct(name: str, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[name]
    assert verdict.correct, f"{verdict.status} at {verdict.stage}: {verdict.reason}"
    assert suite.measured_x(verdict)
