"""Optimise every module of a suite, and say how much faster, where it came from, and after how many candidates.

    python scripts/bench_optimize.py tests/foreign --precision tf32 --budget 120 --n 64 --out bench.json
    python scripts/bench_optimize.py tests/foreign --stop-after 520 --run DIR --out bench.json    # in several commands
    python scripts/bench_optimize.py tests/foreign --limit 2 --budget 20 --n 4 --out /tmp/bench.json    # a look, on a CPU

A module with a `best.py` counts as answered; `--keep-tie` is on, so that a tie is an answer. Speeds without a GPU are modelled.

Modules are taken in an order that is shuffled by a fixed seed, so that those of a run that was stopped stand for the rest.
`--stop-after` ends the run as Ctrl-C would, after so many seconds: what was found is recorded, `--run DIR` goes on from there.
The winners and what is needed to go on are in `--out`, so that a machine that forgets its files can be given them again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from kernrl.config import OptimizeConfig
from kernrl.files import replace_file
from kernrl.optimization.trials import beats
from kernrl.runs.run_directory import environment
from kernrl.stages.optimize import run
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.verifier.base.verdict import Verdict


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a suite: shares of all its modules, geometric means over those that are right."""
    right = [r for r in results if r["best"]]
    verdicts = [Verdict.from_json(r["best"]["verdict"]) for r in right]
    names = dict.fromkeys(name for v in verdicts if v.timing for name in v.timing.speedups_x)
    figures: dict[str, Any] = {"modules": len(results), "right": len(right) / max(1, len(results)), "baselines": {}}
    for name in names:
        speeds = [speed.value for v in verdicts if (speed := v.speedup(name))]
        won = sum(beats(v, name) for v in verdicts)
        figures["baselines"][name] = {"faster": won / len(results), "geomean_x": geomean(speeds), "timed": len(speeds)}
    winners = [r["best"]["origin"] for r in right]
    figures["winners"] = {origin: winners.count(origin) for origin in dict.fromkeys(winners)}
    gains = [
        r["by_origin"]["variant"] / r["by_origin"]["style"] for r in right if {"variant", "style"} <= r["by_origin"].keys()
    ]
    figures["variants_over_styles_x"] = geomean([max(1.0, gain) for gain in gains])
    figures["regret"] = {}
    for count in ("8", "16", "32", "64"):
        lost = [r["regret"][count] for r in right if r["regret"].get(count) is not None]
        figures["regret"][count] = fmean(lost) if lost else None
    figures["seconds"] = sum(r["spent_s"] for r in results)
    figures["modules_per_minute"] = 60 * len(results) / max(figures["seconds"], 1e-9)
    figures["clock"] = sorted({r["clock"] for r in right})
    return figures


def geomean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(fmean(math.log(v) for v in values)) if values else None


def main(words: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="tests/foreign")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each module")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--model", default="none")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--run", type=Path, help="folder of the run; resumed where it exists")
    parser.add_argument("--stop-after", type=float, help="seconds after which no more is begun; what was found is recorded")
    parser.add_argument("--out", type=Path, required=True, help="the record; results in it already are kept")
    given = parser.parse_args(words)
    folder = given.run or Path(tempfile.mkdtemp(prefix="bench-optimize-")) / "run"
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    earlier = {result["task"]: result for result in record.get("results", ())}
    tasks = folder.with_name(f"{folder.name}-tasks.jsonl")
    if not tasks.exists():
        every = sorted(load_tasks(given.source).tasks, key=lambda task: task.id)
        random.Random(0).shuffle(every)
        waiting = [task for task in every[: given.limit] if task.id not in earlier]
        if not waiting:
            print(f"{given.out} has every module.")
            return
        tasks.parent.mkdir(parents=True, exist_ok=True)
        write_tasks(tasks, waiting)
    config = OptimizeConfig(
        source=str(tasks),
        precision=given.precision,
        budget=f"{given.budget:g}s",
        candidates=given.n,
        model=given.model,
        keep_tie=True,
        output=folder,
        resume=(folder / "config.json").exists(),
    )
    started = time.monotonic()
    if given.stop_after:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, given.stop_after)
    ended = run(config)
    signal.setitimer(signal.ITIMER_REAL, 0)
    found = ended.data.get("tasks", [ended.data])
    if ended.exit_code:  # the last one was cut short
        found = found[:-1]
    results = list((earlier | {result["task"]: result for result in found}).values())
    wall_s = record.get("wall_s", 0.0) + time.monotonic() - started
    record = {**environment(), "date": time.strftime("%Y-%m-%d"), "wall_s": wall_s, **summary(results)}
    record |= {"settings": config.model_dump(mode="json"), "results": [slim(result) for result in results]}
    replace_file(given.out, json.dumps(record, indent=2) + "\n")
    print(json.dumps({k: v for k, v in record.items() if k not in ("settings", "results", "versions")}, indent=2))


def slim(result: dict[str, Any]) -> dict[str, Any]:
    """A module's results without its Plans, of which a record needs none."""
    kept = {k: v for k, v in result.items() if k not in ("graph", "finals", "versions")}
    if kept.get("best"):
        verdict = {k: v for k, v in kept["best"]["verdict"].items() if k not in ("plan", "errors")}
        kept["best"] = kept["best"] | {"verdict": verdict | {"plan": {}, "errors": []}}
    return kept


if __name__ == "__main__":
    main()
