"""Axes that a Graph computes index by index: what it gives at other indices does not move when one index of its inputs does."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor, nn

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.independent_axes import IndependentAxis, independent_axes
from kernrl.tasks.graph.lift import lift_module
from kernrl.tasks.graph.run import run
from kernrl.tasks.graph.sample import Draft, sample

B = 6
"""The batch; no other size is the same."""


class Body(nn.Module):
    """A module of an expression in x [B, 4, 10], y [B, 10] and torch."""

    def __init__(self, expression: str) -> None:
        super().__init__()
        self.fc, self.conv = nn.Linear(10, 5), nn.Conv1d(4, 8, 3, padding=1)
        self.norm, self.fixed = nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval()
        self.group, self.table = nn.GroupNorm(2, 4), nn.Embedding(B, 10)
        self.prelu, self.places = nn.PReLU(4), nn.Parameter(torch.randn(B, 1, 1))
        self.code = compile(expression, "body", "eval")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return eval(self.code, {"self": self, "x": x, "y": y, "torch": torch, "F": nn.functional})


def numbers(graph: Graph) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Inputs and parameters in float64."""
    generator = torch.Generator().manual_seed(0)

    def made(value: object) -> Tensor:
        shape, dtype = value.shape, value.dtype  # pyright: ignore[reportAttributeAccessIssue]
        if "int" in dtype:
            return torch.randint(0, 3, shape, generator=generator)
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5

    return [made(i.value) for i in graph.inputs], {p.path: made(p.value) for p in graph.parameters if p.path}


def leaks(graph: Graph, axis: IndependentAxis) -> bool:
    """Whether another index of the first input's axis than the one that is changed shows in an output."""
    inputs, parameters = numbers(graph)
    before = run(graph, inputs, parameters, double=True)
    moved = [x.clone() for x in inputs]
    for x, given in zip(moved, graph.inputs, strict=True):
        if given.value.name in axis.axes and x.is_floating_point():
            x.select(axis.axes[given.value.name], 1).mul_(1.5).sub_(0.25)
    others = torch.tensor([i for i in range(axis.size) if i != 1])
    for name, a, b in zip(graph.outputs, before, run(graph, moved, parameters, double=True), strict=True):
        if isinstance(name, str):
            a, b = (t.index_select(axis.axes[name], others) for t in (a, b) if isinstance(t, Tensor))
            if not torch.allclose(a, b, rtol=1e-12, atol=1e-12, equal_nan=True):
                return True
    return False


def start(d: Draft) -> None:
    """A small first input."""
    shapes = [(6, 10), (12, 16), (5, 4, 12), (4, 3, 8, 8), (3, 8, 6, 6, 6), (4, 7, 6)]
    d.x = d.input(*d.rng.choice(shapes))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_of_random_graphs(seed: int) -> None:
    graph = sample(Random(f"axes {seed}"), 6, start=start, most=1 << 14)
    for axis in independent_axes(graph):
        assert not leaks(graph, axis), f"{axis}\n{graph.listing()}"


def test_random_graphs_have_some() -> None:
    """Most of those that keep their batch."""
    graphs = [sample(Random(f"axes {seed}"), 6, start=start, most=1 << 14) for seed in range(60)]
    assert sum(bool(independent_axes(graph)) for graph in graphs) > 35


def of_batch(expression: str) -> bool:
    """Whether the batch of a module is independent; if so, that nothing leaks from one index into others."""
    graph = lift_module(Body(expression), [torch.randn(B, 4, 10), torch.randn(B, 10)])
    found = [axis for axis in independent_axes(graph) if axis.size == B]
    assert not any(leaks(graph, axis) for axis in found)
    return bool(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [
        "torch.relu(x) * 2 + 1", "x + y[:, None]", "self.fc(x).softmax(-1)", "self.conv(x).amax(2)", "self.fixed(x)",
        "self.group(x)", "F.instance_norm(x)", "F.layer_norm(x, (4, 10))", "x.mean((1, 2))", "x.var(1, keepdim=True)",
        "x.argmax(1)", "x.cumsum(1)", "x @ x.transpose(1, 2)", "torch.einsum('bij,bkj->bik', x, x)", "self.prelu(x)",
        "F.max_pool1d(x, 2)", "F.adaptive_avg_pool1d(x, 1)", "x.flatten(1)", "x.reshape(-1, 2, 2, 10).sum(1)", "x[:, 0]",
        "x[:, :, 2:7]", "x.permute(2, 0, 1)", "torch.cat([x, x.flip(2)], 1)", "F.pad(x, (1, 2))", "x.roll(3, 1)",
        "x.repeat(1, 2, 1)", "x.tril()", "torch.stack([y, y], 1)", "x * torch.zeros(x.shape[0], 1, 1)",
        "x.gather(2, x.argmax(2, True))",
        "F.linear(y, torch.ones(3, 10))", "y.unsqueeze(2).expand(-1, -1, 3) + 1", "F.conv_transpose1d(x, torch.ones(4, 2, 3))",
        "y.index_select(1, torch.tensor([3, 1]))", "(x, y.sum(1))", "x * torch.full((10,), 2.0).cumsum(0)",
        "F.softmax(x, 2) @ self.fc.weight.T",
    ],
)  # fmt: skip
def test_a_batch_that_each_op_keeps_apart(expression: str) -> None:
    assert of_batch(expression)


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [
        "x.softmax(0)", "F.log_softmax(y, 0)", "x.mean(0)", "x - x.mean(0, keepdim=True)", "x.sum()",
        "x.var((0, 2), keepdim=True) + x",
        "self.norm(x)", "x.flip(0)", "x.roll(1, 0)", "x.cumsum(0)", "torch.cat([x, x])", "x[1:]", "x[0] + x", "x.chunk(2)[0]",
        "y @ y.T", "torch.einsum('bi,ci->bc', y, y)", "y[:, None] - y[None]", "F.linear(y, y)",
        "x.reshape(-1, 10).softmax(0).view_as(x)", "x.reshape(2, -1, 10).sum(1)", "x.reshape(4, 6, 10)",
        "y.T.reshape(6, 10)", "x.repeat(2, 1, 1)", "F.pad(x, (0, 0, 0, 0, 1, 0))", "y[:, :6].tril()",
        "x.permute(1, 2, 0).softmax(2)",
        "F.avg_pool1d(x.permute(1, 2, 0), 3)", "F.conv1d(x.permute(1, 2, 0), torch.ones(3, 10, 2))", "x + self.places",
        "x * torch.arange(x.shape[0])[:, None, None]", "y.sort(0).values + y", "self.table(torch.arange(x.shape[0])) + y",
        "F.embedding(y.argmax(1), y)", "y[y.argmax(1) % 6]", "y.gather(0, y.argmax(0, True))", "(x, x.mean())",
        "(x, self.fc.weight)",
        "F.conv1d(y[:, None].permute(1, 0, 2), torch.ones(2, 6, 3))",
        "F.layer_norm(x.permute(1, 2, 0), (6,))", "F.linear(y.T, torch.ones(3, 6))",
        "F.group_norm(x.permute(1, 0, 2), 2)", "F.instance_norm(x.permute(1, 0, 2))", "x.logsumexp(0)", "x.norm(dim=0)",
        "torch.matmul(y.T, y)", "F.pixel_shuffle(x.permute(1, 0, 2)[:, :4], 2)", "x.cumprod(0)",
        "F.conv1d(x.permute(1, 0, 2), torch.ones(6, 6, 3))", "F.avg_pool1d(x.permute(1, 2, 0), 3, 1, 1)", "y[:, :6] @ y[:, :6]",
        "x.permute(1, 0, 2).reshape(8, 6, 5)", "y[:, :6].T.softmax(1)", "y.gather(0, (y > 1).long())", "y[:, :6].sum(0)",
        "y.index_select(0, y.argmax(1) % 6)", "torch.einsum('bc,cd->bd', y[:, :6], y)", "F.pad(x, (0, 0, 0, 0, 1, -1))",
        "y[:, :6][0]", "y[:, :6].triu()", "F.rms_norm(x.permute(1, 2, 0), (6,))", "x.logcumsumexp(0)", "y[:, :6].argmax(0)",
    ],
)  # fmt: skip
def test_a_batch_that_an_op_mixes(expression: str) -> None:
    assert not of_batch(expression)


@pytest.mark.slow
def test_a_graph_at_another_batch_is_a_cut_only_where_nothing_else_follows_the_batch() -> None:
    def cut(expression: str) -> bool:
        graph, other = (lift_module(Body(expression), [torch.randn(n, 4, 10), torch.randn(n, 10)]) for n in (B, 2))
        [axis] = [axis for axis in independent_axes(graph) if axis.size == B]
        return axis.is_cut(graph, other, 2)

    assert cut("x.reshape(x.shape[0], 40)[:, :10] * y")
    assert cut("x * torch.zeros(x.shape[0], 1, 1) + y[:, None]")
    assert not cut("(x + y[:, None]) / x.shape[0]")
    assert not cut("(x + y[:, None])[:, :, : x.shape[0]]")
    assert not cut("x * y[:, None] * 2 if x.shape[0] > 3 else x * y[:, None]")
    assert not cut("(x + y[:, None]).sum(1) if x.shape[0] > 3 else (x + y[:, None]).amax(1)")
    assert not cut("(x + y[:, None]) * torch.ones(x.shape[0]).sum()")
