"""How the worked styles do against eager and `torch.compile`, by family of tasks, and what is missing where they lose.

    python scripts/bench_styles.py --out styles.json --seconds 540           # again until it says that all is done
    python scripts/bench_styles.py --out styles.json --seconds 0             # the table of what is there
    python scripts/bench_styles.py --out a.json --shard 1/2                  # half of the tasks, for the first of two GPUs
    python scripts/bench_styles.py --out a.json --merge b.json --seconds 0 --beside old.json   # both halves, beside a record
    python scripts/bench_styles.py --out dry.json --device cpu --limit 4     # modelled times, no GPU needed

Half of the tasks are `tests/foreign`, half are generated Graphs, at their real sizes, in random order. Every style goes through
the verifier, those of several tasks at once. The best style is the fastest correct one. Judged tasks are kept in `--out`, with
what was judged on; a second call goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import torch

from kernrl.config import VerifierConfig
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.tasks.graph.costs import Rates, roofline_s
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.sample import sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.solutions.from_graph.styles import graphs_of, write_solutions
from kernrl.tasks.task import Solution, Task
from kernrl.verifier import HardenedVerifier
from kernrl.verifier.base.devices import device_for

FOREIGN = Path(__file__).parents[1] / "tests" / "foreign"
LEAST_BYTES, MOST_BYTES = 64 << 20, 12 << 30
"""A generated task is of real size: a device has something to do, and holds it."""
CLOSE = 1.25
"""Within this factor of the floor nothing is missing but what the floor leaves out."""


def tasks(limit: int, precision: str, seed: int) -> Iterator[Task]:
    """Foreign modules and generated Graphs in turn; what cannot be lifted is left out."""
    foreign, generated = iter(sorted(FOREIGN.glob("*.py"))), _generated(seed)
    for i in range(limit):
        path = next(foreign, None) if i % 2 == 0 else None
        name, source = (path.stem, path.read_text(encoding="utf-8")) if path else next(generated)
        yield Task(name, source, precision=precision)


def in_order(found: Iterable[Task], first: Sequence[str], seed: int) -> list[Task]:
    """Those that are named, then the others in random order."""
    every = list(found)
    named = {t.id: t for t in every if t.id in first}
    rest = [t for t in every if t.id not in named]
    Random(seed).shuffle(rest)
    return [*(named[name] for name in first if name in named), *rest]


def _generated(seed: int) -> Iterator[tuple[str, str]]:
    number = 0
    while True:
        rng = Random(f"bench {seed} {number}")
        graph = sample(rng, rng.randint(3, 7))
        held = sum(v.nbytes for v in graph.values.values())
        if LEAST_BYTES <= held <= MOST_BYTES:
            yield f"generated-{number}", write(graph, Hand.draw(rng), rng)
        number += 1


def family(graph: Graph) -> str:
    """What the time of a task goes to."""
    ops, kinds = {n.op for n in graph.nodes}, {n.kind for n in graph.nodes}
    if any("transpose" in op for op in ops):
        return "transposed convolution"
    if "convolution" in kinds:
        return "convolution"
    if "product" in kinds:
        return "product"
    if "batch_norm" in ops:
        return "batch norm"
    if ops & {"group_norm", "instance_norm"}:
        return "group norm"
    return "rows" if kinds & {"normalization", "reduction"} else "pointwise"


def rates_of(name: str, precision: str) -> Rates:
    """The device's peaks under a precision policy."""
    device = device_for(name)
    if device is None:
        raise UsageError(f"--target {name}: no such GPU is known.")
    return device.rates(precision)


Prepared = tuple[Task, dict[str, Any], tuple[Solution, ...]]
"""A task with its input sets, its row without verdicts, and its solutions."""


def prepare(task: Task, target: str) -> Prepared | str:
    """What is judged of a task; why there is nothing to judge."""
    torch.set_num_threads(1)
    try:
        task = with_input_sets(task)
        graph = graphs_of(task)[0]
        solutions = write_solutions(task)
    except Exception as error:  # one task is left out with its reason, and the others are judged
        return f"{type(error).__name__}: {error}"
    row: dict[str, Any] = {"task": task.id, "precision": task.precision, "family": family(graph), "styles": []}
    row["ops"] = [n.op for n in graph.nodes]
    row["floor_us"] = 1e6 * roofline_s(graph, rates_of(target, task.precision))[1]
    return task, row, solutions


def judge(verifier: HardenedVerifier, prepared: Iterable[Prepared]) -> Iterator[dict[str, Any]]:
    """The row of each task when all its styles are judged; those of several tasks are judged at once."""
    asked: list[tuple[dict[str, Any], str, int]] = []

    def pairs() -> Iterator[tuple[Task, str]]:
        for task, row, solutions in prepared:
            for solution in solutions:
                asked.append((row, solution.style, len(solutions)))
                yield task, solution.triton_code

    for i, verdict in verifier.verify_many(pairs()):
        row, style, count = asked[i]
        one = {"style": style, "status": str(verdict.status), "reason": verdict.reason[:300], "notes": verdict.notes}
        if timing := verdict.timing:
            speedups = {k: [s.value, s.low, s.high, s.significant] for k, s in timing.speedups_x.items()}
            row["clock"] = f"{timing.kind} on {timing.device}"
            row["baseline_us"] = timing.baseline_us
            one |= {"us": timing.candidate_us, "speedups_x": speedups}
        row["styles"].append(one)
        if len(row["styles"]) == count:
            yield row


def until(
    deadline: float, prepared: Iterable[Prepared | str], tasks: Sequence[Task], out: list[dict[str, Any]]
) -> Iterator[Prepared]:
    """What there is to judge, none of it begun after the deadline; tasks with nothing to judge go into `out`."""
    for task, found in zip(tasks, prepared, strict=False):
        if time.monotonic() > deadline:
            return
        if isinstance(found, str) or not found[2]:
            reason = found if isinstance(found, str) else "there is no rule for it"
            out.append({"task": task.id, "precision": task.precision, "reason": reason})
        else:
            yield found


def best(row: dict[str, Any], *, algebra: bool = True) -> dict[str, Any] | None:
    """The fastest correct style."""
    right = [s for s in row["styles"] if s["status"] == "correct" and "us" in s and (algebra or "algebra" not in s["style"])]
    return min(right, key=lambda s: s["us"], default=None)


def _geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def table(rows: Sequence[dict[str, Any]], baseline: str, precision: str) -> str:
    """Best style against one baseline, by family."""
    groups: dict[str, list[list[Any]]] = defaultdict(list)
    for row in rows:
        one = best(row)
        if one and row["precision"] == precision and baseline in one["speedups_x"]:
            for name in (row["family"], "all"):
                groups[name].append(one["speedups_x"][baseline])
    lines = [f"| against {baseline}, {precision} | tasks | geometric mean | not slower | faster |", "|---|---:|---:|---:|---:|"]
    for name, found in sorted(groups.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        slower = sum(significant and value < 1 for value, _, _, significant in found)
        faster = sum(significant and value > 1 for value, _, _, significant in found)
        shares = f"{1 - slower / len(found):.0%} | {faster / len(found):.0%}"
        lines.append(f"| {name} | {len(found)} | {_geomean([f[0] for f in found]):.3f} | {shares} |")
    return "\n".join(lines)


def missing(row: dict[str, Any], baseline: str) -> str | None:
    """Why the best style loses, from times alone."""
    one = best(row)
    if one is None:
        return f"{row['task']}: no correct style ({Counter(s['status'] for s in row['styles'])})"
    value, _, _, significant = one["speedups_x"].get(baseline, (1.0, 1.0, 1.0, False))
    if not significant or value >= 1:
        return None
    gap = one["us"] / row["floor_us"]
    why = "at the floor as counted: the compiler does less" if gap < CLOSE else f"{gap:.1f} times the floor"
    return f"{row['task']} ({row['family']}): {one['style']} {value:.2f}, {why}; {' '.join(row['ops'])}"


def report(rows: Sequence[dict[str, Any]], baselines: Sequence[str]) -> str:
    """The tables, which styles win, what algebra brings, and what is missing."""
    parts = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        mine = [row for row in rows if row["precision"] == precision]
        parts += [table(mine, baseline, precision) for baseline in baselines]
        winners = Counter(one["style"] for row in mine if (one := best(row)))
        parts.append(f"{precision}, best style: " + ", ".join(f"{style} {n}" for style, n in winners.most_common()))
        pairs = [(a, b) for row in mine if (a := best(row)) and (b := best(row, algebra=False)) and a is not b]
        gained = _geomean([b["us"] / a["us"] for a, b in pairs])
        parts.append(
            f"{precision}, algebra is best on {len(pairs)} of {len(mine)} tasks"
            + (f", {gained:.2f} times faster there" if pairs else "")
        )
        statuses = Counter(s["status"] for row in mine for s in row["styles"])
        parts.append(f"{precision}, verdicts: " + ", ".join(f"{status} {n}" for status, n in statuses.most_common()))
        lost = [line for row in mine if (line := missing(row, baselines[-1]))]
        parts.append("\n".join([f"{precision}, behind {baselines[-1]} or without a style: {len(lost)}", *lost]))
    return "\n\n".join(parts)


def beside(rows: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> str:
    """Best styles of two records, task by task."""
    found = {(row["task"], row["precision"]): best(row) for row in before}
    lines, ratios = ["| task | before | | now | | times faster |", "|---|---|---:|---|---:|---:|"], []
    for row in rows:
        old, new = found.get((row["task"], row["precision"])), best(row)
        if old and new:
            ratios.append(old["us"] / new["us"])
            lines.append(
                f"| {row['task']} | {old['style']} | {old['us']:.1f} | {new['style']} | {new['us']:.1f} | {ratios[-1]:.2f} |"
            )
    return "\n".join([*lines, f"| all {len(ratios)} | | | | | {_geomean(ratios):.3f} |"])


def main() -> None:
    """Judge what is left, within the time given, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=200, help="tasks, half of them foreign")
    parser.add_argument("--seconds", type=float, default=540.0, help="start no task after this")
    parser.add_argument("--precision", default="tf32,bf16")
    parser.add_argument("--baseline", default="eager,compile", help="add max-autotune for the slow baseline")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--target", default="H200", help="the GPU of the floor, and of modelled times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", default="", help="tasks to begin with, by name")
    parser.add_argument("--shard", default="1/1", help="k/n: the k-th of n parts of the tasks")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 2, help="of this part; a third of them write solutions")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="further records for the table")
    parser.add_argument("--beside", type=Path, help="a record of before, to compare with")
    args = parser.parse_args()
    baselines, begun = args.baseline.split(","), time.monotonic()
    part, parts = map(int, args.shard.split("/"))
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"rows": [], "left_out": []}
    done = {(row["task"], row["precision"]) for row in [*record["rows"], *record["left_out"]]}
    first = [name for name in args.first.split(",") if name]
    every = [t for p in args.precision.split(",") for t in in_order(tasks(args.limit, p, args.seed), first, args.seed)]
    todo = [t for t in every[part - 1 :: parts] if (t.id, t.precision) not in done]
    config = VerifierConfig(device=args.device, target=args.target, baseline=tuple(baselines), workers=args.cores, cache=False)  # pyright: ignore[reportArgumentType]
    if todo and args.seconds > 0:
        writers = ProcessPoolExecutor(max(1, args.cores // 3), multiprocessing.get_context("spawn"))
        prepared = writers.map(prepare, todo, [args.target] * len(todo))
        with HardenedVerifier(config) as verifier:
            for row in judge(verifier, until(begun + args.seconds, prepared, todo, record["left_out"])):
                record["rows"].append(row)
                record |= {"versions": verifier.evaluator.versions, "commit": _commit(), "date": time.strftime("%Y-%m-%d")}
                record["gpu"] = next((r["clock"] for r in record["rows"][::-1] if "clock" in r), "")
                replace_file(args.out, json.dumps(record, indent=1))
        writers.shutdown(wait=False, cancel_futures=True)
    done = {(row["task"], row["precision"]) for row in [*record["rows"], *record["left_out"]]}
    left = sum((t.id, t.precision) not in done for t in todo)
    shown = baselines if args.device != "cpu" else ["eager"]
    rows = [*record["rows"], *(row for path in args.merge for row in json.loads(path.read_text())["rows"])]
    print(report(rows, shown))
    if args.beside:
        print("\n" + beside(rows, json.loads(args.beside.read_text())["rows"]))
    print(f"\n{len(rows)} judged, {len(record['left_out'])} left out, {left} to do", file=sys.stderr)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=FOREIGN)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
