"""The record and the table of `prove_hub_model.py`: of each size and stage, what its run's folder says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from paragraphs import wrapped
from training_table import NOTE, faster
from transformers import AutoConfig

from kernrl.policy.memory_plan import count_parameters
from kernrl.reports.results import compare, summarise
from kernrl.reports.run_files import Run, Sample, read_run
from kernrl.reports.svg import percent
from kernrl.reports.tables import figure_text

Row = dict[str, Any]

BASELINES = ("eager", "compile")
STAGES = ("sft", "before", "reinforce", "after")
"""Each has a folder of its name; the second and the last are evaluations."""

PHASES = ("generate", "verify", "update")
"""Of a step of RL, in seconds."""


def rows_of(name: str, folder: Path) -> list[Row]:
    """A row for each stage that has taken a step or judged a candidate, whether or not it ended."""
    runs = {stage: read_run(folder / stage) for stage in STAGES if (folder / stage / "config.json").exists()}
    if not runs:
        return []
    about: Row = {"size": name, "parameters": count_parameters(AutoConfig.from_pretrained(folder / "start"))}
    exams = {stage: whole_tasks(run) for stage, run in runs.items() if stage in ("before", "after")}
    rows = []
    for stage, run in runs.items():
        if not exams.get(stage, run.metrics):
            continue
        made = exam_row(run, exams[stage]) if stage in exams else sft_row(run) if stage == "sft" else reinforce_row(run)
        if stage == "after" and exams.get("before"):
            made["change"] = compare(exams["before"], exams["after"])
        about |= {"gpu": run.config.get("gpu"), "stage": stage, "ended": bool(run.results), "seconds": seconds_of(run)}
        rows.append(about | made)
    return rows


def seconds_of(run: Run) -> float | None:
    """Of the steps, or of sampling and judging, without what loading a model took; None where an exam was cut off early."""
    if not run.metrics:
        return None
    spent = [line["seconds"] for line in run.metrics]
    return sum(s if not isinstance(s, dict) else s.get("step") or s.get("generate", 0.0) + s.get("verify", 0.0) for s in spent)


def sft_row(run: Run) -> Row:
    """Of `kernrl sft`. `pairs` is known when the run has ended."""
    tokens, curve = 0.0, []
    for line in run.metrics:
        tokens += line["tokens_per_s"] * line["seconds"]
        if "validation_loss" in line:
            curve.append({"step": line["step"], "tokens": round(tokens), "validation_loss": line["validation_loss"]})
    losses = {"first_loss": run.metrics[0]["loss"], "loss": run.metrics[-1]["loss"], "curve": curve}
    losses["validation_loss"] = curve[-1]["validation_loss"] if curve else None
    return {"steps": len(run.metrics), "tokens": round(tokens), "pairs": run.results.get("pairs"), **losses}


def whole_tasks(run: Run) -> list[Sample]:
    """The samples of tasks that were judged whole: of an exam that was cut off, candidates that fail early come first."""
    counts = Counter(sample.task for sample in run.samples)
    return [sample for sample in run.samples if counts[sample.task] == run.config["config"]["samples"]]


def exam_row(run: Run, samples: list[Sample]) -> Row:
    """Of `kernrl eval`."""
    found = summarise(samples, baselines=BASELINES)
    kept = ("correct", "compiled", "tasks", "samples", "statuses", "by_depth", "cut", "timing", "precisions")
    speeds = {
        name: {k: figures[k] for k in ("fast_1", "fast_1_plain", "geomean_x")} for name, figures in found["baselines"].items()
    }
    row = {key: found[key] for key in kept if key in found}
    row["by_depth"] = {depth: part["correct"] for depth, part in row["by_depth"].items()}
    return row | {"tokens": sum(s.tokens for s in samples), "against": speeds}


def reinforce_row(run: Run) -> Row:
    """Of `kernrl reinforce`. `correct` is of the first and of the last three steps, each of other tasks."""
    lines = run.metrics
    alarms = Counter(alarm for line in lines for alarm in map(kind_of, line["alarms"]))
    row: Row = {"steps": len(lines), "tokens": sum(line["learnt_tokens"] for line in lines)}
    row |= {"samples": sum(line["attempts"] for line in lines), "learnt": sum(line["learnt"] for line in lines)}
    row |= {"correct": [mean_of(lines[:3], "correct"), mean_of(lines[-3:], "correct")], "alarms": dict(alarms)}
    kept = ("step", "reward", "correct", "fast_1", "speed_geomean_x", "entropy", "mismatch_kl", "grad_norm", "length")
    kept += ("duplicates", "truncated", *PHASES)
    row["curve"] = [{key: value for key, value in (line | line["seconds"]).items() if key in kept} for line in lines]
    return row | {"exported": run.results.get("model") is not None}


def kind_of(alarm: str) -> str:
    """An alarm without its numbers, so that equal ones count together."""
    return re.sub(r"\d+(\.\d+)?", "N", alarm)


def mean_of(lines: Sequence[Row], key: str) -> float | None:
    values = [line[key] for line in lines if line.get(key) is not None]
    return fmean(values) if values else None


# --- the table -----------------------------------------------------------------------------------------------------------

COLUMNS = ("size", "stage", "seconds", "steps", "tokens", "pairs or candidates", "validation loss", "compiles", "correct")
COLUMNS += ("faster than eager", "faster than compile", "alarms")
TITLES = {"sft": "SFT", "before": "eval", "reinforce": "REINFORCE", "after": "eval again"}
CHANGE = "What changed between the two evaluations, on the tasks of both:"


def markdown(record: Row) -> str:
    """The table, with what it was measured on above it."""
    versions, rows = record["versions"], record["rows"]
    exams = [row for row in rows if "tasks" in row]
    asked = ", ".join(sorted({f"{row['tasks']} held-out tasks × {row['samples'] // row['tasks']}" for row in exams})) or "none"
    gpus = " and ".join(sorted({row["gpu"] or "a CPU with modelled times" for row in rows}))
    lines = [
        wrapped(
            f"On {gpus}: torch {versions['torch']}, triton {versions['triton']}, commit {(record['commit'] or 'unknown')[:7]}, "
            f"{record['date']}. Qwen2 architectures from random weights, with nano's tokenizer and form `graph`. Evaluations: "
            f"{asked}, T = 0.8, 95 % intervals over tasks. {NOTE} `correct` of REINFORCE is of the first and the last three "
            "steps, which ask training tasks."
        ),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|---|---{'|---:' * (len(COLUMNS) - 3)}|---|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
    ]
    changes = [change_text(row) for row in rows if row.get("change", {}).get("tasks")]
    return "\n".join([*lines, *(["", CHANGE, "", *changes] if changes else [])]) + "\n"


def cells(row: Row) -> list[str]:
    speeds, loss = row.get("against", {}), row.get("validation_loss")
    correct = row.get("correct")
    if isinstance(correct, list):
        shown = " → ".join("–" if value is None else percent(value) for value in correct)
    else:
        shown = figure_text(correct)
    alarms = "; ".join(f"{alarm} ({count})" for alarm, count in row.get("alarms", {}).items())
    pairs = row.get("pairs", row.get("samples"))
    return [
        f"{row['size']} ({row['parameters'] / 1e9:.2f} G)" if row["parameters"] >= 1e8 else row["size"],
        TITLES[row["stage"]] + ("" if row["ended"] else " (cut off)"),
        f"{row['seconds']:.0f}" if row["seconds"] is not None else "–",
        f"{row['steps']:,}" if "steps" in row else "",
        f"{row['tokens'] / 1e6:.1f} M" if row["tokens"] >= 1e5 else f"{row['tokens']:,}",
        f"{pairs:,}" if pairs is not None else "–",
        f"{loss:.3f}" if loss is not None else "",
        figure_text(row["compiled"]) if "compiled" in row else "",
        shown if "correct" in row else "",
        *(faster(speeds[name]) if name in speeds else "" for name in BASELINES),
        alarms or ("none" if "alarms" in row else ""),
    ]


def change_text(row: Row) -> str:
    change = row["change"]
    points = {key: 100 * value for key, value in change["correct"].items() if value is not None}
    between = f" [{points['low']:+.1f}, {points['high']:+.1f}]" if "low" in points else ""
    speed, both = figure_text(change.get("speed_ratio_x"), as_times=True), change["solved_by_both"]
    return (
        f"- {row['size']}: {points['value']:+.1f} points{between} correct; {speed} as fast on the {both} tasks that both solve."
    )
