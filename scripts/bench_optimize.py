"""Optimise every module of a suite, and say how much faster, where it came from, and after how many candidates.

    python scripts/bench_optimize.py tests/foreign --precision tf32 --budget 120 --n 64 --out bench.json
    python scripts/bench_optimize.py tests/foreign --limit 2 --budget 20 --n 4 --out /tmp/bench.json    # a look, on a CPU

A module with a `best.py` counts as answered; `--keep-tie` is on, so that a tie is an answer. Speeds without a GPU are modelled.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from kernrl.config import OptimizeConfig
from kernrl.optimization.trials import beats
from kernrl.runs.run_directory import environment
from kernrl.stages.optimize import run
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


def main() -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="tests/foreign")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each module")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--model", default="none")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--run", type=Path, help="folder of the run; resumed where it exists")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    folder = given.run or Path(tempfile.mkdtemp(prefix="bench-optimize-")) / "run"
    config = OptimizeConfig(
        source=given.source,
        precision=given.precision,
        budget=f"{given.budget:g}s",
        candidates=given.n,
        model=given.model,
        limit=given.limit,
        keep_tie=True,
        output=folder,
        resume=(folder / "config.json").exists(),
    )
    started = time.monotonic()
    data = run(config).data
    results = data.get("tasks", [data])
    record = {**environment(), "date": time.strftime("%Y-%m-%d"), "wall_s": time.monotonic() - started, **summary(results)}
    record |= {"settings": config.model_dump(mode="json"), "sentences": [r["sentence"] for r in results]}
    given.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({k: v for k, v in record.items() if k not in ("settings", "sentences", "versions")}, indent=2))


if __name__ == "__main__":
    main()
