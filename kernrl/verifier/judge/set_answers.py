"""The answers to the draws of one input set, and the tolerances that follow from them.

The errors of other admissible programs (modelled runs) are found out only for outputs that are further off than
eager's error allows: they can only allow more, and most outputs are far inside. Every output is held against eager's error
first, and then against all, so that no verdict depends on which outputs were judged before. What is still beyond, by little, is
held against many more runs of its draw: all runs before may have been lucky. What is beyond in few elements is held against
runs that show where a rounding moves an element far.

Under 16-bit policies, such runs are made of a regime's draw alone, and raise no other draw's tolerance: the task's own inputs
are always held against eager's error. Where an output has vanished, float32 runs count from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernrl.verifier.base.clock import Clock
from kernrl.verifier.judge.compare import ErrorLevel, Inputs, Tolerance, count_beyond, plain_level, tolerances_for
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.regimes import NOMINAL, TIMED
from kernrl.verifier.judge.truth.reference_answers import (
    MOST_LUCK,
    MOST_STEEP,
    MOST_UNLUCKY,
    Answer,
    ReferenceAnswers,
    are_small,
)

VANISHED = 2.0**-16
"""Beside the outputs of the task's own inputs, ones so small are what a difference of nearly equal numbers leaves."""


def _kind(draw: Draw) -> Inputs:
    return Inputs.OWN if draw.own else Inputs.FINITE if draw.finite else Inputs.NONFINITE


@dataclass(slots=True)
class SetAnswers:
    """Of one input set, in the order of `draws`: the schedule's, then those for judged calls while timing."""

    draws: list[Draw] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    tolerances: list[list[Tolerance]] = field(default_factory=list)
    _whole: list[list[ErrorLevel]] = field(default_factory=list)
    """Error levels of all modelled runs, for the first draws."""
    _alone: dict[int, list[ErrorLevel]] = field(default_factory=dict)
    """By draw, where its tolerances alone were raised: error levels of runs with other roundings (16-bit policies), or of many
    more modelled runs."""
    _sided: dict[int, list[ErrorLevel]] = field(default_factory=dict)
    """By draw: error levels with the slack of numbers near jumps, each on a side of its own."""
    _steep: dict[int, list[ErrorLevel]] = field(default_factory=dict)
    """By draw: error levels with the slack of elements that a rounding moves far."""

    @property
    def nbytes(self) -> int:
        """Bytes of the answers, and of the slack of jumps and steep places."""
        slacks = [level.slack for kept in (self._sided, self._steep) for levels in kept.values() for level in levels]
        return sum(a.nbytes for a in self.answers) + sum(x.nbytes for x in slacks if x is not None)

    def add(self, draws: Sequence[Draw], reference: ReferenceAnswers, clock: Clock) -> None:
        """Answer more draws; the first time, the whole schedule. Waits for a GPU once, if the answers are ordinary numbers."""
        made = _answers(draws, reference, clock)
        self.answers += made
        self.draws += draws
        for draw, answer in zip(draws, made, strict=True):
            if self._half and self._vanishes(answer):
                with clock.at("draw"):
                    reference.inputs.draw(draw)
                answer.levels = reference.with_float32_errors(answer)
        levels = [answer.levels for answer in self.answers]
        if not self.tolerances:
            self.tolerances = tolerances_for(levels, self._nominal)
        while len(self.tolerances) < len(levels):
            self.tolerances.append(self._tolerances(levels, len(self.tolerances)))

    def lacks_runs(self, row: int, excess: float = 1.0) -> bool:
        """Whether modelled runs that have not been made could raise a draw's tolerances, by so much."""
        if self._half:
            return not self.answers[row].modelled and excess <= MOST_LUCK
        return not all(answer.modelled for answer in self.answers[: self._count(row)])

    def with_all_runs(self, row: int, reference: ReferenceAnswers, clock: Clock) -> tuple[list[ErrorLevel], list[Tolerance]]:
        """A draw's error levels and tolerances after all modelled runs."""
        if self._half:
            if row not in self._alone:
                with clock.at("draw"):
                    reference.inputs.draw(self.draws[row])
                self._alone[row] = reference.with_other_roundings(self.answers[row])
            levels = [answer.levels for answer in self.answers]
            levels[row] = self._alone[row]
            return self._alone[row], self._tolerances(levels, row)
        for i in range(len(self._whole), self._count(row)):
            self._whole.append(_whole_levels(self.draws[i], self.answers[i], reference, clock))
        return self._whole[row], self._tolerances(self._whole, row)

    def may_be_luck(self, excess: float) -> bool:
        """Whether many more modelled runs could allow an error that is beyond all runs' tolerances, by so much."""
        return excess <= MOST_UNLUCKY and self._runs_again()

    def may_be_steep(
        self, row: int, shown: Sequence[Tensor], levels: Sequence[ErrorLevel], tolerances: Sequence[Tolerance]
    ) -> bool:
        """Whether outputs are wrong in so few elements that each may lie where a rounding moves it far."""
        if not self._runs_again() or _kind(self.draws[row]) is Inputs.NONFINITE:
            return False
        given = zip(shown, self.answers[row].truth, levels, tolerances, strict=False)
        sized = [(y, truth, level, bound.of_one(truth.numel()), truth.numel()) for y, truth, level, bound in given]
        counts = [(count_beyond(y, truth, level, most), size) for y, truth, level, most, size in sized]
        return any(beyond for beyond, _ in counts) and all(beyond <= max(1.0, MOST_STEEP * size) for beyond, size in counts)

    def _runs_again(self) -> bool:
        return not self._half and are_small(self.answers[0].truth)

    def with_more_runs(self, row: int, reference: ReferenceAnswers, clock: Clock) -> tuple[list[ErrorLevel], list[Tolerance]]:
        """A draw's error levels and tolerances after many more modelled runs of it, which raise no other draw's."""
        self.with_all_runs(row, reference, clock)
        levels = list(self._whole)
        if row not in self._alone:
            with clock.at("draw"):
                reference.inputs.draw(self.draws[row])
            self._alone[row] = reference.with_more_runs(replace(self.answers[row], levels=levels[row]), _kind(self.draws[row]))
        levels[row] = self._alone[row]
        return self._alone[row], self._tolerances(levels, row)

    def may_lie_elsewhere(self, row: int) -> bool:
        """Whether outputs depend on numbers that lie near jumps, so that another right program may give others."""
        return self.answers[row].jumps and self._runs_again()

    def with_other_sides(self, row: int, reference: ReferenceAnswers, clock: Clock) -> tuple[list[ErrorLevel], list[Tolerance]]:
        """A draw's error levels, with numbers near jumps each on a side of its own, and its tolerances."""
        levels, tolerances = self.with_more_runs(row, reference, clock)
        if row not in self._sided:
            with clock.at("draw"):
                reference.inputs.draw(self.draws[row])
            self._sided[row] = reference.with_other_sides(replace(self.answers[row], levels=levels), _kind(self.draws[row]))
        return self._sided[row], tolerances

    def with_steep_places(
        self, row: int, reference: ReferenceAnswers, clock: Clock
    ) -> tuple[list[ErrorLevel], list[Tolerance]]:
        """A draw's error levels, with the elements that more rounding moves far, and its tolerances."""
        before = self.with_other_sides if self.may_lie_elsewhere(row) else self.with_more_runs
        levels, tolerances = before(row, reference, clock)
        if row not in self._steep:
            with clock.at("draw"):
                reference.inputs.draw(self.draws[row])
            answer = replace(self.answers[row], levels=levels)
            self._steep[row] = reference.with_steep_places(answer, tolerances, _kind(self.draws[row]))
        return self._steep[row], tolerances

    @property
    def _half(self) -> bool:
        return any(level.precision in ("bf16", "fp16") for answer in self.answers for level in answer.levels)

    def _vanishes(self, answer: Answer) -> bool:
        """Whether an output is next to nothing beside the same on the task's own inputs."""
        pairs = zip(answer.levels, self.answers[self._nominal].levels, strict=True)
        return any(level.scale < VANISHED * own.scale for level, own in pairs if level.weights is not None)

    def _tolerances(self, levels: list[list[ErrorLevel]], row: int) -> list[Tolerance]:
        return tolerances_for(levels[: self._count(row)], self._nominal)[row]

    def _count(self, row: int) -> int:
        """On how many of the first draws a draw's tolerances depend: on the schedule's and those before it."""
        return max(row + 1, sum(draw.regime != TIMED for draw in self.draws))

    @property
    def _nominal(self) -> int:
        return next((i for i, draw in enumerate(self.draws) if draw.regime == NOMINAL), 0)


def _answers(draws: Sequence[Draw], reference: ReferenceAnswers, clock: Clock) -> list[Answer]:
    """With the modelled runs alone that most outputs need."""
    made = []
    for draw in draws:
        with clock.at("draw"):
            reference.inputs.draw(draw)
        made.append(reference.quick(_kind(draw)))
    figures = [one for _, of_draw in made for one, _ in of_draw]
    rows = iter(torch.stack(figures).tolist() if figures else [])  # the only sync
    for draw, (answer, of_draw) in zip(draws, made, strict=True):
        levels = [plain_level(next(rows), weights, reference.inputs.precision, _kind(draw)) for _, weights in of_draw]
        answer.levels += [level for level in levels if level]
        if None in levels:
            answer.levels, answer.modelled = _whole_levels(draw, answer, reference, clock), True
    return [answer for answer, _ in made]


def _whole_levels(draw: Draw, answer: Answer, reference: ReferenceAnswers, clock: Clock) -> list[ErrorLevel]:
    """Error levels of all modelled runs."""
    if answer.modelled and len(answer.levels) == len(answer.truth):
        return answer.levels
    with clock.at("draw"):
        reference.inputs.draw(draw)
    return reference.answer(_kind(draw), truth=answer.truth).levels
