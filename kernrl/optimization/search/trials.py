"""What was tried of a task: candidates with their origin and verdict, and which of them is the best."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from kernrl.rollouts.sample_rows import row_of
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Speedup, Timing, Verdict

Origin = Literal["style", "disk", "model", "improved", "variant"]
"""`improved`: of a model while and after it was trained on these very tasks."""

MODEL_MARGIN = 1.05
"""From which ratio a modelled time counts as faster: the roofline model knows neither caches nor occupancy."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that may be tried."""

    source: str
    origin: Origin
    name: str
    """A style, `sample 3`, a file, or what a variant changes."""
    parent: str = ""
    """Id of the trial that a variant is of."""
    step: tuple[str, str] = ("", "")
    """What a variant changes, and which way."""
    of: str = ""
    """What a variant is of: a style or a sample, and what was changed in it before."""

    def __str__(self) -> str:
        """`style product-split2`, or `variant of product-split2 (num_stages=4)`."""
        return f"variant of {self.of} ({self.name})" if self.of else f"{self.origin} {self.name}"

    @property
    def key(self) -> str:
        """sha256 of the source, hex."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


class Source(Protocol):
    """Candidates that are written meanwhile, by rules or by a model."""

    def poll(self) -> Proposal | None:
        """The next one, None where there is none yet."""
        ...

    @property
    def done(self) -> bool:
        """Whether no more will come."""
        ...

    @property
    def left(self) -> int:
        """How many may still come."""
        ...

    def stop(self) -> None:
        """Make no more."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was judged."""

    id: str
    proposal: Proposal
    verdict: Verdict
    at_s: float
    """When its verdict came, in seconds of the budget."""

    @property
    def ratio(self) -> float | None:
        """Speedup against the first baseline; None where it is not correct or not timed."""
        speed = self.verdict.speedup(next(iter(self.verdict.timing.speedups_x), "")) if self.verdict.timing else None
        return speed.value if speed and self.verdict.correct else None

    def to_row(self, task: Task, number: int) -> dict[str, Any]:
        """A line of `candidates.jsonl`: a row of `samples.jsonl`, and where the candidate came from."""
        p = self.proposal
        origin = {"origin": p.origin, "name": p.name, "parent": p.parent, "of": p.of, "changed": list(p.step)}
        return row_of(task, number, p.source, self.verdict) | {"id": self.id} | origin | {"at_s": round(self.at_s, 3)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Trial:
        """Inverse of `to_row`."""
        step = tuple(row.get("changed") or ("", ""))
        named = row["origin"], row["name"], row.get("parent", "")
        proposal = Proposal(row["text"], *named, (step[0], step[1]), row.get("of", ""))
        return cls(row["id"], proposal, Verdict.from_json(row["verdict"]), float(row["at_s"]))


def beats(verdict: Verdict, baseline: str) -> bool:
    """Whether a candidate is faster than a baseline beyond the noise; of modelled times, beyond what the model can tell."""
    speed = verdict.speedup(baseline)
    if speed is None or not verdict.correct:
        return False
    modelled = verdict.timing is not None and verdict.timing.kind == "modelled"
    return speed.value > MODEL_MARGIN if modelled else speed.significant and speed.value > 1.0


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The correct and timed, the fastest first; of equal ones that with fewer launches, then the shorter, then the earlier."""
    timed = [(t, t.ratio) for t in trials]

    def order(entry: tuple[Trial, float | None]) -> tuple[float, int, int, float]:
        trial, ratio = entry
        launches = int(trial.verdict.plan.get("launches") or 0)
        return (-round(math.log(ratio or 1.0), 4), launches, len(trial.proposal.source), trial.at_s)

    return [trial for trial, _ in sorted(((t, r) for t, r in timed if r), key=order)]


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """Several timings of one candidate as one: geometric means of the speedups and of the ends of their intervals.

    The interval does not shrink with the number of timings: they are of the same minutes on the same GPU. A speedup is
    significant where it was every time.
    """
    first = verdicts[0]
    timings = [v.timing for v in verdicts if v.timing]
    if len(timings) < 2 or not first.timing:
        return first

    def mean(numbers: Iterable[float]) -> float:
        logs = [math.log(max(n, 1e-9)) for n in numbers]
        return math.exp(sum(logs) / len(logs))

    speedups = {
        name: Speedup(
            *(mean(getattr(t.speedups_x[name], part) for t in timings) for part in ("value", "low", "high")),
            significant=all(t.speedups_x[name].significant for t in timings),
        )
        for name in first.timing.speedups_x
        if all(name in t.speedups_x for t in timings)
    }
    timing = Timing(
        kind=first.timing.kind,
        device=first.timing.device,
        candidate_us=mean(t.candidate_us for t in timings),
        baseline_us={name: mean(t.baseline_us[name] for t in timings) for name in speedups},
        speedups_x=speedups,
        unfused_share=first.timing.unfused_share,
        noise=max(t.noise for t in timings),
    )
    return replace(first, timing=timing, errors=[record for v in verdicts for record in v.errors])


@dataclass
class Progress:
    """What a search has done so far, for a live line."""

    budget_s: float
    tried: int = 0
    judged: int = 0
    correct: int = 0
    spent_s: float = 0.0
    best: Trial | None = None
    counts: dict[str, int] = field(default_factory=dict)
    """Status → how many."""
