"""Modelled against measured time over worked solutions: does the model put solutions in the right order, and who is mispriced?

    python scripts/bench_prices.py --count 500 --out prices.json          # on a GPU: judge, time and price
    python scripts/bench_prices.py --count 8 --device cpu --out prices.json   # a dry run: prices alone

Every candidate is a worked solution of a generated level-2 task, from the grammar and from the Graph writer. Its modelled
time is what the verifier without a GPU would say, for the GPU that is here. Reported are the rank correlation within each
task (of tasks with at least four solutions whose times are not all within 5 %), the median over tasks, and for each style
the median of modelled over measured speedup against eager: 1 is right, 2 promises twice what is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from kernrl.config import VerifierConfig  # noqa: E402
from kernrl.tasks.grammar.generate import generate_tasks  # noqa: E402
from kernrl.tasks.solutions.from_graph.styles import write_solutions  # noqa: E402
from kernrl.tasks.task import FULL, Task  # noqa: E402
from kernrl.verifier.base.devices import Device, device_for  # noqa: E402
from kernrl.verifier.funnel import StagedEvaluator  # noqa: E402
from kernrl.verifier.interpret.profile import profile_plan  # noqa: E402
from kernrl.verifier.plan.price import price  # noqa: E402

LEAST_SOLUTIONS, LEAST_SPREAD = 4, 1.05
"""A task with fewer solutions, or with times closer than this, has no order that could be got wrong."""


def main() -> int:
    options = _options()
    config = VerifierConfig(device=options.device, cache=False, baseline=("eager",))
    evaluator = StagedEvaluator(config)
    rows: list[dict[str, Any]] = []
    try:
        evaluator.start()
        gpu = evaluator.gpus[0].facts["gpu"] if evaluator.gpus else "NVIDIA H200"
        device = device_for(gpu)
        if device is None:
            raise SystemExit(f"{gpu}: its peak rates are not known; add it to kernrl/verifier/base/devices.py.")
        made = list(candidates(options.count, options.seed))
        deadline = time.monotonic() + options.seconds

        def of(one: tuple[Task, str, str]) -> dict[str, Any] | None:
            return priced(evaluator, one[0], one[2], device) if time.monotonic() < deadline else None

        with ThreadPoolExecutor(evaluator.workers) as pool:
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


def candidates(count: int, seed: int) -> Iterator[tuple[Task, str, str]]:
    """`count` different solutions: task, style, source; those of a task together."""
    made = 0
    for task in generate_tasks(level=2, count=count, seed=seed):
        for origin, solutions in (("grammar", task.solutions), ("graph", write_solutions(task))):
            for solution in solutions:
                if made == count:
                    return
                made += 1
                yield replace(task, solutions=()), f"{origin}: {solution.style}", solution.triton_code


def priced(evaluator: StagedEvaluator, task: Task, source: str, device: Device) -> dict[str, Any] | None:
    """Modelled times of a candidate and its reference, and the measured ones where there is a GPU; None if it is refused."""
    facts = evaluator.facts_of(task)
    plans = evaluator.plans_of(task, source)
    if not plans:
        return None
    full = next(plan for plan in plans if plan.input_set == FULL)
    cost = price(full, device, evaluator.precision_of(task), profile_plan(full))
    row: dict[str, Any] = {
        "modelled_us": max(cost.modelled_us, facts.least_modelled_us),
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
    ranks = [
        rank_correlation(times)
        for times in by_task.values()
        if len(times) >= LEAST_SOLUTIONS and max(m for _, m in times) > LEAST_SPREAD * min(m for _, m in times)
    ]
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
        },
        "worst_style_x": max((max(s["misprice_x"], 1 / s["misprice_x"]) for s in styles.values()), default=None),
        "styles": styles,
    }


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
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
