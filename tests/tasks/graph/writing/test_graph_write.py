"""What is sampled and written in many coding styles lifts back to the Graph that it was, and runs."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
import torch
from support import EXHAUSTIVE
from support.graph_cases import assert_same

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.input_sets import derive_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.graph.ops import OPS, RESHAPES
from kernrl.tasks.graph.sample import BOUNDED, number, sample, unary
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.task import Task, load_reference


def written(seed: int) -> tuple[Graph, str]:
    rng = Random(seed)
    graph = sample(rng, rng.randint(2, 12))
    return graph, write(graph, Hand.draw(rng), rng)


def assert_comes_back(seed: int) -> None:
    graph, source = written(seed)
    found = lift(Task(f"seed-{seed}", source))
    assert found == graph, f"{source}\n{graph.listing()}\n\n{found.listing()}"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 20, 10))
def test_lifting_what_was_written_gives_back_the_graph(start: int) -> None:
    for seed in range(start, start + 10):
        assert_comes_back(seed)


def test_a_value_that_one_op_reads_twice_is_not_overwritten_early() -> None:
    assert_comes_back(5358)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 4000 if EXHAUSTIVE else 1040, 20))
def test_lifting_what_was_written_gives_back_the_graph_thousands_of_times(start: int) -> None:
    for seed in range(start, start + 20):
        assert_comes_back(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5000, 5012 if EXHAUSTIVE else 5002))
def test_what_was_written_computes_what_the_graph_says(seed: int) -> None:
    _, source = written(seed)
    task = Task(f"seed-{seed}", source)
    sets = derive_input_sets(task)
    assert sets, source
    for found in sets:
        torch.manual_seed(0)
        reference = load_reference(task, found)
        module = reference.Model(*reference.get_init_inputs())
        assert_same(lift(task, found), module, list(reference.get_inputs()))


def test_a_buffer_of_no_axes_is_written() -> None:
    b = Builder(rewrite)
    graph = b.finish([b.add("mul", b.input((4, 6), "float32", (0,)), b.parameter((), "float32", "buffer", "p1"))])
    source = write(graph, Hand.draw(Random(1)), Random(1))
    module = load_reference(Task("t", source)).Model()
    assert [held.shape for held in module.buffers()] == [()]


@pytest.mark.slow
def test_one_graph_in_many_hands_is_many_texts() -> None:
    graph = sample(Random(3), 8)
    texts = {write(graph, Hand.draw(rng), rng) for rng in map(Random, range(40))}
    assert len(texts) == 40
    assert all(lift(Task("t", text)) == graph for text in list(texts)[:10])
    shapes = {tuple(type(n).__name__ for n in ast.parse(text).body) for text in texts}
    assert len(shapes) >= 4  # constants above and below, grouped, with and without an import


def test_the_same_seed_gives_the_same_graph_and_text() -> None:
    assert written(11) == written(11)
    assert written(11)[1] != written(12)[1]


@pytest.mark.slow
def test_the_grammar_is_wide() -> None:
    graphs = [sample(Random(seed), 8) for seed in range(400)]
    ops = Counter(node.op for graph in graphs for node in graph.nodes)
    assert {
        "linear",
        "matmul",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
    } <= ops.keys()
    assert {"batch_norm", "batch_norm_eval", "group_norm", "instance_norm", "layer_norm", "rms_norm"} <= ops.keys()
    assert {"softmax", "log_softmax", "logsumexp", "amax", "mean", "var", "max_pool2d", "avg_pool3d"} <= ops.keys()
    assert len(ops) > 55
    assert ops.keys() <= OPS.keys()
    assert any(len(graph.inputs) > 1 for graph in graphs)
    assert any(len(graph.outputs) > 1 for graph in graphs)
    assert any(sum(n.kind in ("product", "convolution") for n in graph.nodes) > 1 for graph in graphs)
    pairs = Counter(a.op == b.op for graph in graphs for a, b in zip(graph.nodes, graph.nodes[1:], strict=False))
    assert pairs[True] > 20  # repeated neighbours
    assert len({graph.composition for graph in graphs}) > 395


def test_no_exponential_is_taken_of_one_that_nothing_bounds() -> None:
    """It would overflow for some of the task's own inputs, and a rounding would decide for which."""
    graphs = [sample(Random(seed), 12, steps={unary: 4.0, number: 1.0}) for seed in range(120)]
    orders = [[node.op for node in graph.nodes] for graph in graphs]
    assert sum(ops.count("exp") > 1 for ops in orders) > 3
    for ops in orders:
        for one, other in pairwise(i for i, op in enumerate(ops) if op == "exp"):
            assert BOUNDED & set(ops[one:other]), ops


@pytest.mark.parametrize("ops", [2, 5, 12])
def test_a_sample_has_as_many_ops_as_asked(ops: int) -> None:
    lengths = Counter(sum(n.op not in RESHAPES for n in sample(Random(seed), ops).nodes) for seed in range(30))
    assert lengths[ops] >= 15
    assert min(lengths) >= min(ops, 2)
