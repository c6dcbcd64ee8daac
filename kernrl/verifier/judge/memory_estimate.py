"""How much memory judging a task takes, known before any is allocated: the judge's own code, rehearsed without memory.

`rehearse` runs what the judge and the replay process do with one input set (drawing, the reference in its own precision and in
float64, comparing) on tensors of the meta device, which have shapes and no contents, and counts what is alive. Numbers that
the code reads on the way are made up. Of what libraries take for themselves, the copies that a convolution makes are counted,
and the workspace of a Fourier transform; workspaces that do not grow with the task are not seen.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.compat import called_directly
from kernrl.verifier.base.precision import COMPUTE_DTYPE, policy_flags
from kernrl.verifier.judge import input_ranges, structure
from kernrl.verifier.judge.compare import Inputs, error_figures, first_wrong
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.live_bytes import LiveBytes
from kernrl.verifier.judge.regimes import NOMINAL
from kernrl.verifier.judge.truth.find_slices import find_slices
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers
from kernrl.verifier.judge.truth.slices import Slices
from kernrl.verifier.plan.aten import FOURIER

REHEARSED = (NOMINAL, "mixed")
"""Regimes whose draws are rehearsed: the task's own, and the one that takes most memory."""


@dataclass(frozen=True, slots=True)
class SetMemory:
    """Bytes alive while one input set of a task is judged. Peaks include what is held at that time."""

    inputs: int
    """Held by a `TaskInputs`: the block, and what it takes to redraw it."""
    block: int
    """Of that, the block itself: a snapshot takes as much again."""
    making_peak: int
    """While a `TaskInputs` is made."""
    drawing_peak: int
    """While it is filled with a draw."""
    eager_peak: int
    """While the reference runs in its own precision."""
    output: int
    """Its outputs."""
    reference: int
    """Held by a `ReferenceAnswers`, its inputs included."""
    answering_peak: int
    """While it makes one answer, with none kept before."""
    answer: int
    """Held by an `Answer`."""
    comparing_peak: int
    """While an output is compared with an answer, over both."""
    workspace: int = 0
    """Of `eager_peak`'s largest convolution; see `_Rehearsal`."""
    slices: Slices | None = field(default=None, kw_only=True)
    """In which the float64 reference runs, as these bytes suppose."""

    def judge_peak(self, draws: int) -> int:
        """Of the judge process, which makes and keeps the answers to that many draws and then compares outputs with them. It
        keeps the reference meanwhile."""
        kept = draws * self.answer
        comparing = self.reference + kept + self.output + self.comparing_peak
        return max(self.making_peak, kept - self.answer + self.answering_peak, comparing)


@called_directly
class _Rehearsal(LiveBytes):
    """Counts a convolution's copies, too, and what a Fourier transform works in. Tensor cores read channels last, so cuDNN
    keeps both tensors again meanwhile; and the input once more, where it tries algorithms: on an H200, a convolution of
    1.5 GiB to 2 GiB took 5 GiB beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace = 0
        """The largest so far."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.overloadpacket is torch.ops.aten.convolution and _on_tensor_cores(args[0], groups=args[8]):
            extra = 2 * args[0].nbytes + args[1].nbytes + result.nbytes
            self.workspace, self.peak = max(self.workspace, extra), max(self.peak, self.now + extra)
        if func.overloadpacket.__name__ in FOURIER:
            # its library works in as much memory as the larger of both takes, and overwrites a copy where real numbers come out
            copied = args[0].nbytes if not result.is_complex() else 0
            self.peak = max(self.peak, self.now + max(args[0].nbytes, result.nbytes) + copied)
        return result


def _on_tensor_cores(x: Tensor, *, groups: int) -> bool:
    """Whether cuDNN convolves it there; a convolution of single channels has kernels of torch's own."""
    cudnn: Any = torch.backends.cudnn
    return groups < x.shape[1] and (x.element_size() == 2 or (x.dtype == torch.float32 and cudnn.allow_tf32))


class _NoNumbers(TorchFunctionMode):
    """Answers made-up numbers where code reads a tensor's, so that it takes its usual way."""

    _ANSWERS: ClassVar = {
        "__bool__": lambda x: False, "__int__": lambda x: 0, "__index__": lambda x: 0, "__float__": lambda x: 1.0,
        "item": lambda x: 1.0, "equal": lambda x, y: True,
    }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            if name == "tolist":
                return _numbers(tuple(args[0].shape))
            if name in self._ANSWERS:
                return self._ANSWERS[name](*args)
        return func(*args, **(kwargs or {}))


def _numbers(shape: Sequence[int]) -> Any:
    """Nested lists of a shape: rows of figures as ordinary inputs and parameters have them, else ones."""
    if len(shape) == 1 and (row := {len(r): r for r in (structure.ORDINARY, input_ranges.ORDINARY)}.get(shape[0])):
        return list(row)
    return [_numbers(shape[1:]) for _ in range(shape[0])] if shape else 1.0


def without_contents() -> AbstractContextManager[Any]:
    """Within, the verifier's own code takes its usual way on tensors of the meta device."""
    return _NoNumbers()


_ONE_AT_A_TIME = threading.Lock()
"""The precision flags, which a rehearsal sets and puts back, are the process's, and not the thread's."""


def rehearse(task: Task, input_set: InputSet, precision: str, device: str = "meta") -> SetMemory:
    """What one input set takes under a precision policy.

    `device`: another one than `meta` allocates and computes for real; tests compare the two. Raises whatever the reference
    raises on tensors without contents, if its Python needs their numbers.
    """
    with _ONE_AT_A_TIME:
        slices = find_slices(task, input_set)
        with without_contents() if device == "meta" else contextlib.nullcontext():
            return _rehearsed(task, input_set, precision, device, slices)


def _rehearsed(task: Task, input_set: InputSet, precision: str, device: str, slices: Slices | None) -> SetMemory:
    live = _Rehearsal()
    with live:
        inputs = TaskInputs(task, input_set, precision, device)
        held, making = live.now, live.peak
        live.restart()
        for regime in REHEARSED:
            inputs.draw(Draw(FULL, regime, 1))
        drawing = live.peak
        live.restart()
        with torch.no_grad(), policy_flags(precision):
            shown = inputs.call()
        eager, output, workspace = live.peak, live.now - held, live.workspace
        reference = ReferenceAnswers(inputs, slices=slices)
        reference.make_copies()
        wide = live.now - output
        live.restart()
        answer = reference.answer(Inputs.OWN)
        kept = live.now - output - wide
        if COMPUTE_DTYPE[precision].itemsize == 2:
            reference.with_other_roundings(answer)
            reference.with_float32_errors(answer)
        answering = live.peak - output
        live.restart()
        before = live.now
        for y, truth, level in zip(shown, answer.truth, answer.levels, strict=False):
            error_figures(y, truth, level)
            first_wrong(y, truth, level)
        comparing = live.peak - before
    answering = max(answering, drawing + wide - held)
    return SetMemory(
        held,
        inputs.nbytes,
        making,
        drawing,
        eager,
        output,
        wide,
        answering,
        kept,
        comparing,
        workspace,
        slices=reference.slices,
    )
