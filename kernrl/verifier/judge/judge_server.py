"""The judge: holds the answers, and sees only a candidate's outputs. Runs in a process of its own, on the same GPU.

Answers exist only here. They come from the same secret draws as the inputs that the replay process makes for itself, and are
kept for the candidates of a group, which all get the same draws.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernrl.tasks.task import FULL, Task
from kernrl.verifier.base import cuda_driver
from kernrl.verifier.base.clock import Clock, Spent
from kernrl.verifier.base.gpu_memory_limit import keep_large_blocks_whole, limit_gpu_memory
from kernrl.verifier.base.precision import as_pairs
from kernrl.verifier.base.shared_memory import SharedMemory, StoredTensor
from kernrl.verifier.base.verdict import ErrorRecord
from kernrl.verifier.judge.compare import ErrorLevel, Tolerance, error_figures, excess, first_wrong
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.idle_ops import has_idle_op
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.regimes import TIMED
from kernrl.verifier.judge.set_answers import SetAnswers
from kernrl.verifier.judge.truth.reference_answers import Answer, ReferenceAnswers
from kernrl.verifier.judge.truth.slices import Slices


@dataclass(slots=True, eq=False)
class _Pending:
    """The outputs of one draw on their way to a record, and what they are held against."""

    record: ErrorRecord
    kept: SetAnswers
    row: int
    shown: Sequence[Tensor]
    levels: list[ErrorLevel]
    tolerances: list[Tolerance]
    found: list[list[float]] = field(default_factory=list)
    """The errors' figures, by output."""
    worst: int = 0
    """The output that is furthest beyond its tolerance."""

    def measure(self) -> list[Tensor]:
        """The figures of every output, without a sync."""
        truth = self.kept.answers[self.row].truth
        return [error_figures(y, t, level) for y, t, level in zip(self.shown, truth, self.levels, strict=False)]

    def note(self, found: list[list[float]]) -> None:
        """Write the largest error over tolerance into the record."""
        over = [excess(row, t) for row, t in zip(found, self.tolerances, strict=False)]
        self.found, self.worst = found, max(range(len(over)), key=over.__getitem__)
        self.record["excess"] = over[self.worst]

    def describe(self) -> None:
        """Write into the record what is wrong with the worst output."""
        worst, record = self.worst, self.record
        answer = self.kept.answers[self.row]
        level, bound, truth = self.levels[worst], self.tolerances[worst], answer.truth[worst]
        if level.distinct is not None and math.isinf(record["excess"]):
            record["mismatch"] = f"output {worst} names a place twice in one row, where topk and sort name each once"
            return
        index, got, expected = first_wrong(self.shown[worst], truth, level)
        record["output"], record["index"], record["got"], record["expected"] = worst, index, got, expected
        if (after := worst - len(answer.truth) + len(answer.statistics)) >= 0:
            record["statistic"] = answer.statistics[after]
        record["rms"], record["scale"], record["eager_rms"] = self.found[worst][0], level.scale, level.rms
        record["tolerance_rms"], record["tolerance_max"] = bound.rms, bound.max


class Judge:
    """Answers by task, and the comparison with them. `device` is `cuda` in the judge process, `cpu` without a GPU."""

    def __init__(
        self, device: str, *, redraw_parameters: bool = True, kept_bytes: float = math.inf, keep_reference: bool = False
    ):
        """`kept_bytes`: of answers; beyond that, the least recently used are dropped. `keep_reference`: the last full set's."""
        self._device, self._redraw, self._kept_bytes = device, redraw_parameters, kept_bytes
        self._kept: OrderedDict[tuple[object, ...], SetAnswers] = OrderedDict()
        self._keep_reference = keep_reference
        self._last: tuple[tuple[str, ...], ReferenceAnswers] | None = None
        """The full set's reference last used, and whose it is: judged calls while timing need it again."""
        self._slices: tuple[tuple[str, ...], Mapping[str, Slices]] = ((), {})
        """Of the task that was prepared last."""
        self._idle: dict[tuple[str, ...], bool] = {}
        """By task, precision and input set: `has_idle_op`."""
        self.clock = Clock()
        self.made = 0
        """Number of input sets whose answers have been made."""

    def compare(
        self, task: Task, precision: str, draws: Sequence[Draw], asked: Sequence[int], outputs: Sequence[Sequence[Tensor]]
    ) -> list[ErrorRecord]:
        """One record for each draw asked (positions in `draws`): error over tolerance, and the worst element.

        `draws` is the whole schedule, since a tolerance depends on all draws of an input set.
        """
        self._answer_all(task, precision, draws, [draws[i] for i in asked])
        records: list[ErrorRecord] = []
        pending: list[_Pending] = []
        for position, shown in zip(asked, outputs, strict=True):
            draw = draws[position]
            kept, shown = self._answers(task, precision, draws, draw), [as_pairs(y) for y in shown]
            row = kept.draws.index(draw)
            record: ErrorRecord = {"input_set": draw.input_set, "regime": draw.regime, "excess": float("inf")}
            records.append(record)
            if mismatch := _mismatch(shown, kept.answers[row]):
                record["mismatch"] = mismatch
            else:
                pending.append(_Pending(record, kept, row, shown, kept.answers[row].levels, kept.tolerances[row]))
        beyond = self._beyond(pending)
        again = [one for one in beyond if one.kept.lacks_runs(one.row, one.record["excess"])]
        for one in again:
            reference = self._reference(task, precision, one.record["input_set"])
            one.levels, one.tolerances = one.kept.with_all_runs(one.row, reference, self.clock)
        beyond = [one for one in beyond if one not in again] + self._beyond(again)
        for one in self._without_luck(task, precision, beyond):
            one.describe()
        return records

    def _without_luck(self, task: Task, precision: str, beyond: list[_Pending]) -> list[_Pending]:
        """Those that are still beyond after many more runs, or where no rounding moves an element far. The furthest come first:
        one is enough to refuse a candidate, so after it the others stay as they are."""
        left = sorted(beyond, key=lambda one: one.record["excess"], reverse=True)
        while left and self._may_be_right(task, precision, left[0]):
            del left[0]
        return left

    def _may_be_right(self, task: Task, precision: str, one: _Pending) -> bool:
        """Whether outputs that are beyond all runs' tolerances are within those of runs that are made for them alone."""
        kept, reference = one.kept, functools.partial(self._reference, task, precision, one.record["input_set"])
        if kept.may_be_luck(one.record["excess"]):
            one.levels, one.tolerances = kept.with_more_runs(one.row, reference(), self.clock)
            if not self._beyond([one]):
                return True
        if kept.may_lie_elsewhere(one.row):
            one.levels, one.tolerances = kept.with_other_sides(one.row, reference(), self.clock)
            if not self._beyond([one]):
                return True
        if kept.may_be_steep(one.row, one.shown, one.levels, one.tolerances):
            one.levels, one.tolerances = kept.with_steep_places(one.row, reference(), self.clock)
            return not self._beyond([one])
        return False

    def _beyond(self, pending: list[_Pending]) -> list[_Pending]:
        """Note errors over tolerances in the records; returns those that are beyond."""
        if not pending:
            return []
        with self.clock.at("compare"):
            figures = [figures for one in pending for figures in one.measure()]
        values = iter(torch.stack(figures).tolist())  # the only sync
        for one in pending:
            one.note([next(values) for _ in zip(one.shown, one.levels, strict=False)])
        return [one for one in pending if one.record["excess"] > 1]

    def prepare(self, task: Task, precision: str, draws: Sequence[Draw], slices: Mapping[str, Slices] | None = None) -> None:
        """Make the answers to a schedule, unless they are kept already. `slices`: by input set, how the float64 reference is
        cut, here and in what is asked of the task afterwards."""
        self._slices = (task.id, task.pytorch_code, precision), slices or {}
        self._answer_all(task, precision, draws, draws)

    def has_idle_op(self, task: Task, precision: str, draws: Sequence[Draw]) -> bool:
        """Whether, in each input set of these draws, the reference has an op without which its outputs are the same."""
        firsts = {draw.input_set: draw for draw in reversed(draws) if draw.finite}
        for name, draw in firsts.items():
            key = (task.id, task.pytorch_code, precision, name)
            if key not in self._idle:
                self._idle[key] = has_idle_op(self._reference(task, precision, name).inputs, draw)
            if not self._idle[key]:
                return False
        return bool(firsts)

    def _answer_all(self, task: Task, precision: str, draws: Sequence[Draw], asked: Sequence[Draw]) -> None:
        """Make the answers to some of the draws, unless they are kept already."""
        for name in dict.fromkeys(draw.input_set for draw in asked):
            of_set = [draw for draw in asked if draw.input_set == name]
            kept = self._answers(task, precision, draws, of_set[0])
            # of many for judged calls while timing, few are used
            if missing := [draw for draw in of_set if draw not in kept.draws]:
                # however large: they are part of the plan of the task's memory, and serve its next candidates
                kept.add(missing, self._reference(task, precision, name), self.clock)

    def _answers(self, task: Task, precision: str, draws: Sequence[Draw], draw: Draw) -> SetAnswers:
        """The answers for a draw's input set, to all that is scheduled there and perhaps to others."""
        of_set = [d for d in draws if d.input_set == draw.input_set and d.regime != TIMED]
        key = (task.id, task.pytorch_code, precision, *of_set)
        if key not in self._kept:
            self._make_room(key)
            made = SetAnswers()
            made.add(of_set, self._reference(task, precision, draw.input_set), self.clock)
            self._kept[key] = made
            self.made += 1
        self._kept.move_to_end(key)
        return self._kept[key]

    def _make_room(self, key: tuple[object, ...]) -> None:
        """Drop answers where there are too many, but none of another set of the same task, which its next candidate needs."""
        while sum(s.nbytes for s in self._kept.values()) > self._kept_bytes:
            others = (one for one in self._kept if one[:3] != key[:3] or one[3].input_set == key[3].input_set)  # pyright: ignore
            dropped = next(others, None)
            if dropped is None:
                break
            del self._kept[dropped]

    def _reference(self, task: Task, precision: str, name: str) -> ReferenceAnswers:
        """A set's reference. The full set's is kept for its group, since finding out how to draw large inputs takes as long as
        several answers."""
        key = (task.id, task.pytorch_code, precision, name)
        if self._last and self._last[0] == key:
            return self._last[1]
        self._last = None  # it goes before the next one is made
        input_set = task.input_set(name)
        assert input_set is not None
        with self.clock.at("inputs"):
            inputs = TaskInputs(task, input_set, precision, self._device, redraw_parameters=self._redraw)
            cut = self._slices[1].get(name) if self._slices[0] == key[:3] else None
            made = ReferenceAnswers(inputs, self.clock, cut)
        if name == FULL and self._keep_reference:
            self._last = key, made
        return made

    def forget(self) -> None:
        """Drop every answer."""
        self._kept.clear()
        self._last = None
        if self._device == "cuda":
            torch.cuda.empty_cache()


def _mismatch(shown: Sequence[Tensor], answer: Answer) -> str:
    """What is wrong with the number, shapes or dtypes of the outputs; '' if nothing is."""
    whole, own = len(answer.truth), len(answer.truth) - len(answer.statistics)
    if len(shown) not in (whole, own):
        return f"forward returns {len(shown)} tensors, the reference {own}"
    for y, truth, dtype in zip(shown, answer.truth, answer.dtypes, strict=False):
        if y.shape != truth.shape:
            return f"an output has shape {tuple(y.shape)}, the reference's {tuple(truth.shape)}"
        if y.dtype != dtype:
            return f"an output has dtype {y.dtype}, the reference's {dtype}"
    return ""


class JudgeServer:
    """The judge process's commands."""

    def __init__(self, *, redraw_parameters: bool = True, memory_share: float = 0.2):
        """`memory_share`: of the GPU's memory that is free now, to hold between candidates; half of it is for answers."""
        keep_large_blocks_whole()
        torch.zeros(1, device="cuda")  # the driver calls below need a context
        importlib.import_module("torch._dynamo")  # takes seconds, and would otherwise delay the first answer
        self._held_bytes = cuda_driver.granted_bytes(memory_share)
        self._judge = Judge("cuda", redraw_parameters=redraw_parameters, kept_bytes=self._held_bytes / 2, keep_reference=True)
        self._opened: tuple[SharedMemory, Tensor] | None = None
        """The memory in which replay leaves outputs, and how it was opened."""

    def healthy(self) -> bool:
        """Whether CUDA still works here."""
        return cuda_driver.works()

    def attach(self, shared: SharedMemory) -> bool:
        """Open the memory in which replay leaves outputs, in place of the one before."""
        if self._opened:
            before, memory = self._opened
            self._opened = None
            before.close(memory)
        self._opened = shared, shared.open()
        return True

    def spent(self) -> Spent:
        """The peak since the last `prepare`, and where the time went since then."""
        return Spent(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), self._judge.clock.take())

    def prepare(
        self, task: Task, precision: str, draws: Sequence[Draw], most_bytes: int | None = None,
        slices: Mapping[str, Slices] | None = None,
    ) -> None:  # fmt: skip
        """`Judge.prepare`, while replay runs the candidate; this process may take so much of the GPU's memory for it."""
        before = self._judge.made
        limit_gpu_memory(most_bytes, self._judge.forget)
        torch.cuda.reset_peak_memory_stats()
        self._judge.clock.restart()
        try:
            self._judge.prepare(task, precision, draws, slices)
        except torch.OutOfMemoryError:
            self._judge.forget()
        # memory for making answers is not needed again; memory for comparing is, by the next candidate
        if self._judge.made > before and torch.cuda.memory_reserved() > self._held_bytes:
            torch.cuda.empty_cache()

    def give_back(self) -> int:
        """Drop every answer, and close replay's memory, since another lane needs the room. Returns the bytes still held."""
        if self._opened:
            before, memory = self._opened
            self._opened = None
            before.close(memory)
        self._judge.forget()
        return torch.cuda.memory_reserved()

    def compare(
        self, task: Task, precision: str, draws: Sequence[Draw], asked: Sequence[int], shown: Sequence[Sequence[StoredTensor]]
    ) -> list[ErrorRecord]:
        """`Judge.compare` on outputs that lie in the shared memory."""
        try:
            return self._compare(task, precision, draws, asked, shown)
        except torch.OutOfMemoryError:
            self._judge.forget()
            return self._compare(task, precision, draws, asked, shown)

    def has_idle_op(self, task: Task, precision: str, draws: Sequence[Draw]) -> bool:
        """`Judge.has_idle_op`."""
        try:
            return self._judge.has_idle_op(task, precision, draws)
        except torch.OutOfMemoryError:
            self._judge.forget()
            return self._judge.has_idle_op(task, precision, draws)

    def _compare(
        self, task: Task, precision: str, draws: Sequence[Draw], asked: Sequence[int], shown: Sequence[Sequence[StoredTensor]]
    ) -> list[ErrorRecord]:
        assert self._opened
        outputs = [[one.read(self._opened[1]).to("cuda", non_blocking=True) for one in row] for row in shown]
        return self._judge.compare(task, precision, draws, asked, outputs)
