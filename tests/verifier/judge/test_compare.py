"""The judge's rule, on numbers whose right verdict is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernrl.verifier.judge import error_norms
from kernrl.verifier.judge.compare import (
    ErrorLevel,
    Inputs,
    count_beyond,
    differ,
    error_figures,
    error_level,
    excess,
    first_wrong,
    tolerances_for,
)
from kernrl.verifier.judge.live_bytes import LiveBytes


def judge(output: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor, precision: str = "fp32") -> float:
    level = error_level(truth, eager, precision)
    ((tolerance,),) = tolerances_for([[level]], 0)
    return excess(error_figures(output, truth, level).tolist(), tolerance)


@pytest.fixture
def truth() -> torch.Tensor:
    return torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_eager_itself_is_within_a_half(truth: torch.Tensor) -> None:
    eager = truth.float()
    assert judge(eager, truth, eager) <= 0.5


@pytest.mark.parametrize(("roundoffs", "passes"), [(3, True), (100, False)])
def test_a_few_roundoffs_pass_and_a_hundred_do_not(truth: torch.Tensor, roundoffs: float, passes: bool) -> None:
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    output = truth + roundoffs * 2.0**-24 * noise
    assert (judge(output, truth, truth.float()) <= 1) is passes


@pytest.mark.parametrize("wrong", [lambda y: y.half().float(), lambda y: y * (1 + 1e-5), lambda y: torch.zeros_like(y)])
def test_half_precision_a_wrong_factor_and_zeros_fail_at_fp32(truth: torch.Tensor, wrong) -> None:
    assert judge(wrong(truth.float()), truth, truth.float()) > 1


def test_one_wrong_element_fails(truth: torch.Tensor) -> None:
    output = truth.float()
    output[17] += 1e-4
    assert judge(output, truth, truth.float()) > 1
    assert first_wrong(output, truth, error_level(truth, truth.float(), "fp32"))[0] == [17]


def test_small_outputs_are_held_to_their_own_size_in_16_bit(truth: torch.Tensor) -> None:
    """Leaky ReLU with a slope off by a tenth hides in RMS under bf16's rounding of the positive side."""
    right = torch.where(truth > 0, truth, 0.01 * truth).bfloat16()
    wrong = torch.where(truth > 0, truth, 0.011 * truth).bfloat16()
    exact = torch.where(truth > 0, truth, 0.01 * truth)
    assert judge(right, exact, right, "bf16") <= 1
    assert judge(wrong, exact, right, "bf16") > 1


def test_a_nan_is_right_only_where_truth_or_eager_has_one(truth: torch.Tensor) -> None:
    truth[3], truth[5] = math.nan, math.inf
    eager = truth.float()
    assert judge(eager.clone(), truth, eager) <= 1
    for place, value in ((3, 0.0), (5, -math.inf), (7, math.nan), (7, math.inf)):
        output = eager.clone()
        output[place] = value
        assert judge(output, truth, eager) == math.inf


def test_a_finite_answer_is_right_where_only_eager_overflows() -> None:
    truth = torch.tensor([60000.0, 1.0], dtype=torch.float64)
    eager = torch.tensor([math.inf, 1.0], dtype=torch.float16)
    assert judge(truth.half(), truth, eager, "fp16") <= 1


def overflowing(places: range | list[int], n: int = 1000) -> torch.Tensor:
    y = torch.full((n,), 3e38)
    y[list(places)] = math.inf
    return y


def test_as_many_elements_may_overflow_as_a_run_with_two_roundings_more_has_in_other_places() -> None:
    truth = torch.full((1000,), 3e38, dtype=torch.float64)
    level = error_level(truth, truth.float(), "fp32", modelled=[overflowing(range(4))])
    ((tolerance,),) = tolerances_for([[level]], 0)
    for places, right in ((range(500, 504), True), (range(0), True), (range(500, 600), False), (range(1000), False)):
        assert (excess(error_figures(overflowing(places), truth, level).tolist(), tolerance) <= 1) is right
    wrong = overflowing(range(4))
    wrong[7] = 1e38
    assert excess(error_figures(wrong, truth, level).tolist(), tolerance) > 1
    assert judge(overflowing(range(1)), truth, truth.float()) == math.inf


@pytest.mark.parametrize(("inputs", "right"), [(Inputs.OWN, False), (Inputs.FINITE, True)])
def test_no_nan_is_right_among_ordinary_numbers_of_the_tasks_own(inputs: Inputs, right: bool) -> None:
    """The root of what a rounding makes negative, or the sine of what it makes infinite."""
    truth = torch.ones(1000, dtype=torch.float64)
    eager, modelled, output = truth.float(), truth.float(), truth.float()
    eager[0], modelled[:4], output[:2] = math.nan, math.nan, math.nan
    level = error_level(truth, eager, "fp32", modelled=[modelled], inputs=inputs)
    ((tolerance,),) = tolerances_for([[level]], 0)
    assert (excess(error_figures(output, truth, level).tolist(), tolerance) <= 1) is right
    output[:100] = math.nan
    assert excess(error_figures(output, truth, level).tolist(), tolerance) == math.inf


def test_an_infinity_may_stand_among_ordinary_numbers_where_a_run_with_two_roundings_more_has_some() -> None:
    """exp(a product of large numbers): what is 1e20 in truth is infinite in one run, and 1e-9 in the next."""
    truth = torch.full((1000,), 1e20, dtype=torch.float64)
    modelled, output, many = truth.float(), truth.float(), truth.float()
    modelled[:4], output[500:504], many[:100] = math.inf, math.inf, math.inf
    level = error_level(truth, truth.float(), "fp32", modelled=[modelled])
    ((tolerance,),) = tolerances_for([[level]], 0)
    assert excess(error_figures(output, truth, level).tolist(), tolerance) <= 1
    assert excess(error_figures(many, truth, level).tolist(), tolerance) == math.inf
    assert judge(output, truth, truth.float()) == math.inf


def test_a_finite_answer_may_stand_where_truth_is_just_out_of_range() -> None:
    truth = torch.full((1000,), 3e38, dtype=torch.float64)
    truth[:4] = 3.5e38
    eager = overflowing(range(4))
    level = error_level(truth, eager, "fp32", modelled=[overflowing(range(2, 6))])
    ((tolerance,),) = tolerances_for([[level]], 0)
    assert excess(error_figures(overflowing(range(3)), truth, level).tolist(), tolerance) <= 1
    assert excess(error_figures(overflowing(range(900, 1000)), truth, level).tolist(), tolerance) == math.inf


@pytest.mark.parametrize(("size", "right"), [(1e34, True), (1e30, False)])
def test_other_inputs_than_the_tasks_own_may_overflow_early(size: float, right: bool) -> None:
    truth = torch.tensor([size, 1.0], dtype=torch.float64)
    level = error_level(truth, truth.float(), "fp32", inputs=Inputs.FINITE)
    ((tolerance,),) = tolerances_for([[level]], 0)
    output = torch.tensor([math.inf, 1.0])
    assert (excess(error_figures(output, truth, level).tolist(), tolerance) <= 1) is right
    assert judge(output, truth, truth.float()) == math.inf
    output = torch.tensor([size, 2.0])
    assert excess(error_figures(output, truth, level).tolist(), tolerance) > 1 or not right


def test_the_element_that_is_shown_is_the_one_that_is_out_of_place() -> None:
    truth = torch.tensor([1.0, 1e60, 2.0], dtype=torch.float64)
    eager = truth.float()
    level = error_level(truth, eager, "fp32")
    assert first_wrong(torch.tensor([1.0, math.inf, math.nan]), truth, level)[0] == [2]


def test_the_nominal_scale_excuses_cancellation_on_tiny_inputs() -> None:
    """tanh(x) as 2·sigmoid(2x) − 1 is off by a roundoff of 1 near 0: nothing where outputs are of order 1."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1e-3
    truth = torch.tanh(x.double())
    small, nominal = error_level(truth, torch.tanh(x), "fp32"), ErrorLevel(2e-8, 1e-7, 0.0, 0.6, "fp32")
    tolerances = tolerances_for([[nominal], [small]], 0)
    figures = error_figures(2 * torch.sigmoid(2 * x) - 1, truth, small).tolist()
    assert excess(figures, tolerances[1][0]) <= 1
    assert excess(figures, tolerances_for([[small]], 0)[0][0]) > 1


def test_luck_is_no_standard() -> None:
    """On a draw where eager happens to be exact, the typical error of the others decides."""
    lucky, typical = ErrorLevel(0.0, 0.0, 0.0, 1.0, "fp32"), ErrorLevel(1e-6, 5e-6, 0.0, 1.0, "fp32")
    rows = tolerances_for([[typical], [lucky], [typical]], 0)
    assert rows[1][0].rms == pytest.approx(rows[0][0].rms)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_eagers_error_is_waited_for_once_where_nothing_is_odd(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    waits, tolist, truthy = [], torch.Tensor.tolist, torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: waits.append("tolist") or tolist(x))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda x: waits.append("bool") or truthy(x))
    truth = torch.randn(50, dtype=torch.float64)
    level = error_level(truth, truth.float(), precision, modelled=[truth.float() + 1e-6])
    assert waits == ["tolist"]
    assert level.nonfinite is None
    overflows = truth.float() / 0
    assert error_level(truth, overflows, precision, modelled=[truth.float()]).nonfinite is not None
    modelled = error_level(truth, truth.float(), precision, modelled=[overflows])
    assert modelled.nonfinite is None
    assert modelled.rms < 1e-5


def answers(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(truth, eager, another admissible answer, a candidate's output)"""
    shape = {"scalar": (), "empty": (0, 3), "one line": (1, 40), "row": (23,)}.get(kind, (6, 5, 4))
    truth = torch.randn(shape, dtype=torch.float64)
    if kind == "strided":
        truth = torch.randn(4, 6, 5, dtype=torch.float64).permute(1, 2, 0)
    eager, modelled, output = (truth.float() + 1e-6 * torch.randn(shape) for _ in range(3))
    if kind == "expanded":
        output = output[:1].expand(shape)
    if kind == "float8":
        eager, modelled, output = (y.to(torch.float8_e4m3fn) for y in (eager, modelled, output))
    if kind in ("integers", "booleans"):
        whole = [torch.randint(0, 3, shape) for _ in range(4)]
        truth, eager, modelled, output = whole if kind == "integers" else [y > 0 for y in whole]
    if kind == "nonfinite":
        truth[0, 0], truth[1, 0, 0], eager[0, 0], eager[2, 2], modelled[3, 3, 3] = (
            math.inf,
            math.nan,
            math.inf,
            math.inf,
            math.inf,
        )
        output[0, 0], output[4, 4, 1], output[5, 4, 3] = math.inf, -math.inf, math.nan
    if kind == "ties":
        output = (truth + 1).float().round() * 0 + 7
        truth = torch.ones_like(truth)
        eager = modelled = truth.float()
    return truth, eager, modelled, output


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 7, 20, 41])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "kind",
    [
        "plain", "scalar", "empty", "one line", "row", "strided", "expanded", "float8", "integers", "booleans", "nonfinite",
        "ties", "slack",
    ],
)  # fmt: skip
def test_what_is_compared_in_parts_is_what_the_whole_is(
    kind: str, precision: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but sums of squares to the bit; those are added in another order."""
    truth, eager, modelled, output = answers(kind)
    slack = torch.rand(truth.shape, dtype=torch.float64) * 1e-6 if kind == "slack" else None

    def compared(inputs: Inputs) -> tuple[list[float], list[float], list[Tensor | None], object]:
        level = error_level(truth, eager, precision, modelled=[modelled], inputs=inputs, slack=slack)
        figures = error_figures(output, truth, level).tolist()
        exact = [level.max, level.misplaced, level.edge, figures[1], figures[3]]
        sums = [level.rms, level.relative_rms, level.scale, figures[0], figures[2]]
        kept = [level.nonfinite, level.nonfinite_truth, level.nonfinite_eager, level.undefined, level.slack]
        return exact, sums, kept, first_wrong(output, truth, level) if output.numel() else None

    for inputs in Inputs:
        monkeypatch.setattr(error_norms, "AT_ONCE", 1 << 24)
        whole = compared(inputs)
        monkeypatch.setattr(error_norms, "AT_ONCE", at_once)
        parts = compared(inputs)
        assert repr(parts[0]) == repr(whole[0])  # NaN is itself
        assert repr(parts[3]) == repr(whole[3])
        assert parts[1] == pytest.approx(whole[1], rel=1e-14, nan_ok=True)
        for a, b in zip(parts[2], whole[2], strict=True):
            assert (a is None and b is None) or torch.equal(
                torch.as_tensor(a).nan_to_num(7.0), torch.as_tensor(b).nan_to_num(7.0)
            )


@pytest.mark.parametrize("contiguous", [True, False])
def test_what_comparing_takes_does_not_grow_with_the_output(contiguous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_norms, "AT_ONCE", 1 << 12)
    peaks = []
    for size in (1 << 8, 1 << 12):
        truth = torch.randn(size, 64, dtype=torch.float64)
        output = truth.float() if contiguous else truth.float().T.contiguous().T
        level = error_level(truth, output, "fp32", modelled=[output])
        with LiveBytes() as live:
            error_level(truth, output, "fp32", modelled=[output])
            error_figures(output, truth, level)
            first_wrong(output, truth, level)
        peaks.append(live.peak)
    assert max(peaks) <= 4 * 8 * (1 << 12)


def test_complex_outputs_differ_by_more_than_rounding_in_either_part() -> None:
    y = torch.complex(torch.randn(64), torch.randn(64))
    assert not differ(y, y * (1 + 1e-7), "fp32")
    for wrong in (y + torch.where(torch.arange(64) == 5, 1e-3, 0.0), y + torch.where(torch.arange(64) == 5, 1e-3j, 0j)):
        assert differ(y, wrong, "fp32")
    beyond = torch.complex(y.real, torch.full((64,), float("inf")))
    assert differ(y, beyond, "fp32")
    assert not differ(y, beyond, "fp32", finite=True)


def test_elements_beyond_a_bound_are_counted_in_every_dtype_and_without_those_that_are_excused() -> None:
    right = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    given = right.clone()
    given[1:3] += 1.0
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        level = error_level(right, right.to(dtype), "fp32")
        assert count_beyond(given.to(dtype), right, level, 0.5) == 2
        level.slack = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
        assert count_beyond(given.to(dtype), right, level, 0.5) == 1
    given[0] = math.nan
    assert count_beyond(given.float(), right, level, 0.5) == 2
