"""What a model is told about its last candidate, between the turns of a trajectory."""

from __future__ import annotations

import math
from typing import Any

from kernrl.tasks.task import RAGGED
from kernrl.verifier.base.verdict import ErrorRecord, Status, Verdict
from kernrl.verifier.judge.reasons import cause_of, worst_of
from kernrl.verifier.judge.regimes import NOMINAL, TIMED
from kernrl.verifier.plan.library_time import BANDWIDTH_SHARE, LAUNCH_US
from kernrl.verifier.plan.price import GRAPH_US

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

SHOWN_KINDS = 4
"""Kinds of inputs that are named of each input set."""

MOST_CAUSES = 2
"""Usual causes named besides the reason's."""

CLOSE = 2.0**-7
"""Error (root mean square) over the outputs' size up to which it looks like rounding: bfloat16 keeps 8 bits."""

NEAR_FLOOR = 1.2
"""Modelled time over that of moving the data once, in one launch, up to which nothing is left to fuse."""


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


def _which_inputs(errors: list[ErrorRecord]) -> list[str]:
    """Which of the tried inputs failed, by how much, and what such a pattern usually means."""
    wrong = [e for e in errors if e["excess"] > 1]
    right = [e for e in errors if e["excess"] <= 1]
    if not wrong or any("mismatch" in e for e in wrong):  # a wrong shape is wrong everywhere, and the reason says so
        return []
    said = [f"Right on {_names(right)}. Wrong on {_names(wrong)}." if right else f"Wrong on all {len(wrong)} inputs tried."]
    own = [e for e in wrong if e["regime"] in (NOMINAL, TIMED)]
    if right and own and all(e["input_set"] == RAGGED for e in wrong):
        said.append("Only sizes that divide by no block size fail: check the masks, and what masked elements add to a sum.")
    elif own:
        said.append(_of_own_inputs(own))
    elif first := worst_of(wrong):  # whose cause the reason gives
        causes = {cause_of(e): e["regime"] for e in reversed(wrong)}
        causes.pop(cause_of(first))
        said += [f"With {name} inputs, the usual cause: {cause}." for cause, name in causes.items()][:MOST_CAUSES]
    return said


def _of_own_inputs(wrong: list[ErrorRecord]) -> str:
    """What is wrong with the task's own inputs: the formula, or the numbers' precision."""
    if not all(_share_of_output(e) <= CLOSE for e in wrong):
        return (
            "It is wrong on nominal inputs, the task's own: check the formula, the order of the operations, which row and "
            "column each program reads, and that every parameter is used."
        )
    worst = max(wrong, key=_share_of_output)
    allowed = worst.get("tolerance_rms", 0.0) / worst.get("scale", math.inf)
    return (
        f"The numbers are close: the error is {_share_of_output(worst):.1g} of the output's size (root mean square), and "
        f"{allowed:.1g} is allowed. That looks like rounding: keep every value in float32, "
        'give tl.dot input_precision="ieee", and use no approximation of a function.'
    )


def _share_of_output(error: ErrorRecord) -> float:
    """RMS of an error over that of the output; infinite where it is not known."""
    scale = error.get("scale", 0.0)
    return error.get("rms", math.inf) / scale if scale else math.inf


def _names(errors: list[ErrorRecord]) -> str:
    """`small shapes with nominal, large and 2 more kinds of inputs; ragged shapes with nominal inputs`."""
    kinds: dict[str, list[str]] = {}
    for e in errors:
        kinds.setdefault(e["input_set"], []).append(e["regime"])
    said = []
    for name, regimes in kinds.items():
        regimes = list(dict.fromkeys(regimes))
        more = len(regimes) - SHOWN_KINDS
        shown = f"{', '.join(regimes[:SHOWN_KINDS])} and {more} more kinds of" if more > 1 else ", ".join(regimes)
        said.append(f"{name} shapes with {shown} inputs")
    return "; ".join(said)


def _of_correct(verdict: Verdict) -> list[str]:
    timing, speedup = verdict.timing, verdict.speedup()
    if timing is None or speedup is None:
        return ["This is correct."]
    modelled = timing.kind == "modelled"
    source = " by the roofline model" if modelled else ""
    times = f"{speedup.value:.2f} times the speed of PyTorch" if speedup.significant or modelled else "as fast as PyTorch"
    said = [f"This is correct, and {times}{source} ({timing.candidate_us:.0f} µs)."]
    nodes = sorted(verdict.plan.get("nodes", ()), key=lambda node: -node["us"])
    if not nodes:
        return said
    listed = ", ".join(f"{n['name']} {n['bytes_moved'] / 1e6:.1f} MB {n['us']:.0f} µs" for n in nodes[:SHOWN_NODES])
    said.append(f"By bytes and arithmetic, its operations should take: {listed}.")
    if unfused := [n["name"] for n in nodes if n["kind"] == "unfused"]:
        said.append(
            f"These run as PyTorch operators, each a pass over memory, and could be part of a kernel: {', '.join(unfused)}."
        )
    modelled_us = sum(n["us"] for n in nodes)
    said += _against_the_floor(nodes, modelled_us, verdict.plan.get("floor_us", 0.0))
    if not modelled and timing.candidate_us > 1.5 * modelled_us:
        said.append(
            f"That sums to {modelled_us:.0f} µs, so the kernels run below the limits of memory and arithmetic: try other block "
            "sizes, more warps, more programs, and coalesced accesses."
        )
    return said


def _against_the_floor(nodes: list[dict[str, Any]], modelled_us: float, floor_us: float) -> list[str]:
    """How far the operations are from moving the task's data once, and which of them to change."""
    if floor_us <= 0:
        return []
    product_us = sum(n["us"] for n in nodes if n["kind"] == "library")
    once = f"Reading the inputs and writing the outputs once takes {floor_us:.0f} µs"
    if product_us > 0.5 * modelled_us:
        return [
            f"{once}; {product_us:.0f} µs are library products, so save the passes around them: compute them where the "
            "product's result is read or written, or inside a kernel of your own with tl.dot."
        ]
    if modelled_us > NEAR_FLOOR * (floor_us / BANDWIDTH_SHARE + LAUNCH_US + GRAPH_US):
        slowest = f": {nodes[0]['name']} is the slowest" if len(nodes) > 1 and nodes[0]["us"] > 1.1 * nodes[1]["us"] else ""
        return [
            f"{once}, and this is {modelled_us / floor_us:.1f} times as much{slowest}. Keep intermediate results in registers, "
            "and read each input once."
        ]
    return [f"{once}: no memory traffic is left to save. Block sizes, warps and the order of the accesses are."]
