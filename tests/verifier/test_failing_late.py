"""What `tests/gpu/test_failures_at_size.py` asks of a GPU, at the sizes that a CPU judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.failing_late import STATUSES, candidate, task_of

from kernrl.config import VerifierConfig
from kernrl.verifier.base.verdict import Status, Verdict
from kernrl.verifier.verifier import HardenedVerifier

pytestmark = pytest.mark.slow  # every candidate is compiled

ROWS, COLUMNS = 16, 256
TASK = task_of(ROWS, COLUMNS)


@pytest.fixture(scope="module")
def verifier(fork_servers: Callable[[pytest.MonkeyPatch], None]) -> Iterator[HardenedVerifier]:
    config = VerifierConfig(device="cpu", cache=False, workers=1, candidate_cpu_s=2)
    with pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        with HardenedVerifier(config) as made:
            yield made


@pytest.fixture(scope="module")
def before(verifier: HardenedVerifier) -> Verdict:
    """What is said of the right candidate before any other has failed."""
    found = verifier.verify(TASK, candidate())
    assert found.status is Status.CORRECT, found.reason
    assert {record["input_set"] for record in found.errors} == {"small", "ragged", "full"}
    return found


@pytest.mark.parametrize("failure", STATUSES)
def test_the_next_verdict_is_unchanged(verifier: HardenedVerifier, before: Verdict, failure: str) -> None:
    failed = verifier.verify(TASK, candidate(failure, ROWS * COLUMNS))
    # without a GPU, the small sets decide where the interpreter is too slow at the full one
    assert failed.status is (Status.CORRECT if failure == "hang" else STATUSES[failure]), failed.reason
    right = {record["input_set"] for record in failed.errors if record["excess"] <= 1}
    assert right == (set() if failure == "out of memory" else {"small", "ragged"})
    after = verifier.verify(TASK, candidate())
    assert (after.status, after.errors) == (before.status, before.errors)
