"""How well modelled time orders the styles that were measured: how much slower than the fastest is what it puts first.

python scripts/rank_styles.py                                            # a minute on a CPU
python scripts/rank_styles.py --records docs/benchmarks/styles.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from bench_styles import rates_of, tasks

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.answer import read_source
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.plausible import modelled_s
from kernrl.tasks.solutions.from_graph.styles import STYLES, graphs_of, simplified, write_solution
from kernrl.tasks.task import Task

BENCHMARKS = Path(__file__).parents[1] / "docs" / "benchmarks"
FEWEST = 3
"""Styles of a task that must have been measured for it to count."""
CLOSE = 1.1
"""Nano is taught styles within this factor of the fastest by the model."""


def modelled(task: Task, target: str) -> dict[str, float]:
    """Modelled seconds of every style of a task, by the name of its solution."""
    graphs, source = graphs_of(with_input_sets(task)), read_source(task.pytorch_code)
    found: dict[str, float] = {}
    for style in STYLES:
        try:
            seconds = modelled_s(graphs, style, rates_of(target, task.precision), precision=task.precision)
            mine = simplified(graphs, task.precision) if style.algebra else graphs
            name = write_solution(source, mine, style, task.precision).style
        except CannotWriteError:
            continue
        found.setdefault(name, seconds)
    return found


def regrets(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """How many times longer than the fastest a choice takes, of (modelled, measured) times of one task's styles. Which of those
    with the same modelled time comes first is chance."""
    best = min(us for _, us in pairs)
    shuffled = Random(0).sample(pairs, len(pairs))
    by_model = [us / best for _, us in sorted(shuffled, key=lambda pair: pair[0])]
    within = [us / best for seconds, us in pairs if seconds <= CLOSE * min(pairs)[0]]
    each, close = (math.exp(statistics.fmean(map(math.log, x))) for x in (by_model, within))
    best_of = {"first": 1, "first two": 2, "first three": 3}
    return {name: min(by_model[:n]) for name, n in best_of.items()} | {"one within 10 % of the first": close, "any": each}


def main() -> None:
    """Compare, and print a line for each choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [BENCHMARKS / "styles.json"]
    parser.add_argument("--records", type=Path, nargs="+", default=usual, help="JSON of bench_styles.py")
    parser.add_argument("--target", default="NVIDIA H200", help="the GPU that was measured")
    parser.add_argument("--seed", type=int, default=0, help="of the tasks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = [row for path in args.records for row in json.loads(path.read_text())["rows"]]
    found: list[dict[str, float]] = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        asked = {row["task"] for row in rows if row["precision"] == precision}
        times = {task.id: modelled(task, args.target) for task in tasks(200, precision, args.seed) if task.id in asked}
        for row in (row for row in rows if row["precision"] == precision):
            mine = times.get(row["task"], {})
            measured = {s["style"]: s["us"] for s in row["styles"] if s["status"] == "correct"}
            pairs = [(mine[style], us) for style, us in measured.items() if style in mine]
            if len(pairs) >= FEWEST:
                found.append(regrets(pairs))
    print(len(found), "rows; the first by the model is the fastest in", sum(one["first"] == 1 for one in found))
    for choice in found[0] if found else ():
        print(f"{choice}: {math.exp(statistics.fmean(math.log(one[choice]) for one in found)):.2f} times the fastest")


if __name__ == "__main__":
    main()
