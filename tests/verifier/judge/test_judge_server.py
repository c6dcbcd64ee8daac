"""What the judge keeps between the candidates of a task."""

from __future__ import annotations

import pytest
import torch

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.judge import judge_server
from kernrl.verifier.judge.draws import Draw, schedule, spot_draws
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.judge_server import Judge

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2

def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return []
"""


def task(name: str) -> Task:
    return Task(name, SOURCE)


def test_answers_to_timed_calls_serve_the_whole_group_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are part of the planned memory; made for each candidate, they cost a float64 reference in each verdict."""
    judge, made = Judge("cpu", kept_bytes=0), []
    draws = schedule([InputSet(FULL)], 7, big=True)
    every = (*draws, *spot_draws(draws))
    timed = [len(draws), len(draws) + 1]
    shown, draw = [right(every[i]) for i in timed], TaskInputs.draw
    monkeypatch.setattr(TaskInputs, "draw", lambda self, drawn: made.append(drawn) or draw(self, drawn))
    for _ in range(3):
        judge.prepare(task("large"), "fp32", draws)
        records = judge.compare(task("large"), "fp32", every, timed, shown)
        assert all(record["excess"] <= 1 for record in records)
    assert len(made) == len(set(made)) == len(draws) + 2
    judge.prepare(task("another"), "fp32", draws)
    judge.prepare(task("large"), "fp32", draws)
    assert len(made) > len(set(made)), "another task's answers have taken their place"


def test_a_tasks_sets_do_not_displace_one_another() -> None:
    """Some candidates of a task need its ragged set here, and others had it interpreted."""
    sets = [InputSet("ragged"), InputSet(FULL)]
    judge, both = Judge("cpu", kept_bytes=0), schedule(sets, 7, big=True)
    made = Task("sets", SOURCE, input_sets=tuple(sets))
    full = [draw for draw in both if draw.input_set == FULL]
    for draws in (full, both, full, both):
        judge.prepare(made, "fp32", draws)
    assert judge.made == 2
    other = [draw for draw in schedule(sets, 8, big=True) if draw.input_set == FULL]
    judge.prepare(made, "fp32", other)
    judge.prepare(made, "fp32", full)
    assert judge.made == 4, "other draws of the same set are as large, and take its place"


def test_both_parts_of_a_complex_output_are_compared() -> None:
    source = SOURCE.replace("torch.tanh(x) * 2", "torch.view_as_complex(torch.tanh(x).view(64, 16, 2))")
    complex_task = Task("complex", source)
    judge, draws = Judge("cpu"), schedule([InputSet(FULL)], 7, big=True)
    inputs = TaskInputs(complex_task, InputSet(FULL), "fp32", "cpu")
    inputs.draw(draws[0])
    answer = torch.view_as_complex(torch.tanh(inputs.inputs[0]).view(64, 16, 2))
    shown = {
        "right": answer,
        "conjugated": answer.conj().resolve_conj(),
        "real part alone": torch.complex(answer.real, torch.zeros(64, 16)),
        "imaginary part alone": torch.complex(torch.zeros(64, 16), answer.imag),
        "one element": answer + torch.where(torch.arange(16) == 3, 1e-3j, 0j),
    }
    for name, made in shown.items():
        [record] = judge.compare(complex_task, "fp32", draws, [0], [[made]])
        assert (record["excess"] <= 1) == (name == "right"), name


def right(draw: Draw) -> list[torch.Tensor]:
    inputs = TaskInputs(task("large"), InputSet(FULL), "fp32", "cpu")
    inputs.draw(draw)
    return [torch.tanh(inputs.inputs[0]) * 2]


def test_the_reference_of_a_large_set_is_made_once_for_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, made = Judge("cpu", keep_reference=True), []
    monkeypatch.setattr(judge_server, "TaskInputs", lambda *a, **k: made.append(a[1].name) or TaskInputs(*a, **k))
    draws = schedule([InputSet(FULL)], 7, big=True)
    every = (*draws, *spot_draws(draws))
    timed = [len(draws), len(draws) + 1]
    for _ in range(2):
        judge.prepare(task("large"), "fp32", draws)
        records = judge.compare(task("large"), "fp32", every, timed, [right(every[i]) for i in timed])
        assert all(record["excess"] <= 1 for record in records)
    assert made == [FULL]
    judge.forget()
    judge.prepare(task("large"), "fp32", draws)
    assert made == [FULL] * 2
