"""The decoy search: which launches are left, and that nothing is run in vain."""

from __future__ import annotations

import math

import torch

from kernrl.verifier.judge.compare import differ
from kernrl.verifier.judge.decoys import idle_launches, telling, without_bounds
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.reasons import worst_of, wrong_reason
from kernrl.verifier.plan.plan import KernelSource, LaunchNode, Plan, Variant
from kernrl.verifier.plan.ttir import takes_extreme

MATTERS = {"small": {1}, "large": {2, 3}}
"""Condition → launches that change something under it."""


def test_what_matters_under_any_condition_is_no_decoy() -> None:
    asked: list[tuple[str, list[int]]] = []

    def unchanged(condition: str, launches: list[int]) -> list[bool]:
        asked.append((condition, launches))
        return [launch not in MATTERS[condition] for launch in launches]

    assert idle_launches([0, 1, 2, 3], ["small", "large"], unchanged) == [0]
    assert asked == [("small", [0, 1, 2, 3]), ("large", [0, 2, 3])]


def test_the_search_ends_when_nothing_is_left() -> None:
    def conditions():
        yield "large"
        raise AssertionError("a further condition was prepared")

    assert idle_launches([2, 3], conditions(), lambda condition, launches: [False] * len(launches)) == []
    assert idle_launches([], conditions(), lambda condition, launches: []) == []


def test_only_kernels_that_take_a_maximum_are_asked_whether_they_bound_anything() -> None:
    reduces = "\n".join((
        "module {", "tt.func public @k(%x: tensor<8xf32>) attributes {noinline = false} {",
        '%0 = "tt.reduce"(%x) <{axis = 0 : i32}> ({', "^bb0(%a: f32, %b: f32):", "%1 = arith.NAME %a, %b : f32",
        "tt.reduce.return %1 : f32", "}) : (tensor<8xf32>) -> f32", "tt.return", "}", "}",
    ))  # fmt: skip
    texts = [reduces.replace("NAME", name) for name in ("maxnumf", "addf", "minnumf", "maxsi")]
    found = zip("abcd", map(takes_extreme, texts), strict=True)
    kernels = tuple(KernelSource(name, "", {}, {}, 4, 3, takes_extreme=takes) for name, takes in found)
    nodes = tuple(LaunchNode((Variant(i, (1, 1, 1), {}),)) for i in range(4))
    plan = Plan("small", (), (), nodes, (), kernels)
    asked: list[int] = []

    def is_bound(launches: list[int]) -> list[bool]:
        asked.extend(launches)
        return [launch == 0 for launch in launches]

    assert without_bounds(plan, [0, 1, 2, 3], is_bound) == [1, 2, 3]
    assert asked == [0, 2]
    assert without_bounds(plan, [1, 3], is_bound) == [1, 3]
    assert asked == [0, 2], "nothing is run where no kernel takes a maximum"


def test_a_wrong_output_is_told_by_its_worst_element() -> None:
    record = {"input_set": "small", "regime": "nominal", "excess": 12.3456, "index": [1, 2], "output": 0}
    assert wrong_reason(record | {"got": 1.0, "expected": 2.0}) == (
        "Wrong on the small shapes with nominal inputs: the error is 12.3× the tolerance; at index [1, 2] of output 0 it gives "
        "1, expected 2."
    )
    assert "NaN or infinity is out of place" in wrong_reason(record | {"excess": float("inf"), "got": 1.0, "expected": 2.0})
    assert wrong_reason(record | {"mismatch": "two outputs"}) == "Wrong on the small shapes with nominal inputs: two outputs."


def test_a_failure_in_a_regime_names_its_inputs_and_what_usually_fails() -> None:
    records = [
        {"input_set": "small", "regime": "nominal", "excess": 0.5},
        {"input_set": "small", "regime": "far", "excess": 90.0, "index": [3], "output": 0, "got": 0.7, "expected": 0.5},
    ]
    worst = worst_of(records)
    assert worst is records[1]
    reason = wrong_reason(worst)
    for part in ("far inputs (inputs whose mean is 1,000 times their spread)", "at index [3] of output 0 it gives 0.7",
                 "right on the task's own inputs", "E[x²] − E[x]²", "subtract the mean first"):  # fmt: skip
        assert part in reason
    records[0] |= {"excess": 2.0, "index": [0], "output": 0, "got": 0.0, "expected": 1.0}
    assert worst_of(records) is records[0], "what fails on the task's own inputs is no matter of the regime"


def test_only_elements_that_are_finite_in_both_count_where_asked() -> None:
    a, b = torch.tensor([1.0, math.inf, math.nan, 2.0]), torch.tensor([1.0, 5.0, 0.0, math.nan])
    assert bool(differ(a, b, "fp32"))
    assert not bool(differ(a, b, "fp32", finite=True))
    assert bool(differ(a, torch.tensor([1.5, 5.0, 0.0, math.nan]), "fp32", finite=True))


def test_draws_with_infinities_tell_nothing() -> None:
    draws = [Draw("small", regime, 1) for regime in ("nonfinite", "nominal", "far", "nonfinite", "timed")]
    assert telling(draws) == [1, 2, 4]
