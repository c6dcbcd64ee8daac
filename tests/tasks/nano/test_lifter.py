"""Tasks lifted side by side: the same prompts, whoever lifts them and whoever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from kernrl.tasks.graph.lifting.read import LiftError
from kernrl.tasks.nano import form
from kernrl.tasks.nano.form import ask, candidate, is_lifted, replies
from kernrl.tasks.nano.lifter import Lifter, worker_count
from kernrl.tasks.nano.suites import suite
from kernrl.tasks.task import Task

NO_GRAPH = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def get_inputs():
    return [torch.ones(3)]


def get_init_inputs():
    return []
"""


def again(tasks: list[Task], name: str) -> list[Task]:
    """The tasks with other sources, of which nothing is lifted."""
    return [replace(task, id=f"{task.id}-{name}", pytorch_code=f"{task.pytorch_code}\n# {name}\n") for task in tasks]


@pytest.mark.slow
def test_prompts_are_the_same_whoever_lifts_and_whoever_dies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = list(suite("graph-heldout", tasks=3))
    prompts = [ask(task, "tf32", fast=True) for task in tasks]
    unliftable = Task("nope", NO_GRAPH)
    with pytest.raises(LiftError, match="nope: ") as alone:
        ask(unliftable, "tf32")
    here: list[str] = []
    numbers = count()
    lift = form.lift
    monkeypatch.setattr(form, "lift", lambda task: here.append(task.id) or lift(task))
    before = multiprocessing.active_children()
    with closing(Lifter(2)) as lifter:
        workers = [process for process in multiprocessing.active_children() if process not in before]
        blocked = [signals_blocked(process.pid) for process in workers]

        def rounds() -> Iterator[list[Task]]:
            """Rounds of tasks that nobody has lifted before. How many a worker comes by is up to chance."""
            while True:
                here.clear()
                others = again(tasks, f"in round {next(numbers)}")
                lifter([*others, unliftable, others[0]])
                assert all(map(is_lifted, others)) or not workers[0].is_alive()
                assert [ask(task, "tf32", fast=True) for task in others] == prompts
                yield others
                time.sleep(0.5)  # and leave the cores to workers that start

        assert {task.id for task in next(rounds())} <= set(here)  # nobody waits while they load torch
        others = next(others for others in rounds() if not {task.id for task in others} <= set(here))
        for task, other in zip(tasks, others, strict=True):
            reply = replies(task, "tf32")[0]
            assert candidate(other, reply) == candidate(task, reply)
        assert list(lifter.each([*others, unliftable])) == [*others, unliftable]
        with pytest.raises(LiftError) as there:
            ask(unliftable, "tf32")
        assert str(there.value) == str(alone.value)
        [one] = again(tasks[:1], "alone")
        lifter([one])
        assert not is_lifted(one)  # not worth the way

        for left, process in ((1, workers[0]), (0, workers[1])):
            process.kill()
            process.join()
            said = f"a process that lifts tasks has died; {left} are left"
            next(others for others in rounds() if said in capsys.readouterr().err)
        lifter([*again(tasks, "without"), unliftable])
        assert not is_lifted(again(tasks, "without")[0])
    assert not set(multiprocessing.active_children()) - set(before)
    assert all(signals >> (signal.SIGINT - 1) & 1 for signals in blocked)


def signals_blocked(pid: int | None) -> int:
    """The mask of a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (3, 0), (4, 2), (16, 8), (96, 8)])
def test_small_machines_have_no_workers(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert worker_count() == workers


def test_without_workers_tasks_are_lifted_where_they_are_asked() -> None:
    before = multiprocessing.active_children()
    task = Task("nope", NO_GRAPH)
    with closing(Lifter(0)) as lifter:
        lifter([task, task])
        assert list(lifter.each([task, task])) == [task, task]
    assert multiprocessing.active_children() == before


def test_processes_end_with_their_lifter_whatever_they_are_at() -> None:
    before = multiprocessing.active_children()
    with closing(Lifter(1)):  # which loads torch
        [worker] = [process for process in multiprocessing.active_children() if process not in before]
    assert worker.exitcode == -signal.SIGKILL
