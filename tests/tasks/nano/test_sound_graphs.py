"""A random Graph is a task to practise on only where its outputs tell a right kernel from a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.draw.draw_graphs import draw_graph
from kernrl.tasks.nano.sound_graphs import smaller, why_unsound

Case = Callable[[Builder, str], str]


def graph_of(case: Case, shape: tuple[int, ...] = (256, 512)) -> Graph:
    b = Builder(rewrite)
    return b.finish([case(b, b.input(shape, "float32", (0,)))])


def beside_a_mask(b: Builder, x: str) -> str:
    return b.add("where", b.add("gt", x, 0.0), b.add("gelu", x), -1e9)


UNSOUND: dict[str, tuple[str, Case]] = {
    "a logarithm of negative numbers": ("not finite", lambda b, x: b.add("log", x)),
    "an overflow": ("not finite", lambda b, x: b.add("exp", b.add("mul", x, 100.0))),
    "a number and hardly more": ("constant", lambda b, x: b.add("add", b.add("mul", x, 0.02), 5.0)),
    "nothing but zeros": ("constant", lambda b, x: b.add("relu", b.add("sub", b.add("tanh", x), 2.0))),
    "a bound that is never met": ("a copy", lambda b, x: b.add("clamp", x, min=-50.0, max=50.0)),
    "a wave that float32 cannot follow": ("inexact", lambda b, x: b.add("sin", b.add("mul", x, 1e5))),
    "a wave that tf32 cannot follow": ("ill-conditioned", lambda b, x: b.add("sin", b.add("mul", x, 300.0))),
    "an input that is lost": (
        "an input that does not matter",
        lambda b, x: b.add("add", b.add("tanh", x), b.add("mul", b.add("sigmoid", b.input((256, 512), "float32", (1,))), 1e-4)),
    ),
    "numbers beside a mask of a billion": ("an op that does not matter", beside_a_mask),
    "an axis that only one size fits": ("no small sizes", lambda b, x: b.add("slice", x, dim=1, start=500, stop=510, step=1)),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_what_cannot_tell_right_from_wrong_is_no_task(name: str) -> None:
    why, case = UNSOUND[name]
    assert why_unsound(graph_of(case), 0) == why


def attention(b: Builder, x: str) -> str:
    turned = b.add("permute", x, dims=(0, 1, 3, 2))
    scores = b.add("softmax", b.add("mul", b.add("matmul", x, turned), 0.125), dim=(3,))
    return b.add("matmul", scores, x)


def grouped(b: Builder, x: str) -> str:
    weight = b.parameter((96, 24, 5, 5), "float32", "parameter", "p")
    found = b.add("conv2d", x, weight, None, stride=(2, 2), padding=(2, 2), groups=2)
    return b.add("gelu", b.add("group_norm", found, None, None, num_groups=12))


@pytest.mark.parametrize(("case", "shape"), [(attention, (16, 12, 512, 64)), (grouped, (64, 48, 112, 112))])
def test_a_layer_is_a_task(case: Case, shape: tuple[int, ...]) -> None:
    graph = graph_of(case, shape)
    assert why_unsound(graph, 0) == ""
    for batch_first in (False, True):
        found = smaller(graph, 2**19, 2**28, batch_first=batch_first)
        assert found is not None
        assert found.composition == graph.composition
        assert sum(value.numel for value in found.values.values()) <= 2**19


def test_only_what_must_be_is_smaller_where_the_batch_comes_first() -> None:
    graph = graph_of(lambda b, x: b.add("softmax", x, dim=(1,)), (65536, 1024))
    found = smaller(graph, 2**19, 2**28, batch_first=True)
    assert found is not None
    assert found.inputs[0].value.shape == (4, 1024)


@pytest.mark.slow
def test_most_random_graphs_have_small_sizes() -> None:
    graphs = [draw_graph(Random(f"small {i}"), most=2**28) for i in range(60)]
    found = [smaller(graph, 2**18, 2**27) for graph in graphs]
    assert sum(one is not None for one in found) >= 45
    for graph, one in zip(graphs, found, strict=True):
        if one:
            assert [n.op for n in one.nodes] == [n.op for n in graph.nodes]
