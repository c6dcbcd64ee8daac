"""Whether the float64 reference of a large task runs on some samples at a time, so that what it makes on the way is small.

Only where the result is the same: the task's Graph says that its samples (the indices of some axis) are computed apart from
one another, and the module, given fewer of them, has that same Graph. Libraries may add up in another order for another number
of samples, which in float64 is nothing that a tolerance sees.

Decided while memory is planned (`memory_estimate.py`), and only there: the judge is told with the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil, prod
from typing import Any

from kernrl.tasks.graph.graph import Graph, Node, Value
from kernrl.tasks.graph.independent_axes import IndependentAxis, independent_axes
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.judge.truth.slices import Slices

log = logging.getLogger(__name__)

SLICED_BYTES = 1 << 30
"""What a reference takes in float64, from which it runs in slices."""

SLICE_BYTES = 1 << 29
"""What a slice takes, about. GPUs are busy with less."""

MOST_SLICES = 32
"""More would take time and save little."""


def find_slices(task: Task, input_set: InputSet) -> Slices | None:
    """How a task's float64 reference runs in slices; None if it is small, or its samples are not computed apart."""
    try:
        graph = lift(task, input_set)
    except Exception as error:  # whatever keeps a module from being read
        log.info("%s: its reference runs whole: %s", task.id, error)
        return None
    takes = wide_bytes(graph)
    if takes <= SLICED_BYTES:
        return None
    wanted = min(ceil(takes / SLICE_BYTES), MOST_SLICES)
    for axis in sorted(independent_axes(graph), key=lambda axis: -min(axis.size, wanted)):
        slices = _slices(graph, axis, ceil(axis.size / min(wanted, axis.size)))
        if slices and all(_lifts(task, input_set, graph, axis, slices, n) for n in {n for _, n in slices}):
            return slices
    return None


def _slices(graph: Graph, axis: IndependentAxis, length: int) -> Slices | None:
    inputs = tuple(axis.axes.get(i.value.name) for i in graph.inputs)
    outputs = tuple(axis.axes[o] for o in graph.outputs if isinstance(o, str))
    return Slices(axis.size, length, inputs, outputs) if length < axis.size else None


def _lifts(task: Task, input_set: InputSet, graph: Graph, axis: IndependentAxis, slices: Slices, length: int) -> bool:
    """Whether the module computes the same for so many samples."""

    def cut(given: list[Any]) -> list[Any]:
        return rebuild(given, slices.cut(flatten(given), 0, length))

    try:
        found = lift(task, input_set, change=cut)
    except Exception as error:  # whatever a module does with fewer samples
        log.info("%s: its reference runs whole: %s", task.id, error)
        return False
    return axis.is_cut(graph, found, length)


def wide_bytes(graph: Graph) -> int:
    """What a Graph takes at its peak in float64, about: its inputs, values until they have been read for the last time, and
    convolutions unfolded as a whole. Its parameters are there anyway."""
    owners = {i.value.name: i.value.name for i in graph.inputs} | {p.value.name: p.value.name for p in graph.parameters}
    values, last = graph.values, dict[str, int]()
    for at, node in enumerate(graph.nodes):
        for result in node.results:
            owners[result.name] = owners[node.reads[0]] if node.kind == "view" else result.name
        last |= dict.fromkeys((owners[name] for name in (*node.reads, node.value.name)), at)
    last |= {owners[o]: len(graph.nodes) for o in graph.outputs if isinstance(o, str)}
    inputs = sum(8 * i.value.numel for i in graph.inputs)
    alive: dict[str, int] = {}
    peak = 0
    for at, node in enumerate(graph.nodes):
        alive |= {r.name: 8 * r.numel for r in node.results if owners[r.name] == r.name}
        peak = max(peak, sum(alive.values()) + _unfolded_bytes(values, node))
        alive = {name: nbytes for name, nbytes in alive.items() if last.get(name, at) > at}
    return inputs + peak


def _unfolded_bytes(values: Mapping[str, Value], node: Node) -> int:
    """Of the windows that a convolution reads (`float64_convolutions.convolution`)."""
    if node.kind != "convolution":
        return 0
    x, weight = (values[name].shape for name in node.reads[:2])
    dims = int(node.op[-2])
    return 8 * x[0] * x[1] * prod(weight[2:]) * prod(node.value.shape[-dims:])
