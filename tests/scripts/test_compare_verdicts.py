"""Two proofs are compared by what must not change: a new seed is no difference, another reason is."""

from typing import Any

from compare_verdicts import differences  # pyright: ignore[reportMissingImports]


def verdict(reason: str, status: str = "wrong", stage: str = "correctness") -> dict[str, Any]:
    return {"status": status, "stage": stage, "reason": reason}


def test_draws_and_numbers_are_no_difference() -> None:
    before = {
        "a": verdict("Wrong on the small shapes with offset inputs: the error is 3× the tolerance; at index [1]."),
        "b": verdict("a store out of bounds: byte 8188 of a buffer of 4096.", "crash"),
    }
    after = {
        "a": verdict("Wrong on the ragged shapes with large inputs: NaN or infinity is out of place."),
        "b": verdict("a store out of bounds: byte 16 of a buffer of 8.", "crash"),
    }
    assert differences(before, after) == {}


def test_another_status_stage_reason_or_row_is_one() -> None:
    before = {"a": verdict("x"), "b": verdict("x"), "c": verdict("x"), "d": verdict("x")}
    after = {"a": verdict("x", "crash"), "b": verdict("x", stage="plan"), "c": verdict("y"), "e": verdict("x")}
    assert set(differences(before, after)) == {"a", "b", "c", "d", "e"}
