"""For the tests of people who keep Triton kernels: `assert_kernel(reference, candidate)`."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path

import pytest

from kernrl.config import VerifierConfig
from kernrl.errors import UsageError
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status, Verdict
from kernrl.verifier.verifier import HardenedVerifier


def assert_kernel(
    reference: Task | str | Path,
    candidate: str | Path,
    *,
    min_speedup_x: float | None = None,
    config: VerifierConfig | None = None,
) -> Verdict:
    """Fail the test unless `candidate` is a correct Triton version of `reference`.

    Where only a GPU could tell, or no time can be measured without one, the test is skipped with that reason.

    Args:
        reference: a task: an object, a `.py` file with `Model`, `get_inputs` and `get_init_inputs`, or any source of one task
            that `kernrl verify` takes.
        candidate: a file that defines `ModelNew`, or its source text.
        min_speedup_x: the least measured speedup against the first baseline, at the low end of its interval.
        config: settings of the verifier, such as `VerifierConfig(precision="tf32", baseline=("compile",))`. Tests with equal
            settings share one verifier, which ends with the process.

    Returns:
        The verdict, for further assertions.

    Raises:
        AssertionError: the candidate is not correct, or too slow; the message is the verdict's reason.
        UsageError: the reference cannot be read or does not run.
        InfrastructureError: the verifier cannot work on this machine.
    """
    __tracebackhide__ = True  # pytest shows the line of the test instead
    task = reference if isinstance(reference, Task) else load_tasks(reference).tasks[0]
    config = config or VerifierConfig()
    verdict = shared_verifier(config.model_dump_json()).verify(task, _text(candidate))
    if verdict.status is Status.NEEDS_GPU:
        pytest.skip(verdict.reason)
    assert verdict.correct, f"{task.id}: {verdict.status}: {verdict.reason}"
    if min_speedup_x is not None:
        speedup = verdict.speedup(config.baseline[0])
        if speedup is None or verdict.timing is None or verdict.timing.kind != "measured":
            pytest.skip("no GPU to measure a speedup on")
        assert speedup.low >= min_speedup_x, (
            f"{task.id}: {speedup.value:.2f}× [{speedup.low:.2f}, {speedup.high:.2f}], where {min_speedup_x:g}× is asked for"
        )
    return verdict


def _text(candidate: str | Path) -> str:
    """The source: a text of several lines is itself, anything else names a file."""
    __tracebackhide__ = True
    if isinstance(candidate, str) and "\n" in candidate:
        return candidate
    try:
        return Path(candidate).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{candidate}: {error.strerror}; name a file, or give the source text.") from None


@cache
def shared_verifier(config: str) -> HardenedVerifier:
    """The verifier of equal settings, which are given as JSON."""
    verifier = HardenedVerifier(VerifierConfig.model_validate_json(config))
    atexit.register(verifier.close)
    return verifier
