"""Verdicts a second on tasks of the size that people benchmark, 1 to 8 GiB, and how much memory judging them takes.

    python scripts/bench_real_sizes.py --out sizes.json --seconds 540                   # again until it says that all is done
    python scripts/bench_real_sizes.py --out sizes.json --seconds 0                     # the table of what is there
    python scripts/plot_sizes.py sizes.json                                             # a chart of it
    python scripts/bench_real_sizes.py --out dry.json --device cpu --tasks 1 --least 0 --most 0.01 --styles 1

The tasks are those of a folder, with `--generated` ones among them. Four phases: `eager` and `eager,compile`, each cold (a new
cache folder) and warm (the same folder, other candidates). A task's candidates are its worked styles, repeated with another
comment until there are `--styles`, so that none is judged twice. All of them are right: any other verdict is listed. `--out`
keeps every verdict and the summary as they come, and a second call goes on where the first ended. The phases share `--seconds`;
what has not ended `--grace` seconds later is shown, with the stack of every thread that waits for it, and given up. Ctrl-C
(`timeout -s INT`) writes and prints what is known, and ends at once.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import torch

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.files import replace_file
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.sample import sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import FULL, InputSet, Solution, Task
from kernrl.verifier import HardenedVerifier
from kernrl.verifier.judge.memory_estimate import rehearse
from kernrl.verifier.pool.memory_ledger import GIB
from kernrl.verifier.rpc.processes import ask_for_stacks

ROOT = Path(__file__).parents[1]

BEGIN_SHARE = 0.75
"""Of a phase's time, how much is for beginning tasks; the rest is for ending them."""

SAVE_S = 2.0
"""How often what is known is written: a run may be cut off."""

INTERRUPTED = 130
"""Exit code."""

Written = tuple[Task, float, str, str]
"""A task, the GiB that it holds, and a candidate's style and text."""

Keep = Callable[[list[dict[str, Any]], list[str], float], None]
"""Told the rows of this run so far, the tasks that are done, and its seconds."""


def chosen_tasks(folder: Path, count: int, generated: int, least: float, most: float, seed: int) -> list[tuple[Task, float]]:
    """So many tasks that hold `least` to `most` GiB when eager runs them, with that number. Generated ones stand evenly among
    the folder's; there are more of them where the folder has too few."""
    of_grammar = _sized(_generated(seed, least), least, most)
    made = list(itertools.islice(of_grammar, generated))
    found = list(itertools.islice(_sized(load_tasks(folder).tasks, least, most), count - len(made)))
    made += itertools.islice(of_grammar, count - len(made) - len(found))
    placed = [((i + 0.5) / len(some), one) for some in (found, made) for i, one in enumerate(some)]
    return [one for _, one in sorted(placed, key=lambda place: place[0])]


def _sized(tasks: Iterable[Task], least: float, most: float) -> Iterator[tuple[Task, float]]:
    for task in tasks:
        try:
            held = rehearse(task, InputSet(FULL), "tf32").eager_peak / GIB
        except Exception as error:  # whatever a reference does without numbers
            print(f"{task.id} is left out: {error}", file=sys.stderr)
            continue
        if least <= held <= most:
            yield task, held


def _generated(seed: int, least: float) -> Iterator[Task]:
    """Tasks that may hold so many GiB: a Graph's tensors together rarely take less than eager holds, and adding up is quick."""
    for number in range(2000):
        rng = Random(f"sizes {seed} {number}")
        graph = sample(rng, rng.randint(3, 7))
        if sum(v.nbytes for v in graph.values.values()) >= 0.8 * least * GIB:
            yield Task(f"generated-{number}", write(graph, Hand.draw(rng), rng))


def candidates(styles: Sequence[Solution], count: int, mark: str) -> list[tuple[str, str]]:
    """(style, text) of right candidates, no two alike and none of another `mark`."""
    turns = (styles[i % len(styles)] for i in range(count)) if styles else ()
    return [(one.style, f"{one.triton_code}\n# {mark} {i}\n") for i, one in enumerate(turns)]


def row_of(task: Task, held_gib: float, style: str, verdict: Any) -> dict[str, Any]:
    """What is kept of a verdict."""
    return {
        "task": task.id, "gib": held_gib, "style": style, "status": str(verdict.status), "reason": verdict.reason[:300],
        "memory": verdict.memory, "seconds": verdict.seconds,
        "us": verdict.timing.candidate_us if verdict.timing else None,
        "baseline_us": verdict.timing.baseline_us if verdict.timing else None,
    }  # fmt: skip


def judge(verifier: HardenedVerifier, written: Sequence[Written], until: float, keep: Keep) -> None:
    """Judge the candidates of as many tasks as can be begun before `until`, and `keep` what is known on the way."""
    begun, taken, rows = time.monotonic(), [], []
    owed: Counter[str] = Counter()
    told = begun

    def pairs() -> Iterator[tuple[Task, str]]:
        for task, held, style, text in written:
            if not owed[task.id]:
                if time.monotonic() > until:
                    return
                owed[task.id] = sum(other.id == task.id for other, *_ in written)
            taken.append((task, held, style))
            yield task, text

    def done() -> list[str]:
        judged = Counter(row["task"] for row in rows)
        return [name for name, count in owed.items() if judged[name] == count]

    try:
        for position, verdict in verifier.verify_many(pairs()):
            task, held, style = taken[position]
            rows.append(row_of(task, held, style, verdict) | {"at_s": round(time.monotonic() - begun, 2)})
            if time.monotonic() - told > SAVE_S:
                told = time.monotonic()
                said = f"{len(rows)} verdicts in {told - begun:.0f} s, {len(rows) / (told - begun):.2f}/s"
                print(f"{said}; the GPU: {verifier.doing() or 'idle'}", file=sys.stderr, flush=True)
                keep(rows, done(), told - begun)
    finally:
        keep(rows, done(), time.monotonic() - begun)


def steady_per_s(at_s: Sequence[float]) -> float | None:
    """The rate once lanes have started and baselines are made: without the first quarter of one run's verdicts."""
    begins = max((i for i, (a, b) in enumerate(itertools.pairwise(at_s), 1) if b < a), default=0)  # of the last run
    rest = at_s[begins:]
    rest = rest[len(rest) // 4 :]
    return (len(rest) - 1) / (rest[-1] - rest[0]) if len(rest) > 1 and rest[-1] > rest[0] else None


def summary(phase: dict[str, Any]) -> dict[str, Any]:
    """The figures of one phase."""
    rows = phase["rows"]
    measured = [row["memory"] for row in rows if "replay_peak" in row["memory"]]
    off = [(memory["replay_peak"] + memory["judge_peak"]) / memory["planned"] for memory in measured]
    full = [(m["replay_held"] + m["judge_held"]) / m["granted"] for m in measured if m.get("granted")]
    return {
        "tasks": len({row["task"] for row in rows}),
        "verdicts": len(rows),
        "seconds": phase["seconds"],
        "verdicts_per_s": len(rows) / phase["seconds"] if phase["seconds"] else None,
        "steady_per_s": steady_per_s([row["at_s"] for row in rows if "at_s" in row]),
        "statuses": dict(Counter(row["status"] for row in rows)),
        "infra_errors": sum(row["status"] == "infra_error" for row in rows),
        "restarts": phase["restarts"],
        "peak_over_planned": _spread(off),
        "held_over_granted": _spread(full),
        "seconds_a_verdict": _parts(rows),
    }


def _spread(found: Sequence[float]) -> dict[str, float] | None:
    return {"median": statistics.median(found), "most": max(found)} if found else None


def table(record: dict[str, Any]) -> str:
    """One line a phase."""
    lines = [
        "| baselines | cache | tasks | verdicts | seconds | per s | steady | infra errors | restarts | not correct "
        "| peak / planned | held / granted |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for name, phase in record["phases"].items():
        s, (baseline, heat) = summary(phase), name.split(" ")
        wrong = s["verdicts"] - s["statuses"].get("correct", 0)
        peaks = [s["peak_over_planned"], s["held_over_granted"]]
        said = " | ".join(f"{one['median']:.2f}, at most {one['most']:.2f}" if one else "–" for one in peaks)
        rate = f"{s['verdicts_per_s']:.2f}" if s["verdicts_per_s"] else "–"
        steady = f"{s['steady_per_s']:.2f}" if s["steady_per_s"] else "–"
        counts = f"{s['infra_errors']} | {s['restarts']} | {wrong}"
        begins = f"| {baseline} | {heat} | {s['tasks']} | {s['verdicts']} | {s['seconds']:.0f}"
        lines.append(f"{begins} | {rate} | {steady} | {counts} | {said} |")
    lines.append("")
    for name, phase in record["phases"].items():
        parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in _parts(phase["rows"]).items())
        lines.append(f"{name}, mean seconds a verdict: {parts}")
    bad = [r for phase in record["phases"].values() for r in phase["rows"] if r["status"] != "correct"]
    return "\n".join([*lines, *(f"{r['task']} {r['style']}: {r['status']}: {r['reason']}" for r in bad)])


def _parts(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Where the time of a verdict goes, in mean seconds, the longest part first; parts may overlap."""
    spent: Counter[str] = Counter()
    for row in rows:
        spent.update(row["seconds"])
    return {name: s / len(rows) for name, s in spent.most_common() if s / len(rows) >= 0.01}


def main() -> None:
    """Judge what is left, within the time given, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path, default=ROOT / "tests" / "foreign")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--generated", type=int, default=6, help="how many of --tasks are generated, at most half of them")
    parser.add_argument("--styles", type=int, default=8, help="candidates of each task")
    parser.add_argument("--least", type=float, default=1.0, help="GiB that eager holds, at least")
    parser.add_argument("--most", type=float, default=8.0, help="GiB that eager holds, at most")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no task after these, shared by the phases")
    parser.add_argument("--grace", type=float, default=15.0, help="seconds after these in which what was begun must end")
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
    limit = threading.Timer(args.seconds + args.grace, _give_up, (args.out, record))
    limit.daemon = True
    limit.start()
    try:
        left = run_phases(args, record, cache, until)
    except KeyboardInterrupt:
        _interrupted(args.out, record)
    limit.cancel()
    print(table(record))
    print(f"\n{left} tasks to do, over all phases", file=sys.stderr)


def run_phases(args: argparse.Namespace, record: dict[str, Any], cache: Path, until: float) -> int:
    """Judge what is left in each phase; returns how many tasks are left after that."""
    left, begun = 0, time.monotonic()
    count = args.tasks if args.seconds > 0 else 0
    generated = min(args.generated, count // 2)
    tasks = chosen_tasks(args.source, count, generated, args.least, args.most, args.seed) if count else []
    styles = {task.id: write_solutions(with_input_sets(task)) for task, _ in tasks}
    tasks = [(task, held) for task, held in tasks if styles[task.id]]
    print(f"{len(tasks)} tasks are ready after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    phases = [(baseline, heat) for baseline in args.baselines for heat in args.heats]
    for number, (baseline, heat) in enumerate(phases if tasks else ()):
        phase = record["phases"].setdefault(f"{baseline} {heat}", {"rows": [], "done": [], "seconds": 0.0, "restarts": 0})
        todo = [(task, held) for task, held in tasks if task.id not in phase["done"]]
        now = time.monotonic()
        if todo and now < until:
            record["segments"] += 1
            mark = f"{heat} {record['segments']}"
            written = [
                (task, held, style, text)
                for task, held in todo
                for style, text in candidates(styles[task.id], args.styles, mark)
            ]
            config = VerifierConfig(
                device=args.device, target=None if torch.cuda.is_available() else "H200", workers=args.workers,
                baseline=tuple(baseline.split(",")), precision="tf32",  # pyright: ignore[reportArgumentType]
                cache_dir=cache / baseline.replace(",", "-"),
            )  # fmt: skip
            run_phase(config, phase, written, now + BEGIN_SHARE * (until - now) / (len(phases) - number), args.out, record)
            print(table({"phases": {f"{baseline} {heat}": phase}}), flush=True)
        left += sum(task.id not in phase["done"] for task, _ in todo)
    if args.seconds > 0 and not tasks:
        raise UsageError(f"{args.source}: no task holds {args.least:g} to {args.most:g} GiB.")
    return left


def run_phase(
    config: VerifierConfig, phase: dict[str, Any], written: Sequence[Written], until: float, out: Path, record: dict[str, Any]
) -> None:
    """Judge candidates in a verifier of their own, and add what is found to the phase."""
    before = dict(phase)

    def keep(rows: list[dict[str, Any]], done: list[str], seconds: float) -> None:
        phase["rows"], phase["done"] = before["rows"] + rows, before["done"] + done
        phase["seconds"] = before["seconds"] + seconds
        with contextlib.suppress(InfrastructureError):
            restarts = sum(getattr(gpu, "restarts", int)() for gpu in verifier.evaluator.gpus)
            phase["restarts"] = before["restarts"] + restarts
        record["summary"] = {name: summary(one) for name, one in record["phases"].items()}
        replace_file(out, json.dumps(record, indent=1))

    with HardenedVerifier(config) as verifier:
        verifier.evaluator.start()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has started this in the background
        record |= {"versions": verifier.evaluator.versions, "commit": _commit(), "date": time.strftime("%Y-%m-%d")}
        try:
            judge(verifier, written, until, keep)
        except KeyboardInterrupt:
            _interrupted(out, record)


def _interrupted(out: Path, record: dict[str, Any]) -> NoReturn:
    print(table(record), f"\ninterrupted: {out} has what is known", flush=True)
    os._exit(INTERRUPTED)  # the processes below end with this one


def _give_up(out: Path, record: dict[str, Any]) -> None:
    """What was begun does not end: say what is known, show what everybody waits for, and stop."""
    print(table(record), f"\nstopped: what was begun has not ended; {out} has what is known", flush=True)
    faulthandler.dump_traceback(all_threads=True)
    ask_for_stacks()
    time.sleep(2.0)
    os._exit(1)  # the processes below end with this one


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
