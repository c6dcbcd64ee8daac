"""Lift: any reference as a Graph.

A module is exported under fake tensors (`lifting/trace.py`), before any decomposition, and its ATen calls are read
(`lifting/read.py`) in the ops of a Graph (`lifting/aten_ops.py`, `canonical/rewrites.py`). In-place calls are read as what they
leave behind. Calls that no rule knows stay as unknown nodes with their line. Nothing is executed that `load_reference` and a
call of the module would not.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from kernrl.errors import UsageError
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lifting.read import LiftError, Reading
from kernrl.tasks.graph.lifting.trace import MostlyFake, as_python, conversions, quiet, trace
from kernrl.tasks.no_autocast import AutocastError, without_autocast
from kernrl.tasks.task import FULL, InputSet, Reference, Task, load_reference

_MOST_KEPT = 256

_kept: OrderedDict[str, Graph] = OrderedDict()
"""Source at one input set → its Graph, of those lifted last: a search for sets lifts what is then lifted to be written."""


def lift(task: Task, input_set: InputSet | None = None, *, change: Callable[[list[Any]], list[Any]] | None = None) -> Graph:
    """The Graph of a task at one input set; the full one if not said.

    Args:
        change: Gives other arguments for `forward` in place of the task's.

    Raises:
        LiftError: The reference raises, or computes what a Graph cannot say: randomness, recurrence, sparse tensors, control
            flow or shapes that depend on numbers.
        UsageError: The task's source does not run.
    """
    if change:
        return _lift(task, input_set, change)
    source = task.source_at(input_set or InputSet(FULL))
    graph = _kept.get(source)
    if graph is None:
        graph = _kept[source] = _lift(task, input_set)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return graph


def _lift(task: Task, input_set: InputSet | None, change: Callable[[list[Any]], list[Any]] = list) -> Graph:
    """In float32, as a task is judged: a policy casts what its constructor made in another dtype, and its inputs. As it is
    written, where that cannot be lifted: `forward` may cast to the dtype that the constructor made."""
    cast: list[Tensor] = []

    def single(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.itemsize == 1 or tensor.dtype == torch.float32:
            return tensor
        cast.append(tensor)
        return tensor.float()

    try:
        return _lifted(task, input_set, change, single)
    except LiftError:
        if not cast:
            raise
    return _lifted(task, input_set, change, lambda tensor: tensor)


def _lifted(
    task: Task,
    input_set: InputSet | None,
    change: Callable[[list[Any]], list[Any]],
    of_tensor: Callable[[Tensor], Tensor],
) -> Graph:
    where, mode = f"<task {task.id}>", MostlyFake()
    state = torch.random.get_rng_state()
    try:
        with quiet(), without_autocast():
            with mode, as_python(), conversions():
                reference: Reference = load_reference(task, input_set)
                module: nn.Module = reference.Model(*reference.get_init_inputs())
                if any(of_tensor(held) is not held for held in (*module.parameters(), *module.buffers())):
                    module = module.float()
                inputs = tree_map_only(Tensor, of_tensor, change(list(reference.get_inputs())))
            traced = trace(module, inputs, mode)
    except UsageError:
        raise
    except Exception as error:
        raise LiftError(f"{task.id}: {_reason(error, where)}.") from error
    finally:
        torch.random.set_rng_state(state)
    return Reading(traced, module, where, task.id).graph()


def lift_module(module: nn.Module, inputs: Sequence[Any]) -> Graph:
    """The Graph of a module at example inputs; the module is left as it is, fake inputs and modules are welcome.

    Raises:
        LiftError: As `lift`.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        name = type(module).__name__
        raise LiftError(
            f"{name}: TorchScript compiled it, or a part of it; give it as it was before torch.jit.script or trace."
        )
    where, mode = type(module).forward.__code__.co_filename, MostlyFake()
    held = [(part, dict(part._parameters), dict(part._buffers), dict(part.__dict__)) for part in module.modules()]
    try:
        with quiet(), without_autocast():
            traced = trace(module, inputs, mode)
        return Reading(traced, module, where, type(module).__name__).graph()
    except LiftError:
        raise
    except Exception as error:
        raise LiftError(f"{type(module).__name__}: {_reason(error, where)}.") from error
    finally:
        for part, parameters, buffers, attributes in held:
            part.__dict__.update(attributes)
            part._parameters.update(parameters)
            part._buffers.update(buffers)


def _reason(error: Exception, where: str) -> str:
    """Why a module could not be traced, with the line of its source that is to blame."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
    at = f" at line {lines[-1]}" if lines and lines[-1] else ""
    text, kind = str(error).partition("\n")[0].rstrip("."), type(error).__name__
    if isinstance(error, AutocastError):
        return f"switches on torch.autocast{at}, and on a GPU computes in 16 bits, which no Graph says; leave that out, or cast"
    if "DataDependent" in kind or "data-dependent" in str(error) or "unbacked" in str(error).lower():
        return f"decides by the numbers in a tensor{at}; make the number an argument of the constructor, or use torch.where"
    if "uninitialized parameter" in text:
        return "has a lazy module, whose sizes are unknown before forward has run: state them (nn.Linear for nn.LazyLinear)"
    if "does not require grad" in text or "have been used in the graph" in text:
        return f"asks for gradients{at}, and this is for inference alone: leave them out of forward"
    return f"the reference raises {kind}{at}: {text}"
