"""Running statistics that forward updates as batch norm does: a plan changes no state, so it returns what they become.

The judge holds these outputs against the reference's statistics after the same call. A module may also leave all of them alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernrl.verifier.base.compat import no_torch_functions
from kernrl.verifier.plan import checks
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, KernelSource, LaunchNode, Node, Storage, TensorRef, TraceSpec
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.state.repeat_calls import kernels_alone
from kernrl.verifier.trace.untraceable import Untraceable

_COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer of a module for a running statistic, or for the number of batches."""

    table: dict[str, Any]
    name: str
    own: torch.Tensor
    memory: torch.Tensor
    """An alias of `own`, as it was."""


def places(model: torch.nn.Module) -> list[Place]:
    """The running statistics of a module and of its parts."""
    with no_torch_functions():
        return [
            Place(part._buffers, name, own, own.data)
            for part in model.modules()
            for name, own in part._buffers.items()
            if own is not None and name.endswith(("running_mean", "running_var", _COUNTER))
        ]


def settle(running: Sequence[Place], recorder: Recorder) -> None:
    """Record a statistic to which forward has assigned a tensor as if it had been written to, and put its own tensor back:
    `self.running_mean = 0.9 * self.running_mean + 0.1 * mean`. Raises Untraceable where the tensor is of another shape."""
    for place in running:
        now = place.table.get(place.name)
        if now is place.own and recorder.ref(place.own) == recorder.ref(place.memory):
            continue
        with no_torch_functions():
            made = now.data if isinstance(now, torch.Tensor) else None
            place.own.data = place.memory
        place.table[place.name] = place.own
        if made is None or made.shape != place.own.shape:
            raise Untraceable(f"forward() gives {place.name} another shape: leave it as the reference has it")
        if not place.name.endswith(_COUNTER):  # no output depends on it, and a plan changes no state
            with torch.no_grad():
                place.own.copy_(made)


def returned(spec: TraceSpec, recorder: Recorder, kernels: Sequence[KernelSource]) -> tuple[TensorRef, ...]:
    """Copies of the running statistics, on which forward's nodes work from now on, in the order of the state; none if it
    updates none of them. Raises Untraceable if it updates some."""
    place = {s.source: i for i, s in enumerate(recorder.storages) if s.kind == "state"}
    named = {name: place[name] for name in spec.statistics if name in place}
    plan = kernels_alone(kernels)
    updated = {s for node in recorder.nodes for s in checks.written(node, plan)} & set(named.values())
    if not updated:
        return ()
    if left := [name for name in spec.statistics if named.get(name) not in updated]:
        done = next(name for name, storage in named.items() if storage in updated)
        raise Untraceable(f"forward() updates {done} and not {left[0]}: update all running statistics, or none")
    copies, outputs, numbers = [], [], {}
    for name, storage in named.items():
        own = spec.state[name]
        numbers[storage] = len(recorder.storages)
        recorder.storages.append(Storage("temp", ITEM_BYTES[own.dtype] * math.prod(own.shape)))
        before, after = (TensorRef(i, own.dtype, own.shape, own.stride) for i in (storage, numbers[storage]))
        copies.append(AtenNode("aten.clone.default", (before,), {}, (after,)))
        outputs.append(after)
    recorder.nodes = [*copies, *(_on_copies(node, numbers) for node in recorder.nodes)]
    return tuple(outputs)


def _on_copies(node: Node, numbers: Mapping[int, int]) -> Node:
    def moved(arg: Any) -> Any:
        if isinstance(arg, TensorRef):
            return dataclasses.replace(arg, storage=numbers.get(arg.storage, arg.storage))
        return type(arg)(moved(a) for a in arg) if isinstance(arg, tuple | list) else arg

    if isinstance(node, AtenNode):
        return AtenNode(node.op, moved(node.args), {k: moved(v) for k, v in node.kwargs.items()}, moved(node.outputs))
    return LaunchNode(tuple(dataclasses.replace(v, args={k: moved(a) for k, a in v.args.items()}) for v in node.variants))
