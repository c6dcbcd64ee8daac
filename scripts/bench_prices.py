"""Modelled against measured time over worked solutions: does the model put solutions in the right order, and who is mispriced?

    python scripts/bench_prices.py --count 500 --out prices.json          # on a GPU: judge, time and price
    python scripts/bench_prices.py --count 8 --device cpu --out prices.json   # a dry run: prices alone
    python scripts/bench_prices.py --measured docs/benchmarks/styles.json --out prices.json

Every candidate is a worked solution of a generated level-2 task, from the grammar and from the Graph writer. Its modelled
time is what the verifier without a GPU would say, for the GPU that is here. Reported are the rank correlation within each
task (of tasks with at least four solutions whose times are not all within 5 %), the median over tasks, and for each style
the median of modelled over measured speedup against eager: 1 is right, 2 promises twice what is measured.

With `--measured`, no GPU is needed: the styles in records of `bench_styles.py` are written again and priced, and compared with
the times that were recorded. Where a task is in several records, the last one counts. Styles whose text has changed since are
priced as they are now. A third of the tasks, by a hash of the name, is the test set: the model was not mended on it.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import torch  # noqa: E402
from bench_styles import tasks  # noqa: E402

from kernrl.config import VerifierConfig  # noqa: E402
from kernrl.tasks.grammar.generate import generate_tasks  # noqa: E402
from kernrl.tasks.graph.input_sets import with_input_sets  # noqa: E402
from kernrl.tasks.solutions.from_graph.styles import write_solutions  # noqa: E402
from kernrl.tasks.task import FULL, Task  # noqa: E402
from kernrl.verifier.base.devices import Device, device_for  # noqa: E402
from kernrl.verifier.funnel import StagedEvaluator  # noqa: E402
from kernrl.verifier.interpret.profile import profile_plan  # noqa: E402
from kernrl.verifier.plan.price import price  # noqa: E402

LEAST_SOLUTIONS, LEAST_SPREAD = 4, 1.05
"""A task with fewer solutions, or with times closer than this, has no order that could be got wrong."""
NOISE = 1.03
"""Times closer than this are equal."""
COMMON = 3
"""A style of fewer rows says little."""
FIRST = (1, 4, 8, 16)
RECORDED_TASKS = 200
"""Among the first of these, `bench_styles.py` chose what it judged."""


def main() -> int:
    options = _options()
    if options.measured:
        report = against_records(options.measured, options.seconds)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps({k: v for k, v in report.items() if k != "rows"}, indent=1))
        return 0
    config = VerifierConfig(device=options.device, cache=False, baseline=("eager",))
    evaluator = StagedEvaluator(config)
    rows: list[dict[str, Any]] = []
    try:
        evaluator.start()
        gpu = evaluator.gpus[0].gpu_info["gpu"] if evaluator.gpus else "NVIDIA H200"
        device = device_for(gpu)
        if device is None:
            raise SystemExit(f"{gpu}: its peak rates are not known; add it to kernrl/verifier/base/devices.py.")
        made = list(candidates(options.count, options.seed))
        deadline = time.monotonic() + options.seconds

        def of(one: tuple[Task, str, str]) -> dict[str, Any] | None:
            return priced(evaluator, one[0], one[2], device, profilers) if time.monotonic() < deadline else None

        with ThreadPoolExecutor(evaluator.workers) as pool, _profilers(evaluator.workers) as profilers:
            for (task, style, _), row in zip(made, pool.map(of, made), strict=True):
                if row is not None:
                    rows.append({"task": task.id, "style": style} | row)
                    if len(rows) % 25 == 0:  # what is there if the time is over before the end
                        options.out.write_text(
                            json.dumps({"gpu": gpu if evaluator.gpus else None, **compared(rows), "rows": rows})
                        )
        report = {
            "gpu": gpu if evaluator.gpus else None,
            "date": datetime.date.today().isoformat(),
            "versions": evaluator.versions,
            **compared(rows),
            "rows": rows,
        }
    finally:
        evaluator.close()
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "rows"}, indent=1))
    return 0


def against_records(records: Sequence[Path], seconds: float) -> dict[str, Any]:
    """Prices of today for times that were recorded, with the tasks that are held back apart."""
    found = {row["task"]: row for path in records for row in json.loads(path.read_text())["rows"]}
    deadline = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    evaluator = StagedEvaluator(VerifierConfig(device="cpu", cache=False, baseline=("eager",)))
    try:
        evaluator.start()
        device = device_for("NVIDIA H200")
        assert device
        with ThreadPoolExecutor(evaluator.workers) as pool, _profilers(evaluator.workers) as profilers:
            for precision in sorted({row["precision"] for row in found.values()}):
                named = [t for t in tasks(RECORDED_TASKS, precision, 0) if t.id in found]
                for task in (t for t in named if found[t.id]["precision"] == precision and time.monotonic() < deadline):
                    rows += _recorded(evaluator, task, found[task.id], device, pool, profilers)
    finally:
        evaluator.close()
    parts = {"all": rows, "train": [r for r in rows if not held_back(r["task"])]}
    parts["test"] = [r for r in rows if held_back(r["task"])]
    return {name: compared(part) for name, part in parts.items()} | {"rows": rows}


def _profilers(workers: int) -> ProcessPoolExecutor:
    """Where launches are profiled: their time limit counts the CPU seconds of a whole process."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def _recorded(
    evaluator: StagedEvaluator,
    task: Task,
    record: dict[str, Any],
    device: Device,
    pool: ThreadPoolExecutor,
    profilers: ProcessPoolExecutor,
) -> list[dict[str, Any]]:
    """Rows of a task's styles that were measured and that can be written."""
    measured = {s["style"]: s["us"] for s in record["styles"] if s["status"] == "correct" and "us" in s}
    sources = {s.style: s.triton_code for s in write_solutions(with_input_sets(task)) if s.style in measured}
    priced_rows = pool.map(lambda style: priced(evaluator, task, sources[style], device, profilers), sources)
    return [
        {"task": task.id, "style": style, "measured_us": measured[style]}
        | {"reference_measured_us": record["baseline_us"]["eager"]}
        | row
        for style, row in zip(sources, priced_rows, strict=True)
        if row is not None
    ]


def held_back(task: str) -> bool:
    """Whether a task is of the test set."""
    return int(hashlib.sha256(task.encode()).hexdigest(), 16) % 3 == 0


def candidates(count: int, seed: int) -> Iterator[tuple[Task, str, str]]:
    """`count` different solutions: task, style, source; those of a task together."""
    made = 0
    for task in generate_tasks(level=2, count=count, seed=seed, precision="fp32"):
        for origin, solutions in (("grammar", task.solutions), ("graph", write_solutions(task))):
            for solution in solutions:
                if made == count:
                    return
                made += 1
                yield replace(task, solutions=()), f"{origin}: {solution.style}", solution.triton_code


def priced(
    evaluator: StagedEvaluator, task: Task, source: str, device: Device, profilers: ProcessPoolExecutor
) -> dict[str, Any] | None:
    """Modelled times of a candidate and its reference, and the measured ones where there is a GPU; None if it is refused."""
    facts = evaluator.facts_of(task)
    plans = evaluator.plans_of(task, source)
    if not plans:
        return None
    full = next(plan for plan in plans if plan.input_set == FULL)
    cost = price(full, device, evaluator.precision_of(task), profilers.submit(profile_plan, full).result())
    row: dict[str, Any] = {
        "modelled_us": max(cost.modelled_us, facts.least_modelled_us, facts.reference.modelled_us if cost.unknown else 0.0),
        "reference_modelled_us": facts.reference.modelled_us,
        "unknown": cost.unknown,
    }
    if evaluator.gpus:
        verdict = evaluator.evaluate(task, source)
        if not verdict.correct or verdict.timing is None:
            return None
        row |= {"measured_us": verdict.timing.candidate_us, "reference_measured_us": verdict.timing.baseline_us["eager"]}
    return row


def compared(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rank correlations within tasks and misprice by style; empty without measured times."""
    by_task, by_style = defaultdict(list), defaultdict(list)
    for row in rows:
        if "measured_us" in row:
            by_task[row["task"]].append((row["modelled_us"], row["measured_us"]))
            modelled = row["reference_modelled_us"] / row["modelled_us"]
            by_style[row["style"]].append(modelled / (row["reference_measured_us"] / row["measured_us"]))
    ordered = [
        times
        for times in by_task.values()
        if len(times) >= LEAST_SOLUTIONS and max(m for _, m in times) > LEAST_SPREAD * min(m for _, m in times)
    ]
    ranks = [rank_correlation(times) for times in ordered]
    rounded = [rank_correlation([(_on_grid(a), _on_grid(b)) for a, b in times]) for times in ordered]
    styles = {
        style: {"count": len(found), "misprice_x": round(statistics.median(found), 3)}
        for style, found in sorted(by_style.items())
    }
    return {
        "solutions": len(rows),
        "tasks": len({row["task"] for row in rows}),
        "rank_correlation": {
            "tasks": len(ranks),
            "median": round(statistics.median(ranks), 3) if ranks else None,
            "mean": round(statistics.fmean(ranks), 3) if ranks else None,
            "median_within_noise": round(statistics.median(rounded), 3) if ranks else None,
        },
        "best_among_first": {str(n): sum(_found(times, n) for times in ordered) for n in FIRST},
        "fastest_modelled_over_fastest": _first_choice(ordered),
        "worst_style_x": max((max(s["misprice_x"], 1 / s["misprice_x"]) for s in styles.values()), default=None),
        "worst_common_style_x": max(
            (max(s["misprice_x"], 1 / s["misprice_x"]) for s in styles.values() if s["count"] >= COMMON), default=None
        ),
        "styles": styles,
    }


def _on_grid(us: float) -> int:
    return round(math.log(us) / math.log(NOISE))


def _found(times: Sequence[tuple[float, float]], first: int) -> bool:
    """Whether the fastest by measurement is among the first by the model."""
    return min(times, key=lambda t: t[1]) in sorted(times)[:first]


def _first_choice(tasks: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Measured time of the solution that the model puts first, over that of the fastest one; the geometric mean."""
    ratios = [min(times)[1] / min(measured for _, measured in times) for times in tasks]
    return round(math.exp(statistics.fmean(map(math.log, ratios))), 3) if ratios else None


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's: Pearson's correlation of the ranks, equal numbers sharing theirs; 0 where one side is constant."""
    left, right = (_ranks(side) for side in zip(*pairs, strict=True))
    centre = (len(pairs) - 1) / 2
    product = sum((a - centre) * (b - centre) for a, b in zip(left, right, strict=True))
    squares = math.prod(sum((a - centre) ** 2 for a in side) for side in (left, right))
    return product / math.sqrt(squares) if squares else 0.0


def _ranks(numbers: Sequence[float]) -> list[float]:
    ordered = sorted(numbers)
    return [ordered.index(n) + (ordered.count(n) - 1) / 2 for n in numbers]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600, help="take no further solution after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measured", type=Path, nargs="*", default=[], help="records of bench_styles.py to compare with")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
