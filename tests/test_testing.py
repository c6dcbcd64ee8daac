"""`kernrl.testing.assert_kernel`, as somebody's own tests call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernrl import testing
from kernrl.config import VerifierConfig
from kernrl.errors import UsageError
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict

TASK = load_tasks("heldout", limit=1).tasks[0]
SOURCE = TASK.solutions[0].triton_code


class Fixed:
    """A verifier whose answer is known."""

    def __init__(self, verdict: Verdict):
        self.verdict, self.asked = verdict, ""

    def verify(self, task: Task, candidate: str) -> Verdict:
        self.asked = candidate
        return self.verdict


def answer(monkeypatch: pytest.MonkeyPatch, status: Status, kind: str = "", low: float = 1.0) -> Fixed:
    timing = Timing(kind, "H200", 1.0, {"eager": 2.0}, {"eager": Speedup(low + 0.1, low, low + 0.2, True)}) if kind else None
    fixed = Fixed(Verdict(status, Stage.TIMING, "the reason.", TASK.id, "sha", "fp32", timing=timing))
    monkeypatch.setattr(testing, "shared_verifier", lambda config: fixed)
    return fixed


def test_a_correct_kernel_passes_and_its_verdict_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fixed = answer(monkeypatch, Status.CORRECT)
    (tmp_path / "kernel.py").write_text(SOURCE)
    assert testing.assert_kernel(TASK, tmp_path / "kernel.py").correct
    assert fixed.asked == SOURCE


def test_a_wrong_kernel_fails_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Status.WRONG)
    with pytest.raises(AssertionError, match="wrong: the reason"):
        testing.assert_kernel(TASK, SOURCE)


def test_a_failure_is_shown_at_the_line_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Status.WRONG)
    for candidate in (SOURCE, "absent.py"):
        with pytest.raises((AssertionError, UsageError)) as raised:
            testing.assert_kernel(TASK, candidate)
        assert str(raised.traceback.filter(raised)[-1].path) == __file__


def test_what_only_a_gpu_can_tell_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Status.NEEDS_GPU)
    with pytest.raises(pytest.skip.Exception, match="the reason"):
        testing.assert_kernel(TASK, SOURCE)


def test_a_speedup_is_asked_for_at_the_low_end_of_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Status.CORRECT, "measured", low=1.2)
    testing.assert_kernel(TASK, SOURCE, min_speedup_x=1.2)
    with pytest.raises(AssertionError, match=r"1\.30× \[1\.20, 1\.40\], where 1\.25× is asked for"):
        testing.assert_kernel(TASK, SOURCE, min_speedup_x=1.25)


def test_a_modelled_speedup_is_no_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Status.CORRECT, "modelled", low=9.0)
    with pytest.raises(pytest.skip.Exception, match="no GPU"):
        testing.assert_kernel(TASK, SOURCE, min_speedup_x=1.1)


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"missing\.py: No such file or directory; name a file"):
        testing.assert_kernel(TASK, "missing.py")


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_it_judges_for_real() -> None:
    config = VerifierConfig(device="cpu", cache=False)
    assert testing.assert_kernel(TASK, SOURCE, config=config).correct
    with pytest.raises(AssertionError, match="no_code"):
        testing.assert_kernel(TASK, "I cannot\ndo that", config=config)
