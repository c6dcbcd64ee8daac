"""The funnel and its door without a GPU: every stage's answer is a verdict, and the next one is not touched by the last."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support import TESTS, suite
from support.logged import Logged

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.stages import verify
from kernrl.tasks.eval_mode import IN_EVAL_MODE
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base import progress
from kernrl.verifier.base.verdict import Stage, Status, Verdict
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.interpret.interpret_server import Judged
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.pool.local import LocalFront
from kernrl.verifier.verifier import HardenedVerifier

pytestmark = pytest.mark.slow  # its processes take seconds to start

TASK = suite.fixture_task("mish_chain")
GOOD = (TESTS / "honest" / "mish_chain_flat.py").read_text()


class LateCallbacks(ThreadPoolExecutor):
    """Threads in which, if asked, whoever waits for a result goes on long before callbacks have run."""

    held: threading.Event | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = super().submit(fn, *args, **kwargs)
        if held := self.held:
            future.add_done_callback(lambda _: held.wait(60))
        return future


@pytest.fixture(scope="module")
def executor() -> LateCallbacks:
    return LateCallbacks(8)


@pytest.fixture(scope="module")
def verifier(
    tmp_path_factory: pytest.TempPathFactory, fork_servers: Callable[[pytest.MonkeyPatch], None], executor: LateCallbacks
) -> Iterator[HardenedVerifier]:
    config = VerifierConfig(device="cpu", workers=2, cache_dir=tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        with HardenedVerifier(config, executor=executor) as made:
            made.evaluator.start()
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


def test_waiting_for_a_core_is_not_counted_as_tracing(verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    front, now = verifier.evaluator.front, [100.0]
    assert front
    trace = front.trace

    def late(*arguments: Any) -> Any:
        traced = trace(*arguments)
        now[0] += 7.0 + 2.0
        return replace(traced, seconds=2.0)

    monkeypatch.setattr(front, "trace", late)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    seconds = verifier.verify(TASK, f"{GOOD}\n# waits").seconds
    assert (seconds["cpu_queue"], seconds["trace"]) == (7.0, 2.0)


def test_it_is_noted_that_a_task_with_dropouts_is_judged_in_eval_mode(verifier: HardenedVerifier) -> None:
    honest = (TESTS / "honest" / "dropout_head_for_inference.py").read_text()
    verdict = verifier.verify(suite.fixture_task("dropout_head"), honest)
    assert verdict.correct, verdict.reason
    assert IN_EVAL_MODE in verdict.notes
    assert IN_EVAL_MODE not in verifier.verify(TASK, GOOD).notes


def test_another_layout_than_the_reference_s_is_noted(verifier: HardenedVerifier) -> None:
    turned = GOOD + (
        "\n\nclass Given(ModelNew):\n    pass\n\n\nclass ModelNew(Given):\n    def forward(self, x):\n"
        "        return super().forward(x).transpose(-1, -2).contiguous().transpose(-1, -2)\n"
    )
    verdict = verifier.verify(TASK, turned)
    assert verdict.correct, verdict.reason
    assert any(note.startswith("Output 0 has the strides") and "`.contiguous()`" in note for note in verdict.notes)
    assert not any("strides" in note for note in verifier.verify(TASK, GOOD).notes)


SUMMED = """
import torch

B, K, N = 64, 128, 256


class Model(torch.nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.l = torch.nn.Linear(k, n)

    def forward(self, x):
        return torch.relu(self.l(x).sum(1))


def get_inputs():
    return [torch.randn(B, K)]


def get_init_inputs():
    return [K, N]
"""


def test_a_candidate_that_does_fewer_operations_is_said_to_and_one_that_does_all_is_not(verifier: HardenedVerifier) -> None:
    """`sum(W x + b)` is the product with the summed weight: K N additions once, in place of 2 K N operations for each row."""
    sets = (InputSet("full"), InputSet("small", {"B": 4, "K": 16, "N": 32}), InputSet("ragged", {"B": 3, "K": 13, "N": 37}))
    task = Task("summed", SUMMED, input_sets=sets)
    written = {solution.style: solution for solution in write_solutions(task)}
    fewer = next(s for name, s in written.items() if "algebra" in name.split("-"))
    every = next(s for name, s in written.items() if "fused" in name.split("-"))
    less, whole = (verifier.verify(task, solution.triton_code) for solution in (fewer, every))
    assert less.correct, less.reason
    assert whole.correct, whole.reason
    [note] = [note for note in less.notes if "floating-point operations" in note]
    said = re.fullmatch(r"It does (\S+) of the floating-point operations that the reference asks for\.", note)
    assert said, note
    rows, width, features = 64, 128, 256
    done = width * features + features + 2 * rows * width  # the sums of weight and bias, and a product with one column
    assert 0.5 < float(said[1]) / (done / (2 * rows * width * features)) < 2  # a kernel's masks and indices count little
    assert "floating-point operations" not in " ".join(whole.notes)
    assert said[0] in shown(less)
    assert "floating-point operations" not in shown(whole)


def shown(verdict: Verdict) -> str:
    """What `kernrl verify` prints, its lines as one."""
    stream = io.StringIO()
    Console(file=stream, width=200).print(verify.account(verdict, None))
    return " ".join(stream.getvalue().split())


def test_a_candidate_cannot_look_cheaper_than_its_task(verifier: HardenedVerifier) -> None:
    hidden = (TESTS / "exploits" / "x_hidden_bytes.py").read_text()
    honest, claimed = verifier.verify(TASK, GOOD).speedup(), verifier.verify(TASK, hidden).speedup()
    assert honest
    assert claimed
    assert claimed.value <= 1.01 * honest.value


def test_a_product_that_rounds_to_tf32_is_told_what_to_write(verifier: HardenedVerifier) -> None:
    task, source = suite.fixture_task("linear_gelu"), (TESTS / "exploits" / "e24_tf32_inside.py").read_text()
    verdict = verifier.verify(task, source)
    assert verdict.status is Status.WRONG
    assert 'input_precision="ieee"' in verdict.reason
    assert "--precision tf32" in verdict.reason
    ieee = source.replace("tl.dot(x, w)", 'tl.dot(x, w, input_precision="ieee")')
    assert verifier.verify(task, ieee).correct
    half = verifier.verify(task, source.replace("y = 0.5", "y = 0.4"))
    assert half.status is Status.WRONG
    assert "tf32" not in half.reason, "a wrong factor is not TF32's"
    rounded = verifier.verify(task, ieee.replace("acc += tl.load", "acc = acc.to(tl.float16).to(tl.float32) + tl.load"))
    assert rounded.status is Status.WRONG
    assert "tf32" not in rounded.reason, "nothing is rounded to TF32 here"


def test_a_reason_does_nothing_to_a_terminal(verifier: HardenedVerifier) -> None:
    reason = verifier.verify(TASK, (TESTS / "exploits" / "x_terminal_escapes.py").read_text()).reason
    assert "\\x1b[2J" in reason
    assert all(c.isprintable() or c in "\n\t" for c in reason)


@pytest.mark.parametrize(
    ("reply", "status", "stage"),
    [
        ("Fusing is hard.", Status.NO_CODE, Stage.PARSE),
        ("class ModelNew(:\n    pass", Status.SYNTAX_ERROR, Stage.SCREEN),
        (
            GOOD.replace("import torch\n", "import torch\nimport subprocess\nsubprocess.run('ls')\n", 1),
            Status.POLICY,
            Stage.SCREEN,
        ),
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


def test_what_is_found_wrong_is_not_compiled(verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    front, calls = verifier.evaluator.front, []
    assert front
    compile_ = front.compile
    monkeypatch.setattr(front, "compile", lambda *asked: calls.append(asked) or compile_(*asked))
    assert verifier.verify(TASK, GOOD.replace("-1.0), 3.0)", "-1.0), 2.0)")).status is Status.WRONG
    assert not calls
    assert verifier.verify(TASK, GOOD + "\n# not yet seen\n").correct
    assert len(calls) == 1


def test_what_cannot_be_interpreted_must_compile(verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    unable = Judged(Unable(Status.NEEDS_GPU, "an operation that is unknown here."))
    monkeypatch.setattr(verifier.evaluator.front, "interpret", lambda job: unable)
    for config, status, stage in (
        (FITS, Status.NEEDS_GPU, Stage.CORRECTNESS),
        (TOO_WIDE, Status.COMPILE_ERROR, Stage.TRACE),
    ):
        verdict = verifier.verify(TASK, TUNED.replace("{configs}", config))
        assert (verdict.status, verdict.stage) == (status, stage), verdict.reason


def test_facts_of_a_task_are_gathered_once_for_all_that_come_at_once_and_again_after_a_failure(
    verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator, asked, gate = verifier.evaluator, list[str](), threading.Event()
    front = evaluator.front
    assert front
    gathered = front.facts

    def facts(task: Task, *arguments: Any, **options: Any) -> Any:
        asked.append(task.id)
        gate.wait(60)
        if len(asked) == 1:
            raise InfrastructureError("the process is gone")
        return gathered(task, *arguments, **options)

    monkeypatch.setattr(front, "facts", facts)
    fresh = replace(TASK, pytorch_code=TASK.pytorch_code + "\n# another task\n")
    with ThreadPoolExecutor(4) as pool:
        gate.set()
        with pytest.raises(InfrastructureError):
            evaluator.facts_of(fresh)
        gate.clear()
        waiting = [pool.submit(evaluator.facts_of, fresh) for _ in range(4)]
        gate.set()
        first, *others = [one.result() for one in waiting]
    assert all(one is first for one in others)
    assert len(asked) == 2
    assert evaluator.facts_of(fresh).sets
    assert len(asked) == 2


def test_many_come_with_their_positions_and_a_broken_task_stops_nobody(verifier: HardenedVerifier) -> None:
    broken = Task(
        "broken", TASK.pytorch_code.replace("def forward(self, x", "def forward(self, y, x"), input_sets=TASK.input_sets
    )
    pairs = [(TASK, GOOD), (broken, GOOD), (TASK, "no code"), (TASK, GOOD)]
    verdicts = dict(verifier.verify_many(pairs))
    assert [str(verdicts[i].status) for i in range(4)] == ["correct", "infra_error", "no_code", "correct"]
    with pytest.raises(UsageError, match="broken"):
        verifier.verify(broken, GOOD)


def test_broken_machinery_is_a_verdict_after_one_retry(
    verifier: HardenedVerifier, executor: LateCallbacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise InfrastructureError("a worker died.")

    executor.held = threading.Event()
    try:
        monkeypatch.setattr(verifier.evaluator.front, "trace", fail)
        source = GOOD + "\n# another\n"
        assert verifier.verify(TASK, source).status is Status.INFRA_ERROR
        assert len(calls) == 2
        monkeypatch.undo()
        assert verifier.verify(TASK, source).correct  # nothing of the failure was kept
    finally:
        executor.held.set()
        executor.held = None


@pytest.mark.parametrize("where", ["trace", "read", "compile", "interpret"])
def test_a_fault_of_ours_is_a_verdict_that_is_logged_and_not_tried_again(
    verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch, logged: Logged, where: str
) -> None:
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(verifier.evaluator.front, where, fail)
    verdict = verifier.verify(TASK, GOOD + f"\n# a fault in {where}\n")
    assert (verdict.status, verdict.internal_error, len(calls)) == (Status.INFRA_ERROR, True, 1)
    assert "tuple index out of range" in verdict.reason
    assert verdict.candidate_sha in logged.text
    assert "Traceback" in logged.text
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_a_reply_that_cannot_even_be_read_is_a_verdict(verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("kernrl.verifier.funnel.parse_reply", fail)
    monkeypatch.setattr("kernrl.verifier.verifier.parse_reply", fail)
    verdict = verifier.verify(TASK, GOOD)
    assert (verdict.status, verdict.stage, verdict.internal_error) == (Status.INFRA_ERROR, Stage.PARSE, True)


def test_an_interpreter_process_that_is_killed_is_replaced(verifier: HardenedVerifier) -> None:
    front = verifier.evaluator.front
    assert isinstance(front, LocalFront)
    assert verifier.verify(TASK, GOOD + "\n# before the kill\n").correct
    assert any(process.running for process in front.interpreters.processes)
    for process in front.interpreters.processes:
        process.kill()
    assert verifier.verify(TASK, GOOD + "\n# after the kill\n").correct


def test_settings_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--target"):
        StagedEvaluator(VerifierConfig(device="cpu", target="sm_1", cache=False)).start()
