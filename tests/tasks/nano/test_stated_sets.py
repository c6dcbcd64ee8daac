"""Tasks to practise on state their small and ragged sizes, at which they compute the same and what is equal stays equal."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.spellings import NoSpellingError
from kernrl.tasks.graph.writing.write import write_at_sizes
from kernrl.tasks.nano.axes import is_constant, shapes_of
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes, at_smaller_sizes
from kernrl.tasks.nano.stated_sets import write_with_sets
from kernrl.tasks.nano.suites import PRACTICE, suite
from kernrl.tasks.rows import task_from_row, task_to_row
from kernrl.tasks.task import FULL, RAGGED, SMALL, Task

Case = Callable[[Builder, str], str]


def graph_of(case: Case, *shape: int) -> Graph:
    b = Builder(rewrite)
    return b.finish([case(b, b.input(shape, "float32", (0,)))])


def written(graph: Graph, seed: int) -> Task:
    rng = Random(seed)
    source, sets = write_with_sets(graph, Hand.draw(rng), rng, at_distinct_sizes(graph))
    return Task(f"seed-{seed}", source, input_sets=sets)


def assert_stated(task: Task) -> None:
    """It has all three sets; at each it is the same Graph, small, with one size for each axis of nano's prompt."""
    assert [(s.name, s.derived) for s in task.input_sets] == [(FULL, False), (SMALL, False), (RAGGED, False)]
    graphs = [lift(task, s) for s in task.input_sets]
    assert len({graph.fingerprint for graph in graphs}) == 1
    for graph in graphs[1:]:
        sizes = [value.numel for value in graph.values.values()]
        assert max(sizes) <= 2**16
        assert sum(sizes) <= 2**18
    prompt, ours, known = shapes_of(at_distinct_sizes(graphs[0])), shapes_of(graphs), {}
    for name, shape in prompt.items():
        for axis, size in zip(shape, ours[name], strict=True):
            assert known.setdefault(axis, size) == size, task.pytorch_code
            assert not is_constant(axis) or is_constant(size), task.pytorch_code


@pytest.mark.slow
def test_tasks_to_practise_on_state_small_and_ragged_sets() -> None:
    for task in suite(PRACTICE, tasks=16):
        assert_stated(task)
        assert with_input_sets(task) is task
        assert task_from_row(task_to_row(task), "") == task


def normed_convolution(b: Builder, x: str) -> str:
    y = b.add("conv2d", x, b.parameter((512, 64, 3, 3), "float32", "parameter", "w"), None, padding=(1, 1))
    scale, shift = (b.parameter((512,), "float32", "parameter", name) for name in ("s", "t"))
    return b.add("relu", b.add("group_norm", y, scale, shift, num_groups=8, eps=1e-5))


def two_layers(b: Builder, x: str) -> str:
    first, second = (b.parameter((512, 512), "float32", "parameter", name) for name in ("v", "w"))
    return b.add("gelu", b.add("linear", b.add("relu", b.add("linear", x, first, None)), second, None))


def depthwise_convolution(b: Builder, x: str) -> str:
    return b.add("gelu", b.add("conv2d", x, b.parameter((64, 1, 3, 3), "float32", "parameter", "w"), None, groups=64))


def trailing_norm(b: Builder, x: str) -> str:
    weight, bias = (b.parameter((512,), "float32", "parameter", name) for name in ("w", "b"))
    return b.add("gelu", b.add("layer_norm", x, weight, bias, dim=(2,), eps=1e-5))


def bare_norm(b: Builder, x: str) -> str:
    return b.add("gelu", b.add("layer_norm", x, None, None, dim=(2,), eps=1e-5))


def pieces(b: Builder, x: str) -> str:
    return b.add("softmax", b.add("unflatten", x, dim=2, sizes=(16, 8)), dim=(2,))


CASES: dict[str, tuple[Case, tuple[int, ...], str]] = {
    "a convolution and the norm of what it gives": (normed_convolution, (32, 64, 56, 56), ""),
    "layers as wide as what they read": (two_layers, (4096, 512), "Linear(features, out_features"),
    "groups that are the channels": (depthwise_convolution, (32, 64, 56, 56), "groups=self."),
    "a norm whose call names the size": (trailing_norm, (64, 128, 512), "F.layer_norm(x, self."),
    "a norm that holds nothing": (bare_norm, (64, 128, 512), "nn.LayerNorm(features"),
    "more pieces than each is long": (pieces, (64, 100, 128), "nflatten(2, (16, -1))"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_hand_writes_sizes_that_follow(name: str) -> None:
    case, shape, spelling = CASES[name]
    graph = graph_of(case, *shape)
    tasks = [written(graph, seed) for seed in range(40)]
    assert any(spelling in task.pytorch_code for task in tasks)
    for task in tasks[:6] + [task for task in tasks if spelling in task.pytorch_code][:2]:
        assert_stated(task)


def test_axes_of_one_size_are_told_apart() -> None:
    """Rows and columns that are mixed up show where they are not equally long."""
    task = written(graph_of(lambda b, x: b.add("softmax", x, dim=(1,)), 4096, 4096), 0)
    for s in task.input_sets[1:]:
        rows, columns = lift(task, s).inputs[0].value.shape
        assert rows < columns


def test_a_tied_axis_keeps_its_proportion() -> None:
    """Half of the channels meet others that are half as many."""

    def case(b: Builder, x: str) -> str:
        halved = b.add("chunk", x, chunks=2, dim=1, index=0)
        return b.add("mul", halved, b.add("tanh", b.input((64, 512), "float32", (1,))))

    for seed in range(4):
        assert_stated(written(graph_of(case, 64, 1024), seed))


def test_a_number_in_the_text_that_would_have_to_change_is_refused() -> None:
    def case(b: Builder, x: str) -> str:
        return b.add("expand", b.add("sum", x, dim=(1,), keepdim=True), shape=(128, 1024))

    graph = graph_of(case, 128, 1024)
    small = at_smaller_sizes(graph, lambda axis: axis.size // 8)
    assert small is not None
    assert small.nodes[-1].value.shape == (16, 128)
    with pytest.raises(NoSpellingError, match="the same at all sizes"):
        write_at_sizes([graph, small], Hand.draw(Random(0)), Random(0))


def test_a_graph_that_is_never_small_states_nothing() -> None:
    graph = graph_of(lambda b, x: b.add("slice", x, dim=1, start=70000, stop=70010, step=1), 64, 80000)
    with pytest.raises(NoSpellingError, match="small sizes"):
        written(graph, 0)
