"""Is this plan allowed, and is it the candidate's own work? Decided from data alone, before anything runs on a GPU.

The process that wrote a plan may have forged it, so everything is checked. `codec.decode` checks that views lie inside their
storages. The checks here are that storages are the task's, ops are on the allow-list, launches fit their kernels' IR, inputs
and parameters are not written, and every output depends on a kernel that the candidate wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan import aten, ttir
from kernrl.verifier.plan.operands import misfit
from kernrl.verifier.plan.overlap import overlaps, share, span_bytes
from kernrl.verifier.plan.plan import (
    CONSTANT_OP,
    ITEM_BYTES,
    AtenNode,
    LaunchNode,
    Node,
    Plan,
    TensorRef,
    TensorSpec,
    TraceSpec,
    Variant,
    tensor_specs,
    walk_refs,
)

MAX_CLUSTER = 8
"""Blocks of a cluster that every GPU which has clusters can schedule."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What candidates of a task may leave to PyTorch."""

    library: bool = True
    """Matrix products and convolutions may be library calls."""
    unfused: bool = True
    """Other ATen calls are allowed; they are counted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one plan may use."""

    temp_bytes: int = 32 << 30
    launches: int = 1024
    programs: int = 1 << 31
    """Programs of one launch."""


class _Objection(Exception):
    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.rejection = Rejection(status, reason)


def check_plan(
    plan: Plan,
    spec: TraceSpec,
    *,
    outputs: Sequence[TensorSpec] | None = None,
    policy: Policy | None = None,
    limits: Limits | None = None,
) -> Rejection | None:
    """None if a plan may be replayed; otherwise the first reason why not.

    `outputs` are the reference's (`reference_spec.outputs_of`); the plan's must match them in number, shapes and dtypes.
    """
    policy, limits = policy or Policy(), limits or Limits()
    try:
        if plan.input_set != spec.input_set:
            _object(Status.TRACE_ERROR, f"The plan is for {plan.input_set!r}, and {spec.input_set!r} was asked for.")
        _check_storages(plan, spec, limits)
        for node in plan.setup:
            _check_setup(node, plan)
        for node in plan.nodes:
            if isinstance(node, AtenNode):
                _check_aten(node, plan, policy)
            else:
                _check_launch(node, plan, limits)
        launches = sum(isinstance(n, LaunchNode) for n in plan.nodes)
        if not launches:
            _object(Status.POLICY, "forward() launches no Triton kernel: write the computation as a kernel and launch it.")
        if launches > limits.launches:
            _object(Status.POLICY, f"forward() launches {launches} kernels, more than {limits.launches}: fuse them.")
        statistics = [spec.state[name] for name in spec.statistics]
        returned = len(plan.outputs)
        if outputs is not None and statistics and returned == len(outputs) + len(statistics):
            returned = len(outputs)
            outputs = [*outputs, *statistics]  # what it makes of them; the judge holds it against the reference's
        _check_outputs(plan, outputs)
        _check_authorship(plan, returned)
    except _Objection as objection:
        return objection.rejection
    return None


def written(node: Node, plan: Plan) -> set[int]:
    """Storages that a node may change."""
    if isinstance(node, AtenNode):
        # the schema says what is written; what the plan says of its results is not trusted
        touched = aten.mutated_by_call(node.op, node.args, node.kwargs)
        args = [a for i, a in enumerate(node.args) if i in touched] + [a for k, a in node.kwargs.items() if k in touched]
        return {r.storage for r in node.outputs if r is not None} | {r.storage for a in args for r in walk_refs(a)}
    return {r.storage for v in node.variants for r in _pointers(v, plan, "writes")}


def read(node: Node, plan: Plan) -> set[int]:
    """Storages that a node reads."""
    if isinstance(node, AtenNode):
        if aten.base_name(node.op) in aten.SHAPE_ALONE:
            return set()
        return {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}
    return {r.storage for v in node.variants for r in _pointers(v, plan, "reads")}


def _pointers(variant: Variant, plan: Plan, how: str) -> Iterator[TensorRef]:
    positions = getattr(ttir.access(plan.kernels[variant.kernel].ttir), how)
    for position, value in enumerate(variant.args.values()):
        if isinstance(value, TensorRef) and position in positions:
            yield value


def _object(status: Status, reason: str) -> None:
    raise _Objection(status, reason)


def _check_storages(plan: Plan, spec: TraceSpec, limits: Limits) -> None:
    inputs = list(tensor_specs(spec.inputs))
    seen: set[tuple[str, object]] = set()
    for storage in plan.storages:
        if storage.kind == "temp":
            continue
        own = inputs[storage.source] if _in(storage.source, inputs) else spec.state.get(str(storage.source))  # pyright: ignore[reportCallIssue, reportArgumentType]
        if storage.kind == "state":
            own = spec.state.get(str(storage.source))
        if own is None or (storage.kind, storage.source) in seen or storage.nbytes > span_bytes(own):
            _object(Status.TRACE_ERROR, f"The plan's {storage.kind} {storage.source} is none of the task's.")
        seen.add((storage.kind, storage.source))
    total = sum(s.nbytes for s in plan.storages if s.kind == "temp")
    if total > limits.temp_bytes:
        most = f"{limits.temp_bytes / (1 << 30):.1f} GiB"
        _object(Status.TOO_LARGE, f"forward() allocates {total / (1 << 30):.1f} GiB, more than {most}: reuse buffers.")


def _in(source: object, inputs: list[TensorSpec]) -> bool:
    return type(source) is int and source < len(inputs)


def _check_setup(node: Node, plan: Plan) -> None:
    if isinstance(node, LaunchNode):
        _object(Status.POLICY, "__init__ launches a kernel: launch it in forward().")
    assert isinstance(node, AtenNode)
    _check_op(node)
    for storage in read(node, plan) | written(node, plan):
        if plan.storages[storage].kind != "temp":
            _object(
                Status.UNTRACEABLE, "__init__ computes a tensor from a parameter: weights change, so compute it in forward()."
            )


def _check_op(node: AtenNode) -> None:
    name = aten.base_name(node.op)
    if node.op != CONSTANT_OP and (name not in aten.ALLOWED or aten.mutated(node.op) is None):
        _object(Status.POLICY, f"{node.op} {_why_not(name)}: write it in a Triton kernel.")
    if (problem := misfit(node)) is not None:
        _object(Status.POLICY, f"{node.op} is called with operands that do not fit: {problem}.")


_RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "poisson", "exponential")


def _why_not(name: str) -> str:
    if any(word in name for word in _RANDOM):
        return "draws random numbers"
    if name in aten.FACTORISE:
        return "factorises a matrix, which may wait for the host, and a CUDA graph cannot"
    if name in aten.WAIT:
        return "reads numbers on the host, and a CUDA graph cannot"
    return "is not on the list of operations a plan may hold"


def _check_aten(node: AtenNode, plan: Plan, policy: Policy) -> None:
    _check_op(node)
    name = aten.base_name(node.op)
    if name in aten.LIBRARY and not policy.library:
        _object(Status.POLICY, f"{node.op} is a library call, and this task wants it written as a kernel.")
    if name in aten.UNFUSED and not policy.unfused:
        _object(Status.POLICY, f"{node.op} is left to PyTorch, and this task wants it in a kernel.")
    _check_pure(node, plan, node.op)


def _check_pure(node: Node, plan: Plan, who: str) -> None:
    for number in written(node, plan):
        storage = plan.storages[number]
        if storage.kind != "temp":
            what = f"input {storage.source}" if storage.kind == "input" else f"the parameter {storage.source}"
            _object(Status.POLICY, f"{who} writes to {what}: write to a new tensor.")


_INTEGER = re.compile(r"[iu](1|8|16|32|64)")


def _check_launch(node: LaunchNode, plan: Plan, limits: Limits) -> None:
    for variant in node.variants:
        kernel = plan.kernels[variant.kernel]
        if list(variant.args) != list(kernel.signature):
            _object(Status.TRACE_ERROR, f"A launch of {kernel.function} does not fit its signature.")
        if any(n > most or n & (n - 1) for n, most in ((kernel.num_warps, 32), (kernel.num_ctas, MAX_CLUSTER))):
            _object(
                Status.POLICY, f"{kernel.function} asks for {kernel.num_warps} warps in {kernel.num_ctas} blocks a cluster."
            )
        if max(variant.grid[1:]) > 65_535 or math.prod(variant.grid) > limits.programs:
            _object(Status.POLICY, f"{kernel.function} is launched on the grid {variant.grid}, larger than a GPU takes.")
        _check_arguments(variant, plan)
    _check_pure(node, plan, plan.kernels[node.variants[0].kernel].function)


def _check_arguments(variant: Variant, plan: Plan) -> None:
    kernel = plan.kernels[variant.kernel]
    try:
        types = ttir.parse(kernel.ttir).param_types
    except ttir.TtirError as error:
        raise _Objection(Status.POLICY, f"{kernel.function}: its IR cannot be read ({error}).") from None
    if len(types) != len(variant.args):
        _object(Status.TRACE_ERROR, f"A launch of {kernel.function} does not fit its IR.")
    for (name, value), kind in zip(variant.args.items(), types, strict=True):
        integer = _INTEGER.fullmatch(kind)
        if kind.startswith("*"):
            fits = isinstance(value, TensorRef)
        elif integer:
            fits = isinstance(value, int) and -(1 << int(integer[1]) - 1) <= int(value) < 1 << int(integer[1])
        else:
            fits = not isinstance(value, TensorRef | str | tuple | list) and value is not None
        if not fits:
            _object(Status.TRACE_ERROR, f"The argument {name} of {kernel.function} does not fit its type {kind}.")
    for (name, value), divisor in zip(variant.args.items(), ttir.alignments(kernel.ttir), strict=False):
        place = value.offset * ITEM_BYTES[value.dtype] if isinstance(value, TensorRef) else value
        if divisor > 1 and isinstance(place, int) and place % divisor:
            _object(Status.WRONG, f"{kernel.function} takes {name} for a multiple of {divisor}, and it is {place}.")


def _check_outputs(plan: Plan, wanted: Sequence[TensorSpec] | None) -> None:
    if wanted is not None:
        got = [(o.shape, o.dtype) for o in plan.outputs]
        want = [(o.shape, o.dtype) for o in wanted]
        if got != want:
            _object(Status.WRONG, f"forward() returns {_shapes(got)}, and the reference returns {_shapes(want)}.")
    if not plan.outputs:
        _object(Status.WRONG, "forward() returns no tensor.")
    for position, output in enumerate(plan.outputs):
        if plan.storages[output.storage].kind != "temp":
            reason = "forward() returns memory of an input or a parameter: write the result to a new tensor"
            _object(Status.POLICY, f"{reason}, or return a copy of what is given back as it came.")
        if any(share(output, other) for other in plan.outputs[:position]):
            _object(Status.POLICY, "forward() returns two tensors that share memory: return separate ones.")
        if overlaps(output):
            _object(Status.POLICY, "forward() returns an expanded tensor, whose elements share memory: write all of them.")


def _shapes(tensors: list[tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in tensors) or "nothing"


def _check_authorship(plan: Plan, returned: int) -> None:
    """Follow what authored kernels write through the plan: every output that forward returned, of which there are so many, must
    depend on one of them. Running statistics need not, since they may also be left alone. Nor need outputs without elements, or
    copies of inputs, beside an output that does: there is nothing to compute."""
    authored: set[int] = set()
    copied = {i for i, storage in enumerate(plan.storages) if storage.kind != "temp"}
    computed: set[int] = set()
    for node in plan.nodes:
        wrote, needed = written(node, plan), read(node, plan)
        if isinstance(node, AtenNode) and _replaces(node, plan):
            # the old contents are gone, so only the new ones count
            authored -= wrote
            needed = {r.storage for a in node.args[1:] for r in walk_refs(a)}
        if isinstance(node, LaunchNode) or needed & authored:
            authored |= wrote
        if _copies(node, plan, copied) and not wrote & computed:
            copied |= wrote
        else:
            copied, computed = copied - wrote, computed | wrote
    outputs = [output.storage for output in plan.outputs[:returned]]
    for position, storage in enumerate(outputs):
        nothing = storage in copied or not plan.outputs[position].numel
        if storage not in authored and (not nothing or not authored.intersection(outputs)):
            reason = f"Output {position} does not depend on any Triton kernel that forward() launches"
            _object(Status.DECOY, f"{reason}: compute it, or its last step, in one.")


def _copies(node: Node, plan: Plan, copied: set[int]) -> bool:
    """Whether a node only copies elements of these storages."""
    if not isinstance(node, AtenNode) or (name := aten.base_name(node.op)) not in aten.COPIES:
        return False
    if name == "copy":  # the first argument is where to
        return {r.storage for a in node.args[1:] for r in walk_refs(a)} <= copied
    return read(node, plan) <= copied


def _replaces(node: AtenNode, plan: Plan) -> bool:
    """Whether an op overwrites all of the storages that it writes."""
    name = aten.base_name(node.op)
    whole = all(r is None or r.numel * ITEM_BYTES[r.dtype] >= plan.storages[r.storage].nbytes for r in node.outputs)
    return whole and name in ("copy", "zero", "fill")
