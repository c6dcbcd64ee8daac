"""How a search uses the verifier: a first look times against the first baseline alone, on the very same processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support import unstated
from support.stand_in_gpu import StandIn

from kernrl.config import VerifierConfig
from kernrl.optimization.search.judging import Judges, tasks_at_once
from kernrl.tasks.task import Task
from kernrl.verifier import funnel
from kernrl.verifier.pool.backend import Outcome
from kernrl.verifier.replay.job import Job
from kernrl.verifier.verifier import HardenedVerifier

TASK = Task("tiny", unstated.task_code(16, 64))
RIGHT = unstated.written_out(64)


class Gpu(StandIn):
    """Remembers against what each candidate was to be timed."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.asked: list[tuple[str, ...]] = []
        self.at_length: list[bool] = []
        self.closed = False

    def run(self, job: Job, baselines: Any, task_key: str) -> Outcome:
        self.asked.append(tuple(baselines))
        self.at_length.append(job.at_length)
        return super().run(job, baselines, task_key)

    def untimed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None) -> Iterator[HardenedVerifier]:
    monkeypatch.setattr(funnel, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(funnel, "GpuClient", Gpu)
    with HardenedVerifier(VerifierConfig(baseline=("eager", "compile"), cache_dir=tmp_path)) as verifier:
        yield verifier


@pytest.mark.slow
def test_a_first_look_times_against_one_baseline_and_is_kept_apart(verifier: HardenedVerifier) -> None:
    with Judges(verifier) as judges:
        verifier.evaluator.start()
        [gpu] = verifier.evaluator.gpus
        assert isinstance(gpu, Gpu)
        first = judges.first.submit(TASK, RIGHT).result()
        assert first.correct
        assert gpu.asked == [("eager",)]
        assert verifier.submit(TASK, RIGHT).result().correct  # of the same source, and no answer of the first look's
        assert gpu.asked == [("eager",), ("eager", "compile")]
        judges.first.submit(TASK, RIGHT).result()
        verifier.submit(TASK, RIGHT).result()
        assert len(gpu.asked) == 2  # both answers are kept
        assert judges.first is judges.first
    assert not gpu.closed  # the processes are the verifier's
    assert verifier.submit(TASK, RIGHT, fresh=True).result().correct


@pytest.mark.slow
def test_the_last_look_alone_times_at_length_and_against_every_baseline(verifier: HardenedVerifier) -> None:
    with Judges(verifier) as judges:
        verifier.evaluator.start()
        [gpu] = verifier.evaluator.gpus
        assert isinstance(gpu, Gpu)
        for judge in (judges.first, verifier, judges.last):
            assert judge.submit(TASK, RIGHT, fresh=True).result().correct
        assert gpu.asked == [("eager",), ("eager", "compile"), ("eager", "compile")]
        assert gpu.at_length == [False, False, True]
        assert judges.last is judges.last
    assert not gpu.closed


@pytest.mark.slow
def test_warming_up_judges_one_candidate_against_the_first_baseline(verifier: HardenedVerifier) -> None:
    with Judges(verifier) as judges:
        judges.warm_up()
        [gpu] = verifier.evaluator.gpus
        assert isinstance(gpu, Gpu)
        assert gpu.asked == [("eager",)]


def test_warming_up_leaves_errors_to_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with HardenedVerifier(VerifierConfig(device="cpu")) as verifier:
        monkeypatch.setattr(verifier.evaluator, "start", lambda: verifier.evaluator.gpus.append(Gpu()))
        monkeypatch.setattr(verifier, "submit", lambda *_: 1 / 0)
        Judges(verifier).warm_up()


def test_without_a_gpu_or_with_one_baseline_there_is_one_judge() -> None:
    with HardenedVerifier(VerifierConfig(device="cpu", baseline=("eager", "compile"))) as verifier:
        assert Judges(verifier).first is Judges(verifier).last is verifier
    with HardenedVerifier(VerifierConfig(device="cpu", baseline=("compile",))) as verifier:
        verifier.evaluator.gpus.append(Gpu())
        assert Judges(verifier).first is verifier


@pytest.mark.parametrize(("workers", "tasks"), [(1, 1), (2, 1), (8, 2), (16, 4), (64, 4)])
def test_tasks_share_the_cores(workers: int, tasks: int) -> None:
    with HardenedVerifier(VerifierConfig(device="cpu", workers=workers)) as verifier:
        assert tasks_at_once(verifier) == tasks
