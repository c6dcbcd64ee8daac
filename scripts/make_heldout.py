"""Makes the shipped suite: 64 held-out level-2 tasks, every family and depth, compositions all different.

python scripts/make_heldout.py --out data/heldout_level2.jsonl
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from kernrl.errors import UsageError
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.grammar.producers import FAMILIES
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.tasks.task_check import check_task

COUNT = 64
SEED = 2026
POOL = 600
"""Held-out tasks of the seed to choose from."""


def choose(pool: list[Task]) -> list[Task]:
    """Families in turn, and within a family the depth that the suite has least of so far."""
    chosen: list[Task] = []
    taken: set[tuple[str, ...]] = set()
    depths: Counter[int] = Counter()
    while len(chosen) < COUNT:
        family = FAMILIES[len(chosen) % len(FAMILIES)]
        fresh = [task for task in pool if task.family == family and task.composition not in taken]
        best = min(fresh, key=lambda task: (depths[len(task.composition)], task.id))
        chosen.append(best)
        taken.add(best.composition)
        depths[len(best.composition)] += 1
    return sorted(chosen, key=lambda task: task.id)


def teaches(task: Task) -> bool:
    """Whether the reference, run for real, gives outputs that depend on its inputs."""
    try:
        check_task(task)
    except UsageError as error:
        print(error)
        return False
    return True


def main() -> None:
    """Draw, choose, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file to write; it must not exist")
    options = parser.parse_args()
    drawn = generate_tasks(level=2, count=POOL, seed=SEED, split="heldout", workers=2)
    pool = [task for task in drawn if teaches(task)]
    print(write_tasks(options.out, choose(pool)), "tasks")


if __name__ == "__main__":
    main()
