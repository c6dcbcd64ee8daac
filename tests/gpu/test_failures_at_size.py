"""After a failure of any kind at a size of 1 GiB and more, the next verdict is what it was before.

python -m pytest -m gpu tests/gpu/test_failures_at_size.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from support.failing_late import STATUSES, candidate, task_of
from support.gpu_processes import gpu_processes

from kernrl.config import VerifierConfig
from kernrl.verifier.base.verdict import Status, Verdict
from kernrl.verifier.verifier import HardenedVerifier

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

ROWS, COLUMNS = 1 << 14, 1 << 14
TASK = task_of(ROWS, COLUMNS)
"""Its input is 1 GiB, and so is its output."""


@pytest.fixture(scope="module")
def verifier() -> Iterator[HardenedVerifier]:
    with HardenedVerifier(VerifierConfig(cache=False, gpu_timeout_s=6)) as made:
        yield made


@pytest.fixture(scope="module")
def before(verifier: HardenedVerifier) -> Verdict:
    """The verdict before anything has failed."""
    verdict = verifier.verify(TASK, candidate())
    assert verdict.status is Status.CORRECT, verdict.reason
    assert "full" in {record["input_set"] for record in verdict.errors}
    return verdict


def assert_unchanged(verifier: HardenedVerifier, before: Verdict) -> None:
    after = verifier.verify(TASK, candidate())
    assert (after.status, after.stage, after.errors) == (before.status, before.stage, before.errors), after.reason


@pytest.mark.parametrize("failure", STATUSES)
def test_a_candidate_that_fails_at_the_full_size(verifier: HardenedVerifier, before: Verdict, failure: str) -> None:
    failed = verifier.verify(TASK, candidate(failure, ROWS * COLUMNS))
    assert failed.status is STATUSES[failure], failed.reason
    assert_unchanged(verifier, before)


def test_processes_that_are_killed(verifier: HardenedVerifier, before: Verdict) -> None:
    for process in gpu_processes(verifier):
        os.kill(process, signal.SIGKILL)
    assert_unchanged(verifier, before)
