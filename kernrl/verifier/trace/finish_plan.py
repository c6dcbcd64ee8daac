"""From what is recorded to the plan: what of the constructor's work is kept, what moves to forward, and new numbers.

Launches count as reading and writing whatever they are given: nothing here looks into kernels.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kernrl.verifier.plan.plan import AtenNode, KernelSource, LaunchNode, Node, Plan, TensorRef, TraceSpec, walk_refs
from kernrl.verifier.trace.constant_tensors import RANDOM
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.untraceable import Untraceable


def reads(node: Node) -> set[int]:
    """Storages of which a node is given views."""
    if isinstance(node, LaunchNode):
        return {r.storage for v in node.variants for a in v.args.values() for r in walk_refs(a)}
    return {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}


def writes(node: Node) -> set[int]:
    """Storages a node may change; a launch may write through any pointer it is given."""
    return reads(node) if isinstance(node, LaunchNode) else {r.storage for r in node.outputs if r is not None}


def derived_from_state(setup: list[Node], recorder: Recorder) -> set[int]:
    """Storages that the constructor computed from state, directly or indirectly."""
    state = {i for i, s in enumerate(recorder.storages) if s.kind == "state"}
    found: set[int] = set()
    for node in setup:
        if reads(node) & (state | found):
            found |= writes(node) - state
    return found


def move_to_forward(setup: list[Node], derived: set[int], recorder: Recorder, outputs: tuple[TensorRef, ...]) -> list[Node]:
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


def needed_setup(
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


def finish(
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
