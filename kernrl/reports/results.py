"""From judged samples to the figures of `results.json`: every one with an interval over tasks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, mode
from typing import Any

import numpy as np

from kernrl.console import counted
from kernrl.reports.run_files import Sample
from kernrl.reports.statistics import Estimate, TaskBootstrap, fast_p, pass_at_k
from kernrl.verifier.base.verdict import Stage, Status, Timing

THRESHOLDS_X = (0, 0.5, 0.8, 1, 1.2, 1.5, 2)
"""The p of fast_p."""

RESAMPLES, LEVEL = 10_000, 0.95

FEW_TASKS = 10
"""Fewer tasks than this tell a bootstrap too little of how tasks differ."""

Figures = dict[str, Estimate]

TasksSamples = list[list[Sample]]
"""[tasks][samples]: the judged samples of each task."""


def summarise(
    samples: Iterable[Sample], *, baselines: Sequence[str] = ("eager",), resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """All figures over `samples`, as `results.json` holds them; docs/reference/figures.md says what each one means.

    Args:
        baselines: Those that would have been timed: where no candidate is correct none was, and fast_p is 0 against each.
    """
    samples = sorted(samples, key=lambda s: (s.task, s.id))
    judged = [s for s in samples if s.judged]
    tasks = group(judged)
    clock, other_clocks = clocks(judged)
    nothing_to_time = bool(judged) and not any(s.verdict.correct for s in judged)
    baselines = list(baselines) if nothing_to_time else names_of_baselines(judged, clock)
    bootstrap = TaskBootstrap(len(tasks), resamples=resamples, level=LEVEL, seed=seed)
    speeds = {name: speed_figures(tasks, bootstrap, clock, name) for name in baselines}
    results: dict[str, Any] = {
        **_plain(outcome_figures(tasks, bootstrap)),
        **(_plain(speeds[baselines[0]]) if baselines else {}),
        "baseline": baselines[0] if baselines else None,
        "baselines": {name: _plain(figures) for name, figures in speeds.items()},
        "funnel": _plain(funnel(tasks, bootstrap)),
        "statuses": dict(sorted(Counter(str(s.verdict.status) for s in samples).items(), key=lambda item: (-item[1], item[0]))),
        "by_family": breakdown(tasks, [t[0].family for t in tasks], clock, baselines, resamples, seed),
        "by_depth": breakdown(tasks, [_depth(t[0]) for t in tasks], clock, baselines, resamples, seed),
        "tasks": len(tasks),
        "samples": len(judged),
        "unjudged": len(samples) - len(judged),
        "needs_gpu": sum(s.verdict.status is Status.NEEDS_GPU for s in samples),
        "internal_errors": sum(s.verdict.internal_error for s in samples),
        "cut": sum(s.cut for s in judged),
        "specialised": sum(bool(s.verdict.specialised) for s in judged),
        "untimed": sum(s.verdict.correct and not timed(s, clock) for s in judged),
        "timing": {"kind": clock[0], "device": clock[1]} if clock else None,
        "precisions": sorted({s.verdict.precision for s in judged}),
        "interval": {"level": LEVEL, "method": "BCa bootstrap over tasks", "resamples": resamples, "seed": seed},
        "runs": 1,
    }
    results["notes"] = notes(results, other_clocks)
    return results


def group(samples: Iterable[Sample]) -> TasksSamples:
    """Samples by task, tasks by their id: the bootstrap draws places, and equal samples must give equal intervals."""
    tasks: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        tasks[sample.task].append(sample)
    return [tasks[task] for task in sorted(tasks)]


# --- which times may be compared ---------------------------------------------------------------------------------

Clock = tuple[str, str]
"""(`measured` or `modelled`, device): only times of one clock are ever put together."""


def clock_of(timing: Timing) -> Clock:
    return timing.kind, timing.device


def clocks(samples: Iterable[Sample]) -> tuple[Clock | None, list[Clock]]:
    """The clock that the speed figures use (measured before modelled, then the most frequent), and the others met."""
    counts = Counter(clock_of(s.verdict.timing) for s in samples if s.verdict.correct and s.verdict.timing)
    ranked = sorted(counts, key=lambda c: (c[0] != "measured", -counts[c], c[1]))
    return (ranked[0], ranked[1:]) if ranked else (None, [])


def timed(sample: Sample, clock: Clock | None) -> bool:
    return sample.verdict.timing is not None and clock_of(sample.verdict.timing) == clock


def names_of_baselines(samples: Iterable[Sample], clock: Clock | None) -> list[str]:
    """`eager` first where it was timed, then the others by name."""
    names = {n for s in samples if timed(s, clock) and s.verdict.timing for n in s.verdict.timing.speedups_x}
    return sorted(names, key=lambda n: (n != "eager", n))


def speedup_x(sample: Sample, clock: Clock | None, baseline: str) -> float | None:
    """None where the sample is not correct, NaN where it is and was not timed, as `fast_p` takes it."""
    if not sample.verdict.correct:
        return None
    speedup = sample.verdict.speedup(baseline) if timed(sample, clock) else None
    return speedup.value if speedup else math.nan


# --- figures -----------------------------------------------------------------------------------------------------


def pass_ks(samples: int) -> list[int]:
    """The k of the pass@k that are worked out for so many samples a task."""
    return sorted({2**i for i in range(samples.bit_length())} | {samples})


def outcome_figures(tasks: TasksSamples, bootstrap: TaskBootstrap) -> Figures:
    """`correct`, `compiled` and `pass@k` for k = 1, 2, 4, … and the number of samples a task."""
    if not tasks:
        return {"correct": Estimate(None), "compiled": Estimate(None), "pass@1": Estimate(None)}
    figures = {
        "correct": bootstrap.share([fmean(s.verdict.correct for s in task) for task in tasks]),
        "compiled": bootstrap.share([fmean(s.compiled for s in task) for task in tasks]),
    }
    for k in pass_ks(mode(len(task) for task in tasks)):
        enough = [task for task in tasks if len(task) >= k]  # a sample may be missing where it could not be judged
        resampling = bootstrap if len(enough) == len(tasks) else TaskBootstrap(len(enough), seed=bootstrap.seed)
        chances = [pass_at_k(len(task), sum(s.verdict.correct for s in task), k) for task in enough]
        figures[f"pass@{k}"] = resampling.share(chances)
    return figures


def speed_figures(tasks: TasksSamples, bootstrap: TaskBootstrap, clock: Clock | None, baseline: str) -> Figures:
    """`fast_p` and `fast_p_plain` for every threshold, and `geomean_x`, against one baseline."""
    speedups_x = [[speedup_x(s, clock, baseline) for s in task] for task in tasks]
    figures = {}
    for p in THRESHOLDS_X:
        figures[f"fast_{p:g}"] = bootstrap.share(wins(tasks, clock, baseline, p))
        if p:  # at 0 both are the share of correct candidates
            figures[f"fast_{p:g}_plain"] = bootstrap.share([fast_p(task, p) for task in speedups_x])
    logs = [[math.log(x) for x in task if x is not None and x > 0] for task in speedups_x]
    figures["geomean_x"] = bootstrap.geometric_mean([math.fsum(task) for task in logs], [len(task) for task in logs])
    return figures


def wins(tasks: TasksSamples, clock: Clock | None, baseline: str, p: float) -> list[float]:
    """fast_p of each task: the share of its samples that are correct and more than p times as fast, beyond the noise."""
    return [fmean(s.verdict.faster(p, baseline) and (p == 0 or timed(s, clock)) for s in task) for task in tasks]


def funnel(tasks: TasksSamples, bootstrap: TaskBootstrap) -> Figures:
    """Share of the samples that passed each stage before timing, and that are correct in the end."""
    if not tasks:
        return {}
    stages = [stage for stage in Stage if stage is not Stage.TIMING]
    return {str(stage): bootstrap.share([fmean(passed(s, stage) for s in task) for task in tasks]) for stage in stages}


PAST_STAGE = {
    Stage.PARSE: "has code",
    Stage.SCREEN: "passes the screen",
    Stage.TRACE: "traces",
    Stage.PLAN: "obeys the rules",
    Stage.CORRECTNESS: "right on every input",
}
"""Stage → what is true of a candidate that passed it."""


def passed(sample: Sample, stage: Stage) -> bool:
    """True when the sample's verdict was given after `stage`, or is that it is correct."""
    order = list(Stage)
    return sample.verdict.correct or order.index(sample.verdict.stage) > order.index(stage)


def breakdown(
    tasks: TasksSamples, keys: Sequence[str], clock: Clock | None, baselines: list[str], resamples: int, seed: int
) -> dict[str, dict[str, Any]]:
    """The main figures by a key of the task; tasks without one are left out."""
    rows: dict[str, dict[str, Any]] = {}
    for key in sorted({k for k in keys if k}, key=lambda k: (len(k), k) if k.isdigit() else (0, k)):
        part = [task for task, k in zip(tasks, keys, strict=True) if k == key]
        bootstrap = TaskBootstrap(len(part), resamples=resamples, level=LEVEL, seed=seed)
        figures = {"correct": bootstrap.share([fmean(s.verdict.correct for s in task) for task in part])}
        if baselines:
            speeds = speed_figures(part, bootstrap, clock, baselines[0])
            figures |= {name: speeds[name] for name in ("fast_1", "fast_1_plain", "geomean_x")}
        rows[key] = {"tasks": len(part), "samples": sum(map(len, part)), **_plain(figures)}
    return rows


def _depth(sample: Sample) -> str:
    return str(len(sample.composition)) if sample.composition else ""


def notes(results: dict[str, Any], other_clocks: list[Clock]) -> list[str]:
    """Sentences a reader of the figures has to know."""
    said = []
    if large := results["needs_gpu"]:
        said.append(
            f"{counted(large, 'sample needs', 'samples need')} a GPU (too large for the interpreter): left out of every figure."
        )
    if broken := results["unjudged"] - results["needs_gpu"]:
        said.append(f"{counted(broken, 'sample')} could not be judged (broken machinery): left out of every figure.")
    if faults := results["internal_errors"]:
        said.append(f"{counted(faults, 'sample')} of those met a fault of the verifier itself; the log has the traceback.")
    if results["cut"]:
        cut = counted(results["cut"], "reply was", "replies were")
        said.append(f"{cut} cut at the limit of tokens, of {results['samples']:,}.")
    if results["specialised"]:
        specialised = counted(results["specialised"], "correct candidate is", "correct candidates are")
        said.append(f"{specialised} specialised: right at the task's own sizes, and not at others derived from them.")
    if results["untimed"]:
        untimed = counted(results["untimed"], "correct candidate")
        said.append(f"{untimed} could not be timed: counted for fast_0 and no higher threshold.")
    if results["tasks"] == 1:
        said.append("One task tells nothing of how tasks differ: there are no intervals.")
    elif 0 < results["tasks"] < FEW_TASKS:
        said.append(f"With {counted(results['tasks'], 'task')} the intervals are rough, and rather too narrow than too wide.")
    if other_clocks:
        others = ", ".join(f"{kind} on {device}" for kind, device in other_clocks)
        said.append(f"Times of other clocks ({others}) were left out: only times of one device and kind are compared.")
    if results["timing"] and results["timing"]["kind"] == "modelled":
        said.append(f"Times are modelled for {results['timing']['device']} by each plan's roofline; nothing was measured.")
    return said


def judged_of(results: Mapping[str, Any]) -> str:
    """`judged 3 of 5` where some samples could not be, else nothing."""
    unjudged = results.get("unjudged", 0)
    return f"judged {results['samples']} of {results['samples'] + unjudged}" if unjudged else ""


def if_modelled(results: Mapping[str, Any], words: str = ", modelled") -> str:
    """`words` where the speeds of `results` are modelled, else nothing: no modelled figure is shown without them."""
    return words if (results.get("timing") or {}).get("kind") == "modelled" else ""


# --- two runs ----------------------------------------------------------------------------------------------------


def compare(before: Iterable[Sample], after: Iterable[Sample], *, seed: int = 0) -> dict[str, Any]:
    """What changed between two runs, over the tasks of both: shares as differences, speed as a ratio on tasks both solve.

    Speeds are compared only where both runs were timed by the same clock.
    """
    old, new = ({t[0].task: t for t in group(s for s in side if s.judged)} for side in (before, after))
    common = sorted(old.keys() & new.keys())
    changes: dict[str, Any] = {"tasks": len(common), "solved_by_both": 0}
    if not common:
        return changes
    bootstrap = TaskBootstrap(len(common), seed=seed)
    sides = [[side[task] for task in common] for side in (old, new)]
    clock, other = (clocks(s for task in side for s in task)[0] for side in sides)
    speeds = [[[speedup_x(s, clock, "eager") for s in task] for task in side] for side in sides]

    def difference(p: float) -> dict[str, float | None]:
        return bootstrap.difference(*(wins(side, clock, "eager", p) for side in sides)).to_json()

    changes["correct"] = difference(0)
    if clock is None or clock != other:
        return changes
    changes["fast_1"] = difference(1)
    changes["fast_1_plain"] = bootstrap.difference(*([fast_p(task, 1) for task in side] for side in speeds)).to_json()
    changes["modelled"] = clock[0] == "modelled"
    logs = [[[math.log(x) for x in task if x is not None and x > 0] for task in side] for side in speeds]
    both = [(fmean(a), fmean(b)) for a, b in zip(*logs, strict=True) if a and b]
    changes["solved_by_both"] = len(both)
    if both:
        gain = TaskBootstrap(len(both), seed=seed).difference(*np.array(both).T)
        changes["speed_ratio_x"] = {k: None if v is None else math.exp(v) for k, v in gain.to_json().items()}
    return changes


def _plain(figures: Figures) -> dict[str, Any]:
    return {name: estimate.to_json() for name, estimate in figures.items()}
