"""Replay of a Plan on the CPU: ATen nodes by trusted torch, authored launches by `launch_interpreter.py` from their TTIR.

The plan and the IR are those that a GPU would run, and no candidate Python runs here. Every access is checked, so an access
out of bounds is a `crash` with its place, and memory that nothing wrote is poison. Rounding differs from a GPU's in the last
bits (order of sums, approximations); TF32 products are rounded as tensor cores round them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret.checked_memory import STORAGE_BITS, CheckedMemory, Fault
from kernrl.verifier.interpret.launch_interpreter import LaunchInterpreter, TooSlow
from kernrl.verifier.interpret.races import Race, RaceDetector, ordered_by_atomics
from kernrl.verifier.plan.evaluate import plain_value, store_aten, view
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, LaunchNode, Node, Plan, TensorRef, Variant
from kernrl.verifier.plan.ttir import Function, TtirError, access, parse

POISON = 0xFF
"""NaN in every float type, -1 in every integer."""

MAX_PLAN_BYTES = 1 << 30
"""An honest plan holds a few MiB at shapes that are small enough to interpret."""

SIDE_BY_SIDE_BYTES = 64 << 20
"""Total size of the cases that run side by side."""

_PARAMETERS = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unable(Rejection):
    """The interpreter reached a limit of its own: a GPU might accept the candidate."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a plan: its inputs and options."""

    tensors: Mapping[int | str, Tensor]
    """With the spec's dtypes and strides, by `Storage.source`: inputs by position, state by key. Not changed."""
    skip: int | None = None
    """A node that is left out, to see whether it matters, or None."""
    poison: int = POISON
    """The byte that fresh memory is filled with."""
    turn: int = 0
    """An autotuned launch with n variants runs variant `turn` mod n."""


def interpret_cases(plan: Plan, cases: Sequence[Case], *, timeout_s: float = 60.0) -> list[list[Tensor]] | Rejection:
    """Forward's outputs for each case. Cases run side by side, so what they share (addresses, masks, the kernel's text) is
    computed once.

    Rejected with `crash` for an access out of bounds in any case, with `wrong` for a race between programs. Unable with
    `timeout` past `timeout_s`, with `needs_gpu` for what cannot be interpreted, with `crash` for a failing ATen call.
    """
    deadline = time.monotonic() + timeout_s
    held = sum(s.nbytes for s in plan.storages)
    if held > MAX_PLAN_BYTES:
        return Unable(Status.NEEDS_GPU, f"The plan holds {held >> 20} MiB, too much for the interpreter.")
    together = max(1, SIDE_BY_SIDE_BYTES // max(held, 1))
    outputs: list[list[Tensor]] = []
    for first in range(0, len(cases), together):
        found = _side_by_side(plan, cases[first : first + together], deadline, timeout_s)
        if isinstance(found, Rejection):
            return found
        outputs += found
    return outputs


def _side_by_side(plan: Plan, cases: Sequence[Case], deadline: float, timeout_s: float) -> list[list[Tensor]] | Rejection:
    run = _PlanRun(plan, cases, deadline)
    try:
        for node in plan.setup:
            run.node(node, range(len(cases)))
        for position, node in enumerate(plan.nodes):
            run.node(node, [i for i, case in enumerate(cases) if case.skip != position])
        return [[run.tensor(ref, i).clone() for ref in plan.outputs] for i in range(len(cases))]
    except Fault as fault:
        return Rejection(Status.CRASH, f"{run.where}: {fault}.")
    except Race as race:
        return Rejection(Status.WRONG, f"The result of {run.where} depends on the order of its programs: {race}.")
    except TooSlow:
        return Unable(Status.TIMEOUT, f"{run.where} takes longer than {timeout_s:.3g} s in the interpreter.")
    except TtirError as error:
        return Unable(Status.NEEDS_GPU, f"{run.where}: {error}.")
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
        # torch refuses an ATen call, as it most likely would on a GPU
        return Unable(Status.CRASH, f"{run.where}: {str(error).splitlines()[0] if str(error) else type(error).__name__}.")


class _PlanRun:
    """A plan's memory on the CPU, for all cases, and how to run its nodes on it."""

    def __init__(self, plan: Plan, cases: Sequence[Case], deadline: float) -> None:
        self.plan, self.cases, self.deadline, self.where = plan, cases, deadline, "the plan"
        self.memory = CheckedMemory([s.nbytes for s in plan.storages], len(cases))
        for number, storage in enumerate(plan.storages):
            for i, case in enumerate(cases):
                span = self.memory.bytes_of(number, i)
                span.fill_(case.poison if storage.source is None else POISON)
                if storage.source is not None:
                    tensor = case.tensors[storage.source]
                    flat = span[: storage.nbytes // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
                    flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset()).copy_(tensor)

    def tensor(self, ref: TensorRef, case: int) -> Tensor:
        """A plan's view as a torch tensor over a case's memory."""
        return view(self.memory.bytes_of(ref.storage, case), ref)

    def node(self, node: Node, cases: Sequence[int]) -> None:
        """Run a node for some of the cases, by number."""
        if isinstance(node, AtenNode):
            self.where = node.op
            for case in cases:
                if time.monotonic() > self.deadline:
                    raise TooSlow
                store_aten(node, lambda ref, case=case: self.tensor(ref, case), "cpu")
            return
        assert isinstance(node, LaunchNode)
        for turn, variant in enumerate(node.variants):
            taking = [case for case in cases if self.cases[case].turn % len(node.variants) == turn]
            if taking:
                self._launch(variant, taking)

    def _launch(self, variant: Variant, cases: Sequence[int]) -> None:
        kernel = self.plan.kernels[variant.kernel]
        self.where = kernel.function
        function = parse(kernel.ttir)
        arguments = [self._argument(k, v) for k, v in zip(function.param_types, variant.args.values(), strict=True)]
        # running all cases at once is cheapest; those that should not take part are restored afterwards
        others = [i for i in range(len(self.cases)) if i not in cases]
        kept = self.memory.kept(others)
        self.memory.races = self._race_detector(function, kernel.ttir, variant)
        LaunchInterpreter(function, self.memory, variant.grid, self.deadline).run(arguments)
        self.memory.restore(others, kept)

    def _race_detector(self, function: Function, text: str, variant: Variant) -> RaceDetector | None:
        """A race detector for a launch; None if every case leaves out a node, or if atomics may order the programs."""
        counted = next((i for i, case in enumerate(self.cases) if case.skip is not None), len(self.cases))
        if not counted or ordered_by_atomics(function):
            return None
        touched, values = access(text), list(variant.args.values())
        stored, loaded = (
            frozenset(v.storage for i, v in enumerate(values) if isinstance(v, TensorRef) and i in side)
            for side in (touched.writes, touched.reads)
        )
        return RaceDetector(stored, loaded, counted)

    def _argument(self, kind: str, value: Any) -> Tensor:
        if isinstance(value, TensorRef):
            return torch.tensor([[(value.storage << STORAGE_BITS) + value.offset * ITEM_BYTES[value.dtype]]])
        value = plain_value(value, "cpu")
        if kind == "i64" and value >= 1 << 63:
            value -= 1 << 64
        if kind not in _PARAMETERS:
            raise TtirError(f"a parameter of type {kind}")
        return torch.tensor([[value]], dtype=_PARAMETERS[kind])
