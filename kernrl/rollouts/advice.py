"""What a model is told about its last candidate, between the turns of a trajectory."""

from __future__ import annotations

from typing import Any

from kernrl.verifier.base.verdict import Status, Verdict

HINTS = {
    Status.NO_CODE: "Reply with one fenced Python block that defines `ModelNew` and its kernels.",
    Status.SYNTAX_ERROR: "Reply with one fenced Python block that parses.",
    Status.DECOY: "Every kernel that is launched must be needed for the result.",
    Status.CRASH: "Look at every pointer and mask: an access is out of bounds for some program.",
    Status.TIMEOUT: "Do less work in each program, and bound every loop.",
    Status.TOO_LARGE: "Allocate less: fuse steps whose results are only read once, and write into fewer workspaces.",
    Status.COMPILE_ERROR: "Block sizes must be powers of two known at compile time, and fit shared memory and registers.",
}
"""Status → what usually helps, where the reason does not say it."""

SHOWN_NODES = 4
"""Operations listed of a candidate, the slowest first."""


def feedback(verdict: Verdict) -> str:
    """Why a candidate was refused and what usually helps, or where a correct one spends its time."""
    said = _of_correct(verdict) if verdict.correct else _of_refused(verdict)
    end = "Make it faster, and write the whole file again." if verdict.correct else "Write the whole file again, corrected."
    return "\n".join([*said, end])


def _of_refused(verdict: Verdict) -> list[str]:
    said = [f"This was not accepted ({verdict.status}): {verdict.reason}"]
    if verdict.status is Status.WRONG and verdict.errors:
        said += _which_inputs(verdict.errors)
    elif verdict.status in HINTS:
        said.append(HINTS[verdict.status])
    return said


def _which_inputs(errors: list[dict[str, Any]]) -> list[str]:
    """Which of the tried inputs failed, and what such a pattern usually means."""
    wrong = [e for e in errors if e["excess"] > 1]
    right = [e for e in errors if e["excess"] <= 1]
    if not wrong:
        return []
    if not right:
        return [
            f"All {len(wrong)} inputs that were tried came out wrong: check the formula, the order of the operations, and "
            "that every parameter is used."
        ]
    said = [f"Right on {_names(right)}. Wrong on {_names(wrong)}."]
    if {e["input_set"] for e in wrong}.isdisjoint(e["input_set"] for e in right):
        if all(e["input_set"] == "ragged" for e in wrong):
            said.append("Only sizes that divide by no block size fail: check the masks, and what masked elements add to a sum.")
    elif all(e["regime"] != "nominal" for e in wrong):
        said.append(
            "The formula is right for ordinary numbers and loses accuracy on others: accumulate in float32, subtract the "
            "maximum before an exponential, and the mean before a square."
        )
    return said


def _names(errors: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"{e['input_set']} shapes with {e['regime']} inputs" for e in errors))


def _of_correct(verdict: Verdict) -> list[str]:
    timing, speedup = verdict.timing, verdict.speedup()
    if timing is None or speedup is None:
        return ["This is correct."]
    modelled = timing.kind == "modelled"
    source = " by the roofline model" if modelled else ""
    times = f"{speedup.value:.2f} times the speed of PyTorch" if speedup.significant or modelled else "as fast as PyTorch"
    said = [f"This is correct, and {times}{source} ({timing.candidate_us:.0f} µs)."]
    nodes = sorted(verdict.plan.get("nodes", ()), key=lambda node: -node["us"])
    if nodes:
        listed = ", ".join(f"{n['name']} {n['bytes_moved'] / 1e6:.1f} MB {n['us']:.0f} µs" for n in nodes[:SHOWN_NODES])
        said.append(f"By bytes and arithmetic, its operations should take: {listed}.")
    if unfused := [n["name"] for n in nodes if n["kind"] == "unfused"]:
        said.append(
            f"These run as PyTorch operators, each a pass over memory, and could be part of a kernel: {', '.join(unfused)}."
        )
    modelled_us = verdict.plan.get("modelled_us", 0.0)
    if not modelled and modelled_us and timing.candidate_us > 1.5 * modelled_us:
        said.append(
            f"That sums to {modelled_us:.0f} µs, so the kernels run below the limits of memory and arithmetic: try other block "
            "sizes, more warps, more programs, and coalesced accesses."
        )
    return said
