"""Records a module's forward as a plan: builds the module, maps its parameters to the reference's, calls it, numbers storages.

Used for candidates inside the sandbox and for references outside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from kernrl.verifier.plan.plan import (
    AtenNode,
    KernelSource,
    LaunchNode,
    Node,
    Plan,
    TensorRef,
    TensorSpec,
    TraceSpec,
    tensor_specs,
    walk_refs,
)
from kernrl.verifier.trace.constants import RANDOM
from kernrl.verifier.trace.recorder import CUDA, Recorder, Untraceable


def record_forward(cls: type, spec: TraceSpec, recorder: Recorder, kernels: list[KernelSource]) -> Plan:
    """The plan of `cls(*init_inputs).forward(*inputs)`. Call it within `recorder.recording()`.

    `kernels` is filled by launches while forward runs. Raises Untraceable, and whatever `cls` raises.
    """
    model = cls(*spec.init_inputs)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{cls.__name__} is no torch.nn.Module")
    unmatched = _bind_state(model, spec, recorder)
    model.train(spec.training)
    setup, recorder.nodes = recorder.nodes, []
    derived = _derived(setup, recorder)
    sources = iter(range(sum(1 for _ in tensor_specs(spec.inputs))))
    inputs = [_materialise(a, recorder, sources) for a in spec.inputs]
    with torch.no_grad():
        returned = model(*inputs)
    outputs = tuple(recorder.ref(t) for t in _outputs(returned, recorder))
    setup = _each_call(setup, derived, recorder, outputs)
    return _finish(spec, recorder, _needed_setup(setup, recorder, outputs, unmatched), outputs, kernels)


def _materialise(value: Any, recorder: Recorder, sources: Iterator[int]) -> Any:
    if isinstance(value, TensorSpec):
        return recorder.empty(value, "input", next(sources))
    if isinstance(value, list | tuple):
        return type(value)(_materialise(v, recorder, sources) for v in value)
    return value


def _outputs(value: Any, recorder: Recorder) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if recorder.is_cpu(value):
            raise ValueError("forward returns a CPU tensor: make it with device=x.device")
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _outputs(item, recorder)
    elif isinstance(value, dict):
        yield from _outputs(list(value.values()), recorder)
    else:
        raise TypeError(f"forward returns a {type(value).__name__}, not tensors")


def _bind_state(model: torch.nn.Module, spec: TraceSpec, recorder: Recorder) -> dict[int, str]:
    """Map the model's parameters and buffers to the reference's: by name, else to the next of the same shape.

    Returns the storages of parameters without a counterpart, with their names.
    """
    mine = [*model.named_parameters(), *model.named_buffers()]
    free = dict(spec.state)
    pairs = {name: name for name, t in mine if name in free and free[name].shape == tuple(t.shape)}
    for name in pairs:
        free.pop(name)
    for name, tensor in mine:
        if name not in pairs:
            key = next((k for k, s in free.items() if s.shape == tuple(tensor.shape)), None)
            if key is not None and isinstance(tensor, torch.nn.Parameter):
                pairs[name] = key
                free.pop(key)
    unmatched = {}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.precision)
    for name, tensor in mine:
        if name in pairs:
            _stand_for(tensor, spec.state[pairs[name]], pairs[name], recorder)
        else:
            if half is not None and tensor.is_floating_point():
                tensor.data = tensor.data.to(half)
            if isinstance(tensor, torch.nn.Parameter):
                unmatched[recorder.ref(tensor).storage] = f"{name} {list(tensor.shape)}"
        # the module is moved to the GPU after construction
        recorder.place(tensor, CUDA)
    return unmatched


def _stand_for(tensor: torch.Tensor, spec: TensorSpec, key: str, recorder: Recorder) -> None:
    ref = recorder.ref(tensor)
    same = (ref.dtype, ref.stride, ref.offset) == (spec.dtype, spec.stride, 0)
    if not same or recorder.storages[ref.storage].kind != "temp":
        # cast by the precision policy, or two parameters that share memory
        tensor.data = recorder.empty(spec)
    recorder.adopt(tensor, "state", key)


def reads(node: Node) -> set[int]:
    if isinstance(node, LaunchNode):
        return {r.storage for v in node.variants for a in v.args.values() for r in walk_refs(a)}
    return {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}


def writes(node: Node) -> set[int]:
    """Storages a node may change; a launch may write through any pointer it is given."""
    return reads(node) if isinstance(node, LaunchNode) else {r.storage for r in node.outputs if r is not None}


def _derived(setup: list[Node], recorder: Recorder) -> set[int]:
    """Storages that the constructor computed from state, directly or indirectly."""
    state = {i for i, s in enumerate(recorder.storages) if s.kind == "state"}
    found: set[int] = set()
    for node in setup:
        if reads(node) & (state | found):
            found |= writes(node) - state
    return found


def _each_call(setup: list[Node], derived: set[int], recorder: Recorder, outputs: tuple[TensorRef, ...]) -> list[Node]:
    """Move to forward the setup nodes that compute what it uses of `derived`, since weights change; returns the others.

    So a weight that the constructor packs is packed, and timed, in each call of forward.
    """
    wanted = {s for n in recorder.nodes for s in reads(n)} | {o.storage for o in outputs}
    moved: list[Node] = []
    for node in reversed(setup):
        if writes(node) & derived & wanted:
            moved.append(node)
            wanted |= reads(node)
    recorder.nodes[:0] = moved[::-1]
    return [node for node in setup if not any(node is other for other in moved)]


def _needed_setup(
    setup: list[Node], recorder: Recorder, outputs: tuple[TensorRef, ...], unmatched: dict[int, str]
) -> list[Node]:
    """The constructor's nodes that forward depends on, without the initialisation of state."""
    state = {i for i, s in enumerate(recorder.storages) if s.kind == "state"}
    wanted = {s for n in recorder.nodes for s in reads(n)} | {o.storage for o in outputs}
    kept: list[Node] = []
    for node in reversed(setup):
        written = writes(node) - state
        if not written & wanted:
            continue
        random = isinstance(node, AtenNode) and any(word in node.op for word in RANDOM)
        if random and (names := [name for number, name in unmatched.items() if number in wanted]):
            matched = ", ".join(str(recorder.storages[i].source) for i in sorted(state)) or "none"
            raise Untraceable(
                f"the parameter {names[0]} has no counterpart in the reference: give parameters its names and shapes"
                f" (matched so far: {matched[:300]})"
            )
        if random:
            raise Untraceable("__init__ makes random values that are no parameter of the reference: they cannot be reproduced")
        wanted |= reads(node)
        kept.append(node)
    return kept[::-1]


def _finish(
    spec: TraceSpec, recorder: Recorder, setup: list[Node], outputs: tuple[TensorRef, ...], kernels: list[KernelSource]
) -> Plan:
    """The plan, with only the storages that are used, renumbered: inputs, state, then temporaries."""
    used = {s for n in (*setup, *recorder.nodes) for s in reads(n) | writes(n)} | {o.storage for o in outputs}
    order = {"input": 0, "state": 1, "temp": 2}
    kept = sorted(used, key=lambda i: (order[recorder.storages[i].kind], i))
    numbers = {old: new for new, old in enumerate(kept)}

    def renumber(arg: Any) -> Any:
        if isinstance(arg, TensorRef):
            return dataclasses.replace(arg, storage=numbers[arg.storage])
        return tuple(renumber(a) for a in arg) if isinstance(arg, tuple) else arg

    def node(n: Node) -> Node:
        if isinstance(n, AtenNode):
            return AtenNode(n.op, renumber(n.args), {k: renumber(v) for k, v in n.kwargs.items()}, renumber(n.outputs))
        return LaunchNode(tuple(dataclasses.replace(v, args={k: renumber(a) for k, a in v.args.items()}) for v in n.variants))

    return Plan(
        spec.input_set,
        tuple(recorder.storages[i] for i in kept),
        tuple(node(n) for n in setup),
        tuple(node(n) for n in recorder.nodes),
        renumber(outputs),
        tuple(kernels),
    )
