"""The funnel and its door without a GPU: every stage's answer is a verdict, and the next one is not touched by the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import TESTS, suite

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Stage, Status
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.pool.local import LocalFront
from kernrl.verifier.verifier import HardenedVerifier

TASK = suite.fixture_task("mish_chain")
GOOD = (TESTS / "honest" / "mish_chain_flat.py").read_text()


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HardenedVerifier]:
    config = VerifierConfig(device="cpu", workers=2, cache_dir=tmp_path_factory.mktemp("cache"))
    with HardenedVerifier(config) as made:
        yield made


def test_a_right_candidate_gets_modelled_time(verifier: HardenedVerifier) -> None:
    verdict = verifier.verify(TASK, f"Here it is.\n```python\n{GOOD}```\n")
    assert (verdict.status, verdict.stage) == (Status.CORRECT, Stage.TIMING), verdict.reason
    assert verdict.timing
    assert verdict.timing.kind == "modelled"
    speed = verdict.speedup()
    assert speed
    assert speed.value > 1
    assert not speed.significant
    assert {record["input_set"] for record in verdict.errors} == {"small", "ragged"}
    assert {"parse", "screen", "trace", "plan", "compile", "correctness"} <= set(verdict.seconds)
    assert {"torch", "triton", "verifier"} <= set(verdict.versions)
    assert verifier.verify(TASK, GOOD).cached


def test_a_candidate_cannot_look_cheaper_than_its_task(verifier: HardenedVerifier) -> None:
    hidden = (TESTS / "exploits" / "x_hidden_bytes.py").read_text()
    honest, claimed = verifier.verify(TASK, GOOD).speedup(), verifier.verify(TASK, hidden).speedup()
    assert honest
    assert claimed
    assert claimed.value <= 1.01 * honest.value


def test_a_reason_does_nothing_to_a_terminal(verifier: HardenedVerifier) -> None:
    reason = verifier.verify(TASK, (TESTS / "exploits" / "x_terminal_escapes.py").read_text()).reason
    assert "\\x1b[2J" in reason
    assert all(c.isprintable() or c in "\n\t" for c in reason)


@pytest.mark.parametrize(
    ("reply", "status", "stage"),
    [
        ("Fusing is hard.", Status.NO_CODE, Stage.PARSE),
        ("class ModelNew(:\n    pass", Status.SYNTAX_ERROR, Stage.SCREEN),
        (GOOD.replace("import torch\n", "import torch\nimport subprocess\n", 1), Status.POLICY, Stage.SCREEN),
        (GOOD.replace("def forward(self", "def forwards(self"), Status.TRACE_ERROR, Stage.TRACE),
    ],
)
def test_each_stage_answers(verifier: HardenedVerifier, reply: str, status: Status, stage: Stage) -> None:
    verdict = verifier.verify(TASK, reply)
    assert (verdict.status, verdict.stage) == (status, stage), verdict.reason
    assert verdict.reason


TUNED = GOOD.replace(
    "@triton.jit\ndef chain",
    "@triton.autotune([{configs}], key=['n'])\n@triton.jit\ndef chain",
).replace(", BLOCK=1024)", ")")
FITS, TOO_WIDE = 'triton.Config({"BLOCK": 1024})', 'triton.Config({"BLOCK": 524288}, num_warps=1)'


def test_an_autotuned_launch_does_without_configurations_that_do_not_compile(verifier: HardenedVerifier) -> None:
    assert "autotune" in TUNED
    for configs in (f"{TOO_WIDE}, {FITS}", f"{FITS}, {TOO_WIDE}"):
        verdict = verifier.verify(TASK, TUNED.replace("{configs}", configs))
        assert verdict.correct, verdict.reason
    verdict = verifier.verify(TASK, TUNED.replace("{configs}", f"{TOO_WIDE}, {TOO_WIDE[:-2]}2)"))
    assert verdict.status is Status.COMPILE_ERROR, verdict.reason


def test_many_come_with_their_positions_and_a_broken_task_stops_nobody(verifier: HardenedVerifier) -> None:
    broken = Task(
        "broken", TASK.pytorch_code.replace("def forward(self, x", "def forward(self, y, x"), input_sets=TASK.input_sets
    )
    pairs = [(TASK, GOOD), (broken, GOOD), (TASK, "no code"), (TASK, GOOD)]
    verdicts = dict(verifier.verify_many(pairs))
    assert [str(verdicts[i].status) for i in range(4)] == ["correct", "infra_error", "no_code", "correct"]
    with pytest.raises(UsageError, match="broken"):
        verifier.verify(broken, GOOD)


def test_broken_machinery_is_a_verdict_after_one_retry(verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise InfrastructureError("a worker died.")

    monkeypatch.setattr(verifier.evaluator.front, "trace", fail)
    source = GOOD + "\n# another\n"
    assert verifier.verify(TASK, source).status is Status.INFRA_ERROR
    assert len(calls) == 2
    monkeypatch.undo()
    assert verifier.verify(TASK, source).correct  # nothing of the failure was kept


def test_an_interpreter_process_that_is_killed_is_replaced(verifier: HardenedVerifier) -> None:
    front = verifier.evaluator.front
    assert isinstance(front, LocalFront)
    for process in front.interpreters.processes:
        process.kill()
    assert verifier.verify(TASK, GOOD + "\n# after the kill\n").correct


def test_settings_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--target"):
        StagedEvaluator(VerifierConfig(device="cpu", target="sm_1", cache=False)).start()
