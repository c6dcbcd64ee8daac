"""The parts of a model that can be optimised: the largest submodules that lift, equal ones once.

The model runs once, and what each submodule is called with is noted: shapes, strides and dtypes, no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.errors import UsageError
from kernrl.optimization.models.calls import Call, Parameters, Spec, flatten, of_tensors
from kernrl.optimization.search.budget import Budget
from kernrl.tasks.graph.costs import Rates, kernels, roofline_s
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift_module
from kernrl.tasks.graph.lifting.read import REMEDY

MOST_OPS = 24
"""Ops of a part at most, views not counted: beyond that, worked styles lose sight of what belongs together."""
MOST_MODULES = 40
"""A module with more submodules than this is not lifted as a whole: its parts are."""

ALONE_IS_BEST = ("product", "convolution", "pointwise", "pool", "move", "view", "create", "scan")
"""Kinds of op that are one library kernel already, and gain nothing by themselves."""


Result = tuple[Call, Graph] | str
"""What a submodule computes, or why that is no part."""


@dataclass(frozen=True, slots=True)
class Part:
    """A submodule that lifts, and all that are equal to it."""

    paths: tuple[str, ...]
    """Where it is in the model; `""` is the model itself."""
    kind: str
    """Name of its class."""
    call: Call
    graph: Graph

    @property
    def fused(self) -> list[str]:
        """The kernels that its ops could be: `linear + gelu`."""
        return [str(kernel) for kernel in kernels(self.graph)]

    def floor_us(self, rates: Rates) -> tuple[float, float]:
        """(µs op by op, µs fused) at the limits of a device, for one of them."""
        apart, together = roofline_s(self.graph, rates)
        return apart * 1e6, together * 1e6

    def __str__(self) -> str:
        where = self.paths[0] or "the model"
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{where} ({self.kind}){more}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model did when it ran."""

    calls: dict[nn.Module, list[Call]] = field(default_factory=dict)
    """What every submodule was called with."""
    own: dict[nn.Module, list[str]] = field(default_factory=dict)
    """Ops that the module's own forward called, and no submodule's; views are none."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a model is made of."""

    found: tuple[Part, ...]
    left: tuple[tuple[str, str], ...]
    """(path, why not) of what was looked at and has no part below it, or ops of its own beside the parts below it."""
    seen: Seen = field(default_factory=lambda: Seen(), repr=False)


def find_parts(
    model: nn.Module, arguments: Sequence[Any], until: Budget | None = None, named: Mapping[str, Any] | None = None
) -> Parts:
    """The largest submodules that lift, the most costly first.

    Args:
        model: In eval mode. It runs once, without gradients.
        arguments: Positional arguments of its `forward`.
        until: What is not reached by its end is left as it is; no end if not given.
        named: Its arguments by name.

    Raises:
        UsageError: The model raises on these arguments.
    """
    seen = _seen(model, arguments, named or {})
    return _grouped(_lifted(model, "", seen, until), [""], seen)


def parts_below(model: nn.Module, part: Part, parts: Parts, until: Budget | None = None) -> Parts:
    """The largest parts inside one that could not be made faster as a whole: `find_parts`, one level down."""
    children = model.get_submodule(part.paths[0]).named_children()
    lifted = (found for name, child in children for found in _lifted(child, name, parts.seen, until))
    return _grouped(lifted, part.paths, parts.seen)


def _grouped(lifted: Iterable[tuple[str, nn.Module, Result]], roots: Sequence[str], seen: Seen) -> Parts:
    """Equal ones as one, under every root."""
    found: dict[Any, list[tuple[str, nn.Module, Call, Graph]]] = {}
    left: list[tuple[str, str]] = []
    for path, module, result in lifted:
        if isinstance(result, str):
            left.append((f"{roots[0]}.{path}".strip("."), result))
            continue
        call, graph = result
        found.setdefault((_same(graph), repr(call)), []).append((path, module, call, graph))
    parts = [
        Part(
            tuple(f"{root}.{path}".strip(".") for root in roots for path, *_ in equal),
            type(equal[0][1]).__name__,
            equal[0][2],
            equal[0][3],
        )
        for equal in found.values()
    ]
    return Parts(tuple(sorted(parts, key=weight, reverse=True)), tuple(left), seen)


def weight(part: Part) -> int:
    """Bytes that its ops move one by one, over all that are equal: what there is to save."""
    return len(part.paths) * sum(sum(v.nbytes for v in node.results) for node in part.graph.nodes)


def _same(graph: Graph) -> Any:
    """What equal parts have in common: the computation, every shape, and where inputs and parameters are."""
    inputs = tuple((i.place, i.value.shape, i.value.dtype, i.stride) for i in graph.inputs)
    held = tuple((p.path, p.value.shape, p.value.dtype, p.kind, p.data) for p in graph.parameters)
    return inputs, held, tuple(map(str, graph.nodes)), graph.outputs, graph.structure


class _OwnOps(TorchDispatchMode):
    """Notes which module's forward calls an op."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[nn.Module] = []
        self.found: dict[nn.Module, list[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.inside and not func.is_view:
            name = func._schema.name.partition("::")[2].strip("_")
            self.found.setdefault(self.inside[-1], []).append(name)
        return func(*args, **(kwargs or {}))


def _seen(model: nn.Module, arguments: Sequence[Any], named: Mapping[str, Any]) -> Seen:
    """Run the model once, and see what every submodule is called with and what it computes itself."""
    calls: dict[nn.Module, list[Call]] = {}
    ops = _OwnOps()

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        ops.inside.pop()
        leaves, form = flatten(Parameters.of(type(module)).ordered(args, kwargs))
        given = tuple(Spec.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        results, structure = pytree.tree_flatten(output)
        noted = Call(given, form, structure, tuple(place for place, leaf in enumerate(results) if leaf is None))
        # by their text: a flag that is True is not the number 1
        if not any(repr(noted) == repr(before) for before in calls.setdefault(module, [])):
            calls[module].append(noted)

    def enter(module: nn.Module, _: Any) -> None:
        ops.inside.append(module)

    hooks = [part.register_forward_hook(note, with_kwargs=True) for part in model.modules()]
    hooks += [part.register_forward_pre_hook(enter) for part in model.modules()]
    try:
        with torch.no_grad(), ops:
            model(*arguments, **named)
    except Exception as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(f"{type(model).__name__}: it raises {type(error).__name__} on the example inputs: {said}.") from error
    finally:
        for hook in hooks:
            hook.remove()
    return Seen(calls, ops.found)


def _lifted(module: nn.Module, path: str, seen: Seen, until: Budget | None) -> Iterator[tuple[str, nn.Module, Result]]:
    """The largest parts below a module, each with its Graph, or why it is none."""
    if until is not None and until.left_s <= 0:
        yield path, module, "the time for reading ended before it"
        return
    result = _lift(module, seen.calls.get(module, []))
    if not isinstance(result, str):
        yield path, module, result
        return
    below = [
        found for name, child in module.named_children() for found in _lifted(child, f"{path}.{name}".lstrip("."), seen, until)
    ]
    if any(not isinstance(r, str) for _, _, r in below):
        yield from below
        if own := seen.own.get(module):
            ops = ", ".join(dict.fromkeys(own))
            yield path, module, f"what its own forward computes between its parts stays as it is ({ops}): {result}"
    elif module in seen.calls:
        yield path, module, result


def _lift(module: nn.Module, calls: list[Call]) -> Result:
    if not calls:
        return "it is not called"
    if len(calls) > 1:
        return "it is called with several shapes or other arguments"
    [call] = calls
    if problem := call.problem or _replaced(module):
        return problem
    if sum(1 for _ in module.modules()) > MOST_MODULES:
        return f"it has more than {MOST_MODULES} submodules"
    try:
        with of_tensors(module, call):
            graph = _without_none(lift_module(module, call.zeros))
    except UsageError as error:
        return without_remedy(str(error))
    ops = [node for node in graph.nodes if node.kind != "view"]
    if graph.unknown:
        return f"{graph.unknown[0].op} has no rule"
    if len(ops) > MOST_OPS:
        return f"it has {len(ops)} ops, more than {MOST_OPS}"
    if not ops or (len(ops) == 1 and ops[0].kind in ALONE_IS_BEST):
        return "it is one library call already"
    return call, graph


def without_remedy(sentence: str) -> str:
    """A refusal without what only a command can be told: no model is asked from Python."""
    return sentence.replace(f"; {REMEDY}", "")


def _without_none(graph: Graph) -> Graph:
    """The tensors alone of what a Graph returns: a task returns nothing else."""
    outputs = tuple(output for output in graph.outputs if output is not None)
    if len(outputs) == len(graph.outputs):
        return graph
    structure = "*" if len(outputs) == 1 else f"({', '.join('*' * len(outputs))})"
    return replace(graph, outputs=outputs, structure=structure)


def _replaced(module: nn.Module) -> str:
    """Why what a module does is not what its class says: hooks, which a kernel would not run, or a forward of its own."""
    for part in module.modules():
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            return f"a {type(part).__name__} in it has hooks, which would no longer run"
        if "forward" in part.__dict__:
            return f"the forward of a {type(part).__name__} in it was replaced on the instance"
    return ""
