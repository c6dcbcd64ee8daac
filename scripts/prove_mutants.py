"""How many mutants of worked solutions the verifier kills.

    python scripts/prove_mutants.py --out judged.json --tasks 200 --turns 30 --each 1 [--share 1/2] [--device cuda]
    python scripts/prove_mutants.py --out mutants.json --tasks 200 --explain judged.rows.jsonl [...]

Worked solutions of generated tasks, from the grammar and from the Graph writer, are changed in one place by each operator of
`mutation_operators.py`; `--each` places are drawn for each operator and solution. The survivors are then explained, which needs
no GPU. A survivor whose kernels' IR is that of the solution is equivalent by construction. Any other is run beside its solution
on every input set that the interpreter can take and every regime of inputs; its `reason` says how far apart the two are:

    same numbers    bit for bit the same wherever it was run: equivalent, as far as one can see without a proof
    rounding        apart by less than 16 roundings of the largest number nearby: no mistake
    full size       the same at the small sets, and not when three programs of each launch run at full size on numbers made up
                    for it: a loop that runs once at small sizes. Not looked for after a GPU, which judges at full size
    tolerated       apart by more, and within what is tolerated on every set, in every regime, three times each
    missed          a mistake that the verifier did not see, with the share of schedules that would have shown it

What is done is written beside `--out`, part by part; the same command again goes on after it.
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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests")]

import torch  # noqa: E402
import triton  # noqa: E402
from mutation_operators import OPERATORS, Mutant, drawn  # noqa: E402  # pyright: ignore[reportMissingImports]
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
from kernrl.verifier.plan.plan import LaunchNode, Plan, TensorRef, Variant  # noqa: E402
from kernrl.verifier.plan.ttir import parse  # noqa: E402

ROUNDINGS = 16
MOST_BYTES = 1 << 30
"""Of a plan at full size whose launches are run in part."""


def main() -> int:
    options = _options()
    if options.explain:
        return explain(options)
    kept = options.out.with_suffix(".rows.jsonl")
    done = _lines(kept)
    known, begun = {(part["task"], part["turn"]) for part in done}, time.monotonic()
    before_s = max((part["seconds"] for part in done), default=0.0)
    # under fp32: a mutant that multiplies in TF32 is right under tf32
    made = generate_tasks(level=2, count=options.tasks, seed=options.seed, workers=options.processes, precision="fp32")
    tasks = list(made)
    first, _, of = options.share.partition("/")
    tasks = tasks[int(first) - 1 :: int(of)]
    asked = [(task, turn) for turn in range(options.turns) for task in tasks if (task.id, turn) not in known]
    with kept.open("a") as file:
        for found in judged(options, asked, time.time() + options.seconds):
            done.append(found | {"seconds": before_s + time.monotonic() - begun})
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
    write(options, done, here(options))
    print(f"{len(done)} of {len(tasks) * options.turns} parts; {json.dumps(summary(done)['total'])}")
    return 0


def judged(options: argparse.Namespace, asked: Sequence[tuple[Task, int]], deadline: float) -> Iterator[dict[str, Any]]:
    """What is found of each task and turn, in order of tasks; none that the deadline (by time.time()) cuts."""
    evaluator = StagedEvaluator(VerifierConfig(device=options.device, cache=False))
    turns: dict[str, list[int]] = {}
    for task, turn in asked:
        turns.setdefault(task.id, []).append(turn)
    tasks = {task.id: task for task, _ in asked}

    def verdict(task: Task, source: str) -> Verdict | None:
        return evaluator.evaluate(task, source) if time.time() < deadline else None

    try:
        with _processes(options) as makers, ThreadPoolExecutor(evaluator.workers) as pool:
            making = [(task_id, makers.submit(made_of, tasks[task_id], mine, options.each)) for task_id, mine in turns.items()]
            begun: deque[tuple[str, int, list[Made], list[list[Future[Verdict | None]]]]] = deque()
            for task_id, made in making:
                task = replace(tasks[task_id], solutions=())
                for turn, solutions in made.result().items():
                    texts = [(solution, *(m.source for m in mutants)) for _, solution, mutants in solutions]
                    begun.append((task_id, turn, solutions, [[pool.submit(verdict, task, t) for t in row] for row in texts]))
                while begun and all(future.done() for row in begun[0][3] for future in row):
                    yield from report_of(*begun.popleft())
            while begun:
                yield from report_of(*begun.popleft())
    finally:
        evaluator.close()


Made = tuple[str, str, list[Mutant]]
"""Style and source of a solution, and mutants of it."""


def made_of(task: Task, turns: Sequence[int], each: int) -> dict[int, list[Made]]:
    """The solutions of a task in these turns, and mutants of each."""
    written = {
        origin: random.Random(task.id).sample(solutions, len(solutions))
        for origin, solutions in (("grammar", list(task.solutions)), ("graph", list(write_solutions(task))))
    }
    made: dict[int, list[Made]] = {}
    for turn in turns:
        named = [(f"{k}: {s.style}", s.triton_code) for k, solutions in written.items() for s in solutions[turn : turn + 1]]
        made[turn] = [(n, code, list(drawn(code, each, random.Random(f"{task.id}{n}")))) for n, code in named]
    return made


def report_of(
    task: str, turn: int, solutions: Sequence[Made], futures: Sequence[Sequence[Future[Verdict | None]]]
) -> Iterator[dict[str, Any]]:
    """Rows of the killed, and survivors; nothing if a verdict is missing. That on a solution comes before its mutants'."""
    verdicts = [[verdict for future in row if (verdict := future.result())] for row in futures]
    if any(len(a) < len(b) for a, b in zip(verdicts, futures, strict=True)):
        return
    report: dict[str, Any] = {"task": task, "turn": turn, "rows": [], "survivors": [], "refused": []}
    for (style, solution, mutants), (own, *theirs) in zip(solutions, verdicts, strict=True):
        if not own.correct:
            report["refused"].append({"style": style, "status": str(own.status), "reason": own.reason})
            continue
        for mutant, verdict in zip(mutants, theirs, strict=True):
            row = {"task": task, "style": style, "operator": mutant.operator}
            if verdict.correct:
                excess = round(max((e["excess"] for e in verdict.errors), default=0.0), 4)
                row |= {"line": mutant.line, "excess": excess, "source": mutant.source, "solution": solution}
                report["survivors"].append(row)
            else:
                killed = {"outcome": "killed", "status": str(verdict.status), "stage": str(verdict.stage)}
                report["rows"].append(row | killed)
    yield report


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _processes(options: argparse.Namespace, initializer: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn"), initializer=initializer)


_evaluator: list[StagedEvaluator] = []
"""The one of this process."""


def _ready() -> None:
    torch.set_num_threads(1)
    _evaluator.append(StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=1)))
    multiprocessing.util.Finalize(None, _evaluator[0].close, exitpriority=1)


def explain(options: argparse.Namespace) -> int:
    """Give the survivors of earlier runs their reasons, and write what all of them found."""
    kept = options.out.with_suffix(".reasons.jsonl")
    head = json.loads(Path(str(options.explain[0]).replace(".rows.jsonl", ".json")).read_text())
    done = {_named(row): row["reason"] for row in _lines(kept)}
    parts = [part for path in options.explain for part in _lines(path)]
    asked = [s for part in parts for s in part["survivors"]]
    made = generate_tasks(level=2, count=options.tasks, seed=options.seed, precision="fp32")
    tasks = {task.id: task for task in made}
    deadline = time.time() + options.seconds
    left: dict[str, list[dict[str, Any]]] = {}
    for survivor in asked:
        if _named(survivor) not in done:
            left.setdefault(survivor["task"], []).append(survivor)
    with _processes(options, _ready) as pool, kept.open("a") as file:
        for future in as_completed(
            [pool.submit(explained, tasks[name], found, not head["gpu"], deadline) for name, found in left.items()]
        ):
            for row in future.result():
                done[_named(row)] = row["reason"]
                file.write(json.dumps(row) + "\n")
                file.flush()
    for survivor in asked:
        survivor["reason"] = done.get(_named(survivor), "unknown")
    write(options, parts, head)
    print(f"{len(done)} of {len(asked)} survivors explained; {json.dumps(summary(parts)['total'])}")
    return 0


def _named(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in ("task", "style", "operator", "source"))


def explained(task: Task, survivors: Sequence[dict[str, Any]], full: bool, deadline: float) -> list[dict[str, Any]]:
    """The survivors of one task with their reasons, as far as the deadline allows; `full`: looked at in full size, too."""
    asked, evaluator, rows = replace(task, solutions=()), _evaluator[0], []
    schedules = Schedules(evaluator, 3)
    for survivor in survivors:
        if time.time() > deadline:
            break
        plans = traced(evaluator, asked, survivor["solution"])
        row = {key: survivor[key] for key in ("task", "style", "operator", "source")}
        rows.append(row | {"reason": reason_of(evaluator, schedules, asked, plans, survivor["source"], full=full)})
    return rows


def reason_of(
    evaluator: StagedEvaluator, schedules: Schedules, task: Task, plans: Sequence[Plan], source: str, *, full: bool = True
) -> str:
    """What is known of a survivor of the solution with these plans."""
    changed = traced(evaluator, task, source)
    if changed and [kernel_texts(p) for p in changed] == [kernel_texts(p) for p in plans]:
        return "same IR"
    reason = apart(task, plans, changed, full=full)
    if reason.startswith("missed"):
        share, _ = schedules.refusals(Fixture("mutant", source, task), 200)
        reason = reason.replace("missed", "tolerated") if share == 0 else f"{reason}, refused by {share:.0%} of schedules"
    return reason


def traced(evaluator: StagedEvaluator, task: Task, source: str) -> list[Plan]:
    """Plans at every input set; empty if the trace fails."""
    return evaluator.plans_of(task, source)


def kernel_texts(plan: Plan) -> Any:
    """All that decides what a plan computes."""
    return plan.nodes, plan.outputs, plan.setup, [(k.ttir, k.num_warps) for k in plan.kernels]


def apart(task: Task, ours: Sequence[Plan], theirs: Sequence[Plan], *, full: bool) -> str:
    """How far apart a solution and a mutant of it are, on all regimes at all small sets."""
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        if mine.input_set == FULL:
            continue
        input_set = task.input_set(mine.input_set)
        assert input_set is not None
        inputs, cases = TaskInputs(task, input_set, task.precision, "cpu"), []
        for draw in schedule([input_set], 1, precision=task.precision):
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
    if full and worst < ROUNDINGS * torch.finfo(torch.float32).eps and apart_at_full_size(ours[-1], theirs[-1]):
        return "full size"
    if not worst:
        return "same numbers"
    roundings = worst / torch.finfo(torch.float32).eps
    return f"{'rounding' if roundings < ROUNDINGS else 'missed'}: {roundings:.3g} roundings apart"


def apart_at_full_size(ours: Plan, theirs: Plan) -> bool:
    """Whether a launch of the two plans stores different numbers at full size, in its first, middle or last program."""
    for mine, other in zip(ours.nodes, theirs.nodes, strict=False):
        if isinstance(mine, LaunchNode) and isinstance(other, LaunchNode) and launched(ours, mine) != launched(theirs, other):
            one, two = (stored(plan, node.variants[0]) for plan, node in ((ours, mine), (theirs, other)))
            if one is None or two is None:
                continue
            for a, b in zip(one, two, strict=True):
                around = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max()) if a.numel() else 0.0
                if not torch.allclose(a, b, rtol=1e-4, atol=1e-4 * around, equal_nan=True):
                    return True
    return False


def launched(plan: Plan, node: LaunchNode) -> Any:
    """What a launch computes: two that are equal store the same."""
    variant = node.variants[0]
    return plan.kernels[variant.kernel].ttir, variant.grid, variant.args


def stored(plan: Plan, variant: Variant) -> list[torch.Tensor] | None:
    """The storages of one launch after three programs of it on random numbers; None where that cannot be."""
    used = {arg.storage for arg in variant.args.values() if isinstance(arg, TensorRef)}
    sizes = [storage.nbytes if i in used else 0 for i, storage in enumerate(plan.storages)]
    if sum(sizes) > MOST_BYTES:
        return None
    memory, generator = CheckedMemory(sizes, 1), torch.Generator().manual_seed(0)
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


def summary(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts by operator; killable is all but what is equivalent, a matter of rounding, or tolerated."""
    table: dict[str, Counter[str]] = {operator: Counter() for operator in OPERATORS}
    for part in parts:
        for row in part["rows"]:
            table[row["operator"]][row["outcome"]] += 1
        for survivor in part["survivors"]:
            table[survivor["operator"]][survivor.get("reason", "unknown").partition(":")[0]] += 1
    total = sum(table.values(), Counter[str]())
    return {"total": _counts(total), "operators": {k: _counts(v) for k, v in table.items() if v}}


def _counts(outcomes: Counter[str]) -> dict[str, int]:
    killable = sum(outcomes[name] for name in ("killed", "missed", "full size", "unknown"))
    return {"killed": outcomes["killed"], "killable": killable, **outcomes}


def write(options: argparse.Namespace, parts: Sequence[dict[str, Any]], head: dict[str, Any]) -> None:
    rows, survivors = ([row for part in parts for row in part[key]] for key in ("rows", "survivors"))
    head |= {
        "seconds": round(max((part["seconds"] for part in parts), default=0.0), 1),
        "tasks": len({part["task"] for part in parts}),
        "solutions": len({(row["task"], row["style"]) for row in (*rows, *survivors)}),
        "refused": [{"task": part["task"]} | row for part in parts for row in part["refused"]],
        "killed_by_status": Counter(row["status"] for row in rows),
    }
    kept = [{k: v for k, v in s.items() if k not in ("source", "solution")} for s in survivors]
    options.out.write_text(json.dumps(head | summary(parts) | {"survivors": kept}, indent=1) + "\n")


def here(options: argparse.Namespace) -> dict[str, Any]:
    """Where and of what the mutants are judged."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "what": "mutants of worked solutions",
        "date": datetime.date.today().isoformat(),
        "commit": options.commit or commit.stdout.strip(),
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "processes": options.processes,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--turns", type=int, default=1, help="solutions of each task and origin; with 30 all of them")
    parser.add_argument("--seconds", type=float, default=600, help="start nothing further after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=2, help="mutants of each operator and solution")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--share", default="1/1", help="I/N: of the tasks every N-th, from the I-th on")
    parser.add_argument(
        "--explain",
        type=Path,
        nargs="+",
        help="the .rows.jsonl files of runs over the same tasks; the first one's .json beside it",
    )
    parser.add_argument("--commit", help="that judged; by default that of the working tree")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
