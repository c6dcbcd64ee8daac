"""The charts of the report, made from runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from markupsafe import Markup

from kernrl.console import counted
from kernrl.reports import svg
from kernrl.reports.results import PAST_STAGE, clocks, group, if_modelled, passed, wins
from kernrl.reports.run_files import Run, Sample, number
from kernrl.reports.statistics import TaskBootstrap
from kernrl.reports.svg import Row, Series, percent, short, times
from kernrl.verifier.base.verdict import Stage

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart on the page."""

    title: str
    chart: Markup
    legend: tuple[tuple[str, int], ...] = ()
    """(name, colour) of each line or part."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Metrics that share a chart."""

    title: str
    keys: tuple[str, ...]
    y_format: Format = short
    bounds: tuple[float, float] | None = None
    kind: str = ""
    """Only of runs of this `kind_of`: numbers of one name that mean another thing elsewhere."""


CURVES = (
    Curve("Reward", ("reward",)),
    Curve("Correct", ("correct",), percent, (0, 1)),
    Curve("Correct on held-out tasks", ("heldout.correct",), percent, (0, 1)),
    Curve("Correct and faster, beyond the noise where measured", ("fast_1",), percent, (0, 1)),
    Curve("Speedup of the correct, geometric mean", ("speed_geomean_x",), times),
    Curve("Cross-entropy of SFT, nats a token", ("loss", "validation_loss"), kind="pairs"),
    Curve("Loss of fine-tuning on samples", ("loss",), kind="samples"),
    Curve("Policy loss", ("loss",), kind="policy"),
    Curve("Entropy, nats a token", ("entropy",)),
    Curve("KL to the reference, nats a token", ("kl_ref",)),
    Curve("Mismatch of sampler and trainer, nats a token", ("mismatch_kl",)),
    Curve("Clipped tokens", ("clip_low", "clip_high"), percent),
    Curve("Reply length, tokens", ("length",)),
    Curve("Replies cut at the limit", ("truncated",), percent),
    Curve("Gradient norm", ("grad_norm",)),
    Curve("Learning rate", ("learning_rate",)),
    Curve("Tokens a second", ("tokens_per_s",)),
)
"""Every metric the report draws; others stay in `metrics.jsonl`."""

FEWEST_POINTS = 3
"""Fewer points than this are numbers, and no curve."""

SMOOTH_FROM = 40
"""Steps from which a curve is drawn as a moving mean with the spread around it."""


def kind_of(run: Run) -> str:
    """What the run's loss is: of given `pairs` (SFT), of chosen `samples` (best-of-N), or of a `policy` (reinforce)."""
    if not any("reward" in row for row in run.metrics):
        return "pairs"
    return "samples" if any("first_loss" in row or "kept" in row for row in run.metrics) else "policy"


def training_panels(runs: Sequence[Run]) -> list[Panel]:
    """One chart a metric; the runs are lines of it."""
    panels = []
    for curve in CURVES:
        lines: list[Series] = []
        for index, run in _runs_of(curve, runs):
            present = [s for key in curve.keys if (s := _metric(run, key)) and len(s.x) >= FEWEST_POINTS]
            for s in present if len(runs) == 1 else present[:1]:
                lines.append(_smooth(s, colour=len(lines)) if len(runs) == 1 else _smooth(s, run.name, index))
        if lines:
            chart = svg.line_chart(lines, label=curve.title, y_format=curve.y_format, bounds=curve.bounds)
            legend = tuple((s.name, s.colour) for s in lines) if len(lines) > 1 else ()
            panels.append(Panel(curve.title, chart, legend))
    return panels


@dataclass(frozen=True, slots=True)
class Numbers:
    """Metrics of runs with too few steps for curves: a row a metric, a column a run."""

    runs: list[str]
    rows: list[tuple[str, list[str]]]


def training_numbers(runs: Sequence[Run]) -> Numbers | None:
    """The metrics of one or two steps, such as `1.43 → 1.70`."""
    rows: list[tuple[str, dict[str, str]]] = []
    for curve in CURVES:
        for key in curve.keys:
            cells: dict[str, str] = {}
            for _, run in _runs_of(curve, runs):
                found = _metric(run, key)
                if found and len(found.x) < FEWEST_POINTS:
                    cells[run.name] = " → ".join(map(curve.y_format, found.y))
            if cells:
                title = curve.title if len(curve.keys) == 1 else f"{curve.title} ({key.replace('_', ' ')})"
                rows.append((title, cells))
    names = [run.name for run in runs if any(run.name in cells for _, cells in rows)]
    return Numbers(names, [(title, [cells.get(name, "–") for name in names]) for title, cells in rows]) if rows else None


def _runs_of(curve: Curve, runs: Sequence[Run]) -> list[tuple[int, Run]]:
    """(place, run) of those whose metrics mean what the curve says."""
    return [(place, run) for place, run in enumerate(runs) if not curve.kind or kind_of(run) == curve.kind]


def few_steps(runs: Sequence[Run]) -> bool:
    """Whether curves of rewards follow the tasks that a step happens to ask as much as what has been learnt."""
    return any(0 < sum("reward" in row for row in run.metrics) < SMOOTH_FROM for run in runs)


def _metric(run: Run, key: str) -> Series | None:
    table, _, name = key.rpartition(".")
    lines = [(row["step"], row.get(table) or {} if table else row) for row in run.metrics]
    points = [(float(step), value) for step, line in lines if (value := number(line.get(name))) is not None]
    if not points:
        return None
    return Series(key.replace("_", " "), [step for step, _ in points], [value for _, value in points])


def _smooth(series: Series, name: str = "", colour: int = 0) -> Series:
    """The moving mean over a twentieth of the steps, and one standard deviation around it within what was seen, where there are
    many steps."""
    n, name = len(series.y), name or series.name
    if n < SMOOTH_FROM:
        return Series(name, series.x, series.y, colour=colour)
    reach = n // 40
    windows = [series.y[max(0, i - reach) : i + reach + 1] for i in range(n)]
    means, spreads = [fmean(w) for w in windows], [pstdev(w) for w in windows]
    low = [max(m - s, min(w)) for m, s, w in zip(means, spreads, windows, strict=True)]
    high = [min(m + s, max(w)) for m, s, w in zip(means, spreads, windows, strict=True)]
    return Series(name, series.x, means, low, high, colour)


def fast_p_panel(
    named: Sequence[tuple[str, Sequence[Sample]]], baselines: Sequence[str], mark: str = "", colours: Sequence[int] = ()
) -> Panel | None:
    """fast_p over p: one line a set of samples, or one a baseline where there is one set. `mark` goes into the title."""
    lines: list[Series] = []
    pairs = [(n, s, b) for n, s in named for b in (baselines if len(named) == 1 else baselines[:1])]
    fastest = max((up.value for _, s, b in pairs for x in s if x.verdict.correct and (up := x.verdict.speedup(b))), default=1.0)
    # from 0.25 to the power of two that shows the fastest, but at least to 4 and at most to 16
    octaves = min(max(math.ceil(math.log2(fastest)), 2), 4)
    grid = [2 ** (i / 16) for i in range(-32, 16 * octaves + 1)]
    for place, (name, samples, baseline) in enumerate(pairs):
        if any(s.verdict.timing for s in samples):
            colour = colours[place] if len(named) > 1 and colours else place
            lines.append(_fast_p_series(f"against {baseline}" if len(named) == 1 else name, samples, baseline, grid, colour))
    if not lines:
        return None
    against = f", against {baselines[0]}" if len(named) > 1 else ""
    sure = "" if mark else ", by more than the noise"
    note = (
        f"Read it at any p: the share of all candidates that are correct and more than p times as fast as the baseline{sure}."
    )
    chart = svg.fast_p_chart(lines, label="fast_p over p")
    return Panel(f"fast_p{against}{mark}", chart, tuple((s.name, s.colour) for s in lines), note)


def _fast_p_series(name: str, samples: Sequence[Sample], baseline: str, grid: Sequence[float], colour: int) -> Series:
    judged = [s for s in samples if s.judged]
    clock, _ = clocks(judged)
    tasks = group(judged)
    bootstrap = TaskBootstrap(len(tasks), resamples=1000)
    ends = []
    for p in grid:
        shares_T = wins(tasks, clock, baseline, p)
        share = bootstrap.share(shares_T)
        value = fmean(shares_T)
        # where all tasks agree the interval is of another kind, and would stand in the band as a block
        spread = min(shares_T) < max(shares_T)
        ends.append((value, *(end if spread and end is not None else value for end in (share.low, share.high))))
    shares, low, high = zip(*ends, strict=True)
    return Series(name, grid, shares, low, high, colour)


def funnel_panel(results: Mapping[str, Any], samples: Sequence[Sample]) -> Panel | None:
    """How many candidates are left after each stage, and what stopped the others."""
    judged = [s for s in samples if s.judged]
    if not judged:
        return None
    rows, before = [], judged
    for stage in (s for s in Stage if s is not Stage.TIMING):
        left = [s for s in before if passed(s, stage)]
        stopped = Counter(str(s.verdict.status) for s in before if not passed(s, stage))
        note = ", ".join(f"{n} {status}" for status, n in stopped.most_common(3))
        figure = results["funnel"][str(stage)]
        rows.append(Row(f"{PAST_STAGE[stage]}: {len(left)}", figure["value"], figure["low"], figure["high"], note))
        before = left
    if faster := results.get("fast_1"):
        against = f"faster than {results['baseline']}{if_modelled(results)}"
        rows.append(Row(against, faster["value"], faster["low"], faster["high"], colour=2))
    note = f"Of {counted(len(judged), 'candidate')}. At the right of each name: what stopped candidates at that stage."
    return Panel("Where candidates stop", svg.share_rows(rows, label="share of candidates past each stage"), note=note)


def breakdown_panels(results: Mapping[str, Any]) -> list[Panel]:
    """Correctness and speed by family and by depth."""
    panels = []
    for key, word in (("by_family", "family"), ("by_depth", "depth")):
        rows = results.get(key) or {}
        if len(rows) < 2:
            continue
        names = {name: f"{name} ops" if key == "by_depth" else name for name in rows}
        correct = [Row(names[n], **r["correct"], note=_tasks(r)) for n, r in rows.items()]
        title = f"Correct, by {word}"
        panels.append(Panel(title, svg.share_rows(correct, label=title)))
        timed = [(n, r) for n, r in rows.items() if (r.get("geomean_x") or {}).get("value")]
        speeds = [Row(names[n], **r["geomean_x"], note=_tasks(r)) for n, r in timed]
        if speeds:
            title = f"Speedup of the correct over {results['baseline']}, by {word}{if_modelled(results)}"
            panels.append(Panel(title, svg.speed_rows(speeds, label=title), note="Geometric means; the line is at 1×."))
    return panels


def _tasks(row: Mapping[str, Any]) -> str:
    return "1 task: no interval" if row["tasks"] == 1 else counted(row["tasks"], "task")


# --- time --------------------------------------------------------------------------------------------------------

WALL_PHASES = ("load", "ask", "generate", "verify", "update", "evaluate", "save")
"""Phases that follow each other on the clock; `step` is the whole of a step. Other keys of `seconds` are work that overlaps."""


def wall_seconds(run: Run) -> dict[str, float]:
    """Wall time by phase over the whole run; a plain number of seconds is an update's."""
    total: defaultdict[str, float] = defaultdict(float)
    for row in run.metrics:
        spent = row.get("seconds")
        if isinstance(spent, dict):
            known = {phase: number(spent.get(phase)) or 0.0 for phase in WALL_PHASES}
            known["other"] = max(0.0, (number(spent.get("step")) or 0.0) - sum(known.values()))
            for phase, value in known.items():
                total[phase] += value
        elif (whole := number(spent)) is not None:
            total["update"] += whole
    whole = sum(total.values())
    return {phase: value for phase, value in total.items() if value > 0.001 * whole}


NO_WORK = ("gpu_queue", "gpu_busy")
"""Of a verdict's seconds, no stage's own: waiting for a turn, and how long the GPU was busy with the other stages' work."""


def verifier_seconds(samples: Sequence[Sample]) -> dict[str, float]:
    """The verifier's time by stage, and waiting, summed over the candidates that it looked at afresh; not the parts of stages
    that its processes tell of (`judge: truth`)."""
    total: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        for stage, spent in sample.verdict.seconds.items() if not sample.verdict.cached else ():
            if ": " not in stage:
                total[stage] += number(spent) or 0.0
    return {k: v for k, v in total.items() if v > 0}


def time_panels(run: Run) -> list[Panel]:
    """Where the wall time went, and where the verifier's did."""
    spent = verifier_seconds(run.samples)
    waited = f" Candidates waited {svg.seconds(spent['gpu_queue'])} for their turn." if "gpu_queue" in spent else ""
    verified = f"Summed over candidates; many are verified side by side, so this is more than the clock saw.{waited}"
    work = {stage: value for stage, value in spent.items() if stage not in NO_WORK}
    parts = (("Wall time by phase", wall_seconds(run), ""), ("The verifier's work by stage", largest(work), verified))
    return [_time_panel(title, seconds, note) for title, seconds, note in parts if seconds]


def largest(parts: Mapping[str, float]) -> dict[str, float]:
    """As many as there are colours, the largest first; what is left is put together."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    if len(ordered) <= svg.COLOURS:
        return dict(ordered)
    shown, rest = ordered[: svg.COLOURS - 1], ordered[svg.COLOURS - 1 :]
    return dict(shown) | {f"{len(rest)} others": sum(value for _, value in rest)}


def _time_panel(title: str, spent: Mapping[str, float], note: str) -> Panel:
    total, parts = sum(spent.values()), list(spent.items())
    legend = tuple((f"{n}: {svg.seconds(v)}, {percent(v / total)}", i) for i, (n, v) in enumerate(parts))
    return Panel(title, svg.stacked_bar(parts, label=title), legend, note)
