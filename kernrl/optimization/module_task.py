"""A live module as a task: lifted at example inputs, and written out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.errors import UsageError
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift_module
from kernrl.tasks.graph.writing.plain import task_of_graph
from kernrl.tasks.task import Task

PRECISION_OF = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""Example inputs: one tensor, the positional arguments, or all arguments by name."""


def task_of_module(module: nn.Module, inputs: Inputs, name: str, precision: str | None = None) -> Task:
    """The task of a module at example inputs. Raises UsageError where it cannot be lifted, or not be written out."""
    return task_of_call(module, positional(module, inputs), name, precision)[0]


def task_of_call(module: nn.Module, arguments: Sequence[Any], name: str, precision: str | None = None) -> tuple[Task, Graph]:
    """The task of a module at positional arguments, and its Graph, whose inputs say where in them each tensor is."""
    graph = lift_module(module, arguments)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    precision = precision or precision_of(module, arguments)
    return task_of_graph(graph, name, tensors, precision), graph


def positional(module: nn.Module, inputs: Inputs) -> tuple[Any, ...]:
    """Example inputs as positional arguments of `forward`.

    Raises:
        UsageError: They are no arguments of it, have no elements, need gradients, or lie on another device than the module.
    """
    args = (inputs,) if isinstance(inputs, Tensor) else () if isinstance(inputs, Mapping) else tuple(inputs)
    found = bind(module, args, dict(inputs) if isinstance(inputs, Mapping) else {})
    if isinstance(found, str):
        raise UsageError(f"{type(module).__name__}: {found}")
    require_usable_inputs(module, found)
    return found


def arguments_of(module: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as the arguments of a call: by position as far as can be, the rest by name.

    Raises:
        UsageError: As `positional`, but for arguments that are given by name alone; or this is no module.
    """
    require_module(module)
    args = (inputs,) if isinstance(inputs, Tensor) else () if isinstance(inputs, Mapping) else tuple(inputs)
    try:
        bound = inspect.signature(module.forward).bind(*args, **(inputs if isinstance(inputs, Mapping) else {}))
    except TypeError as error:
        raise UsageError(f"{type(module).__name__}: forward does not take these inputs: {error}.") from None
    # without defaults: a decorator of forward may give by name what it does not see given
    require_usable_inputs(module, (bound.args, bound.kwargs))
    return bound.args, bound.kwargs


def require_module(module: object) -> None:
    """Refuse what is no module. Raises UsageError."""
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        name = getattr(module, "__name__", kind)
        raise UsageError(f"{name}: this is a {kind}, and a torch.nn.Module is wanted; call it in the forward of one.")


def bind(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | str:
    """The arguments of a call as positional ones, defaults filled in; or why that cannot be."""
    parameters = inspect.signature(module.forward).parameters.values()
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        return f"forward does not take these inputs: {error}."
    bound.apply_defaults()
    found: list[Any] = []
    for parameter in parameters:
        value = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += value
        elif parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.KEYWORD_ONLY:
            if value not in ({}, None) and value != parameter.default:
                return f"forward takes {parameter.name!r} by name alone, and a task's arguments have places."
        else:
            found.append(value)
    return tuple(found)


def require_usable_inputs(module: nn.Module, arguments: Sequence[Any]) -> None:
    """Refuse inputs that a search could not use, however they nest. Raises UsageError."""
    held = next(iter(module.parameters()), None)
    for tensor in tensors_in(arguments):
        if tensor.numel() == 0:
            raise UsageError(f"example inputs: one has the shape {list(tensor.shape)}, without elements; give others.")
        if tensor.requires_grad:
            raise UsageError("example inputs: one needs gradients, and this is for inference alone; give x.detach().")
        if held is not None and tensor.device != held.device:
            raise UsageError(
                f"example inputs: one is on {tensor.device} and the module on {held.device}; move one of them to the other."
            )


def tensors_in(item: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and dicts, in order."""
    return [leaf for leaf in pytree.tree_leaves(item) if isinstance(leaf, Tensor)]


def precision_of(module: nn.Module, arguments: Sequence[Any]) -> str:
    """The policy of a module by its dtype: fp32, or tf32 where that is switched on, bf16, fp16."""
    held = [t.dtype for t in (*module.parameters(), *tensors_in(arguments)) if t.is_floating_point()]
    policy = PRECISION_OF.get(held[0] if held else torch.float32)
    if policy is None:
        raise UsageError(f"{type(module).__name__}: computes in {held[0]}; fp32, tf32, bf16 and fp16 are what is optimised.")
    return "tf32" if policy == "fp32" and torch.backends.cuda.matmul.allow_tf32 else policy
