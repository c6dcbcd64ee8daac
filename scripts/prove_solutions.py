"""How many worked solutions of random Graphs the verifier takes as right: at full size on a GPU, else in the interpreter.

    python scripts/prove_solutions.py --out solutions.json [--pairs 2000] [--seed 0] [--each 4] [--seconds 600]

Graphs of 1 to 12 ops as in the suites `graph-heldout` and `graph-deep`, written as PyTorch in many hands; of each, `--each`
styles drawn by lot. Every pair that is not right is listed with its source.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from kernrl.config import VerifierConfig
from kernrl.files import replace_file
from kernrl.runs.run_directory import environment
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.sample import product, sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.solutions.from_graph.styles import STYLES, write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier import HardenedVerifier

MOST_OPS = 12
CHUNK = 4
"""Graphs that a worker writes at a time."""


def main() -> int:
    options = _options()
    rows: list[dict[str, Any]] = []
    begun = time.monotonic()
    config = VerifierConfig(precision=options.precision, cache=False)
    spawned = multiprocessing.get_context("spawn")
    workers = max(1, (os.cpu_count() or 2) // 4)
    with HardenedVerifier(config) as verifier, ProcessPoolExecutor(workers, mp_context=spawned) as pool:
        written = islice(pairs_of(options, pool, begun), options.pairs)
        known: list[tuple[Task, str, str]] = []

        def asked() -> Iterator[tuple[Task, str]]:
            for task, style, source in written:
                known.append((task, style, source))
                yield task, source

        for place, verdict in verifier.verify_many(asked()):
            task, style, source = known[place]
            row = {"task": task.id, "composition": task.composition, "style": style, "status": str(verdict.status)}
            if verdict.status != "correct":
                row |= {"reason": verdict.reason, "reference": task.pytorch_code, "source": source}
                print(f"{task.id} {style} {verdict.status}: {verdict.reason[:300]}", flush=True)
            rows.append(row)
    statuses = Counter(row["status"] for row in rows)
    found = {
        **environment(), "commit": options.commit, "seed": options.seed, "precision": options.precision,
        "pairs": len(rows), "tasks": len({row["task"] for row in rows}), "statuses": statuses,
        "seconds": round(time.monotonic() - begun, 1), "styles": len({row["style"] for row in rows}),
        "by_ops": {n: Counter(r["status"] for r in rows if len(r["composition"]) == n) for n in range(1, MOST_OPS + 1)},
        "others": [row for row in rows if row["status"] != "correct"],
    }  # fmt: skip
    replace_file(options.out, json.dumps(found, indent=1) + "\n")
    print(
        f"{statuses['correct']} of {len(rows)} right, of {found['tasks']} tasks, in {found['seconds']:.0f} s: {dict(statuses)}"
    )
    return int(statuses["correct"] + statuses["needs_gpu"] < len(rows))


def pairs_of(options: argparse.Namespace, pool: ProcessPoolExecutor, begun: float) -> Iterator[tuple[Task, str, str]]:
    """(task, style, candidate) until the time is up."""
    make = partial(chunk, seed=options.seed, each=options.each)
    numbers = iter(range(1 << 20))
    while time.monotonic() - begun < options.seconds:
        for made in pool.map(make, list(islice(numbers, 16))):
            yield from made


def chunk(number: int, *, seed: int, each: int) -> list[tuple[Task, str, str]]:
    """The pairs of some Graphs, the same on every machine."""
    found = []
    for index in range(number * CHUNK, (number + 1) * CHUNK):
        rng = Random(f"kernrl/prove/{seed}/{index}")
        graph = sample(rng, rng.randint(1, MOST_OPS), first=product if rng.random() < 0.6 else None)
        code, composition = write(graph, Hand.draw(rng), rng), graph.composition
        task = Task(id=f"graph-{seed}-{index:05d}", pytorch_code=code, family=composition[0], composition=composition)
        solutions = write_solutions(with_input_sets(task), rng.sample(list(STYLES), min(len(STYLES), 2 * each)))
        found += [(task, s.style, s.triton_code) for s in solutions[:each]]
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--each", type=int, default=4, help="solutions of a Graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no other Graph after so long")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--commit", default="", help="of the code that ran, where there is no checkout")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
