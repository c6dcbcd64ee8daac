"""Verdicts a second on tasks of the size that people benchmark, 1 to 8 GiB, and how much memory judging them takes.

    python scripts/bench_real_sizes.py --out sizes.json --seconds 540                   # again until it says that all is done
    python scripts/bench_real_sizes.py --out sizes.json --seconds 0                     # the table of what is there
    python scripts/plot_sizes.py sizes.json                                             # a chart of it
    python scripts/bench_real_sizes.py --out dry.json --device cpu --tasks 1 --least 0 --most 0.01 --styles 1

Four phases: `eager` and `eager,compile`, each cold (a new cache folder) and warm (the same folder, other candidates). A task's
candidates are its worked styles, repeated with another comment until there are `--styles`, so that none is judged twice. All
of them are right: any other verdict is listed. `--out` keeps every verdict, and a second call goes on where the first ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

from kernrl.config import VerifierConfig
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.sample import sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier import HardenedVerifier
from kernrl.verifier.judge.memory_estimate import rehearse
from kernrl.verifier.pool.memory_ledger import GIB

ROOT = Path(__file__).parents[1]


def sized_tasks(folder: Path, count: int, least: float, most: float, seed: int) -> Iterator[tuple[Task, float]]:
    """Tasks that hold so many GiB when eager runs them, with that number: a folder's, then generated ones."""
    for task in [*load_tasks(folder).tasks, *_generated(seed)]:
        if count == 0:
            return
        try:
            held = rehearse(task, InputSet(FULL), "tf32").eager_peak / GIB
        except Exception as error:  # whatever a reference does without numbers
            print(f"{task.id} is left out: {error}", file=sys.stderr)
            continue
        if least <= held <= most:
            count -= 1
            yield task, held


def _generated(seed: int) -> Iterator[Task]:
    for number in range(2000):
        rng = Random(f"sizes {seed} {number}")
        graph = sample(rng, rng.randint(3, 7))
        if sum(v.nbytes for v in graph.values.values()) >= GIB // 2:
            yield Task(f"generated-{number}", write(graph, Hand.draw(rng), rng))


def candidates(task: Task, count: int, mark: str) -> list[tuple[str, str]]:
    """(style, text) of right candidates, no two alike and none of another `mark`."""
    styles = write_solutions(with_input_sets(task))
    if not styles:
        return []
    turns = (styles[i % len(styles)] for i in range(count))
    return [(one.style, f"{one.triton_code}\n# {mark} {i}\n") for i, one in enumerate(turns)]


def row_of(task: Task, held_gib: float, style: str, verdict: Any) -> dict[str, Any]:
    """What is kept of a verdict."""
    return {
        "task": task.id, "gib": held_gib, "style": style, "status": str(verdict.status), "reason": verdict.reason[:300],
        "memory": verdict.memory, "seconds": verdict.seconds,
        "us": verdict.timing.candidate_us if verdict.timing else None,
        "baseline_us": verdict.timing.baseline_us if verdict.timing else None,
    }  # fmt: skip


def judge(verifier: HardenedVerifier, tasks: Sequence[tuple[Task, float]], mark: str, styles: int, until: float) -> Any:
    """(rows, tasks judged, seconds) of as many tasks as can be begun before `until`; writing candidates is not counted."""
    written = [(task, held, style, text) for task, held in tasks for style, text in candidates(task, styles, mark)]
    begun, taken, rows = time.monotonic(), [], []

    def pairs() -> Iterator[tuple[Task, str]]:
        asked: set[str] = set()
        for task, held, style, text in written:
            if task.id not in asked and time.monotonic() > until:
                return
            asked.add(task.id)
            taken.append((task, held, style))
            yield task, text

    for position, verdict in verifier.verify_many(pairs()):
        task, held, style = taken[position]
        rows.append(row_of(task, held, style, verdict))
    none = {task.id for task, _ in tasks} - {task.id for task, *_ in written}
    return rows, [*dict.fromkeys(task.id for task, *_ in taken), *none], time.monotonic() - begun


def summary(phase: dict[str, Any]) -> dict[str, Any]:
    """The figures of one phase."""
    rows = phase["rows"]
    measured = [row["memory"] for row in rows if "replay_peak" in row["memory"]]
    off = [(memory["replay_peak"] + memory["judge_peak"]) / memory["planned"] for memory in measured]
    return {
        "tasks": len({row["task"] for row in rows}),
        "verdicts": len(rows),
        "verdicts_per_s": len(rows) / phase["seconds"] if phase["seconds"] else None,
        "statuses": dict(Counter(row["status"] for row in rows)),
        "infra_errors": sum(row["status"] == "infra_error" for row in rows),
        "restarts": phase["restarts"],
        "peak_over_planned": {"median": statistics.median(off), "most": max(off)} if off else None,
    }


def table(record: dict[str, Any]) -> str:
    """One line a phase."""
    lines = ["| baselines | cache | tasks | verdicts | verdicts/s | infra errors | restarts | not correct | peak / planned |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for name, phase in record["phases"].items():
        s, (baseline, heat) = summary(phase), name.split(" ")
        wrong = s["verdicts"] - s["statuses"].get("correct", 0)
        peaks = s["peak_over_planned"]
        said = f"{peaks['median']:.2f}, at most {peaks['most']:.2f}" if peaks else "–"
        rate = f"{s['verdicts_per_s']:.2f}" if s["verdicts_per_s"] else "–"
        counts = f"{s['infra_errors']} | {s['restarts']} | {wrong}"
        lines.append(f"| {baseline} | {heat} | {s['tasks']} | {s['verdicts']} | {rate} | {counts} | {said} |")
    lines += ["", *(f"{name}, mean seconds a verdict: {_parts(phase['rows'])}" for name, phase in record["phases"].items())]
    bad = [r for phase in record["phases"].values() for r in phase["rows"] if r["status"] != "correct"]
    return "\n".join([*lines, *(f"{r['task']} {r['style']}: {r['status']}: {r['reason']}" for r in bad)])


def _parts(rows: Sequence[dict[str, Any]]) -> str:
    """Where the time of a verdict goes, the longest part first; parts may overlap."""
    spent: Counter[str] = Counter()
    for row in rows:
        spent.update(row["seconds"])
    return ", ".join(f"{name} {s / len(rows):.2f}" for name, s in spent.most_common() if s / len(rows) >= 0.01)


def main() -> None:
    """Judge what is left, within the time given, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path, default=ROOT / "tests" / "foreign")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--styles", type=int, default=8, help="candidates of each task")
    parser.add_argument("--least", type=float, default=1.0, help="GiB that eager holds, at least")
    parser.add_argument("--most", type=float, default=8.0, help="GiB that eager holds, at most")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no task after this; what was begun is finished")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--heats", nargs="+", choices=("cold", "warm"), default=["cold", "warm"])
    parser.add_argument("--baselines", nargs="+", default=["eager", "eager,compile"])
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"phases": {}, "segments": 0}
    cache = args.out.with_suffix(".cache")
    if not record["phases"] and cache.exists():
        raise UsageError(f"{cache} is there already, and would not be cold: remove it, or name another --out.")
    left = 0
    tasks = list(sized_tasks(args.source, args.tasks, args.least, args.most, args.seed)) if args.seconds > 0 else []
    phases = [(baseline, heat) for baseline in args.baselines for heat in args.heats]
    for baseline, heat in phases if tasks else ():
        phase = record["phases"].setdefault(f"{baseline} {heat}", {"rows": [], "done": [], "seconds": 0.0, "restarts": 0})
        todo = [(task, held) for task, held in tasks if task.id not in phase["done"]]
        if todo and time.monotonic() < until:
            record["segments"] += 1
            config = VerifierConfig(
                device=args.device, target=None if torch.cuda.is_available() else "H200", workers=args.workers,
                baseline=tuple(baseline.split(",")), precision="tf32",  # pyright: ignore[reportArgumentType]
                cache_dir=cache / baseline.replace(",", "-"),
            )  # fmt: skip
            with HardenedVerifier(config) as verifier:
                verifier.evaluator.start()
                rows, done, seconds = judge(verifier, todo, f"{heat} {record['segments']}", args.styles, until)
                phase["restarts"] += sum(getattr(gpu, "restarts", int)() for gpu in verifier.evaluator.gpus)
                record |= {"versions": verifier.evaluator.versions, "commit": _commit(), "date": time.strftime("%Y-%m-%d")}
            phase["rows"] += rows
            phase["done"] += done
            phase["seconds"] += seconds
            replace_file(args.out, json.dumps(record, indent=1))
        left += sum(task.id not in phase["done"] for task, _ in todo)
    if args.seconds > 0 and not tasks:
        raise UsageError(f"{args.source}: no task holds {args.least:g} to {args.most:g} GiB.")
    print(table(record))
    print(f"\n{left} tasks to do, over all phases", file=sys.stderr)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
