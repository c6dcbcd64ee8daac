"""What `prove_training.py` saw task by task: styles and speeds of each run, and the tasks that are not faster than compile."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from paragraphs import wrapped
from training_table import Replies, Row, conditions, fastest

from kernrl.files import replace_file
from kernrl.reports.run_files import Sample
from kernrl.rollouts.collect import candidate_key
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

BASELINES = ("eager", "compile")

BOUND = 0.5
"""Share of compile's time from which something is said to bound it."""


def style_of(text: str) -> str:
    """The style that a reply or a candidate names in its first line; '' where it names none."""
    first = text.lstrip().partition("\n")[0]
    return first.removeprefix("# ").strip() if first.startswith("# ") else ""


def task_figures(replies: Replies, tasks: Sequence[Task]) -> dict[str, Row]:
    """Task → what it is, what bounds it, and what each run wrote for it. Only tasks that were judged whole."""
    written = {name: replies.by_task(name) for name in replies.runs}
    found: dict[str, Row] = {}
    for task in tasks:
        runs = {name: rows[task.id] for name, rows in written.items() if task.id in rows}
        if runs:
            about = {"family": task.family, "composition": list(task.composition)}
            figures = {name: run_figures(rows) for name, rows in runs.items()}
            every = [pair for rows in runs.values() for pair in rows]
            found[task.id] = about | {"best": best_figures(every), "runs": figures}
    return found


Judged = tuple[Row, Sample]
"""A line of `replies.jsonl`, and its candidate with a verdict."""


def run_figures(rows: Sequence[Judged]) -> Row:
    """Of what one run wrote for a task: the share that is correct, speeds, and styles.

    `pass@1_x` is the geometric mean over correct candidates, `best_x` the fastest one's. `frequent_style` is that of the
    candidate that was written most often, the first of equals, and `fastest_style` that of the fastest against compile, or
    against eager where compile was not timed.
    """
    samples = [sample for _, sample in rows]
    keys = [candidate_key(row["text"]) for row, _ in rows]
    (frequent, _), *_ = Counter(keys).most_common(1)
    figures: Row = {"correct": fmean(s.verdict.correct for s in samples), "distinct": len(set(keys))}
    figures["against"] = {name: found for name in BASELINES if (found := speeds(samples, name))}
    figures["frequent_style"] = _style(rows[keys.index(frequent)][0])
    best = fastest_of(rows)
    figures["fastest_style"] = _style(best[0]) if best else None
    return figures


def speeds(samples: Sequence[Sample], baseline: str) -> Row:
    """Of the correct candidates that were timed against a baseline; empty where none was."""
    verdicts = [s.verdict for s in samples if s.verdict.correct]
    values = [speedup.value for v in verdicts if (speedup := v.speedup(baseline))]
    if not values:
        return {}
    mean = math.exp(fmean(map(math.log, values)))
    return {"pass@1_x": mean, "best_x": max(values), "faster": any(v.faster(1.0, baseline) for v in verdicts)}


def fastest_of(rows: Sequence[Judged]) -> Judged | None:
    """The fastest correct candidate against compile, or against eager where compile was not timed."""
    samples = [sample for _, sample in rows]
    best = next((found[0] for name in reversed(BASELINES) if (found := fastest(samples, name))), None)
    return next(pair for pair in rows if pair[1] is best) if best else None


def best_figures(rows: Sequence[Judged]) -> Row | None:
    """The fastest candidate that any run wrote for a task, and what bounds the task; None where none is correct and timed."""
    best = fastest_of(rows)
    timing = best[1].verdict.timing if best else None
    if best is None or timing is None:
        return None
    verdicts = [sample.verdict for _, sample in rows if sample.verdict.correct]
    against = {name: [s.value, s.low, s.high] for name, s in timing.speedups_x.items()}
    figures = {"style": _style(best[0]), "us": timing.candidate_us, "baseline_us": timing.baseline_us, "against": against}
    figures["faster"] = any(verdict.faster(1.0, "compile") for verdict in verdicts)
    return figures | bounds(verdicts, timing.baseline_us.get("compile"))


def bounds(verdicts: Sequence[Verdict], compile_us: float | None) -> Row:
    """What correct candidates' plans say of compile's time; empty where compile was not timed.

    `floor` is the modelled time of moving the task's data once, and `library` that of products and convolutions in PyTorch's
    library, the least of the candidates that leave them to it: both as shares of compile's time.
    """
    floors = [verdict.plan["floor_us"] for verdict in verdicts if "floor_us" in verdict.plan]
    if not compile_us or not floors:
        return {}
    library_us = [sum(n["us"] for n in v.plan.get("nodes", ()) if n["kind"] == "library") for v in verdicts]
    return {"floor": max(floors) / compile_us, "library": min(filter(None, library_us), default=0.0) / compile_us}


def bound_text(best: Row) -> str:
    """What takes most of compile's time, by the model."""
    if "floor" not in best:
        return "not known"
    if best["floor"] >= BOUND and best["floor"] >= best["library"]:
        return "moving the data"
    return "the library's products" if best["library"] >= BOUND else "neither"


def missed(tasks: dict[str, Row]) -> dict[str, Row]:
    """The tasks for which no run wrote what is faster than compile beyond the noise, the slowest first."""

    def ratio(row: Row) -> float:
        return row["best"]["against"]["compile"][0] if row["best"] and "compile" in row["best"]["against"] else 0.0

    slow = {name: row for name, row in tasks.items() if not (row["best"] and row["best"]["faster"])}
    return dict(sorted(slow.items(), key=lambda item: (ratio(item[1]), item[0])))


COLUMNS = ("task", "family", "composition", "best style", "against compile", "data, of compile's time", "products", "bound by")


def markdown_row(name: str, row: Row) -> str:
    best, what = row["best"], [row["family"] or "–", ", ".join(row["composition"]) or "–"]
    if best is None:
        return f"| {' | '.join([name, *what, 'none is correct', '', '', '', ''])} |"
    speed = "{:.2f}× [{:.2f}, {:.2f}]".format(*best["against"]["compile"]) if "compile" in best["against"] else "–"
    shares = [f"{best[key]:.0%}" if key in best else "–" for key in ("floor", "library")]
    return f"| {' | '.join([name, *what, best['style'] or '–', speed, *shares, bound_text(best)])} |"


def by_family(tasks: dict[str, Row]) -> str:
    """`conv2d 3 of 4`, the family that misses most first."""
    every, slow = (Counter(row["family"] or "–" for row in found.values()) for found in (tasks, missed(tasks)))
    return ", ".join(f"{name} {slow[name]} of {every[name]}" for name in sorted(every, key=lambda n: (-slow[n], n)))


def page(tasks: dict[str, Row], about: str) -> str:
    """The page of the tasks that were not faster than compile."""
    slow = missed(tasks)
    head = [
        wrapped(
            f"{about} No run wrote a candidate that is faster than compile beyond the noise for {len(slow)} of {len(tasks)} "
            f"tasks; by family: {by_family(tasks)}. Best style: of the fastest candidate that any run wrote. Data: the "
            "modelled time of reading inputs and parameters and writing outputs once, as a share of compile's time. Products: "
            "that of products and convolutions in PyTorch's library, where candidates leave them to it. A task is bound by "
            f"what takes {BOUND:.0%} of compile's time or more."
        ),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * 4}{'---:|' * 3}---|",
    ]
    return "\n".join([*head, *(markdown_row(name, row) for name, row in slow.items())]) + "\n"


def write_tasks_page(out: Path, to: Path, runs: Sequence[str], tasks: Sequence[Task]) -> None:
    """`TO_tasks.json` with every task, and `TO_tasks.md` with those that were not faster than compile."""
    replies = Replies(out, runs, tasks)
    figures = task_figures(replies, tasks)
    about, said = conditions(out, replies.runs)
    to = to.with_name(f"{to.name}_tasks")
    replace_file(to.with_suffix(".json"), json.dumps({**about, "tasks": figures}, indent=1) + "\n")
    replace_file(to.with_suffix(".md"), page(figures, said))


def _style(row: Row) -> str:
    return row["style"] if "style" in row else style_of(row["text"])
