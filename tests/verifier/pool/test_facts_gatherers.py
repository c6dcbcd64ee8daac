"""Facts of tasks are gathered in workers: what a reference does there is told of the task, and spoils nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.suite import fixture_task

from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.pool import facts_gatherers
from kernrl.verifier.pool.facts_gatherers import FactsGatherers
from kernrl.verifier.pool.task_facts import TaskFacts, gather_facts
from kernrl.verifier.rpc.fork_server import ForkServer

DEVICE = device_for("sm_90")
assert DEVICE
TASK = fixture_task("mish_chain")


@pytest.fixture(scope="module")
def gatherers(cpu_forks: ForkServer) -> Iterator[FactsGatherers]:
    made = FactsGatherers(1, cpu_forks, threading.BoundedSemaphore(1))
    yield made
    made.close()


def gather(gatherers: FactsGatherers, task: Task) -> TaskFacts:
    assert DEVICE
    return gatherers.gather(task, "tf32", DEVICE, on_gpu=False)


def doing(statement: str) -> Task:
    """The task, whose reference does something first."""
    forward = "def forward(self, x):\n"
    assert forward in TASK.pytorch_code
    code = TASK.pytorch_code.replace(forward, f"{forward}        import os, signal, time\n        {statement}\n")
    return replace(TASK, pytorch_code=code)


@pytest.mark.slow
def test_facts_are_those_that_would_be_gathered_here(gatherers: FactsGatherers) -> None:
    assert DEVICE
    for _ in range(2):
        assert gather(gatherers, TASK) == gather_facts(TASK, "tf32", DEVICE, on_gpu=False)
    assert gatherers.processes[0].starts == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("raise ValueError('no such thing')", UsageError, "no such thing"),
        ("os._exit(3)", UsageError, r"mish_chain: the reference ends its process \(exit code 3\)\."),
        ("os.kill(os.getpid(), signal.SIGSEGV)", UsageError, "ends its process"),
        ("os.kill(os.getpid(), signal.SIGKILL)", InfrastructureError, "was killed"),
        ("time.sleep(60)", UsageError, "mish_chain: the reference takes more than 1 s"),
    ],
)
def test_what_goes_wrong_is_said_of_the_task_and_the_next_one_is_gathered(
    gatherers: FactsGatherers, monkeypatch: pytest.MonkeyPatch, statement: str, error: type[Exception], said: str
) -> None:
    gather(gatherers, TASK)  # a process that has started and answers at once
    with monkeypatch.context() as patch:
        patch.setattr(facts_gatherers, "TIMEOUT_S", 1.0 if "sleep" in statement else 60.0)
        with pytest.raises(error, match=said):
            gather(gatherers, doing(statement))
    assert gather(gatherers, TASK).sets
