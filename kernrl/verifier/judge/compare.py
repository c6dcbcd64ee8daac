"""Is an output right? Its error against float64 is compared with eager PyTorch's error under the same precision policy.

The rule, for every output of every draw, with e = output − truth in float64 and u the policy's unit roundoff:

    RMS(e_candidate) ≤ 2·max(RMS(e_eager), typical) + 8u·scale        max|e_candidate| ≤ 4·max(max|e_eager|, …) + 32u·scale

- *Against eager, not against a constant*: the error that a task's numerics allow differs by orders of magnitude from task to
  task, and eager shows it. TF32 or fp16 inside an fp32 task is 2,000 times over the bound.
- *typical*: eager's median relative error over the draws of the input set. On a single draw eager may be exact by luck (an
  output of one element, a sparse input).
- *e_eager* counts as at least the effect of two roundings of every input and parameter in float64: where a task magnifies
  rounding, a single eager run says little about the error of an equally good program. For outputs of few elements, such as a
  mean loss, that run is repeated: two errors may both be small by luck, and an honest third one larger. Such runs are
  made only for what eager's error alone does not allow (`set_answers.py`), and 32 more for what all of them hardly refuse.
- *16-bit policies* are held against eager alone on the task's own inputs. In other regimes, what eager gives is one of many
  roundings, and where its error alone does not allow an output, others count, too (`ReferenceAnswers.with_other_roundings`).
- *scale* is the larger of this draw's output RMS and the nominal draw's. Honest code may trade a small absolute error for
  speed, such as tanh(x) as 2·sigmoid(2x) − 1, which is off by u near 0 however small x is. Mistakes that matter (an
  epsilon outside its root) are as large as the output itself on the small draw, so they still show.
- *8u and 32u*: sums in another order (sequential, or by atomics), fused multiply-adds and exp2-based exponentials each move
  a result by a few u. A mean over 56 × 56 numbers summed by atomics was 4.3u off in RMS, eager 0.5u.
- In bf16 and fp16, honest code computes in float32 and rounds once, so there the error relative to each output element is
  compared, too: a wrong branch on small outputs cannot hide behind the rounding of large ones.
- Complex outputs are pairs of real numbers, and judged as these.
- For integers and booleans, the share of elements that differ at all is compared with eager's share, too. Where eager's
  argmax meets many ties, its numeric error alone is as large as that of a constant. Of equal elements `topk` and `sort` may
  name any, but none twice.
- NaNs and infinities must be exactly where truth or eager has them, on the task's own inputs. In other regimes, NaN in eager's
  answer or a modelled one, or an infinity that two roundings make a number, means that there is none: any is accepted there:
  `tl.maximum` drops a NaN that `relu` keeps. Where inputs are infinite or NaN, only answers that are finite all the same count.
- *Overflow is decided by a rounding*, too: of exp(a product), some elements lie so near the largest number that a run with two
  roundings more overflows where truth and eager do not, or the other way round. Four times as many may. Of the task's own
  inputs, none of them may be NaN where the truth is below a millionth of the largest number. In other regimes, any answer is
  accepted beyond that millionth, and NaN counts as the others below: sin(exp(x)) is NaN where exp overflows, the truth is not.
- *Means far from zero* (64 and 1,000 spreads) need no term of their own. Two roundings of every input move (x − mean)/spread by
  2·1,000u, so a variance by deviations, Welford's or a shifted one-pass sum is well inside. E[x²] − E[x]² is off by about
  1,000²·u in the variance, which is 250 times over. So one-pass statistics may be used where a shift keeps them accurate (a
  first element, a block's mean), or where the task's own arithmetic has lost as much before.
- *Jumps*: an element that lies within a rounding of one (`hardshrink` at its threshold, a comparison) is right on either side.
- *Rows of equal elements*: the exact variance is 0, but the same two roundings make it (2u·x)², so that a mean that is off by a
  rounding, magnified by 1/√eps, is accepted.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernrl.verifier.base.precision import COMPUTE_DTYPE, UNIT_ROUNDOFF, as_pairs, widened
from kernrl.verifier.judge.error_norms import norms, parts

RMS_FACTOR, MAX_FACTOR = 2.0, 4.0
RMS_ROUNDOFFS, MAX_ROUNDOFFS = 8.0, 32.0
LARGE = 2.0**-20
"""Share of the largest float32 or bf16 number from which an overflow is near."""

RELATIVE_FLOOR = 1 / 64
"""For relative errors, outputs below this share of the scale count as this large."""


LEAST = 1e-30
"""Relative errors are of numbers no smaller than this: their squares are finite where the truth is 0."""


class Inputs(enum.Enum):
    """What is held against where the reference's answer is not finite."""

    OWN = "own"
    """The task's own inputs: NaN and infinity exactly where the truth or eager has them."""
    FINITE = "finite"
    """Other numbers: infinities, too, but NaN means that there is no answer."""
    NONFINITE = "nonfinite"
    """Infinities and NaN among the inputs: only answers that are finite all the same, and no integers."""


@dataclass(slots=True)
class ErrorLevel:
    """Eager's error on one output of one draw, and what it takes to judge others by it. Floats, so that no sync is left."""

    rms: float
    max: float
    relative_rms: float
    """Relative to the truth under the 16-bit policies; for integers and booleans, the share of elements that differ."""
    scale: float
    """RMS of the truth over its comparable elements; `tolerances_for` raises it to the nominal draw's."""
    precision: str
    nonfinite: Tensor | None = None
    """Where truth or eager is not finite (bool, the output's shape); None if all elements are finite."""
    nonfinite_truth: Tensor | None = None
    nonfinite_eager: Tensor | None = None
    undefined: Tensor | None = None
    """Where any answer is accepted (bool); None if nowhere."""
    weights: Tensor | None = field(default=None, repr=False)
    """1 / max(|truth|, scale/64), kept for the 16-bit policies."""
    misplaced: float = 0.0
    """Elements of an equally good answer that are finite, or infinite, where neither truth nor eager is."""
    edge: float = 0.0
    """Where the truth is smaller, no NaN may be among those."""
    distinct: int | None = None
    """The dim along which no integer may occur twice, as the places that `topk` finds; None if any may."""
    slack: Tensor | None = field(default=None, repr=False)
    """By how much an element may be off because it lies within a rounding of a jump; None if none does."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest error accepted on one output of one draw."""

    rms: float
    max: float
    relative_rms: float
    misplaced: float = 0.0
    """Elements that may be finite, or infinite, where neither truth nor eager is."""

    def of_one(self, count: int) -> float:
        """The least error with which one element of `count` may explain that an output is refused: above `max`, or a quarter of
        the squared error that `rms` allows."""
        return min(self.max, self.rms * math.sqrt(count) / 2.0)


def _differing(y: Tensor, truth: Tensor) -> list[Tensor]:
    """[RMS, max, share of elements that differ] of an integer output's error, without a sync."""
    differing: list[Tensor] = []

    def errors() -> Iterator[tuple[Tensor, None]]:
        for part, right in parts(y, truth):
            error = part.double() - right.double()
            differing.append((error != 0).sum())
            yield error, None

    rms, largest, _ = norms(errors(), y.numel())
    return [rms, largest, torch.stack(differing).sum().double() / max(y.numel(), 1)]


_ELEMENTWISE = ("nonfinite", "nonfinite_truth", "nonfinite_eager", "undefined", "weights", "slack")
"""Fields of an `ErrorLevel` that have its output's shape."""


def error_level(
    truth: Tensor,
    eager: Tensor,
    precision: str,
    *,
    modelled: Sequence[Tensor] = (),
    inputs: Inputs = Inputs.OWN,
    slack: Tensor | None = None,
) -> ErrorLevel:
    """Eager's error against the truth (float64). `modelled` are other admissible answers: the largest error counts.

    `slack` is by how much an element may be off for another reason than rounding; it counts as no error.
    """
    figures, weights = level_figures(truth, eager, precision, modelled=modelled, slack=slack)
    row = figures.tolist()  # the only sync if all is finite
    if level := plain_level(row, weights, precision, inputs):
        level.slack = slack
        if inputs is Inputs.NONFINITE and not truth.is_floating_point():
            level.undefined = torch.ones_like(truth, dtype=torch.bool)
        return level
    scale, _, rms, largest, relative = row
    truth, eager, modelled = widened(truth), widened(eager), [widened(y) for y in modelled]
    limit = _limit(precision, inputs)
    beyond, own = truth.to(COMPUTE_DTYPE[precision]), inputs is Inputs.OWN
    nonfinite = ~torch.isfinite(truth) | (truth.abs() > limit) | ~torch.isfinite(eager)
    undefined = None if own else nonfinite & ((truth.abs() > limit) | _without_answer(beyond, eager, modelled, inputs))
    level = ErrorLevel(rms, largest, relative, scale, precision, nonfinite, beyond, eager, undefined, slack=slack)
    level.edge = LARGE * limit if own else 0.0
    if modelled and (own or bool(nonfinite.any())):
        counts = [(_placed(y, truth, level)[0] & ~_impossible(y, truth, level)).sum() for y in modelled]
        level.misplaced = float(torch.stack(counts).amax())
    if undefined is not None:
        for y in modelled:
            nonfinite, undefined = nonfinite | torch.isnan(y), undefined | torch.isnan(y)
    answers = [(eager, nonfinite), *((y, nonfinite | ~torch.isfinite(y)) for y in modelled)]
    unmeasured = ~torch.isfinite(truth) | (truth.abs() > limit)  # where eager alone overflows, answers near the truth are right
    figures, level.weights = _figures(torch.where(unmeasured, 0.0, truth), answers, precision, slack)
    level.scale, _, level.rms, level.max, level.relative_rms = figures.tolist()
    level.undefined, level.nonfinite = undefined, nonfinite
    if not bool(nonfinite.any()):  # but the modelled answer is
        level.nonfinite = level.nonfinite_truth = level.nonfinite_eager = None
    return level


def level_figures(
    truth: Tensor, eager: Tensor, precision: str, *, modelled: Sequence[Tensor] = (), slack: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What `plain_level` makes an error level of, without a sync: [RMS and maximum of the truth; RMS, maximum and relative RMS
    of the largest error], and the weights of the relative error."""
    if not truth.is_floating_point():
        errors = [torch.stack(_differing(y, truth)) for y in (eager, *modelled)]
        scale, _, none = norms(((part.double(), None) for (part,) in parts(truth)), truth.numel())
        return torch.cat([torch.stack([scale, none]), functools.reduce(torch.maximum, errors)]), None
    truth = widened(truth)
    return _figures(truth, [(y, None) for y in (eager, *modelled)], precision, slack)


def plain_level(
    figures: Sequence[float], weights: Tensor | None, precision: str, inputs: Inputs = Inputs.OWN
) -> ErrorLevel | None:
    """The level of `level_figures`; None where not all is finite, or the truth is near the largest number."""
    scale, furthest, rms, largest, relative = figures
    if not math.isfinite(scale + rms + largest + relative) or furthest > _limit(precision, inputs):
        return None
    return ErrorLevel(rms, largest, relative, scale, precision, weights=weights)


def _limit(precision: str, inputs: Inputs) -> float:
    """The largest number that an answer may be and be judged by its error alone."""
    limit = torch.finfo(COMPUTE_DTYPE[precision]).max
    # of fp16's numbers, a millionth would leave none
    return limit if inputs is Inputs.OWN or precision == "fp16" else limit * LARGE


def _beyond(error: Tensor, slack: Tensor | None) -> Tensor:
    """What an error exceeds the slack by."""
    return error if slack is None else error.sign() * (error.abs() - slack).clamp_min(0.0)


def _without_answer(truth: Tensor, eager: Tensor, modelled: Sequence[Tensor], inputs: Inputs) -> Tensor:
    """Where the reference has no definite answer: NaN, or an infinity that a rounding more or less makes a number."""
    if inputs is Inputs.NONFINITE:
        return torch.ones_like(truth, dtype=torch.bool)
    unsure = torch.isnan(truth) | torch.isnan(eager)
    for y in modelled:
        unsure = unsure | (torch.isinf(truth) & torch.isfinite(y))
    return unsure


def _figures(
    truth: Tensor, answers: Sequence[tuple[Tensor, Tensor | None]], precision: str, slack: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Of float64 truth, and answers with the places that are left out, without a sync: [RMS and maximum of the truth; RMS,
    maximum and relative RMS of the largest error], and the weights of the relative error."""
    scale, largest, _ = norms(((part, None) for (part,) in parts(truth)), truth.numel())
    half = precision in ("bf16", "fp16")
    weights = 1.0 / torch.maximum(truth.abs(), scale * RELATIVE_FLOOR).clamp_min(LEAST) if half else None

    def errors(y: Tensor, left_out: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        for part, right, free, weight, out in parts(y, truth, slack, weights, left_out):
            error = _beyond(widened(part) - right, free)
            yield error if out is None else torch.where(out, 0.0, error), weight

    found = [torch.stack([scale, largest, *norms(errors(*one), truth.numel())]) for one in answers]
    return functools.reduce(torch.maximum, found), weights


def tolerances_for(levels: list[list[ErrorLevel]], nominal: int) -> list[list[Tolerance]]:
    """Tolerances for the draws of one input set: `levels[draw][output]`, with the index of the nominal draw."""
    tolerances: list[list[Tolerance]] = [[] for _ in levels]
    for column in zip(*levels, strict=True):
        typical_rms, typical_max, typical_relative = (
            sorted(values)[len(values) // 2]
            for values in (
                [c.rms / c.scale if c.scale else 0.0 for c in column],
                [c.max / c.scale if c.scale else 0.0 for c in column],
                [c.relative_rms for c in column],
            )
        )
        for row, level in zip(tolerances, column, strict=True):
            u = UNIT_ROUNDOFF[level.precision]
            scale = max(level.scale, column[nominal].scale)
            row.append(
                Tolerance(
                    RMS_FACTOR * max(level.rms, typical_rms * level.scale) + RMS_ROUNDOFFS * u * scale,
                    MAX_FACTOR * max(level.max, typical_max * level.scale) + MAX_ROUNDOFFS * u * scale,
                    RMS_FACTOR * max(level.relative_rms, typical_relative) + RMS_ROUNDOFFS * u,
                    MAX_FACTOR * (level.misplaced + math.sqrt(level.misplaced)),
                )
            )
    return tolerances


def error_figures(output: Tensor, truth: Tensor, level: ErrorLevel) -> Tensor:
    """[RMS, max, relative RMS, count of elements wrongly (not) finite] of an output's error: float64, without a sync.

    Of integers, the third is the share of those that differ, and the last how many name a place again (`ErrorLevel.distinct`).
    """
    if not truth.is_floating_point():
        found = _differing(output, truth)
        none = found[0].new_zeros(())
        if level.undefined is not None:
            return torch.stack([none] * 4)
        return torch.stack([*found, none if level.distinct is None else _repeated(output, level.distinct).double()])
    misplaced: list[Tensor] = []

    def errors() -> Iterator[tuple[Tensor, Tensor | None]]:
        for part, right, at in _with_levels(output, truth, level):
            part = widened(part)
            error = _beyond(part - right, at.slack)  # in float64, as the truth is
            if level.nonfinite is not None or level.misplaced:
                wrong, left_out = _placed(part, right, at)
                impossible = (wrong & _impossible(part, right, at)).any()
                misplaced.append(torch.where(impossible, math.inf, wrong.sum().double()))
                error = torch.where(left_out, 0.0, error)
            yield error, at.weights

    found = norms(errors(), output.numel())
    return torch.stack([*found, torch.stack(misplaced).sum() if misplaced else found[0].new_zeros(())])


def _repeated(output: Tensor, dim: int) -> Tensor:
    """How many of an integer output's elements occur before along a dim: 0-dim, without a sync."""
    ordered = output.sort(dim).values
    return (ordered.narrow(dim, 1, ordered.shape[dim] - 1) == ordered.narrow(dim, 0, ordered.shape[dim] - 1)).sum()


def _with_levels(output: Tensor, truth: Tensor, level: ErrorLevel) -> Iterator[tuple[Tensor, Tensor, ErrorLevel]]:
    """`parts` of output and truth, each with its part of the level."""
    for part, right, *of_level in parts(output, truth, *(getattr(level, name) for name in _ELEMENTWISE)):
        yield part, right, replace(level, **dict(zip(_ELEMENTWISE, of_level, strict=True)))


def _placed(output: Tensor, truth: Tensor, level: ErrorLevel) -> tuple[Tensor, Tensor]:
    """(elements that are finite, or infinite, where they should not be; those whose error does not count). No sync."""
    wrong = ~torch.isfinite(output)
    if level.nonfinite is None:
        return wrong, wrong
    assert level.nonfinite_truth is not None
    matches = _same_kind(output, level.nonfinite_truth) | _same_kind(output, level.nonfinite_eager)
    # where only eager overflowed, a finite answer near the truth is right
    near = torch.isfinite(level.nonfinite_truth) & ~wrong
    if level.undefined is not None:
        matches, near = matches | level.undefined, near & ~level.undefined
    wrong = torch.where(level.nonfinite, ~matches & ~near, wrong)
    return wrong, wrong | (level.nonfinite & (matches | ~near))


def _impossible(output: Tensor, truth: Tensor, level: ErrorLevel) -> Tensor:
    """NaN among ordinary numbers of the task's own inputs: no rounding makes it."""
    return torch.isnan(output) & (truth.abs() < level.edge)


def _same_kind(a: Tensor, b: Tensor | None) -> Tensor:
    """Where both are NaN, or both the same infinity."""
    assert b is not None
    return (torch.isnan(a) & torch.isnan(b)) | (torch.isinf(a) & (a == b))


def excess(figures: list[float], tolerance: Tolerance) -> float:
    """Error over tolerance: right if at most 1; inf if NaNs or infinities are out of place."""
    rms, largest, relative, misplaced = figures
    if misplaced > tolerance.misplaced or not math.isfinite(rms + largest + relative):
        return math.inf
    ratios = [(rms, tolerance.rms), (largest, tolerance.max)]
    if relative:
        ratios.append((relative, tolerance.relative_rms))
    return max(value / bound if bound else math.inf if value else 0.0 for value, bound in ratios)


def differ(a: Tensor, b: Tensor, precision: str, *, finite: bool = False) -> Tensor:
    """A 0-dim bool tensor: whether two outputs differ by more than admissible rounding, or in where they are finite.

    `finite`: only elements count that are finite in both.
    """
    a, b = as_pairs(a), as_pairs(b)
    if not a.is_floating_point():
        return (a != b).any()
    x, y = a.double(), b.double()
    same = (x == y) | (torch.isnan(x) & torch.isnan(y))
    if finite:
        same = same | ~torch.isfinite(x) | ~torch.isfinite(y)
    gap = torch.where(same, 0.0, (x - y).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    scale = torch.linalg.vector_norm(torch.where(torch.isfinite(x), x, 0.0)) / math.sqrt(max(x.numel(), 1))
    return (gap > MAX_ROUNDOFFS * UNIT_ROUNDOFF[precision] * scale).any()


def count_beyond(output: Tensor, truth: Tensor, level: ErrorLevel, bound: float) -> int:
    """How many elements are further off than a bound, or wrongly (not) finite."""
    counts = []
    for part, right, at in _with_levels(output, truth, level):
        part = part.double()  # float8 has no isfinite on a CPU
        error, wrong = _beyond(part - right.double(), at.slack).abs(), ~torch.isfinite(part)
        if level.nonfinite is not None or level.misplaced:
            wrong, left_out = _placed(part, right, at)
            error = torch.where(left_out, 0.0, error)
        counts.append((wrong | (error > bound)).sum())
    return int(torch.stack(counts).sum()) if counts else 0


def first_wrong(output: Tensor, truth: Tensor, level: ErrorLevel) -> tuple[list[int], float, float]:
    """The element with the largest error, or the first that is wrongly (not) finite: (index, value got, value expected)."""
    place, largest, passed = 0, -1.0, 0
    for part, right, at in _with_levels(output, truth, level):
        error = _beyond(part.double() - right.double(), at.slack).abs()
        if output.is_floating_point() and (level.nonfinite is not None or level.misplaced):
            wrong, left_out = _placed(widened(part), right, at)
            error = torch.where(wrong, math.inf, torch.where(left_out, 0.0, error))
        error = error.nan_to_num(nan=math.inf, posinf=math.inf).reshape(-1)
        first = int(error.argmax())
        if (found := float(error[first])) > largest:
            place, largest = passed + first, found
        passed += part.numel()
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), output.shape)]
    return index, float(output[tuple(index)]), float(truth[tuple(index)])
