"""Interpreter processes: who gets which, what goes wrong in them, and that they end with their pool."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.front import HEAD, plan_of

from kernrl.errors import InfrastructureError, InternalError
from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.interpret import interpret_server
from kernrl.verifier.interpret.interpret_server import SmallJob
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.pool.interpreters import Interpreters
from kernrl.verifier.pool.local import cpu_fork_server
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.trace.reference_spec import spec_of

pytestmark = pytest.mark.slow  # its processes take seconds to start

SMALL = InputSet("small", {"N": 48})
TASK = Task(
    id="t",
    pytorch_code="""
import torch
import torch.nn as nn
N = 4096
class Model(nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.randn(3, N)]
def get_init_inputs():
    return []
""",
    input_sets=(InputSet("full"), SMALL),
)
DOUBLED = """
class ModelNew(nn.Module):
    def forward(self, x):
        return launch(x)
"""


@pytest.fixture(scope="module")
def interpreters(cpu_forks: ForkServer) -> Iterator[Interpreters]:
    made = Interpreters(2, {"redraw_parameters": True}, cpu_forks)
    yield made
    made.close()


@pytest.fixture(scope="module")
def job() -> SmallJob:
    plan = plan_of(HEAD + DOUBLED, spec_of(TASK, SMALL, "fp32", "sm_90"))
    return SmallJob(TASK, "fp32", {"small": plan}, [Draw("small", "nominal", 5)])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_task_stays_with_one_process_while_that_is_enough(interpreters: Interpreters, job: SmallJob) -> None:
    for _ in range(3):
        judged = interpreters.judge(job)
        assert judged.rejection is None
        assert judged.errors[0]["excess"] < 1
    assert [process.starts for process in interpreters.processes] == [1, 0]


def test_processes_share_a_fork_server_and_see_no_gpu(interpreters: Interpreters, job: SmallJob, cpu_forks: ForkServer) -> None:
    tasks = [replace(job, task=replace(TASK, id=f"t{i}")) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert all(judged.rejection is None for judged in pool.map(interpreters.judge, tasks))
    first, second = interpreters.processes
    first.start()
    second.start()
    assert first.pid != second.pid
    assert parent(first.pid) == parent(second.pid) == cpu_forks.pid
    environment = Path(f"/proc/{cpu_forks.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=" in environment


def test_a_wrong_plan_is_rejected_by_what_its_numbers_show(interpreters: Interpreters, job: SmallJob) -> None:
    tripled = replace(TASK, pytorch_code=TASK.pytorch_code.replace("x * 2", "x * 3"))
    rejection = interpreters.judge(replace(job, task=tripled)).rejection
    assert rejection is not None
    assert rejection.status is Status.WRONG
    assert rejection.reason.startswith("Wrong on the small shapes with nominal inputs: the error is ")


def test_a_process_that_hangs_says_nothing_of_the_candidate(
    interpreters: Interpreters, job: SmallJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreters.judge(job)
    starts = sum(process.starts for process in interpreters.processes)
    monkeypatch.setattr("kernrl.verifier.pool.interpreters.GRACE_S", 0.0)
    for process in interpreters.processes:
        if process.running:
            os.kill(process.pid, signal.SIGSTOP)  # it hangs for certain
    rejection = interpreters.judge(replace(job, timeout_s=0.1)).rejection
    assert isinstance(rejection, Unable)
    assert rejection.status is Status.TIMEOUT
    assert interpreters.judge(job).rejection is None
    assert sum(process.starts for process in interpreters.processes) == starts + 1


def test_a_job_that_breaks_the_judge_is_broken_machinery(interpreters: Interpreters, job: SmallJob) -> None:
    unknown = replace(job, plans={"no such set": job.plans["small"]}, draws=[Draw("no such set", "nominal", 5)])
    with pytest.raises(InternalError, match="the interpreter process failed: AssertionError") as failed:
        interpreters.judge(unknown)
    assert "interpret_server.py" in failed.value.traceback
    assert interpreters.judge(job).rejection is None


def test_closing_ends_every_process_and_starts_none(job: SmallJob) -> None:
    forks = cpu_fork_server()
    made = Interpreters(1, {}, forks)
    assert made.judge(job).rejection is None
    server, [process], [judge] = forks.pid, made.processes, made.judges
    assert server
    made.close()
    forks.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert not process.running
    assert not judge.running
    with pytest.raises(InfrastructureError, match="closed"):
        made.judge(job)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGSEGV, Status.CRASH), (signal.SIGPROF, Status.TIMEOUT)])
def test_a_process_that_dies_of_a_candidate_is_a_verdict(
    interpreters: Interpreters, job: SmallJob, number: signal.Signals, status: Status
) -> None:
    interpreters.judge(job)
    (process, *_) = [one for one in interpreters.processes if one.running]
    os.kill(process.pid, signal.SIGSTOP)  # so that it dies while it is at work
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(interpreters.judge, job)
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        rejection = waiting.result().rejection
    # SIGPROF has its default action only while a candidate runs; a pending one is taken as such before it starts
    assert rejection is not None
    assert rejection.status is status
    assert isinstance(rejection, Unable) == (status is Status.TIMEOUT)
    assert interpreters.judge(job).rejection is None


class NoForks:
    """A fork server that only remembers what it should start."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fork(self, request: dict[str, Any], *descriptors: int) -> socket.socket:
        self.asked.append(request["server"])
        raise InfrastructureError("there is none")


def test_no_process_that_runs_a_candidate_holds_answers() -> None:
    forks = NoForks()
    made = Interpreters(1, {}, forks)  # pyright: ignore[reportArgumentType]
    for process in (*made.processes, *made.judges):
        with pytest.raises(InfrastructureError):
            process.start()
    assert ["Judge" in name for name in forks.asked] == [False, True]
    source = (Path(interpret_server.__file__)).read_text()
    assert "judge.truth" not in source
    assert "ReferenceAnswers" not in source
