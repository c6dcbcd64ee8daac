"""The file of an answer: what it keeps of the reference's helpers."""

from __future__ import annotations

import ast

import pytest
from support.graph_tasks import ask

from kernrl.tasks.solutions.from_graph.answer import read_source

SOURCE = """
import torch
from torch import nn
from torch.nn.utils import parametrize


def doubled(w):
    return w + w.T


class Helper(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, w):
        return doubled(w) * 0.5


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        INIT

    def forward(self, x):
        return torch.relu(self.layer(x)) - 0.1


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return [8]
"""
NEEDED = {
    "a parametrization": "self.layer = nn.Linear(8, 8); parametrize.register_parametrization(self.layer, 'weight', Helper())",
    "a dry run of a part": "self.part = Helper(); self.layer = nn.Linear(self.part(torch.ones(8, 8)).shape[-1], size)",
    "a dry run of what has no name": "self.layer = nn.Linear(Helper()(torch.ones(8, 8)).shape[-1], size)",
    "a dry run of a local": "part = Helper(); self.layer = nn.Linear(part(torch.ones(8, 8)).shape[-1], size)",
    "a dry run of one of many": "parts = [Helper()]; self.layer = nn.Linear(parts[0](torch.ones(8, 8)).shape[-1], size)",
}


@pytest.mark.parametrize("why", NEEDED)
def test_a_helper_that_the_constructor_runs_keeps_its_forward(why: str) -> None:
    kept = "\n".join(ast.unparse(s) for s in read_source(SOURCE.replace("INIT", NEEDED[why])).kept)
    assert "def forward(self, w)" in kept
    assert "def doubled" in kept


def test_a_helper_that_nothing_runs_has_no_forward() -> None:
    kept = "\n".join(ast.unparse(s) for s in read_source(SOURCE.replace("INIT", "self.layer = Helper(size)")).kept)
    assert "class Helper" in kept
    assert "def forward" not in kept
    assert "doubled" not in kept


def test_a_module_that_has_another_name_first_is_the_model() -> None:
    named = SOURCE.replace("INIT", "self.layer = Helper(size)").replace("Model", "Net") + "\n\nModel = Net\n"
    read = read_source(named)
    plain = read_source(SOURCE.replace("INIT", "self.layer = Helper(size)"))
    assert ast.unparse(read.model) == ast.unparse(plain.model)
    assert [ast.unparse(s) for s in read.kept] == [ast.unparse(s) for s in plain.kept]


@pytest.mark.slow
@pytest.mark.parametrize("why", ["a parametrization", "a dry run of a part"])
def test_an_answer_constructs_as_the_reference_does(why: str) -> None:
    (answers,) = ask([{"source": SOURCE.replace("INIT", NEEDED[why]), "sets": ["full"]}])
    assert answers
    assert not [(style, problem) for style, _, problem in answers if problem]
