"""The sentence of a search that tried nothing says why."""

from __future__ import annotations

import pytest

from kernrl.optimization.results.result_text import not_won
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
