"""Many spellings of one computation give one Graph, and each Graph computes what its module does."""

from __future__ import annotations

import textwrap
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import TESTS
from support.graph_cases import assert_same
from torch import nn

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift_module

TABLE = TESTS / "support" / "graph_spellings.txt"


def read_table() -> list[tuple[str, list[tuple[int, ...]], str, str]]:
    """(name, shapes, first spelling, another) for every spelling of the table but the first of each section."""
    pairs, name, first = [], "", ""
    shapes: list[tuple[int, ...]] = []
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            name, _, sizes = line[1:].partition("] ")
            shapes, first = [tuple(map(int, size.split("x"))) for size in sizes.split(", ")], ""
        elif line and not line.startswith("#"):
            if first:
                pairs.append((name, shapes, first, line))
            first = first or line
    return pairs


PAIRS = read_table()


def module_of(spelling: str, count: int) -> nn.Module:
    """The module that a spelling describes."""
    init, _, forward = (spelling if " || " in spelling else f"pass || {spelling}").replace("\\n", "\n").partition(" || ")
    body = forward if "return " in forward else f"return {forward}"
    if "\n" not in body:
        body = "\n".join(part.strip() for part in body.split("; "))
    source = "\n".join(
        [
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            textwrap.indent("\n".join(init.split("; ")), " " * 8),
            f"    def forward(self, {', '.join('xyz'[:count])}):",
            textwrap.indent(body, " " * 8),
        ]
    )
    scope: dict[str, Any] = {"nn": nn, "torch": torch, "F": F, "math": __import__("math")}
    exec(source, scope)
    torch.manual_seed(0)
    return scope["Model"]()


@cache
def graph_of(spelling: str, shapes: tuple[tuple[int, ...], ...]) -> Graph:
    """The Graph of a spelling, which computes what its module does; a section's first spelling is in many pairs."""
    torch.manual_seed(1)
    inputs = [torch.randn(shape) for shape in shapes]
    module = module_of(spelling, len(shapes))
    graph = lift_module(module, inputs)
    assert not graph.unknown, graph.listing()
    assert_same(graph, module, inputs)
    return graph


def test_there_are_many_pairs() -> None:
    assert len(PAIRS) >= 60


@pytest.mark.slow  # together they take a quarter of a minute
@pytest.mark.parametrize(("name", "shapes", "one", "other"), PAIRS, ids=[f"{p[0]}: {p[3]}"[:70] for p in PAIRS])
def test_two_spellings_give_one_graph(name: str, shapes: list[tuple[int, ...]], one: str, other: str) -> None:
    first, second = (graph_of(spelling, tuple(shapes)) for spelling in (one, other))
    assert first == second, f"{first.listing()}\n\n{second.listing()}"
    assert first.fingerprint == second.fingerprint
    assert first.composition == second.composition
