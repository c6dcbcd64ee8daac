"""The table of `prove_training.py`: of each run, what its model wrote for a suite, and where its time went."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from paragraphs import wrapped

from kernrl.files import replace_file
from kernrl.reports.results import compare, summarise
from kernrl.reports.run_files import Sample
from kernrl.reports.svg import percent
from kernrl.reports.tables import figure_text
from kernrl.rollouts.collect import candidate_key
from kernrl.runs.run_directory import read_lines
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

Row = dict[str, Any]

PHASES = ("generate", "verify", "update")
"""Of a step."""

UNCHANGED = "unchanged"
"""The run with which those that differ in one choice are compared."""


class Replies:
    """What the models of a proof wrote for some tasks, with verdicts.

    Only tasks count of which all that any run wrote was judged: where judging was cut off, what fails early has its verdict
    first, and would count alone.
    """

    def __init__(self, out: Path, runs: Sequence[str], tasks: Sequence[Task]):
        self._tasks = {task.id: task for task in tasks}
        judged = {(row["task"], row["key"]): Verdict.from_json(row["verdict"]) for row in read_lines(out / "verdicts.jsonl")}
        replies = {
            name: [(row, judged.get((row["task"], candidate_key(row["text"])))) for row in rows]
            for name in runs
            if (rows := [row for row in read_lines(out / name / "replies.jsonl") if row["task"] in self._tasks])
        }
        self._replies = {name: rows for name, rows in replies.items() if any(verdict for _, verdict in rows)}
        self._cut = {row["task"] for rows in self._replies.values() for row, verdict in rows if verdict is None}
        self.runs = list(self._replies)

    def samples(self, *names: str) -> list[Sample]:
        """Of several seeds together: as if each task had been asked that much more often."""
        return [sample for name in names for rows in self.by_task(name).values() for _, sample in rows]

    def by_task(self, name: str) -> dict[str, list[tuple[Row, Sample]]]:
        """Task → a run's replies to it, each with its sample."""
        found: dict[str, list[tuple[Row, Sample]]] = {}
        for row, verdict in self._replies[name]:
            if verdict and row["task"] not in self._cut:
                found.setdefault(row["task"], []).append((row, self._sample(name, row, verdict)))
        return found

    def fastest(self) -> list[Sample]:
        """Of each task the fastest that any run wrote: what choosing alone, and nothing new, could come to."""
        return fastest(self.samples(*self.runs), "eager")

    def distinct_a_task(self, name: str) -> float:
        """How many different candidates a run wrote for a task, on average."""
        keys: dict[str, set[str]] = {}
        for row, _ in self._replies[name]:
            keys.setdefault(row["task"], set()).add(candidate_key(row["text"]))
        return fmean(map(len, keys.values()))

    def _sample(self, name: str, row: Row, verdict: Verdict) -> Sample:
        task = self._tasks[row["task"]]
        sample = Sample(f"{name}-{task.id}#{row['member']}", task.id, verdict, 0, task.family, task.composition)
        return replace(sample, tokens=row["tokens"])


def spent_s(lines: Sequence[Row]) -> float:
    """Seconds of a run's steps: what loading and the verifier's start took is not a method's doing."""
    return sum(line["seconds"]["step"] if isinstance(line["seconds"], dict) else line["seconds"] for line in lines)


def training_figures(out: Path, names: Sequence[str]) -> Row:
    """How a run's time was spent, summed over the runs named."""
    runs = [json.loads((out / name / "train.json").read_text()) for name in names]
    lines = [line for run in runs for line in run["steps"]]
    limits = [limit for run in runs if (limit := run["settings"].get("time_limit_s"))]
    sampled = [line for line in lines if "attempts" in line]
    total = spent_s(lines)
    figures: Row = {"seconds": total / len(names), "steps": len(lines) / len(names)}
    figures |= {"asked_s": fmean(limits)} if limits else {}
    if sampled:
        attempts = sum(line["attempts"] for line in sampled)
        distinct = sum(line["attempts"] * (1 - line["duplicates"]) for line in sampled)
        phases = {p: sum(line["seconds"].get(p, 0.0) for line in sampled) / total for p in PHASES}
        figures |= {"attempts": attempts / len(names), "attempts_per_s": attempts / total, "distinct_per_s": distinct / total}
        figures |= {"share_of_time": phases | {"rest": 1 - sum(phases.values())}}
    return figures


def figures_of(out: Path, replies: Replies, names: Sequence[str]) -> Row:
    """Everything about one row of the table."""
    row = {"runs": list(names), **figures_of_samples(replies, replies.samples(*names))}
    if len(names) == 1:
        row |= {"distinct_a_task": replies.distinct_a_task(names[0]), "best_geomean_x": best_of(replies.samples(*names))}
    return row if names == ["start"] else row | {"training": training_figures(out, names)}


def figures_of_samples(replies: Replies, samples: Sequence[Sample]) -> Row:
    """How good samples are, and how much better than the start's, if it was asked."""
    results = summarise(samples, baselines=("eager", "compile"))
    kept = ("correct", "statuses", "tasks", "samples", "unjudged", "interval", "timing")
    speeds = {
        baseline: {key: figures[key] for key in ("fast_1", "fast_1_plain", "fast_1.2", "geomean_x")}
        for baseline, figures in results["baselines"].items()
    }
    passes = {key: value for key, value in results.items() if key.startswith("pass@")}
    row: Row = {**{key: results.get(key) for key in kept}, **passes, "against": speeds}
    row["mean_tokens"] = fmean(s.tokens for s in samples)
    start = replies.samples("start") if "start" in replies.runs else samples
    return row if samples == start else row | {"change": compare(start, samples)}


def fastest(samples: Sequence[Sample], baseline: str) -> list[Sample]:
    """Of each task the correct sample that is the fastest against a baseline."""
    best: dict[str, tuple[float, Sample]] = {}
    for sample in samples:
        speedup = sample.verdict.speedup(baseline) if sample.verdict.correct else None
        if speedup and speedup.value > best.get(sample.task, (0.0, sample))[0]:
            best[sample.task] = speedup.value, sample
    return [sample for _, sample in best.values()]


def best_of(samples: Sequence[Sample]) -> Row:
    """Baseline → geometric mean, with its interval, of each task's fastest candidate against it."""
    found: Row = {}
    for baseline in ("eager", "compile"):
        if best := fastest(samples, baseline):
            found[baseline] = summarise(best, baselines=(baseline,))["baselines"][baseline]["geomean_x"]
    return found


FASTEST = "fastest of all"
"""The row of what could be chosen from everything that was written."""

COLUMNS = (
    "",
    "correct, pass@1",
    "faster than eager",
    "faster than compile",
    "geomean, eager",
    "geomean, compile",
    "Δ correct, points",
    "speed, solved by both",
    "seconds",
    "attempts/s",
)


NOTE = "Faster: beyond the noise of the GPU; in parentheses, every win counted."


def faster(figures: Row) -> str:
    """The share of wins beyond the noise with its interval, and the plain share of wins in parentheses."""
    return f"{figure_text(figures['fast_1'])} ({percent(figures['fast_1_plain']['value'])})" if figures else "–"


def markdown_table(rows: dict[str, Row]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|---{'|---:' * (len(COLUMNS) - 1)}|"]
    return "\n".join([*lines, *(markdown_row(name, row) for name, row in rows.items())])


def markdown_row(name: str, row: Row) -> str:
    speeds, change, training = row["against"], row.get("change", {}), row.get("training", {})
    cells = [
        name,
        figure_text(row["correct"]),
        *(faster(speeds.get(baseline, {})) for baseline in ("eager", "compile")),
        *(figure_text(speeds.get(baseline, {}).get("geomean_x"), as_times=True) for baseline in ("eager", "compile")),
        points(change.get("correct")),
        figure_text(change.get("speed_ratio_x"), as_times=True),
        seconds_text(training),
        f"{training['attempts_per_s']:.0f}" if "attempts_per_s" in training else "",
    ]
    return f"| {' | '.join(cells)} |"


def seconds_text(training: Row) -> str:
    """The time that a run took, of that which it was given: it ends with the step that it is in."""
    if not training:
        return ""
    return f"{training['seconds']:.0f}" + (f" of {training['asked_s']:.0f}" if "asked_s" in training else "")


def points(figure: Row | None) -> str:
    """A difference of shares in points, with its interval."""
    if not figure or figure["value"] is None:
        return ""
    ends = [figure[key] for key in ("low", "high")]
    return f"{100 * figure['value']:+.1f}" + (f" [{100 * ends[0]:+.1f}, {100 * ends[1]:+.1f}]" if None not in ends else "")


def write_table(
    out: Path, to: Path, runs: Sequence[str], seeds: Mapping[str, Sequence[str]], asked: Row, tasks: Sequence[Task]
) -> None:
    """The table of all `runs` that were judged, if only in part; `seeds` are rows of runs that differ in nothing else,
    and are left out where the runs do.

    `asked` says how the models were asked; each run's own settings stand beside it.
    """
    replies = Replies(out, runs, tasks)
    there = replies.runs
    trained = {name: json.loads((out / name / "train.json").read_text()) for name in there if name != "start"}
    rows: dict[str, Row] = {name: figures_of(out, replies, [name]) for name in there}
    for title, names in seeds.items():
        found = [name for name in names if name in there]
        kinds = [trained[name]["settings"] | {"seed": None} for name in found]
        if len(found) > 1 and all(kind == kinds[0] for kind in kinds):
            rows[title] = figures_of(out, replies, found)
    for name in asked.get("choices", ()):
        if UNCHANGED in there and name in there and name != UNCHANGED:
            rows[name]["change_from_unchanged"] = compare(replies.samples(UNCHANGED), replies.samples(name))
    rows[FASTEST] = figures_of_samples(replies, replies.fastest())
    settings = asked | {"runs": {name: of_run["settings"] for name, of_run in trained.items()}}
    about, measured = conditions(out, there)
    curves = {name: steps for name in there if name != "start" and (steps := curve(out, name))}
    text = json.dumps({**about, "settings": settings, "rows": rows, "curves": curves}, indent=1)
    lines = [
        wrapped(
            f"{measured} {rows['start']['tasks']} tasks under {asked['precision']} × "
            f"{asked['samples']} candidates at T = {asked['temperature']}; 95 % intervals over tasks. {NOTE}"
        ),
        "",
        markdown_table(rows),
        *alarm_lines(curves),
    ]
    replace_file(to.with_suffix(".json"), text + "\n")
    replace_file(to.with_suffix(".md"), "\n".join(lines) + "\n")
    print("\n".join(lines))


def conditions(out: Path, names: Sequence[str]) -> tuple[Row, str]:
    """What a proof was measured with, by the first run that was trained: for a record, and in a sentence."""
    facts = json.loads((out / next(name for name in names if name != "start") / "train.json").read_text())
    about = {key: facts[key] for key in ("versions", "gpu", "commit")} | {"date": facts["started"][:10]}
    versions, commit = about["versions"], (about["commit"] or "unknown")[:7]
    said = f"Measured on one {about['gpu']}: torch {versions['torch']}, triton {versions['triton']}, commit {commit}."
    return about, said


def alarm_lines(curves: dict[str, list[Row]]) -> list[str]:
    """A list of the alarms that each run raised, of which one differs from another by more than its numbers: the steps in which
    it came, and what it said first."""
    lines = ["", "Alarms of the runs, with the steps in which they came:", ""]
    for name, steps in curves.items():
        found: dict[str, tuple[str, list[int]]] = {}
        for step in steps:
            for alarm in step["alarms"] or ():
                found.setdefault(re.sub(r"[\d.]+", "", alarm), (alarm, []))[1].append(step["step"])
        said = [f"{alarm} ({ranges(came)})" for alarm, came in found.values()]
        lines.append(wrapped(f"- {name}: {'; '.join(said) or 'none'}", "  "))
    return lines if curves else []


def ranges(numbers: Sequence[int]) -> str:
    """`step 4`, `steps 1, 3 to 7`, of ascending numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    text = ", ".join(" to ".join(map(str, part)) for part in parts)
    return f"{'step' if len(numbers) == 1 else 'steps'} {text}"


def curve(out: Path, name: str) -> list[Row]:
    """What each step of a run saw of its own tasks; nothing of a run that asked none."""
    kept = (
        "step",
        "reward",
        "correct",
        "fast_1",
        "speed_geomean_x",
        "entropy",
        "mismatch_kl",
        "length",
        "duplicates",
        "alarms",
        "seconds",
    )
    lines = json.loads((out / name / "train.json").read_text())["steps"]
    rows = [{k: line.get(k) for k in kept} for line in lines if "attempts" in line]
    # of a step's seconds its phases, not every part of every verdict
    return [row | {"seconds": {phase: row["seconds"].get(phase) for phase in (*PHASES, "step")}} for row in rows]
