"""Verdict: the verifier's answer on one (task, candidate). Always a value, never None."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NotRequired, TypedDict


class Status(StrEnum):
    """How the verification of a candidate ended."""

    CORRECT = "correct"
    NO_CODE = "no_code"
    SYNTAX_ERROR = "syntax_error"
    POLICY = "policy"
    TRACE_ERROR = "trace_error"
    COMPILE_ERROR = "compile_error"
    UNTRACEABLE = "untraceable"
    DECOY = "decoy"
    WRONG = "wrong"
    CRASH = "crash"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    NEEDS_GPU = "needs_gpu"
    INFRA_ERROR = "infra_error"


class Stage(StrEnum):
    """The funnel's stages, in order. A verdict names the last one reached."""

    PARSE = "parse"
    SCREEN = "screen"
    TRACE = "trace"
    PLAN = "plan"
    CORRECTNESS = "correctness"
    TIMING = "timing"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a stage stopped a candidate; the stage returns it in place of its result."""

    status: Status
    reason: str
    """One sentence; where possible, it says how to write the code instead."""


MAX_REASON_CHARS = 4000


def printable(text: str) -> str:
    """Text that a candidate may have influenced, cut to `MAX_REASON_CHARS`, with control characters escaped."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text[:MAX_REASON_CHARS]
    )


class ErrorRecord(TypedDict):
    """What was found for one input that a candidate was tried on."""

    input_set: str
    regime: str
    excess: float
    """Largest error over its tolerance: what is above 1 is wrong, and infinity is of NaN, infinity or a `mismatch`."""
    mismatch: NotRequired[str]
    """What is wrong with the number, shapes or dtypes of the outputs, or places that are named twice; nothing below is there
    then."""
    output: NotRequired[int]
    """Of a wrong output, as is all below: its number."""
    statistic: NotRequired[str]
    """The running statistic that it is after the call; absent if forward returned it."""
    index: NotRequired[list[int]]
    """The element with the largest error."""
    got: NotRequired[float]
    expected: NotRequired[float]
    rms: NotRequired[float]
    """Of the error of the whole output."""
    scale: NotRequired[float]
    """RMS of the true output."""
    eager_rms: NotRequired[float]
    """Of eager's error."""
    tolerance_rms: NotRequired[float]
    tolerance_max: NotRequired[float]


@dataclass(frozen=True, slots=True)
class Speedup:
    """Baseline time over candidate time, with its 95 % interval."""

    value: float
    low: float
    high: float
    significant: bool
    """True when the interval lies outside this GPU's calibrated noise band; only then is the speedup rewarded."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of the candidate and of each baseline."""

    kind: str
    """`measured` on the device, or `modelled` for it by the plan's roofline."""
    device: str
    candidate_us: float
    baseline_us: dict[str, float]
    """`eager`, and `compile` when asked for."""
    speedups_x: dict[str, Speedup]
    unfused_share: float = 0.0
    """Share of the candidate's device time spent outside its authored kernels, 0 to 1."""
    noise: float = 0.0
    """Calibrated half-width of the noise band, as |log ratio|."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The funnel's result for one candidate."""

    status: Status
    stage: Stage
    reason: str
    task_id: str
    candidate_sha: str
    """sha256 of the candidate's source text, hex."""
    precision: str
    timing: Timing | None = None
    errors: list[ErrorRecord] = field(default_factory=list)
    """One record for each input tried."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Summary of the plan: nodes, launches, bytes moved, FLOPs, modelled time."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by stage."""
    memory: dict[str, int] = field(default_factory=dict)
    """On a GPU, bytes at the peak of judging it: `planned` before anything was allocated, in all and by process, and `granted`,
    what the processes might hold; `replay_peak` and `judge_peak`, `replay_held` and `judge_held` as measured, where that is
    much."""
    versions: dict[str, str] = field(default_factory=dict)
    cached: bool = False
    specialised: str = ""
    """Of a candidate that is right at every stated input set and fails at a derived one: how. Empty for all others."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what was not looked at, and about arithmetic that was not needed."""
    internal_error: bool = False
    """Of an `infra_error`: whether it is a fault of the verifier itself. It would come again, so it is not tried again."""

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT

    def speedup(self, baseline: str = "eager") -> Speedup | None:
        """The speedup against one baseline, or None where it was not timed."""
        return self.timing.speedups_x.get(baseline) if self.timing else None

    def faster(self, p: float = 1.0, baseline: str | None = None) -> bool:
        """Whether this counts in fast_p: correct, and more than `p` times as fast as the baseline by more than the noise.

        The one definition for training and evaluation. A measured time must be faster with its whole interval and the
        noise band; a modelled one has neither, and its ratio counts. Every correct candidate counts at p = 0.

        Args:
            baseline: the first that was timed if None.
        """
        if not self.correct or p == 0:
            return self.correct
        timed = self.timing.speedups_x if self.timing else {}
        speedup = timed.get(baseline) if baseline else next(iter(timed.values()), None)
        if self.timing is None or speedup is None:
            return False
        if self.timing.kind == "modelled":
            return speedup.value > p
        clear = speedup.low > p * math.exp(self.timing.noise)
        if p < 1:  # what is faster than the baseline is faster than a part of it, whatever is known of the noise
            return clear or (speedup.significant and speedup.value > 1)
        return speedup.significant and speedup.value > 1 and (clear or p == 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with `correct`, and the first baseline's speedup as `speedup_x`. Its lists and dicts are not copied."""
        row: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}  # `asdict` would copy a thousand values
        row["status"], row["stage"] = str(self.status), str(self.stage)
        timing = asdict(self.timing) if self.timing else None
        first = next(iter(timing["speedups_x"]), None) if timing else None
        row |= {"timing": timing, "correct": self.correct, "baseline": first}
        row["speedup_x"] = timing["speedups_x"][first] if timing and first else None
        return row

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Verdict:
        """Inverse of `to_json`."""
        row = {k: v for k, v in row.items() if k not in ("correct", "baseline", "speedup_x")}
        timing = row.pop("timing", None)
        if timing is not None:
            timing = Timing(**{**timing, "speedups_x": {k: Speedup(**v) for k, v in timing["speedups_x"].items()}})
        return cls(**{**row, "status": Status(row["status"]), "stage": Stage(row["stage"]), "timing": timing})
