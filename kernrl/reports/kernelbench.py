"""KernelBench's run directory: write one that its analysis scripts read, and read the candidates of one.

A directory holds `level_L_problem_P_sample_S_kernel.py` files and `eval_results.json`, which maps a problem's number to a
list of `{sample_id, compiled, correctness, metadata, runtime, runtime_stats}`. It knows one level, so there is one directory
a level. Times are milliseconds there, as CUDA events give them; -1 stands for none.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernrl.console import counted
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.reports.run_files import read_rows
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Stage, Verdict

KERNEL_FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")

NOT_TIMED = -1.0

Found = tuple[Task, int, str]
"""(task, number of the sample, source or whole reply) of a candidate on disk."""


def problem_number(task: Task) -> int | None:
    """40 for the ids `level2/40_name`, `level2/40` and `row-40`, or None for a task that KernelBench does not number."""
    match = re.fullmatch(r"(?:.*/)?(?:row-)?(\d+)(?:_[^/]*)?", task.id)
    return int(match[1]) if match else None


def number_tasks(tasks: Sequence[Task]) -> dict[tuple[int, int], Task]:
    """(level, problem) → task: by the number in its id, else by its place among the tasks of its level, from 1."""
    numbered: dict[tuple[int, int], Task] = {}
    places: dict[int, int] = defaultdict(int)
    waiting: list[tuple[int, Task]] = []
    for task in tasks:
        places[task.level] += 1
        number = problem_number(task)
        if number is None or (task.level, number) in numbered:
            waiting.append((places[task.level], task))
        else:
            numbered[task.level, number] = task
    for place, task in waiting:
        while (task.level, place) in numbered:
            place += 1
        numbered[task.level, place] = task
    return numbered


# --- write -------------------------------------------------------------------------------------------------------


def write_kernelbench(folder: Path, tasks: Sequence[Task], rows: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Write the samples of a run as KernelBench would have left them.

    Args:
        folder: Gets one `level_L` directory a level, with the candidates, `eval_results.json`, and for each baseline
            `baseline_time_NAME.json` in the form of KernelBench's timing files.
        rows: Rows of `samples.jsonl`.

    Returns:
        The directories.
    """
    numbers = {task.id: (key, task) for key, task in number_tasks(tasks).items()}
    entries: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    times: dict[tuple[int, str], dict[str, Any]] = defaultdict(dict)
    for row in rows:
        (level, problem), task = numbers[row["task"]]
        verdict, sample = Verdict.from_json(row["verdict"]), int(row["member"])
        parsed = parse_reply(row["text"])
        place = folder / f"level_{level}"
        place.mkdir(parents=True, exist_ok=True)
        source = row["text"] if isinstance(parsed, Rejection) else parsed.source
        replace_file(place / f"level_{level}_problem_{problem}_sample_{sample}_kernel.py", source)
        entries[level][str(problem)].append(eval_entry(sample, verdict))
        if verdict.timing and verdict.timing.kind == "measured":
            for baseline, us in verdict.timing.baseline_us.items():
                times[level, baseline][f"{task.name or task.id}.py"] = _stats(us, verdict.timing.device)
    for level, problems in entries.items():
        ordered = {p: sorted(problems[p], key=lambda e: e["sample_id"]) for p in sorted(problems, key=int)}
        replace_file(folder / f"level_{level}" / "eval_results.json", json.dumps(ordered, indent=2))
    for (level, baseline), problems in times.items():
        timing_file = {f"level{level}": problems}
        replace_file(folder / f"level_{level}" / f"baseline_time_{baseline}.json", json.dumps(timing_file, indent=2))
    return [folder / f"level_{level}" for level in sorted(entries)]


def eval_entry(sample: int, verdict: Verdict) -> dict[str, Any]:
    """One element of `eval_results.json`. Modelled times are no measurement, and go into the metadata alone."""
    timing = verdict.timing
    measured = timing if timing and timing.kind == "measured" and verdict.correct else None
    metadata: dict[str, Any] = {"status": str(verdict.status), "stage": str(verdict.stage), "precision": verdict.precision}
    if verdict.reason:
        metadata["reason"] = verdict.reason
    if timing:
        metadata["hardware"] = timing.device
    if timing and not measured:
        metadata["modelled_us"] = timing.candidate_us
    entry: dict[str, Any] = {
        "sample_id": sample,
        "compiled": verdict.stage in (Stage.CORRECTNESS, Stage.TIMING),
        "correctness": verdict.correct,
        "metadata": metadata,
        "runtime": measured.candidate_us / 1000 if measured else NOT_TIMED,
        "runtime_stats": _stats(measured.candidate_us, measured.device) if measured else {},
    }
    if measured and "eager" in measured.baseline_us:
        entry["ref_runtime"] = measured.baseline_us["eager"] / 1000
        entry["ref_runtime_stats"] = _stats(measured.baseline_us["eager"], measured.device)
    return entry


def _stats(us: float, device: str) -> dict[str, Any]:
    """Only what is known: the median stands where KernelBench has the mean of its trials."""
    return {"mean": us / 1000, "hardware": device, "device": device}


# --- read --------------------------------------------------------------------------------------------------------


def read_candidates(folder: Path, tasks: Sequence[Task]) -> tuple[list[Found], list[str]]:
    """The candidates under a folder for the given tasks, in a fixed order, and sentences about what fits none of them.

    The folder is a run of kernrl (its `samples.jsonl` is read), a KernelBench run directory, or `.py` files named after a
    task: its id, its id with `_` for `/`, or its name, then optionally `_sample_S`.

    Raises:
        UsageError: there is no such folder, or no candidate for any of the tasks in it.
    """
    if not folder.is_dir():
        raise UsageError(f"--from-run: there is no folder {folder}.")
    found, problems = _of_run(folder, tasks) if (folder / "samples.jsonl").exists() else _of_files(folder, tasks)
    if not found:
        why = f": {problems[0]}" if problems else "; name the files after the tasks, such as TASK_sample_0.py."
        raise UsageError(f"--from-run: {folder} holds no candidate for these tasks{why}")
    order = {task.id: place for place, task in enumerate(tasks)}
    return sorted(found, key=lambda f: (order[f[0].id], f[1])), problems


def _of_run(folder: Path, tasks: Sequence[Task]) -> tuple[list[Found], list[str]]:
    by_id, problems = {task.id: task for task in tasks}, []
    counts: dict[str, int] = defaultdict(int)
    latest = {row.get("id"): row for _, row in read_rows(folder / "samples.jsonl", problems)}
    found: list[Found] = []
    missing = 0
    for row in latest.values():
        task = by_id.get(str(row.get("task")))
        if task is None or not isinstance(row.get("text"), str):
            missing += 1
            continue
        found.append((task, counts[task.id], row["text"]))
        counts[task.id] += 1
    if missing:
        problems.append(f"{counted(missing, 'sample')} of other tasks: left out.")
    return found, problems


def _of_files(folder: Path, tasks: Sequence[Task]) -> tuple[list[Found], list[str]]:
    numbered = number_tasks(tasks)
    by_name = {name: task for task in tasks for name in (task.name, task.id.replace("/", "_"), task.id) if name}
    found: list[Found] = []
    problems: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        if match := KERNEL_FILE.fullmatch(path.name):
            level, problem, sample = map(int, match.groups())
            task = numbered.get((level, problem))
        else:
            relative = path.relative_to(folder).with_suffix("").as_posix()
            name, number = re.fullmatch(r"(.+?)(?:_sample_(\d+))?", relative, re.DOTALL).groups()  # pyright: ignore
            task, sample = by_name.get(name) or by_name.get(name.rpartition("/")[2]), int(number or 0)
        if task is None:
            problems.append(f"{path} fits none of the tasks.")
            continue
        try:
            found.append((task, sample, path.read_text(encoding="utf-8-sig", errors="replace")))
        except OSError as error:  # a link to nowhere, a folder of such a name
            problems.append(f"{path} cannot be read: {error.strerror}.")
    return found, problems
