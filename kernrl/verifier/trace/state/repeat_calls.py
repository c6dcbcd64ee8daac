"""Whether a module does on every call what it did on the first. A user of the file gets every call; only one is judged.

`forward` is called again on other inputs, once more on the first ones (whose contents may have changed since: a cache by
address or identity shows), and once in the other mode (train or eval). What it records must be the same, but for tables made
once: work of the first call that depends on no input. Outputs must be new memory in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kernrl.verifier.plan import checks
from kernrl.verifier.plan.plan import AtenNode, KernelSource, LaunchNode, Node, Plan, TensorRef
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.untraceable import Untraceable

AGAIN = "when it is called again"
WITH_GRADIENTS = (
    "forward() does something else when gradients are needed (requires_grad, torch.is_grad_enabled()), and that is not judged: "
    "write what backward needs in every call, or compute it in backward"
)


class DoesSomethingElse(Untraceable):
    """A later call did not do what the first did."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one call of forward recorded."""

    inputs: Sequence[int]
    """Storages of its tensor inputs, in order."""
    nodes: Sequence[Node]
    outputs: Sequence[TensorRef]
    start: int
    """Storages numbered below this were there before the call."""
    end: int
    nesting: str


def check_calls(
    call: Callable[[Any], Call],
    make_inputs: Callable[[], Any],
    first: Call,
    inputs: Any,
    recorder: Recorder,
    kernels: Sequence[KernelSource],
) -> Call:
    """Call forward on other inputs and on the first ones again; the last call. Raises Untraceable where it differs."""
    later = first
    for again in (make_inputs(), inputs):
        later = call(again)
        check_same(later, first, recorder, kernels)
    return later


def check_same(
    later: Call,
    first: Call,
    recorder: Recorder,
    kernels: Sequence[KernelSource],
    when: str = AGAIN,
    copies: Mapping[int, int] | None = None,
) -> None:
    """Raise Untraceable unless a later call does what the first did, in memory of its own. `copies`: storages of a copy of the
    module, and those that they are copies of."""
    _check_new_memory(later, recorder)
    _Comparison(first, later, recorder, kernels, dict(copies or {})).check(when)


def check_other_mode(
    call: Callable[[Any], Call],
    inputs: Any,
    first: Call,
    recorder: Recorder,
    kernels: Sequence[KernelSource],
    *,
    mode: str,
    differs: bool,
) -> Call | None:
    """Call forward in the other mode; the call, or None if it raises where it may. Raises Untraceable.

    Where the reference does the same in both, so must the module; elsewhere what it returns must at least be computed from the
    same inputs.
    """
    try:
        later = call(inputs)
    except Exception as error:
        if differs:
            return None  # nothing wrong is returned
        raise Untraceable(f"in {mode} mode forward() raises {type(error).__name__}, and the reference does not") from error
    _check_new_memory(later, recorder)
    if not differs:
        _Comparison(first, later, recorder, kernels).check(f"in {mode} mode, where the reference does the same as otherwise")
        return later
    specs = [[(o.dtype, o.shape) for o in one.outputs] for one in (first, later)]
    if specs[0] != specs[1] or not _sources(first, kernels) <= _sources(later, kernels):
        raise Untraceable(
            f"in {mode} mode forward() does not compute its result from its inputs: write that mode as the reference does"
        )
    return later


def check_state(setup: Sequence[Node], nodes: Sequence[Node], recorder: Recorder, kernels: Sequence[KernelSource]) -> None:
    """Refuse memory that is filled once and then changed by forward, which reads it first: the next call finds other numbers.

    `setup` is what ran once: the constructor's nodes, and tables of the first call. Raises Untraceable.
    """
    plan = kernels_alone(kernels)
    filled = {s for n in setup for s in checks.written(n, plan) if recorder.storages[s].kind == "temp"}
    filled -= recorder.statistics
    touched: set[int] = set()
    stale: set[int] = set()
    for node in nodes:
        reads, writes = checks.read(node, plan), checks.written(node, plan)
        if isinstance(node, AtenNode) and node.op.split(".")[1].rstrip("_") in ("zero", "fill", "copy"):
            reads = reads - writes
        stale |= (reads & filled) - touched
        touched |= writes
        if stale & touched:
            raise Untraceable(
                "forward() changes a tensor that it also reads and that is filled only once, so that the next call starts from "
                "other numbers: fill it in every call"
            )


def _check_new_memory(later: Call, recorder: Recorder) -> None:
    kept = [o for o in later.outputs if o.storage < later.start and recorder.storages[o.storage].kind == "temp"]
    if not kept:  # inputs and parameters are for the plan's checks
        return
    if any(isinstance(node, LaunchNode) for node in later.nodes):
        raise Untraceable(
            "forward() returns the same memory in every call, so a later call overwrites results: allocate outputs in forward()"
        )
    raise Untraceable(
        "forward() returns the result of an earlier call: other inputs, or other contents at one address, need it anew"
    )


def kernels_alone(kernels: Sequence[KernelSource]) -> Plan:
    """As much of a plan as it takes to tell what its launches read and write."""
    return SimpleNamespace(kernels=kernels)  # pyright: ignore[reportReturnType]


def _sources(one: Call, kernels: Sequence[KernelSource]) -> set[int]:
    """Positions of the inputs that the outputs depend on."""
    plan = kernels_alone(kernels)
    wanted = {o.storage for o in one.outputs}
    for node in reversed(one.nodes):
        if checks.written(node, plan) & wanted:
            wanted |= checks.read(node, plan)
    return {i for i, storage in enumerate(one.inputs) if storage in wanted}


@dataclass(slots=True)
class _Comparison:
    """A later call beside the first."""

    first: Call
    later: Call
    recorder: Recorder
    kernels: Sequence[KernelSource]
    same: dict[int, int] = field(default_factory=dict)
    """Storage of the later call → the one in its place in the first."""

    def check(self, when: str) -> None:
        """Raise Untraceable unless the later call does what the first did, but for tables made once."""
        self.same |= zip(self.later.inputs, self.first.inputs, strict=True)
        position, once = 0, []
        for at, node in enumerate(self.later.nodes):
            here = self.first.nodes[position] if position < len(self.first.nodes) else None
            if self._is_kept_for_backward(at) and not (here and self._matches(node, here)):
                continue
            while position < len(self.first.nodes) and not self._matches(node, self.first.nodes[position]):
                once.append(self.first.nodes[position])
                position += 1
            if position == len(self.first.nodes):
                raise self._differs(when)
            position += 1
        once += self.first.nodes[position:]
        if self.first.nesting != self.later.nesting or not self._match(tuple(self.later.outputs), tuple(self.first.outputs)):
            raise self._differs(when)
        if once and not self._are_tables(once):
            raise self._differs(when)

    @staticmethod
    def _differs(when: str) -> Untraceable:
        return DoesSomethingElse(
            f"forward() does something else {when}: its work may depend only on shapes and arguments, not on a count, on state "
            "or on who calls it"
        )

    def _is_kept_for_backward(self, at: int) -> bool:
        """Whether a node of the later call is a copy that nothing reads, as autograd keeps of what is changed in place."""
        node = self.later.nodes[at]
        if not isinstance(node, AtenNode) or node.op != "aten.clone.default" or not (made := node.outputs[0]):
            return False
        plan, copy = kernels_alone(self.kernels), made.storage
        used = any(copy in checks.read(n, plan) | checks.written(n, plan) for n in self.later.nodes[at + 1 :])
        return copy >= self.later.start and not used and all(o.storage != copy for o in self.later.outputs)

    def _are_tables(self, once: Sequence[Node]) -> bool:
        """Whether work that only the first call did depends on no input, and is left as it is afterwards."""
        plan, tainted, skipped = kernels_alone(self.kernels), set(self.first.inputs), {id(n) for n in once}
        for node in self.first.nodes:
            if checks.read(node, plan) & tainted:
                if id(node) in skipped:
                    return False
                tainted |= checks.written(node, plan)
        check_state(once, [n for n in self.first.nodes if id(n) not in skipped], self.recorder, self.kernels)
        return True

    def _matches(self, later: Node, first: Node) -> bool:
        """Whether two nodes do the same; if so, their storages are paired."""
        before = dict(self.same)
        if isinstance(later, LaunchNode) and isinstance(first, LaunchNode):
            pairs = list(zip(later.variants, first.variants, strict=False))
            found = len(later.variants) == len(first.variants) and all(
                (a.kernel, a.grid, list(a.args)) == (b.kernel, b.grid, list(b.args))
                and self._match(tuple(a.args.values()), tuple(b.args.values()))
                for a, b in pairs
            )
        elif isinstance(later, AtenNode) and isinstance(first, AtenNode):
            mine, other = ((n.op, n.args, tuple(n.kwargs.items()), n.outputs) for n in (later, first))
            found = self._match(mine, other)
        else:
            found = False
        if not found:
            self.same = before
        return found

    def _match(self, later: Any, first: Any) -> bool:
        if isinstance(later, TensorRef) and isinstance(first, TensorRef):
            shapes = [(r.dtype, r.shape, r.stride, r.offset) for r in (later, first)]
            # what was there before the later call is itself: a parameter, a table, a workspace
            place = later.storage if later.storage < self.later.start else first.storage
            return shapes[0] == shapes[1] and self.same.setdefault(later.storage, place) == first.storage
        if isinstance(later, tuple) and isinstance(first, tuple):
            return len(later) == len(first) and all(self._match(a, b) for a, b in zip(later, first, strict=True))
        return type(later) is type(first) and later == first
