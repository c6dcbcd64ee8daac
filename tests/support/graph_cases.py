"""Shared by the tests of `kernrl.tasks.graph`: a task run in float64 by itself and through its Graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.graph.run import run
from kernrl.tasks.task import InputSet, Task, load_reference


def wide(item: Any) -> Any:
    """Floating-point tensors as float64."""
    return item.double() if isinstance(item, Tensor) and item.is_floating_point() else item


def at_path(module: nn.Module, path: str) -> Tensor:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def parts(module: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """Path → tensor of the module, as `run` wants them."""
    return {p.path: at_path(module, p.path).detach() for p in graph.parameters if p.path}


def tensor_at(args: Sequence[Any], place: tuple[int | str, ...]) -> Tensor:
    found: Any = list(args)
    for key in place:
        found = found[key]
    return found


def widen(module: nn.Module) -> nn.Module:
    """The module in float64, plain tensor attributes too."""
    module.double()
    for part in module.modules():
        for name, held in vars(part).items():
            if isinstance(held, Tensor):
                setattr(part, name, wide(held))
    return module


def assert_same(graph: Graph, module: nn.Module, args: Sequence[Any]) -> None:
    """`run(graph)` gives what the module gives, in float64."""
    with torch.no_grad():
        widen(module)
        given = [tensor_at(args, i.place) for i in graph.inputs]
        found = run(graph, [wide(t.clone()) for t in given], parts(module, graph), double=True)
        expected = pytree.tree_leaves(module(*pytree.tree_map(wide, list(args))))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if not isinstance(theirs, Tensor):
            assert ours == theirs
            continue
        assert isinstance(ours, Tensor)
        assert ours.shape == theirs.shape
        assert ours.is_floating_point() == theirs.is_floating_point()
        assert ours.is_floating_point() or ours.dtype == theirs.dtype
        torch.testing.assert_close(wide(ours), wide(theirs), rtol=1e-6, atol=1e-7, equal_nan=True)


def assert_task_same(task: Task, input_set: InputSet | None) -> Graph:
    """Lift a task at an input set, and compare its Graph with its module there; returns the Graph."""
    graph = lift(task, input_set)
    torch.manual_seed(0)
    reference = load_reference(task, input_set)
    module = reference.Model(*reference.get_init_inputs())
    torch.manual_seed(1)
    args = list(reference.get_inputs())
    assert [tuple(tensor_at(args, i.place).shape) for i in graph.inputs] == [i.value.shape for i in graph.inputs]
    assert_same(graph, module, args)
    return graph
