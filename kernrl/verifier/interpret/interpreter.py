"""Replay of a Plan on the CPU: ATen nodes by trusted torch, authored launches by `launch_interpreter.py` from their TTIR.

The plan and the IR are those that a GPU would run, and no candidate Python runs here. Every access is checked, so an access
out of bounds is a `crash` with its place, and memory that nothing wrote is poison. Rounding differs from a GPU's in the last
bits (order of sums, approximations); TF32 products are rounded as tensor cores round them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.base.precision import as_pairs
from kernrl.verifier.base.strides import unexpanded
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret.checked_memory import STORAGE_BITS, CheckedMemory, Fault
from kernrl.verifier.interpret.hints import FalseHint
from kernrl.verifier.interpret.launch_interpreter import LaunchInterpreter, TooSlow, Waiting
from kernrl.verifier.interpret.races import Race, RaceDetector, order_matters
from kernrl.verifier.plan.call_aten import plain_value, store_aten, view
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, LaunchNode, Node, Plan, TensorRef, Variant
from kernrl.verifier.plan.ttir import Function, TtirError, access, parse

POISON = 0xFF
"""NaN in every float type, -1 in every integer."""

MAX_PLAN_BYTES = 1 << 30
"""An honest plan holds a few MiB at shapes that are small enough to interpret."""

SIDE_BY_SIDE_BYTES = 64 << 20
"""Total size of the cases that run side by side."""

_ORDER_SHARE = 1e-3
"""Outputs of two program orders may differ by this share of the largest number: rounding alone, also after a norm. What an
order decides differs by more, and the judge compares the outputs with the truth besides."""

_TWO_ORDERS = "two orders give different numbers, so let no result depend on which program comes first"

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
    poison: int | None = POISON
    """The byte that fresh memory is filled with; None for ordinary numbers, which no kernel can tell from those of others."""
    turn: int = 0
    """An autotuned launch with n variants runs variant `turn` mod n."""


def interpret_cases(plan: Plan, cases: Sequence[Case], *, timeout_s: float = 60.0) -> list[list[Tensor]] | Rejection:
    """Forward's outputs for each case. Cases run side by side, so what they share (addresses, masks, the kernel's text) is
    computed once. `timeout_s` is CPU time of this process, so that a busy machine refuses nobody.

    Rejected with `crash` for an access out of bounds in any case, with `wrong` for a race between programs and for a hint to
    the compiler that does not hold. Unable with
    `timeout` past `timeout_s`, with `needs_gpu` for what cannot be interpreted, with `crash` for a failing ATen call.
    Raises MemoryError where the process may take no more memory.
    """
    deadline = time.process_time() + timeout_s
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
        outputs = run.outputs()
        if run.in_turn:  # again with every two programs the other way round
            kernels, run = " and ".join(dict.fromkeys(run.in_turn)), _PlanRun(plan, cases, deadline, reverse_of=run)
            if not _agree([i for i, case in enumerate(cases) if case.skip is None], outputs, run.outputs()):
                run.where = kernels
                raise Race(_TWO_ORDERS)
        return outputs
    except Fault as fault:
        return Rejection(Status.CRASH, f"{run.where}: {fault}.")
    except Race as race:
        return Rejection(Status.WRONG, f"The result of {run.where} depends on the order of its programs: {race}.")
    except FalseHint as hint:
        return Rejection(Status.WRONG, f"{run.where}: {hint}.")
    except TooSlow:
        return Unable(Status.TIMEOUT, f"{run.where} takes longer than {timeout_s:.3g} s in the interpreter.")
    except TtirError as error:
        return Unable(Status.NEEDS_GPU, f"{run.where}: {error}.")
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise MemoryError from None
        said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        if lacks := lacking_on_a_cpu(said) or (isinstance(error, NotImplementedError) and f"{said} on a CPU"):
            return Unable(Status.NEEDS_GPU, f"{run.where}: {lacks}.")
        # torch refuses an ATen call, as it most likely would on a GPU
        return Unable(Status.CRASH, f"{run.where}: {said}.")


def lacking_on_a_cpu(said: str) -> str:
    """What torch cannot do on a CPU, though on a GPU, by the message of its error; '' for other errors."""
    if "MKL FFT doesn't support" in said:
        return "a CPU transforms no half numbers"
    return f"{said} on a CPU" if "not implemented for" in said else ""


def _agree(cases: Sequence[int], ours: Sequence[Sequence[Tensor]], theirs: Sequence[Sequence[Tensor]]) -> bool:
    """Whether outputs agree but for what another order of sums may change."""
    for a, b in ((as_pairs(a), as_pairs(b)) for i in cases for a, b in zip(ours[i], theirs[i], strict=True)):
        if not a.dtype.is_floating_point:
            if not torch.equal(a, b):
                return False
            continue
        a, b = a.double(), b.double()
        scale = a.nan_to_num(0.0, 0.0, 0.0).abs().max() if a.numel() else 0.0
        close = ((a - b).abs() <= _ORDER_SHARE * scale) | (a == b) | (a.isnan() & b.isnan())
        if not bool(close.all()):
            return False
    return True


class _PlanRun:
    """A plan's memory on the CPU, for all cases, and how to run its nodes on it."""

    def __init__(self, plan: Plan, cases: Sequence[Case], deadline: float, *, reverse_of: _PlanRun | None = None) -> None:
        self.plan, self.cases, self.deadline, self.where = plan, cases, deadline, "the plan"
        self.in_turn: list[str] = []
        """Kernels whose programs ran one at a time so far, since they can tell in which order they run."""
        self.seed = reverse_of.seed if reverse_of else random.randrange(1 << 32)
        self.reverse = reverse_of is not None
        self.memory = CheckedMemory([s.nbytes for s in plan.storages], len(cases))
        for number, storage in enumerate(plan.storages):
            for i, case in enumerate(cases):
                span = self.memory.bytes_of(number, i)
                poison = case.poison if storage.source is None else POISON
                if poison is None:
                    span.copy_(torch.randn(storage.nbytes // 4 + 1).view(torch.uint8)[: storage.nbytes])
                else:
                    span.fill_(poison)
                if storage.source is not None:
                    tensor = case.tensors[storage.source]
                    flat = span[: storage.nbytes // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
                    own = unexpanded(tensor)
                    flat.as_strided(own.shape, own.stride(), flat.storage_offset()).copy_(own)

    def tensor(self, ref: TensorRef, case: int) -> Tensor:
        """A plan's view as a torch tensor over a case's memory."""
        return view(self.memory.bytes_of(ref.storage, case), ref)

    def node(self, node: Node, cases: Sequence[int]) -> None:
        """Run a node for some of the cases, by number."""
        if isinstance(node, AtenNode):
            self.where = node.op
            for case in cases:
                if time.process_time() > self.deadline:
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
        arguments = [parameter(k, v) for k, v in zip(function.param_types, variant.args.values(), strict=True)]
        # running all cases at once is cheapest; those that should not take part are restored afterwards
        others = [i for i in range(len(self.cases)) if i not in cases]
        kept = self.memory.kept(others)
        if order_matters(function):
            self._launch_in_turn(function, variant, arguments)
        else:
            self.memory.races = self._race_detector(kernel.ttir, variant)
            LaunchInterpreter(function, self.memory, variant.grid, self.deadline).run(arguments)
        self.memory.restore(others, kept)

    def _launch_in_turn(self, function: Function, variant: Variant, arguments: Sequence[Tensor]) -> None:
        """Run programs one at a time, in random order; where one waits for another, from first to last, as a GPU starts them.

        A program that waits for a later one waits for ever where the later one finds no room before it ends."""
        self.in_turn.append(self.where)
        programs = list(range(math.prod(variant.grid)))
        drawn = random.Random(self.seed + len(self.in_turn)).sample(programs, len(programs))
        whole = self.memory.kept(range(len(self.cases)))
        for order in (drawn[::-1] if self.reverse else drawn, programs):
            self.memory.races = self._race_detector(self.plan.kernels[variant.kernel].ttir, variant, len(programs))
            try:
                LaunchInterpreter(function, self.memory, variant.grid, self.deadline).run(arguments, order)
                return
            except Waiting:
                self.memory.restore(range(len(self.cases)), whole)
        raise TtirError("its programs wait for later ones, and end only where all run at once")

    def outputs(self) -> list[list[Tensor]]:
        """Run the plan; forward's outputs for each case."""
        for node in self.plan.setup:
            self.node(node, range(len(self.cases)))
        for position, node in enumerate(self.plan.nodes):
            self.node(node, [i for i, case in enumerate(self.cases) if case.skip != position])
        return [[self.tensor(ref, i).clone() for ref in self.plan.outputs] for i in range(len(self.cases))]

    def _race_detector(self, text: str, variant: Variant, in_turn: int = 0) -> RaceDetector | None:
        """A race detector for a launch; None if every case leaves out a node. `in_turn`: programs that run one at a time."""
        counted = next((i for i, case in enumerate(self.cases) if case.skip is not None), len(self.cases))
        if not counted:
            return None
        touched, values = access(text), list(variant.args.values())
        stored, loaded = (
            frozenset(v.storage for i, v in enumerate(values) if isinstance(v, TensorRef) and i in side)
            for side in (touched.writes, touched.reads)
        )
        return RaceDetector(stored, loaded, counted, in_turn)


def parameter(kind: str, value: Any) -> Tensor:
    """A launch's argument [1, 1]: a pointer as its address, a number in its type. Raises TtirError."""
    if isinstance(value, TensorRef):
        return torch.tensor([[(value.storage << STORAGE_BITS) + value.offset * ITEM_BYTES[value.dtype]]])
    value = plain_value(value, "cpu")
    if kind == "i64" and value >= 1 << 63:
        value -= 1 << 64
    if kind not in _PARAMETERS:
        raise TtirError(f"a parameter of type {kind}")
    return torch.tensor([[value]], dtype=_PARAMETERS[kind])
