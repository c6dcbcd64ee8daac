"""Shapes by arithmetic are torch's, for every node of random Graphs; what torch refuses is left to torch."""

from __future__ import annotations

from random import Random

import pytest

from kernrl.tasks.graph import run
from kernrl.tasks.graph.quick_shapes import POINTWISE, quick_shape
from kernrl.tasks.nano.draw.draw_graphs import draw_graph

F = "float32"


def test_quick_shapes_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [draw_graph(Random(f"quick/{i}")) for i in range(40)]
    monkeypatch.setattr(run, "quick_shape", lambda *_: None)
    run.infer.cache_clear()
    quick = 0
    for graph in graphs:
        values = graph.values
        for node in graph.nodes:
            given = tuple((values[o].shape, values[o].dtype) if isinstance(o, str) else o for o in node.operands)
            shape = quick_shape(node.op, given, dict(node.attributes))
            quick += shape is not None
            if shape is not None:
                assert (shape, F) == run.infer(node.op, given, node.attributes), node
    run.infer.cache_clear()
    assert quick > 100


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("add", (((2, 3), F), ((4, 3), F)), {}),
        ("sum", (((2, 3), F),), {"dim": (2,), "keepdim": False}),
        ("amax", (((0, 3), F),), {"dim": (0,), "keepdim": False}),
        ("linear", (((2, 3), F), ((5, 4), F)), {}),
        ("linear", (((2, 3), F), ((5, 3), F), ((4,), F)), {}),
        ("add", (((2,), F), ((2,), "int64")), {}),
        ("add", (1.0, 2.0), {}),
        ("mul", (((2,), F), True), {}),
        ("lt", (((2,), F), 1.0), {}),
    ],
)
def test_what_is_not_plain_is_left_to_torch(op: str, operands: tuple, attributes: dict) -> None:
    assert quick_shape(op, operands, attributes) is None


def test_results_of_another_dtype_are_not_taken_for_floats() -> None:
    assert not POINTWISE & {"cast", "eq", "lt", "where", "isnan", "logical_not", "bitwise_and"}
