"""How many mutants of worked solutions the verifier kills, judged without a GPU.

    python scripts/prove_mutants.py --out mutants.json [--tasks 20] [--turns 1] [--seconds 600] [--seed 0] [--each 2]
    python scripts/prove_mutants.py --out on_gpu.json --confirm mutants.sources.json [--tasks 20] [--seed 0]

Worked solutions of generated tasks, from the grammar and from the Graph writer, are changed in one place by each operator of
`mutation_operators.py`; `--each` places are drawn for each operator and solution. A mutant whose kernels' IR is that of the
solution is equivalent by construction, and is not judged. A survivor is run beside its solution on every input set that the
interpreter can take and every regime of inputs; its `reason` says how far apart the two are:

    same numbers    bit for bit the same wherever it was run: equivalent, as far as one can see without a proof
    rounding        apart by less than 16 roundings of the largest number nearby: no mistake
    full size       the same at the small sets, and not when three programs of each launch run at full size on numbers made up
                    for it: a loop that runs once at small sizes. A GPU, which judges at full size, is asked for those
    tolerated       apart by more, and within what is tolerated on every set, in every regime, three times each
    missed          a mistake that the verifier did not see, with the share of schedules that would have shown it

Every task's mutants are written to `mutants.rows.jsonl` when they are judged; the same command again goes on after those.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import multiprocessing.util
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests")]

import torch  # noqa: E402
import triton  # noqa: E402
from mutation_operators import OPERATORS, Mutant, mutants  # noqa: E402  # pyright: ignore[reportMissingImports]
from prove_schedules import Schedules  # noqa: E402  # pyright: ignore[reportMissingImports]
from support.suite import Fixture  # noqa: E402  # pyright: ignore[reportMissingImports]

from kernrl.config import VerifierConfig  # noqa: E402
from kernrl.tasks.grammar.generate import generate_tasks  # noqa: E402
from kernrl.tasks.solutions.from_graph.styles import write_solutions  # noqa: E402
from kernrl.tasks.task import FULL, Task  # noqa: E402
from kernrl.verifier.base.verdict import Rejection, Verdict  # noqa: E402
from kernrl.verifier.funnel import StagedEvaluator  # noqa: E402
from kernrl.verifier.interpret.checked_memory import CheckedMemory  # noqa: E402
from kernrl.verifier.interpret.interpret_server import sources  # noqa: E402
from kernrl.verifier.interpret.interpreter import Case, interpret_cases, parameter  # noqa: E402
from kernrl.verifier.interpret.launch_interpreter import LaunchInterpreter  # noqa: E402
from kernrl.verifier.judge.draws import schedule  # noqa: E402
from kernrl.verifier.judge.inputs import TaskInputs  # noqa: E402
from kernrl.verifier.plan.plan import LaunchNode, Plan, Variant  # noqa: E402
from kernrl.verifier.plan.ttir import parse  # noqa: E402

ROUNDINGS = 16
MOST_BYTES = 1 << 30
"""Of a plan at full size whose launches are run in part."""


def main() -> int:
    options = _options()
    if options.confirm:
        return confirm(options)
    kept = options.out.with_suffix(".rows.jsonl")
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    known, begun = {(part["task"], part["turn"]) for part in done}, time.monotonic()
    before_s = max((part["seconds"] for part in done), default=0.0)
    pool = ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn"), initializer=_ready)
    tasks = list(generate_tasks(level=2, count=options.tasks, seed=options.seed, workers=options.processes))
    asked = [(task, turn) for turn in range(options.turns) for task in tasks if (task.id, turn) not in known]
    deadline = time.time() + options.seconds
    futures = [pool.submit(proved, task, turn, options.each, deadline) for task, turn in asked]
    with kept.open("a") as file:
        for future in as_completed(futures):
            found = future.result()
            if found is None:  # the time was up
                continue
            done.append(found | {"seconds": before_s + time.monotonic() - begun})
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
            write(options, done)
    pool.shutdown()
    total = summary([row for part in done for row in part["rows"]])["total"]
    print(f"{len(done)} of {len(tasks) * options.turns} parts; {json.dumps(total)}")
    return 0


_evaluator: list[StagedEvaluator] = []
"""The one of this process."""


def _ready() -> None:
    torch.set_num_threads(1)
    _evaluator.append(StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=1)))
    multiprocessing.util.Finalize(None, _evaluator[0].close, exitpriority=1)


def proved(task: Task, turn: int, each: int, deadline: float) -> dict[str, Any] | None:
    """The mutants of a task's solutions in one turn; None if the deadline (by time.time()) has passed."""
    if time.time() > deadline:
        return None
    report: dict[str, Any] = {"task": task.id, "turn": turn, "rows": [], "survivors": []}
    for style, source in solutions(task, turn):
        prove(_evaluator[0], task, style, source, each, report)
    return report


def solutions(task: Task, turn: int) -> Iterator[tuple[str, str]]:
    """A solution of the grammar and one of the Graph writer, other ones each turn: style and source."""
    for origin, written in (("grammar", list(task.solutions)), ("graph", list(write_solutions(task)))):
        random.Random(task.id).shuffle(written)
        for solution in written[turn : turn + 1]:
            yield f"{origin}: {solution.style}", solution.triton_code


def prove(evaluator: StagedEvaluator, task: Task, style: str, source: str, each: int, report: dict[str, Any]) -> None:
    """Judge the mutants of one solution; adds rows and survivors."""
    asked = replace(task, solutions=())
    if not evaluator.evaluate(asked, source).correct:
        return
    plans = traced(evaluator, asked, source)
    rng, by_operator = random.Random(f"{task.id}{style}"), {}
    for mutant in mutants(source):
        by_operator.setdefault(mutant.operator, []).append(mutant)
    for operator, made in by_operator.items():
        for mutant in rng.sample(made, min(each, len(made))):
            row, survivor = judged(evaluator, asked, plans, mutant)
            report["rows"].append({"task": task.id, "style": style, "operator": operator} | row)
            if survivor:
                report["survivors"].append({"task": task.id, "style": style} | survivor)


def confirm(options: argparse.Namespace) -> int:
    """Judge survivors again where there is a GPU: how many of each reason it kills, and which it does not."""
    survivors = json.loads(options.confirm.read_text())
    evaluator = StagedEvaluator(VerifierConfig(device="cuda", cache=False))
    made = generate_tasks(level=2, count=options.tasks, seed=options.seed, workers=evaluator.workers)
    tasks = {task.id: replace(task, solutions=()) for task in made}
    try:
        with ThreadPoolExecutor(evaluator.workers) as pool:
            verdicts = list(pool.map(lambda s: evaluator.evaluate(tasks[s["task"]], s["source"]), survivors))
    finally:
        evaluator.close()
    table: dict[str, Counter[str]] = {}
    for survivor, verdict in zip(survivors, verdicts, strict=True):
        survivor |= {"gpu": str(verdict.status), "gpu_reason": verdict.reason}
        reason = survivor["reason"].partition(":")[0]
        table.setdefault(reason, Counter())["survived" if verdict.correct else "killed"] += 1
    print(json.dumps(table))
    kept = [{k: v for k, v in s.items() if k != "source"} for s in survivors]
    options.out.write_text(json.dumps({"versions": evaluator.versions, "by_reason": table, "survivors": kept}, indent=1))
    return 0


def judged(
    evaluator: StagedEvaluator, task: Task, plans: Sequence[Plan], mutant: Mutant
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A mutant's row, and what is known of it if it survives."""
    changed = traced(evaluator, task, mutant.source)
    if changed and [kernel_texts(p) for p in changed] == [kernel_texts(p) for p in plans]:
        return {"outcome": "same IR"}, None
    verdict: Verdict = evaluator.evaluate(task, mutant.source)
    if not verdict.correct:
        return {"outcome": "killed", "status": str(verdict.status), "stage": str(verdict.stage)}, None
    reason = apart(task, plans, changed)
    if reason.startswith("missed"):
        share, _ = Schedules(evaluator, 3).refusals(Fixture("mutant", mutant.source, task), 200)
        reason = reason.replace("missed", "tolerated") if share == 0 else f"{reason}, refused by {share:.0%} of schedules"
    excess = max((e["excess"] for e in verdict.errors), default=0.0)
    known = {"operator": mutant.operator, "line": mutant.line, "reason": reason, "excess": round(excess, 4)}
    return {"outcome": reason.partition(":")[0]}, known | {"source": mutant.source}


def traced(evaluator: StagedEvaluator, task: Task, source: str) -> list[Plan]:
    """Plans at every input set; empty if the trace fails."""
    return evaluator.plans_of(task, source)


def kernel_texts(plan: Plan) -> Any:
    """All that decides what a plan computes."""
    return plan.nodes, plan.outputs, plan.setup, [(k.ttir, k.num_warps) for k in plan.kernels]


def apart(task: Task, ours: Sequence[Plan], theirs: Sequence[Plan]) -> str:
    """How far apart a solution and a mutant of it are, on all regimes at all small sets."""
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        if mine.input_set == FULL:
            continue
        input_set = task.input_set(mine.input_set)
        assert input_set is not None
        inputs, cases = TaskInputs(task, input_set, task.precision, "cpu"), []
        for draw in schedule([input_set], 1, None):
            inputs.draw(draw)
            cases.append(Case({k: v.clone() for k, v in sources(inputs).items()}))
        one, two = interpret_cases(mine, cases), interpret_cases(other, cases)
        if isinstance(one, Rejection) or isinstance(two, Rejection):
            return "missed: one of the two cannot be run again"
        for a, b in ((a.double(), b.double()) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)):
            differ = (a - b).abs()[~(a == b) & ~(a.isnan() & b.isnan())]
            if differ.numel():
                around = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max())
                worst = max(worst, float(differ.nan_to_num(float("inf")).max()) / max(around, 1e-30))
    if worst < ROUNDINGS * torch.finfo(torch.float32).eps and apart_at_full_size(ours[-1], theirs[-1]):
        return "full size"
    if not worst:
        return "same numbers"
    roundings = worst / torch.finfo(torch.float32).eps
    return f"{'rounding' if roundings < ROUNDINGS else 'missed'}: {roundings:.3g} roundings apart"


def apart_at_full_size(ours: Plan, theirs: Plan) -> bool:
    """Whether a launch of the two plans stores different numbers at full size, in its first, middle or last program."""
    for mine, other in zip(ours.nodes, theirs.nodes, strict=False):
        if isinstance(mine, LaunchNode) and isinstance(other, LaunchNode):
            one, two = (stored(plan, node.variants[0]) for plan, node in ((ours, mine), (theirs, other)))
            if one is None or two is None:
                continue
            for a, b in zip(one, two, strict=True):
                around = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max()) if a.numel() else 0.0
                if not torch.allclose(a, b, rtol=1e-4, atol=1e-4 * around, equal_nan=True):
                    return True
    return False


def stored(plan: Plan, variant: Variant) -> list[torch.Tensor] | None:
    """Every storage of a plan after three programs of one launch on random numbers; None where that cannot be."""
    if sum(s.nbytes for s in plan.storages) > MOST_BYTES:
        return None
    memory, generator = CheckedMemory([s.nbytes for s in plan.storages], 1), torch.Generator().manual_seed(0)
    flat = [memory.bytes_of(i, 0) for i in range(len(plan.storages))]
    flat = [span[: len(span) // 4 * 4].view(torch.float32) for span in flat]
    for span in flat:
        span.uniform_(-1, 1, generator=generator)
    function, last = parse(plan.kernels[variant.kernel].ttir), math.prod(variant.grid) - 1
    arguments = [parameter(k, v) for k, v in zip(function.param_types, variant.args.values(), strict=True)]
    try:
        launch = LaunchInterpreter(function, memory, variant.grid, time.process_time() + 20)
        launch.run(arguments, sorted({0, last // 2, last}))
    except (RuntimeError, ValueError, LookupError):
        return None
    return flat


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts by operator; killable is all but what is equivalent, a matter of rounding, or tolerated."""
    table: dict[str, Any] = {}
    for operator in OPERATORS:
        outcomes = Counter(row["outcome"] for row in rows if row["operator"] == operator)
        if outcomes:
            table[operator] = {
                "killed": outcomes["killed"],
                "killable": _killable(outcomes),
                **outcomes,
            }
    total = Counter(row["outcome"] for row in rows)
    return {
        "total": {"killed": total["killed"], "killable": _killable(total), **total},
        "operators": table,
    }


def _killable(outcomes: Counter[str]) -> int:
    return outcomes["killed"] + outcomes["missed"] + outcomes["full size"]


def write(options: argparse.Namespace, done: Sequence[dict[str, Any]]) -> None:
    rows, survivors = ([row for part in done for row in part[key]] for key in ("rows", "survivors"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    head = {
        "what": "mutants of worked solutions, judged without a GPU",
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "processes": options.processes,
        "seconds": round(max(part["seconds"] for part in done), 1),
        "tasks": len({row["task"] for row in rows}),
        "solutions": len({(row["task"], row["style"]) for row in rows}),
        "killed_by_status": Counter(row["status"] for row in rows if "status" in row),
    }
    kept = [{k: v for k, v in s.items() if k != "source"} for s in survivors]
    options.out.write_text(json.dumps(head | summary(rows) | {"survivors": kept}, indent=1) + "\n")
    options.out.with_suffix(".sources.json").write_text(json.dumps(survivors, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--turns", type=int, default=1, help="solutions of each task and origin; with 30 all of them")
    parser.add_argument("--seconds", type=float, default=600, help="start no further solution after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=2, help="mutants of each operator and solution")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--confirm", type=Path, help="a .sources.json of the same tasks and seed, for a GPU to judge")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
