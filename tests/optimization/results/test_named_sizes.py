"""Sizes written as numbers get names, so that a module is judged at small ones; `Model` stays as it is."""

from __future__ import annotations

import pytest
import torch

from kernrl.errors import UsageError
from kernrl.optimization.results.named_sizes import named, with_sets_of_numbers
from kernrl.optimization.results.result_text import require_interpretable
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import Task, load_reference

STEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 48, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(48)

    def forward(self, x):
        return nn.functional.silu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(16, 3, 224, 224)]  # größe


def get_init_inputs():
    return []
"""

SQUARE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 32)
    def forward(self, x):
        return torch.relu(self.linear(x))
def get_inputs(): return [torch.randn(64, 64)]
def get_init_inputs(): return []
"""


def shapes(task: Task, name: str) -> list[tuple[int, ...]]:
    found = task.input_set(name)
    assert found
    return [i.value.shape for i in lift(task, found).inputs]


@pytest.mark.slow
def test_a_stem_with_its_sizes_as_numbers_is_judged_at_small_ones() -> None:
    task = Task("stem", STEM)
    assert with_input_sets(task).input_sets == task.input_sets
    found = with_sets_of_numbers(task)
    assert [s.name for s in found.input_sets] == ["full", "small", "ragged"]
    assert shapes(found, "full") == [(16, 3, 224, 224)]
    [(batch, channels, height, _)] = shapes(found, "ragged")
    assert channels == 3
    assert batch < 16
    assert height < 64
    assert height % 8
    assert found.pytorch_code.partition("def get_inputs")[0].startswith(STEM.partition("def get_inputs")[0])
    assert load_reference(found).get_inputs()[0].shape == (16, 3, 224, 224)


@pytest.mark.slow
def test_equal_numbers_have_names_of_their_own_where_they_cannot_change_together() -> None:
    found = with_sets_of_numbers(Task("square", SQUARE))
    [(rows, features)] = shapes(found, "small")
    assert features == 64  # of the constructor's layer
    assert rows < 64


def test_names_are_new_and_numbers_that_are_no_sizes_stay() -> None:
    source = "SIZE_ = 1\ndef get_inputs():\n    return [f(32, 7, 'ä', 1.5, True, 64), 32]\n"
    text = named(source, lambda number, place: str(number))
    assert "return [f(_SIZE_32, 7, 'ä', 1.5, True, _SIZE_64), _SIZE_32]" in text
    assert "_SIZE_32 = 32\n_SIZE_64 = 64\n" in text
    assert named("def get_inputs(): return [f(4)]", lambda number, place: "") == "def get_inputs(): return [f(4)]"


@pytest.mark.slow
def test_what_only_a_gpu_can_judge_is_refused_at_once() -> None:
    large = Task("large", SQUARE.replace("randn(64, 64)", "randn(2**7 * 2**6 * 2**6, 64)"))
    with torch.no_grad(), pytest.raises(UsageError, match="too large to be judged without a GPU"):
        require_interpretable(with_sets_of_numbers(large), lift(large))
    require_interpretable(with_sets_of_numbers(Task("square", SQUARE)), None)


@pytest.mark.slow
def test_a_difference_with_a_border_is_left_to_the_library() -> None:
    source = SQUARE.replace("self.linear(x)", "torch.diff(x, n=2, dim=1, prepend=x[:, :1])")
    found = write_solutions(with_sets_of_numbers(Task("differences", source)))
    assert found
    assert all("torch.ops.aten.diff.default(" in solution.triton_code for solution in found)
