"""How far chance decides the verdicts on the fixtures: every regime on every set of a fixture, scheduled anew many times.

    python scripts/prove_schedules.py --out schedules.json [--draws 3] [--schedules 400] [--only NAMES]

A candidate meets each regime on one set, at random. This runs every honest and every quietly wrong fixture on all of them,
`--draws` times each, in the interpreter, and then makes `--schedules` schedules of these results. It prints the honest fixtures
that some schedules refuse and the wrong ones that some accept, with the draws at fault. Exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import suite  # noqa: E402  # pyright: ignore[reportMissingImports]

from kernrl.config import VerifierConfig  # noqa: E402
from kernrl.console import counted  # noqa: E402
from kernrl.tasks.task import Task  # noqa: E402
from kernrl.verifier.base.verdict import Rejection  # noqa: E402
from kernrl.verifier.funnel import StagedEvaluator  # noqa: E402
from kernrl.verifier.interpret.interpret_server import DrawnInputs  # noqa: E402
from kernrl.verifier.interpret.interpreter import Case, interpret_cases  # noqa: E402
from kernrl.verifier.interpreted_sets import interpreted  # noqa: E402
from kernrl.verifier.judge.compare import ErrorLevel, Inputs, error_figures, excess, tolerances_for  # noqa: E402
from kernrl.verifier.judge.draws import Draw, schedule  # noqa: E402
from kernrl.verifier.judge.inputs import POISONS, TaskInputs  # noqa: E402
from kernrl.verifier.judge.regimes import NOMINAL, REGIMES  # noqa: E402
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers  # noqa: E402
from kernrl.verifier.plan.plan import Plan  # noqa: E402

Key = tuple[str, str, int]
"""Input set, regime, number of the draw."""


@dataclass(slots=True)
class _Draws:
    """The draws of one input set, and their answers."""

    keys: list[Key]
    inputs: DrawnInputs
    truth: list[list[torch.Tensor]]
    levels: list[list[ErrorLevel]]


class Schedules:
    """Results of fixtures on all draws. Draws and answers of the last task are kept, so that its fixtures share them."""

    def __init__(self, evaluator: StagedEvaluator, draws: int) -> None:
        self._evaluator, self._count = evaluator, draws
        self._kept: tuple[tuple[object, ...], dict[str, _Draws]] = ((), {})

    def refusals(self, fixture: suite.Fixture, count: int) -> tuple[float, Counter[str]]:
        """The share of schedules that refuse a fixture, and how often each draw is at fault."""
        plans = self._evaluator.plans_of(fixture.task, fixture.source)
        mine = interpreted(plans, on_gpu=False)
        if not mine:
            return math.nan, Counter()
        results = {name: self._results(fixture.task, fixture.precision, plan) for name, plan in mine.items()}
        sets = [s for s in fixture.task.input_sets if s.name in {p.input_set for p in plans}]
        refused, faults = 0, Counter[str]()
        for _ in range(count):
            found = _at_fault(schedule(sets, secrets.randbits(63), precision=fixture.precision), results, self._count)
            refused += bool(found)
            faults.update(found)
        return refused / count, faults

    def _draws(self, task: Task, precision: str, name: str) -> _Draws:
        if self._kept[0] != (task.id, precision):
            self._kept = (task.id, precision), {}
        if name not in self._kept[1]:
            input_set = task.input_set(name)
            assert input_set is not None
            reference = ReferenceAnswers(TaskInputs(task, input_set, precision, "cpu"))
            keys = [(name, regime, i) for regime in (NOMINAL, *REGIMES) for i in range(self._count)]
            draws = [Draw(name, regime, secrets.randbits(63)) for _, regime, _ in keys]
            made = _Draws(keys, DrawnInputs(reference.inputs, draws), [], [])
            for draw in draws:
                reference.inputs.draw(draw)
                finite = draw.regime == NOMINAL or REGIMES[draw.regime].finite
                kind = Inputs.OWN if draw.regime == NOMINAL else Inputs.FINITE if finite else Inputs.NONFINITE
                answer = reference.answer(kind)
                made.truth.append(answer.truth)
                made.levels.append(answer.levels)
            self._kept[1][name] = made
        return self._kept[1][name]

    def _results(self, task: Task, precision: str, plan: Plan) -> dict[Key, tuple[list[ErrorLevel], list[list[float]]]]:
        """Eager's error and the candidate's by draw; figures are infinite where it could not be run."""
        made = self._draws(task, precision, plan.input_set)
        turns = range(len(made.keys))
        cases = [Case(made.inputs.tensors(i), poison=POISONS[i % 2], turn=random.randrange(1 << 20)) for i in turns]
        found = interpret_cases(plan, cases, timeout_s=600.0)
        results = {}
        for i, key in enumerate(made.keys):
            shown = interpret_cases(plan, [cases[i]], timeout_s=60.0) if isinstance(found, Rejection) else [found[i]]
            count = len(plan.outputs)  # running statistics come last in the truth, and a candidate may leave them alone
            truth, levels = made.truth[i][:count], made.levels[i][:count]
            if isinstance(shown, Rejection) or any(y.shape != t.shape for y, t in zip(shown[0], truth, strict=True)):
                figures = [[math.inf] * 4 for _ in truth]
            else:
                figures = [error_figures(y, t, level).tolist() for y, t, level in zip(shown[0], truth, levels, strict=True)]
            results[key] = levels, figures
        return results


def _at_fault(draws: Sequence[Draw], results: dict[str, dict[Key, Any]], count: int) -> list[str]:
    """Which draws of a schedule refuse the candidate, each taken from the results at random."""
    found = []
    for name, rows in results.items():
        keys = [(name, draw.regime, random.randrange(count)) for draw in draws if draw.input_set == name]
        tolerances = tolerances_for([rows[key][0] for key in keys], next(i for i, k in enumerate(keys) if k[1] == NOMINAL))
        for key, bounds in zip(keys, tolerances, strict=True):
            if max(excess(figures, bound) for figures, bound in zip(rows[key][1], bounds, strict=True)) > 1:
                found.append(f"{name} {key[1]} {key[2]}")
    return found


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    evaluator = StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=1))
    schedules, report = Schedules(evaluator, options.draws), {}
    fixtures = [(f, True) for f in suite.honest()] + [(f, False) for f in suite.quietly_wrong()]
    fixtures = [pair for pair in fixtures if any(word in pair[0].name for word in options.only.split(","))]
    fixtures.sort(key=lambda pair: (pair[0].task.id, pair[0].precision))
    part, parts = map(int, options.part.split("/"))
    tasks = sorted({f.task.id for f, _ in fixtures})[part - 1 :: parts]
    doubtful = 0
    try:
        for fixture, honest in fixtures:
            if fixture.task.id not in tasks:
                continue
            share, faults = schedules.refusals(fixture, options.schedules)
            report[fixture.name] = {"honest": honest, "refused": share, "faults": dict(faults)}
            if share != (0.0 if honest else 1.0):
                doubtful += 1
                kind = "honest" if honest else "wrong"
                print(f"{kind} {fixture.name}: refused by {share:.1%} of schedules; {dict(faults.most_common(6))}", flush=True)
    finally:
        evaluator.close()
        options.out.write_text(json.dumps(report, indent=1))
    print(f"{counted(len(report), 'fixture')}, chance decides {doubtful}")
    return int(doubtful > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--draws", type=int, default=3, help="draws of each regime on each set")
    parser.add_argument("--schedules", "--lots", type=int, default=400, help="schedules made")
    parser.add_argument("--only", default="", help="comma-separated parts of fixture names")
    parser.add_argument("--part", default="1/1", help="which part of the tasks, such as 2/4")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
