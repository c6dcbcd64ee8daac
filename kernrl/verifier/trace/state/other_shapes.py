"""Whether a module that has met one shape does at another what a new module does there.

A new object is traced for each input set, and a user calls one object at all shapes: a grid or a size kept from the first call
would be seen by nobody. Where two sets construct the same module, another object is called at the shapes of both in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernrl.verifier.plan.plan import AtenNode, KernelSource, Node, TensorRef, TraceSpec
from kernrl.verifier.trace.state.repeat_calls import Call
from kernrl.verifier.trace.untraceable import Untraceable

Steps = tuple[Any, ...]
"""What each node does, without its tensors: these may be parts of a workspace that has grown at other shapes."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """An input set that has been traced."""

    spec: TraceSpec
    first: Steps
    """Of the first call, which may make tables."""
    last: Steps
    outputs: Steps

    @classmethod
    def of(cls, spec: TraceSpec, first: Call, last: Call, kernels: Sequence[KernelSource]) -> Earlier:
        """Of the first and the last call of a new object."""
        return cls(spec, _steps(first.nodes, kernels), _steps(last.nodes, kernels), _shapes(last))

    def constructs_like(self, other: Earlier) -> bool:
        """Whether both sets make the same module."""
        mine, its = self.spec, other.spec
        return (mine.init_inputs, mine.state, mine.training) == (its.init_inputs, its.state, its.training)


def check_other_shapes(
    mine: Earlier,
    earlier: Sequence[Earlier],
    construct: Callable[[], Callable[[TraceSpec], Call]],
    kernels: Sequence[KernelSource],
) -> None:
    """Call a new object, which `construct` makes, at the shapes of an earlier set, at its own and at the earlier ones again.
    Raises Untraceable where it differs."""  # fmt: skip
    other = next((one for one in reversed(earlier) if one.constructs_like(mine)), None)
    if other is None:
        return
    call = construct()
    for expected in (other, mine, other):
        try:
            found = call(expected.spec)
        except Exception as error:
            raise Untraceable(f"forward() fails at other shapes than those of its first call ({error})") from error
        steps = _steps(found.nodes, kernels)
        fits = _holds(steps, expected.last) and _holds(expected.first, steps)
        if not fits or _shapes(found) != expected.outputs:
            raise Untraceable(
                "forward() does something else at shapes that it meets after others: keep no size or grid from an earlier call"
                if mine is not other
                else "another object of the class does something else: count no objects"
            )


def _holds(whole: Steps, part: Steps) -> bool:
    """Whether `part` is what remains of `whole` when some steps are left out."""
    steps = iter(whole)
    return all(step in steps for step in part)


def _shapes(call: Call) -> Steps:
    return (call.nesting, *((o.dtype, o.shape, o.stride) for o in call.outputs))


def _steps(nodes: Sequence[Node], kernels: Sequence[KernelSource]) -> Steps:
    return tuple(_step(node, kernels) for node in nodes)


def _step(node: Node, kernels: Sequence[KernelSource]) -> Any:
    if isinstance(node, AtenNode):
        return node.op
    return tuple(
        (
            kernels[v.kernel].function,
            tuple(kernels[v.kernel].constexprs.items()),
            v.grid,
            tuple("tensor" if isinstance(a, TensorRef) else a for a in v.args.values()),
        )
        for v in node.variants
    )
