"""Arguments of one call of forward, as callers hand them over: whole tensors, parts of larger ones, parameters, and what was
computed of others.

The numbers are the same in each case, and so must be what forward records: a user's tensors are of all these kinds.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernrl.verifier.plan.plan import TensorSpec, TraceSpec, tensor_specs
from kernrl.verifier.trace.recorder import Recorder

Maker = Callable[[TensorSpec, int], torch.Tensor]
"""Makes the tensor input of this position, in memory of its own."""

_lot = random.SystemRandom()

_BYTES_AROUND = (256, 1024, 4096)
"""Before and after a part of a larger tensor, by chance: it is aligned as a whole one is."""
_LAST_OPERATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda copy: copy,
    lambda copy: copy.view_as(copy),
    lambda copy: copy.expand_as(copy),
    lambda copy: copy[None][0],
    lambda copy: copy[None].squeeze(0),
)
"""What autograd knows an input as the result of, each input as that of another. They leave its strides as they are."""


def arguments(spec: TraceSpec, make: Maker) -> list[Any]:
    """Arguments of one call, nested as the task has them."""
    positions = itertools.count()

    def made(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return make(value, next(positions))
        if isinstance(value, list | tuple):
            return type(value)(made(v) for v in value)
        if isinstance(value, dict):
            return {name: made(v) for name, v in value.items()}
        return value

    return [made(value) for value in spec.inputs]


def whole(recorder: Recorder) -> Maker:
    """Inputs that are all of their memory."""
    return lambda spec, position: recorder.empty(spec, "input", position)


def sliced(recorder: Recorder) -> Maker:
    """Inputs that are views of larger tensors, mostly not at their beginning."""

    def make(spec: TensorSpec, position: int) -> torch.Tensor:
        return recorder.part(spec, position, _lot.choice((0, *_BYTES_AROUND)), _lot.choice(_BYTES_AROUND))

    return make


def parameter(recorder: Recorder) -> Maker:
    """Inputs that are parameters, which need no gradients, as when an embedding or a prompt is frozen."""
    of_larger = sliced(recorder)
    return lambda spec, position: torch.nn.Parameter(of_larger(spec, position), requires_grad=False)


def computed(recorder: Recorder) -> Maker:
    """Inputs that need gradients and were computed of others, as in the middle of a network, if that leaves their strides."""
    first = _lot.randrange(len(_LAST_OPERATIONS))

    def make(spec: TensorSpec, position: int) -> torch.Tensor:
        tensor = recorder.empty(spec, "input", position)
        if not tensor.is_floating_point():
            return tensor
        last = _LAST_OPERATIONS[(first + position) % len(_LAST_OPERATIONS)]
        with torch.enable_grad():
            copy = last(tensor.requires_grad_().clone())
        if copy.stride() != tensor.stride():
            return tensor
        recorder.adopt(copy, "input", position)
        return copy

    return make


def partly_computed(spec: TraceSpec, recorder: Recorder) -> Maker:
    """Inputs of which some need gradients, computed of others or not, and others do not."""
    able = [i for i, one in enumerate(tensor_specs(spec.inputs)) if getattr(torch, one.dtype).is_floating_point]
    chosen = set(_lot.sample(able, _lot.randint(1, max(1, len(able) - 1)))) if able else set[int]()
    of_larger, of_others = sliced(recorder), computed(recorder)

    def make(one: TensorSpec, position: int) -> torch.Tensor:
        if position not in chosen:
            return of_larger(one, position)
        return of_others(one, position) if _lot.random() < 0.5 else of_larger(one, position).requires_grad_()

    return make


def keywords(model: torch.nn.Module, spec: TraceSpec) -> Sequence[str]:
    """Names by which forward takes its last arguments: its own, or the reference's where it takes any. None if it takes the
    last one by position alone."""
    parameters = inspect.signature(model.forward).parameters.values()
    count = len(spec.inputs)
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else "" for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD][
        :count
    ]
    if len(names) < count:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not takes_any or len(spec.names) < count:
            return ()
        names += spec.names[len(names) : count]
    return names[names.count("") :]
