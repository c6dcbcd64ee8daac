"""What a model is told of its last candidate."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernrl.rollouts.advice import feedback
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict
from kernrl.verifier.judge.reasons import wrong_reason


def verdict(status: Status, reason: str = "", **more: Any) -> Verdict:
    return Verdict(status, Stage.CORRECTNESS, reason, "t", "sha", "fp32", **more)


def tried(*inputs: tuple[str, str, float], rms: float = 1.0) -> list[dict[str, Any]]:
    figures = {"rms": rms, "scale": 2.0, "tolerance_rms": 2e-6}
    return [{"input_set": n, "regime": r, "excess": e} | (figures if e > 1 else {}) for n, r, e in inputs]


FORMULA, MASKS, OTHERS = "check the formula", "check the masks", "the usual cause"


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (tried(("small", "nominal", 9), ("ragged", "offset", 2)), ["Wrong on all 2 inputs tried.", FORMULA]),
        (tried(("small", "nominal", 0.5), ("ragged", "nominal", 2)), [MASKS]),
        (tried(("small", "nominal", 0.5), ("ragged", "nominal", 2), ("ragged", "large", 0.1)), [MASKS]),
        (
            tried(("small", "nominal", 0.5), ("small", "large", 2), ("small", "ties", 3), ("ragged", "nominal", 0)),
            [
                "Right on small shapes with nominal inputs; ragged shapes with nominal inputs. Wrong on small shapes with ",
                "With large inputs, the usual cause: exp overflows",  # the reason has that of ties
            ],
        ),
        (tried(("small", "nominal", 2), ("small", "large", 0.5)), ["Wrong on small shapes with nominal inputs.", FORMULA]),
        (
            tried(("small", "nominal", 2), ("small", "large", 0.5), rms=2e-4),
            ["the error is 0.0001 of the output's size (root mean square), and 1e-06 is allowed", "float32"],
        ),
    ],
)
def test_the_pattern_of_failures_is_named(errors: list[dict[str, Any]], said: list[str]) -> None:
    text = feedback(verdict(Status.WRONG, "reason.", errors=errors))
    assert all(words in text for words in said), text
    assert sum(pattern in text for pattern in (FORMULA, MASKS, OTHERS, "That looks like rounding")) <= 1
    assert text.startswith("This was not accepted (wrong): reason.")
    assert text.endswith("Write the whole file again, corrected.")


def test_kinds_of_inputs_are_counted_where_they_are_many() -> None:
    errors = tried(
        ("small", "nominal", 0), *(("small", kind, 3) for kind in ("large", "far", "ties", "level", "mixed", "offset"))
    )
    assert "Wrong on small shapes with large, far, ties, level and 2 more kinds of inputs." in feedback(
        verdict(Status.WRONG, errors=errors)
    )


def test_a_cause_is_given_once() -> None:
    """The reason is of the first of them: where numbers overflow, all of these fail for one cause."""
    errors = tried(("small", "nominal", 0), *(("small", kind, math.inf) for kind in ("far", "mixed", "large")))
    assert "Usual cause: exp overflows" in wrong_reason(
        {**errors[1], "index": [0], "output": 0, "got": math.nan, "expected": 1.0}
    )
    assert OTHERS not in feedback(verdict(Status.WRONG, errors=errors))
    far = tried(("small", "far", 3))[0]  # finite, so that digits were lost
    assert "variance" in wrong_reason({**far, "index": [0], "output": 0, "got": 2.0, "expected": 1.0})


def test_of_a_wrong_shape_nothing_is_guessed() -> None:
    errors = [{"input_set": "small", "regime": "nominal", "excess": math.inf, "mismatch": "shape"}]
    assert feedback(verdict(Status.WRONG, "reason.", errors=errors)).count("\n") == 1


def test_a_refusal_without_inputs_has_a_hint() -> None:
    assert "fenced Python block" in feedback(verdict(Status.NO_CODE, "there is no code"))


NODES = [
    {"name": "aten.gelu.default", "kind": "unfused", "bytes_moved": 8e6, "flops": 0.0, "us": 2.0},
    {"name": "kernel", "kind": "authored", "bytes_moved": 40e6, "flops": 0.0, "us": 10.0},
]


@pytest.mark.parametrize(
    ("kind", "us", "hint"), [("measured", 30.0, True), ("measured", 13.0, False), ("modelled", 30.0, False)]
)
def test_of_a_correct_one_it_is_said_where_time_goes(kind: str, us: float, hint: bool) -> None:
    timing = Timing(kind, "H200", us, {"eager": 60.0}, {"eager": Speedup(2.0, 1.9, 2.1, kind == "measured")})
    text = feedback(verdict(Status.CORRECT, timing=timing, plan={"nodes": NODES, "modelled_us": 12.0}))
    assert f"2.00 times the speed of PyTorch{' by the roofline model' if kind == 'modelled' else ''} ({us:.0f} µs)" in text
    assert "kernel 40.0 MB 10 µs, aten.gelu.default 8.0 MB 2 µs" in text
    assert "could be part of a kernel: aten.gelu.default." in text
    assert ("try other block sizes" in text) == hint


@pytest.mark.parametrize(
    ("nodes", "floor_us", "said"),
    [
        (NODES, 3.0, "4.0 times as much: kernel is the slowest"),
        ([NODES[0] | {"us": 10.0}, NODES[1]], 3.0, "6.7 times as much. Keep"),
        (NODES, 9.0, "takes 9 µs: no memory traffic is left"),
        ([{**NODES[1], "kind": "library"}, NODES[0]], 3.0, "10 µs are library products"),
        (NODES, 0.0, None),
    ],
)
def test_a_correct_one_is_compared_with_moving_its_data_once(
    nodes: list[dict[str, Any]], floor_us: float, said: str | None
) -> None:
    timing = Timing("modelled", "H200", 12.0, {"eager": 60.0}, {"eager": Speedup(5.0, 5.0, 5.0, False)})
    text = feedback(verdict(Status.CORRECT, timing=timing, plan={"nodes": nodes, "floor_us": floor_us}))
    assert ("once takes" in text) == (said is not None)
    assert (said or "") in text
