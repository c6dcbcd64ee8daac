"""The sentence of a search that tried nothing says why."""

from __future__ import annotations

import pytest

from kernrl.errors import UsageError
from kernrl.optimization.results.result_text import not_won, require_interpretable
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "t: no rule writes a solution of it, and no model was asked: name one with --model."),
        ({"ask": False}, "t: no rule writes a solution of it."),
        ({"model": True}, "t: no rule writes a solution of it, and the model gave no candidate."),
        ({"model": True, "interrupted": True}, "t: the search was interrupted before a candidate was judged."),
    ],
)
def test_a_search_that_tried_nothing_says_why(given: dict[str, bool], said: str) -> None:
    device = device_for("H200")
    assert device
    assert not_won(Task("t", ""), [], [], None, device, **given) == said


SQUARE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 32)
    def forward(self, x):
        return torch.relu(self.linear(x))
def get_inputs(): return [torch.randn(ROWS, 64)]
def get_init_inputs(): return []
"""


def test_what_only_a_gpu_can_judge_is_refused_at_once() -> None:
    """A large module whose sizes are no numbers of its source."""
    large, small = (Task("square", SQUARE.replace("ROWS", rows)) for rows in ("int('524288')", "int('64')"))
    with pytest.raises(UsageError, match="too large to be judged without a GPU"):
        require_interpretable(with_input_sets(large), lift(large))
    require_interpretable(with_input_sets(small), lift(small))
    numbers = with_input_sets(Task("square", SQUARE.replace("ROWS", "2**7 * 2**6 * 2**6")))
    require_interpretable(numbers, lift(numbers))
