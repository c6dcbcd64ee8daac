"""A reference, run once on the CPU at sizes that were derived for it: do its numbers still fit?

Lifting a task at other sizes makes tensors without numbers, so it does not see a label or an index that has become too large
for what it points into. Here there are numbers, and every draw of whole ones has the largest that it may have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernrl.tasks.graph.costs import node_flops
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lifting.trace import quiet
from kernrl.tasks.task import InputSet, Task, load_reference

MOST_BYTES, MOST_FLOPS = 64 << 20, 10**9
"""Larger computations are not run: a search for sets tries dozens."""


def has_places(graph: Graph) -> bool:
    """Whether whole numbers are computed with, which may say where in a tensor to look."""
    return any("int" in value.dtype for value in graph.values.values())


def runs_soon(graph: Graph) -> bool:
    """Whether a run takes a fraction of a second."""
    held = sum(value.nbytes for value in graph.values.values())
    return held <= MOST_BYTES and sum(node_flops(graph, node) for node in graph.nodes) <= MOST_FLOPS


def numbers_fit(task: Task, input_set: InputSet) -> bool:
    """Whether the reference takes its own inputs at an input set.

    What raises on zeros as well, such as a call that has no CPU kernel, says nothing of the numbers.
    """
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        return _runs(task, input_set) or not _runs(task, input_set, zeros=True)


def _runs(task: Task, input_set: InputSet, *, zeros: bool = False) -> bool:
    torch.manual_seed(0)
    try:
        with _LargestDraws():
            reference = load_reference(task, input_set)
            module = reference.Model(*reference.get_init_inputs())
            inputs = list(reference.get_inputs())
        if zeros:
            held = [b for b in module.buffers() if not b.is_floating_point()]
            for tensor in [*held, *(x for x in tree_leaves(inputs) if isinstance(x, Tensor))]:
                tensor.zero_()
        module(*inputs)
    except Exception:
        return False
    return True


class _LargestDraws(TorchFunctionMode):
    """Puts the largest number that it may draw into each result of `torch.randint`: by chance, few draws would have it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        drawn = func(*args, **(kwargs or {}))
        if func in (torch.randint, torch.randint_like) and drawn.numel():
            bounds = [n for n in args if isinstance(n, int)] if func is torch.randint else list(args[1:])
            high = (kwargs or {}).get("high", max(bounds, default=-math.inf))
            if math.isfinite(high):
                drawn[(-1,) * drawn.dim()] = high - 1
        return drawn
