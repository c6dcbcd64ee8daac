"""Which input sets the interpreter judges where there is a GPU, and what is left for it: with a stand-in for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from support import EXHAUSTIVE, suite
from support.stand_in_gpu import StandIn

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError
from kernrl.verifier import correctness, funnel
from kernrl.verifier.base.verdict import Rejection, Stage, Status, Verdict
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.interpret.interpret_server import Judged
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.judge.decoys import authored_launches, function_names, without_bounds
from kernrl.verifier.judge.regimes import REGIMES
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.pool.local import LocalFront
from kernrl.verifier.replay.job import Job

pytestmark = pytest.mark.slow  # the processes of an evaluator take seconds to start

EXPLOITS = {fixture.name: fixture for fixture in suite.exploits()}
HONEST = {fixture.name: fixture for fixture in suite.honest()}
GOOD = HONEST["mish_chain_flat"]


@pytest.fixture(scope="module")
def evaluator(fork_servers: Callable[[pytest.MonkeyPatch], None], compiled: Path) -> Iterator[StagedEvaluator]:
    config = VerifierConfig(cache=False, workers=2, trace_timeout_s=6, compile_timeout_s=20)
    with pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        patch.setattr(funnel, "visible_gpus", lambda: ["0"])
        patch.setattr(funnel, "GpuClient", StandIn)
        patch.setattr(funnel, "screen", lambda source: None)
        made = StagedEvaluator(config)
        made.cache_dir = compiled
        yield made
        made.close()


def judge(evaluator: StagedEvaluator, fixture: suite.Fixture, source: str | None = None) -> tuple[Verdict, Job | None]:
    """The verdict, and what the GPU was asked, if anything."""
    evaluator.start()
    gpu: Any = evaluator.gpus[0]
    gpu.jobs.clear()
    verdict = evaluator.evaluate(fixture.task, source or fixture.source)
    return verdict, gpu.jobs.get(fixture.task.id)


def test_small_and_ragged_sets_are_interpreted_and_neither_compiled_nor_replayed(evaluator: StagedEvaluator) -> None:
    verdict, job = judge(evaluator, GOOD)
    assert verdict.correct, verdict.reason
    assert job
    assert set(job.plans) == set(job.kernels) == {"full"}
    first, second, third = (draw.regime for draw in job.draws)
    assert (first, second) == ("nominal", "mixed")
    assert third in REGIMES
    assert not job.decoys, "no launch was idle at the ragged shapes"
    small, ragged = ([r["regime"] for r in verdict.errors if r["input_set"] == name] for name in ("small", "ragged"))
    assert small[0] == ragged[0] == "nominal"
    assert sorted(ragged[1:]) == sorted(REGIMES)
    assert len(set(small)) == 1 + -(-len(REGIMES) // 2)
    assert len(verdict.errors) == len(small) + len(ragged) + 1
    assert {"interpreter", "compile"} <= set(verdict.seconds)


@pytest.mark.parametrize("name", ["e28_no_tail_mask", "e11_zeros_under_tolerance", "e12_nothing_written"])
def test_what_is_wrong_at_ragged_shapes_stops_before_it_is_compiled(name: str, evaluator: StagedEvaluator) -> None:
    verdict, job = judge(evaluator, EXPLOITS[name])
    assert not suite.escape(EXPLOITS[name], verdict, "gpu")
    assert verdict.stage is Stage.CORRECTNESS
    assert job is None
    assert "compile" not in verdict.seconds


def test_configurations_of_autotuned_launches_take_turns_on_the_gpu(evaluator: StagedEvaluator) -> None:
    verdict, job = judge(evaluator, EXPLOITS["e40_wrong_config"])
    assert "interpreter" not in verdict.seconds
    assert job
    assert set(job.plans) == set(job.kernels) == {"small", "ragged", "full"}
    assert len(job.plans["ragged"].kernels) == 2
    asked = [-(-len(REGIMES) // 2) + 1, len(REGIMES) + 1, 3]
    assert [sum(draw.input_set == name for draw in job.draws) for name in ("small", "ragged", "full")] == asked
    assert job.decoys


ENDLESS = GOOD.source.replace("    tl.store(", "    while tl.sum(v) < float('inf'):\n        v += 0.0\n    tl.store(", 1)


def test_a_kernel_that_does_not_end_is_left_to_the_gpu(evaluator: StagedEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "INTERPRETER_TIMEOUT_S", 0.3)
    verdict, job = judge(evaluator, GOOD, ENDLESS)
    assert verdict.correct, verdict.reason
    assert job
    assert set(job.plans) == {"small", "ragged", "full"}
    assert {record["input_set"] for record in verdict.errors} == {"full"}, "what the interpreter began counts for nothing"


@pytest.mark.parametrize(
    ("answer", "sets", "decoys"),
    [
        (Unable(Status.NEEDS_GPU, "an operation that it lacks"), {"small", "ragged", "full"}, True),
        (Unable(Status.CRASH, "torch refuses a call"), {"small", "ragged", "full"}, True),
        (InfrastructureError("the interpreter process failed"), {"small", "ragged", "full"}, True),
        (Rejection(Status.DECOY, "idle at ragged shapes, maybe not at full size"), {"full"}, True),
        (None, {"full"}, False),
    ],
)
def test_the_gpu_is_asked_what_the_interpreter_cannot_say(
    evaluator: StagedEvaluator,
    monkeypatch: pytest.MonkeyPatch,
    answer: Rejection | Exception | None,
    sets: set[str],
    decoys: bool,
) -> None:
    def say(*arguments: Any) -> Judged:
        if isinstance(answer, Exception):
            raise answer
        return Judged(answer)

    evaluator.start()
    monkeypatch.setattr(evaluator.front, "interpret", say)
    verdict, job = judge(evaluator, GOOD)
    assert verdict.correct
    assert job
    assert set(job.plans) == {draw.input_set for draw in job.draws} == sets
    assert job.decoys == decoys


def test_a_gpu_asks_the_kernel_that_takes_a_maximum_whether_it_bounds_anything(evaluator: StagedEvaluator) -> None:
    _, job = judge(evaluator, HONEST["normed_softmax_three_passes_autotuned"])
    assert job
    assert job.decoys
    for plan in job.plans.values():
        assert not any(kernel.ttir for kernel in plan.kernels), "the text stays here"
        asked: list[str] = []

        def is_bound(launches: list[int], plan: Plan = plan, asked: list[str] = asked) -> list[bool]:
            asked += function_names(plan, launches)
            return [True] * len(launches)

        launches = authored_launches(plan)
        kept = without_bounds(plan, launches, is_bound)
        assert asked == ["row_max"]
        assert function_names(plan, kept) == ["row_norm", "row_total", "row_shares"]


def test_a_killed_interpreter_costs_nobody_a_verdict(evaluator: StagedEvaluator) -> None:
    assert judge(evaluator, GOOD)[0].correct
    assert isinstance(evaluator.front, LocalFront)
    for process in evaluator.front.interpreters.processes:
        process.kill()
    verdict, job = judge(evaluator, GOOD)
    assert verdict.correct
    assert job
    assert set(job.plans) == {"full"}


HANG = "timeout"
BEFORE_THE_ROUTE = {"parse", "screen", "trace", "plan"}
"""Stages that run the same code with a GPU and without."""


def routed(fixture: suite.Fixture) -> bool:
    """Whether an exploit may come to where a GPU makes a difference; test_exploits.py has what the others come to."""
    return fixture.header["cpu"] != fixture.header["gpu"] or not fixture.expectation("gpu").stages <= BEFORE_THE_ROUTE


QUICK = [
    n for n, f in sorted(EXPLOITS.items())
    if HANG not in f.expectation("gpu").statuses and (EXHAUSTIVE or (routed(f) and crc32(n.encode()) % 3 == 0))
]  # fmt: skip
"""By day a third of those that may come to where a GPU makes a difference; test_exploits.py judges every one without."""
OF_A_TASK = {f.task.id: n for n, f in reversed(HONEST.items())}
ROUTED_HONEST = sorted(HONEST) if EXHAUSTIVE else sorted(n for t, n in OF_A_TASK.items() if crc32(t.encode()) % 2)
"""One for each second task by day: what is routed is mostly a task's input sets, of few forms. test_honest.py judges all."""


@pytest.mark.parametrize("name", QUICK)
def test_what_is_stopped_before_the_gpu_is_stopped_as_on_it(name: str, evaluator: StagedEvaluator) -> None:
    fixture = EXPLOITS[name]
    verdict, job = judge(evaluator, fixture)
    assert job or not suite.escape(fixture, verdict, "gpu")


@pytest.mark.parametrize("name", ROUTED_HONEST)
def test_honest_code_comes_to_the_gpu(name: str, evaluator: StagedEvaluator) -> None:
    verdict, job = judge(evaluator, HONEST[name])
    assert job, f"{verdict.status} at {verdict.stage}: {verdict.reason}"
