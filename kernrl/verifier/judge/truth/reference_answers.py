"""The right answer: the reference in float64, and eager PyTorch's error against it under the task's precision policy."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.clock import Clock
from kernrl.verifier.base.float64_mode import narrow_dtypes
from kernrl.verifier.base.precision import COMPUTE_DTYPE, UNIT_ROUNDOFF, policy_flags, widened
from kernrl.verifier.judge.compare import (
    MAX_FACTOR,
    RMS_FACTOR,
    ErrorLevel,
    Inputs,
    Tolerance,
    error_figures,
    error_level,
    level_figures,
)
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.truth.discontinuities import Jumps, distinct_along, slack
from kernrl.verifier.judge.truth.exact import Exact, Products, perturbed, rounds
from kernrl.verifier.judge.truth.other_roundings import EagerRoundings, OtherRoundings, Rounded
from kernrl.verifier.judge.truth.reference_copy import ReferenceCopy
from kernrl.verifier.judge.truth.slices import Slices

PERTURBATION_ROUNDOFFS = 2.0
"""Eager's error counts as at least the effect of this many roundings of each input."""

FEW_ERRORS, MOST_RUNS = 32, 8
"""An output with fewer independent errors is modelled several times, until there are that many, or so many runs."""

UNLUCKY_RUNS, MOST_UNLUCKY = 32, 4.0
"""Further runs for an output that is beyond its tolerance by at most so many times, which is also how many times the error of
the runs before theirs counts as at most. Where one number holds all of an error (the rounding of a column, which every row
shares), an equally large honest one is more than twice the largest of 3 others in 7 of 100 draws, of 8 in 1 of 120, and of
3 + 32 in 1 of 10⁴."""

STEEP_RUNS, PLAIN_RUNS, AMPLIFIED, STEEP = 16, 8, 8.0, 4.0
"""Runs with so many times as much rounding as in the plain ones beside them. An error grows with the rounding; an element that
moves by so many times more than that lies where the result is steep. One that a rounding takes across a jump in one program of
ten crosses it in about half of the runs with more rounding."""

MOST_STEEP = 1 / 16
"""Share of an output's elements that may be wrong and be looked at so. That more of them lie where it is steep is no mistake:
one element may move all of its row."""

MARGIN_RUNS, SIDES = 4, 16
"""Runs that show which numbers lie near a jump, and runs with each of these on a side of its own."""

RERUN_BYTES = 16 << 20
"""Larger outputs (all of them, in float64) are modelled once, which bounds memory and time."""

OTHER_ROUNDINGS, MOST_LUCK = 16, 16.0
"""Runs of a 16-bit policy with other roundings than eager's, and how many times eager's error theirs counts as at most: beyond
that a result that explodes in one of them would accept anything."""

FLOAT32_RUNS = 4
"""Runs in float32 under a 16-bit policy, where little but their error is left."""

SAME_IN_FLOAT64 = 1e-9
"""Two runs in float64 that differ by this share of a number differ in what they compute, not in how it is rounded."""


@dataclass(slots=True)
class Answer:
    """The truth on one draw for every output, and eager's error."""

    truth: list[Tensor]
    levels: list[ErrorLevel]
    dtypes: list[torch.dtype]
    """Of eager's outputs under the policy."""
    statistics: tuple[str, ...] = ()
    """Names of the last outputs: the running statistics after the call, which a candidate may leave alone."""
    modelled: bool = True
    """Whether `levels` are those of all modelled runs, too. Without them tolerances are narrower."""
    jumps: bool = False
    """Whether some numbers lie so near an op's jump that a rounding decides on which side."""

    @property
    def nbytes(self) -> int:
        """Bytes of the truth and of the error levels."""
        names = ("nonfinite", "nonfinite_truth", "nonfinite_eager", "weights", "slack")
        kept = [getattr(level, name) for level in self.levels for name in names]
        return sum(t.nbytes for t in (*self.truth, *kept) if t is not None)


class ReferenceAnswers:
    """A task's reference at one input set: float64 beside the policy's own dtype, on the same numbers."""

    def __init__(self, inputs: TaskInputs, clock: Clock | None = None, slices: Slices | None = None):
        """`clock` is told what answers take."""
        self.inputs, self._clock = inputs, clock or Clock()
        self.slices = None if _trains(inputs.module) else slices
        """How the float64 run is cut; None, from the first run on, where the module does not go with it."""
        self._wide = ReferenceCopy(inputs, torch.float64)
        self._models = COMPUTE_DTYPE[inputs.precision].itemsize == 4
        """Whether rounding is modelled on every draw; under 16-bit policies, `with_other_roundings` does it for some."""

    @functools.cached_property
    def _rounded(self) -> ReferenceCopy:
        """For modelled runs; made with the first one."""
        return ReferenceCopy(self.inputs, torch.float32)

    def make_copies(self) -> None:
        """Make now what the first modelled run would make."""
        _ = self._models and self._rounded

    def answer(self, kind: Inputs = Inputs.OWN, *, truth: list[Tensor] | None = None) -> Answer:
        """The answer for the numbers that the inputs hold now; `kind` says where they come from. `truth` is what `quick` has
        found for the same numbers.

        Eager's error counts as at least that of a second float32 run in which every input and parameter is off by two
        roundings, and every operation by one more than its own: where a task magnifies rounding (a variance of two numbers, a
        softmax of large ones), a single eager run says little about the error of an equally good program. Under tf32, that run
        also models TF32 operands in every product: libraries may decline TF32 at odd shapes, but a candidate may use it there.
        Elements within that rounding of an op's jump may lie on either side of it, and of equal elements any may be picked
        (`jumps`).
        """
        jumps = Jumps()  # where there are any, `quick` has called this
        return self._whole(kind, truth if truth is not None else self._exact_run(jumps.recording()), jumps)

    def quick(self, kind: Inputs) -> tuple[Answer, list[tuple[Tensor, Tensor | None]]]:
        """An answer whose levels are still to be made of the second result, by `plain_level`, and lack the modelled runs: those
        can only raise an error that most candidates' is far below. Without a sync.

        Where they may do something else, it is `answer`'s, and the second result is empty.
        """
        jumps, precision = Jumps(), self.inputs.precision
        truth = self._exact_run(jumps.recording())
        if jumps.operands or jumps.picks or kind is Inputs.NONFINITE:
            return self._whole(kind, truth, jumps), []
        # in TF32, products of a good candidate are often further off than eager's
        rounded = [self.rounded_run(jumps, kind)] if precision == "tf32" else []
        eager = self._eager_run()
        with self._clock.at("levels"):
            figures = [
                level_figures(y, e, precision, modelled=[run[i] for run in rounded])
                for i, (y, e) in enumerate(zip(truth, eager, strict=True))
            ]
        modelled = not self._models and kind is Inputs.OWN
        return Answer(truth, [], [y.dtype for y in eager], tuple(self.inputs.statistics), modelled=modelled), figures

    def with_other_roundings(self, answer: Answer) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where eager's errors may be small by luck.

        Inputs of a regime may magnify a rounding beyond what one run can show: a softmax of large numbers has a few shares,
        each off by the exponential of one number's rounding, and a norm of a nearly constant row gives that row's rounding.
        Eager may happen to be near, and says little about an equally good program. So its error counts as at least that of
        runs with the same roundings on other grids, within `MOST_LUCK`. Where nothing is magnified, they come to the same.
        """
        dtype = COMPUTE_DTYPE[self.inputs.precision]
        modes = [OtherRoundings(dtype, rounds, self._eager_roundings(dtype))] * OTHER_ROUNDINGS
        return _raised(answer.levels, self._float32_figures(answer, modes), MOST_LUCK)

    def with_float32_errors(self, answer: Answer) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where a 16-bit policy's outputs have vanished.

        Of rows whose elements are all equal, x − mean(x) is 0, and so it may be in eager; a kernel that computes in float32 and
        rounds once is off by a rounding of float32, and that is nothing beside x and infinitely much beside 0. So eager's error
        counts as at least that of float32 runs.
        """
        named = frozenset((COMPUTE_DTYPE[self.inputs.precision],))
        mode = Exact(roundoff=UNIT_ROUNDOFF["fp32"], extremes=True, narrow=named, wide=torch.float32)
        pairs = zip(answer.levels, self._float32_figures(answer, [mode] * FLOAT32_RUNS), strict=True)
        return [replace(level, rms=rms, max=far, relative_rms=relative) for level, (rms, far, relative) in pairs]

    def _float32_figures(self, answer: Answer, modes: Sequence[TorchDispatchMode]) -> list[list[float]]:
        """[RMS, max, relative RMS] by output: the largest error of `answer` and of a float32 run in each mode."""
        found = [[level.rms, level.max, level.relative_rms] for level in answer.levels]
        rounded = ReferenceCopy(self.inputs, torch.float32)  # seldom needed, and not kept
        for mode in modes:
            with self._clock.at("rounded"), policy_flags("fp32"):
                run = rounded.run_in_slices(self.slices, mode, lambda: True) if self.slices else None
                run = run or rounded.run(None, mode, wide=False)
            found = _larger(found, run, answer)
            del run  # before the next one is made
        return found

    def with_more_runs(self, answer: Answer, kind: Inputs) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where all modelled runs may have been lucky.

        How many errors are independent, as `answer` counts them, is not seen in one run: in rows that are nearly equal, all
        elements of a column share one, that of an operand's rounding. So many more runs count, within `MOST_UNLUCKY`.
        """
        found = [[level.rms, level.max, level.relative_rms] for level in answer.levels]
        for _ in range(UNLUCKY_RUNS):
            run = self.rounded_run(None, kind, products="by lot")
            found = _larger(found, run, answer)
            del run  # before the next one is made
        return _raised(answer.levels, found, MOST_UNLUCKY)

    def with_other_sides(self, answer: Answer, kind: Inputs) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where several numbers near jumps meet.

        The two runs of `answer` put all of them on the same side. What is made of several may be further from the truth where
        each lies on a side of its own, as in a program.
        """
        jumps = Jumps()
        self._exact_run(jumps.recording())
        for _ in range(MARGIN_RUNS):
            self.rounded_run(jumps.measuring(), kind, products="by lot")
        free = [level.slack for level in answer.levels]
        for _ in range(SIDES):
            far = slack(answer.truth, [self._exact_run(jumps.moved(None), "jumps")])
            twice = [None if x is None else RMS_FACTOR * x for x in far]
            free = [b if a is None else a if b is None else torch.maximum(a, b) for a, b in zip(free, twice, strict=True)]
        return [replace(level, slack=x) for level, x in zip(answer.levels, free, strict=True)]

    def with_steep_places(self, answer: Answer, bounds: Sequence[Tolerance], kind: Inputs) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where a rounding may move few elements far.

        The sigmoid of a large product is 0 or 1, and a rounding decides which where the product is near 0. Such elements are so
        few that no modelled run may have met one; an honest program may, whose error there is a thousand times the tolerance.
        Runs with more rounding find them. An element that they move beyond what `bounds` allow one may be off by twice that, if
        it moves over `STEEP` times as far as errors grow, or if plain runs move it beyond the error that the bounds were made
        of.
        """
        plain, moved = self._furthest(answer, kind, PLAIN_RUNS, 1.0), self._furthest(answer, kind, STEEP_RUNS, AMPLIFIED)
        steep = []
        for level, near, far, bound in zip(answer.levels, plain, moved, bounds, strict=True):
            moves = (far > STEEP * AMPLIFIED * near) | (near > bound.max / MAX_FACTOR)
            is_steep = (far > bound.of_one(far.numel())) & moves
            free = torch.where(is_steep, RMS_FACTOR * far, 0.0)
            steep.append(replace(level, slack=free if level.slack is None else torch.maximum(level.slack, free)))
        return steep

    def _furthest(self, answer: Answer, kind: Inputs, runs: int, amplified: float) -> list[Tensor]:
        """By output, how far each element was from the truth in the run that had it furthest; 0 where it is no number."""
        furthest = [torch.zeros_like(y, dtype=torch.float64) for y in answer.truth]
        for _ in range(runs):
            run = self.rounded_run(None, kind, products="by lot", amplified=amplified)
            for far, y, truth in zip(furthest, run, answer.truth, strict=True):
                if truth.is_floating_point():
                    torch.maximum(far, (widened(y) - truth).abs().nan_to_num(0.0, 0.0, 0.0), out=far)
            del run  # before the next one is made
        return furthest

    def _eager_roundings(self, dtype: torch.dtype) -> list[Rounded]:
        """What eager rounds to `dtype`; a run of it that leaves running statistics as they are."""
        buffers = [(buffer, buffer.clone()) for buffer in self.inputs.module.buffers()]
        mode = EagerRoundings(dtype, rounds)
        with mode:
            self._eager_run()
        for buffer, before in buffers:
            buffer.copy_(before)
        return mode.noted

    def _whole(self, kind: Inputs, truth: list[Tensor], jumps: Jumps) -> Answer:
        precision = self.inputs.precision
        rounded = [self.rounded_run(jumps.measuring(), kind)] if self._models else []
        if precision == "tf32" and are_small(truth):  # it makes other rows equal than truncation
            rounded.append(self.rounded_run(jumps.measuring(), kind, products="nearest"))
        with self._clock.at("rounded"):
            more = range(_more_runs(truth, rounded))
        rounded += [self.rounded_run(jumps.measuring(), kind, products="by lot") for _ in more]
        if not self._models:
            jumps.relative(PERTURBATION_ROUNDOFFS * UNIT_ROUNDOFF[precision])
        sides = [self._exact_run(jumps.moved(side), "jumps") for side in (1.0, -1.0)] if jumps.near else []
        either = slack(truth, sides) if sides else [None] * len(truth)
        if jumps.picks:
            rounded += [self._exact_run(Jumps().preferring(which), "jumps") for which in ("first", "last")]
        eager = self._eager_run()
        if kind is Inputs.NONFINITE and jumps.searches:
            lost = self._unordered(truth)
            eager = [torch.where(m, torch.nan, e) if e.is_floating_point() else e for e, m in zip(eager, lost, strict=True)]
        with self._clock.at("levels"):
            levels = [
                error_level(y, e, precision, modelled=[run[i] for run in rounded], inputs=kind, slack=either[i])
                for i, (y, e) in enumerate(zip(truth, eager, strict=True))
            ]
        if kind is not Inputs.NONFINITE:
            for y, level in zip(truth, levels, strict=True):
                level.distinct = distinct_along(y, jumps)
        return Answer(truth, levels, [y.dtype for y in eager], tuple(self.inputs.statistics), jumps=jumps.near)

    def _unordered(self, truth: list[Tensor]) -> list[Tensor]:
        """Where outputs are what a search among numbers with NaN has found (bool): other programs find something else."""
        run = self._exact_run(Jumps().losing_nan(), "jumps")
        return [~((x - y).abs() <= SAME_IN_FLOAT64 * y.abs()) for x, y in zip(run, truth, strict=True)]

    def _eager_run(self) -> list[Tensor]:
        with self._clock.at("eager"), torch.no_grad(), policy_flags(self.inputs.precision):
            return self.inputs.call() + [self.inputs.state[name].clone() for name in self.inputs.statistics]

    def _exact_run(self, jumps: Jumps, part: str = "truth") -> list[Tensor]:
        mode = Exact(jumps=jumps, narrow=narrow_dtypes(self.inputs.precision))
        with self._clock.at(part):
            if self.slices:
                truth = self._wide.run_in_slices(self.slices, mode, lambda: not jumps.operands)
                if truth is not None:
                    return truth
                self.slices = None
                jumps.forget()
                del self._wide  # what it holds may have changed
                self._wide = ReferenceCopy(self.inputs, torch.float64)
            return self._wide.run(None, mode)

    def rounded_run(
        self, jumps: Jumps | None, kind: Inputs, *, products: Products = "cut", amplified: float = 1.0
    ) -> list[Tensor]:
        """Outputs of a run with more rounding than eager's; `products`: how operands become TF32 under that policy;
        `amplified`: so many times as much. On inputs that are not the task's own, very large numbers may have no answer."""
        u, tf32 = amplified * UNIT_ROUNDOFF["fp32"], self.inputs.precision == "tf32"
        # operands that are cut already are the same numbers to tensor cores, which are eight times as fast
        with self._clock.at("rounded"), policy_flags("tf32" if tf32 else "fp32"):
            extremes = kind is not Inputs.OWN
            mode = Exact(tf32=products if tf32 else None, roundoff=u, jumps=jumps, extremes=extremes, amplified=amplified)
            return self._rounded.run(lambda x: perturbed(x, PERTURBATION_ROUNDOFFS * u), mode)


def are_small(truth: Sequence[Tensor]) -> bool:
    """Whether outputs are small enough to be modelled several times."""
    return 8 * sum(y.numel() for y in truth) <= RERUN_BYTES


def _more_runs(truth: list[Tensor], rounded: list[list[Tensor]]) -> int:
    """How often outputs are modelled again: of a few errors, chance decides how large they are."""
    pairs = [(y, x) for run in rounded for y, x in zip(truth, run, strict=True) if y.numel() and y.is_floating_point()]
    if not pairs or not are_small(truth):
        return 0
    fewest = float(torch.stack([_independent_errors(widened(x) - widened(y)) for y, x in pairs]).amin())
    return min(MOST_RUNS, math.ceil(FEW_ERRORS / max(fewest, 1.0))) - 1


def _larger(found: list[list[float]], run: Sequence[Tensor], answer: Answer) -> list[list[float]]:
    """[RMS, max, relative RMS] by output: the larger of `found` and of a run of the same numbers, where it is finite."""
    larger = []
    for known, y, truth, level in zip(found, run, answer.truth, answer.levels, strict=True):
        figures = error_figures(y, truth, level).tolist()[:3]
        finite = all(map(math.isfinite, figures))
        larger.append([max(a, b) for a, b in zip(known, figures, strict=True)] if finite else known)
    return larger


def _raised(levels: Sequence[ErrorLevel], found: Sequence[Sequence[float]], most: float) -> list[ErrorLevel]:
    """Levels with the errors of other runs, [RMS, max, relative RMS] by output, where larger; at most so many times."""
    raised = []
    for level, (rms, largest, relative) in zip(levels, found, strict=True):
        within = {"rms": min(rms, most * level.rms), "max": min(largest, most * level.max)}
        raised.append(replace(level, **within, relative_rms=min(relative, most * level.relative_rms)))
    return raised


def _independent_errors(error: Tensor) -> Tensor:
    """About how many independent errors make up an error's RMS: 0-dim float64, without a sync.

    The elements that hold it (the participation ratio (Σe²)² / Σe⁴), times the share of rows that do: elements of a row may
    share one error, that of the row's softmax or variance, and then a few rows hold nearly all.
    """
    error = torch.where(torch.isfinite(error), error, 0.0).double()
    energy = (error / error.abs().amax().clamp_min(1e-300)).square()  # a square of 1e200 is infinite
    rows = energy.reshape(-1, energy.shape[-1] if energy.dim() else 1).sum(1)
    held, held_rows = (x.sum().square() / x.square().sum().clamp_min(1e-300) for x in (energy.reshape(-1), rows))
    return torch.where(energy.sum() > 0, held * held_rows / len(rows), float(energy.numel()))


def _trains(module: nn.Module) -> bool:
    """Whether a part updates statistics of its batches. torch does not say that its norms write to those."""
    return any(part.training and getattr(part, "running_mean", None) is not None for part in module.modules())
