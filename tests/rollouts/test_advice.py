"""What a model is told of its last candidate."""

from __future__ import annotations

from typing import Any

import pytest

from kernrl.rollouts.advice import feedback
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict


def verdict(status: Status, reason: str = "", **more: Any) -> Verdict:
    return Verdict(status, Stage.CORRECTNESS, reason, "t", "sha", "fp32", **more)


def tried(*inputs: tuple[str, str, float]) -> list[dict[str, Any]]:
    return [{"input_set": name, "regime": regime, "excess": excess} for name, regime, excess in inputs]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (tried(("small", "nominal", 9), ("ragged", "offset", 2)), "All 2 inputs that were tried came out wrong"),
        (tried(("small", "nominal", 0.5), ("ragged", "nominal", 2)), "Only sizes that divide by no block size fail"),
        (tried(("small", "nominal", 0.5), ("small", "large", 2)), "Right on small shapes with nominal inputs. Wrong on small"),
        (tried(("small", "nominal", 0.5), ("small", "large", 2)), "loses accuracy on others"),
        (tried(("small", "nominal", 2), ("small", "large", 0.5)), "Wrong on small shapes with nominal inputs."),
    ],
)
def test_the_pattern_of_failures_is_named(errors: list[dict[str, Any]], said: str) -> None:
    text = feedback(verdict(Status.WRONG, "reason.", errors=errors))
    assert said in text
    assert text.startswith("This was not accepted (wrong): reason.")
    assert text.endswith("Write the whole file again, corrected.")


def test_a_formula_that_fails_on_ordinary_numbers_is_not_called_inaccurate() -> None:
    errors = tried(("small", "nominal", 2), ("small", "large", 0.5))
    assert "loses accuracy" not in feedback(verdict(Status.WRONG, errors=errors))


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
