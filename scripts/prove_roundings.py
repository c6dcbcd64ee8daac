"""How often the verifier refuses a program that computes as the reference does, and rounds in its own way. No GPU is needed.

    python scripts/prove_roundings.py --tasks heldout --precision tf32 --seeds 10
    python scripts/prove_roundings.py --tasks tests/foreign --precision bf16 --out refused.jsonl

The programs are simulated: each is the reference in float32, run op by op at the small shapes, on the inputs of every regime.
Under `fp32` and `tf32` every result is off by roundings of its own, as in the runs that tolerances are made of; under `tf32`,
operands of products are rounded towards zero (`cut`), to the `nearest` number, or up or down at random (`by lot`). Under `bf16`
and `fp16` the outputs are rounded once (`fused`), or half of what eager rounds is (`partly`). So no draw should be refused.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import FULL, Task
from kernrl.verifier.base.precision import COMPUTE_DTYPE, policy_flags
from kernrl.verifier.interpret.interpreter import lacking_on_a_cpu
from kernrl.verifier.judge.compare import Inputs
from kernrl.verifier.judge.draws import Draw, schedule
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.judge_server import Judge
from kernrl.verifier.judge.truth.exact import rounds
from kernrl.verifier.judge.truth.other_roundings import EagerRoundings, OtherRoundings, Rounded
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers
from kernrl.verifier.judge.truth.reference_copy import ReferenceCopy

Program = Literal["cut", "by lot", "nearest", "fused", "partly"]
PROGRAMS: dict[str, tuple[Program, ...]] = {
    "fp32": ("cut",),
    "tf32": ("cut", "by lot", "nearest"),
    "bf16": ("fused", "partly"),
    "fp16": ("fused", "partly"),
}
"""By precision policy."""
PARTLY = 0.5
"""Share of the results that are rounded by a program that is fused in parts."""

Row = dict[str, Any]


class SomeRoundings(OtherRoundings):
    """Runs a float32 reference and rounds to the policy's dtype a share of what eager rounds."""

    def __init__(self, dtype: torch.dtype, eager: Sequence[Rounded], share: float):
        super().__init__(dtype, rounds, eager)
        self._share = share

    def _round(self, y: Tensor) -> None:
        if random.random() < self._share:
            y.copy_(y.to(self._dtype).float())


def outputs_of(program: Program, reference: ReferenceAnswers, draws: Sequence[Draw], seed: int) -> list[list[Tensor]]:
    """What a program gives for each draw."""
    inputs, found = reference.inputs, []
    wide, dtype = ReferenceCopy(inputs, torch.float32), COMPUTE_DTYPE[inputs.precision]
    for draw in draws:
        inputs.draw(draw)
        with policy_flags(inputs.precision), EagerRoundings(dtype, rounds) as eager:
            dtypes = [y.dtype for y in inputs.call()]
        inputs.draw(draw)  # a call may change running statistics
        torch.manual_seed(seed)
        random.seed(seed)
        if program in ("cut", "by lot", "nearest"):
            run = reference.rounded_run(None, Inputs.OWN, products=program)
        else:
            mode = SomeRoundings(dtype, eager.noted, PARTLY if program == "partly" else 0.0)
            with policy_flags("fp32"):
                run = wide.run(None, mode, wide=False)
        # the running statistics come last, and a program may leave them alone
        found.append([y.to(dtype) for y, dtype in zip(run, dtypes, strict=False)])
    return found


def refused(task: Task, precision: str, seed: int) -> Iterator[Row]:
    """A row for each program, with the draws in which it is refused."""
    small = next((one for one in task.input_sets if one.name != FULL), None)
    if small is None:
        return
    reference = ReferenceAnswers(TaskInputs(task, small, precision, "cpu"))
    draws = schedule([small], seed, precision=precision)
    for program in PROGRAMS[precision]:
        outputs = outputs_of(program, reference, draws, seed)
        judge = Judge("cpu")  # asked a draw at a time: of several it looks no further than at the first that is wrong
        records = [judge.compare(task, precision, draws, [row], [outputs[row]])[0] for row in range(len(draws))]
        beyond = [
            {key: record.get(key) for key in ("regime", "excess", "index", "got", "expected")}
            for record in records
            if record["excess"] > 1
        ]
        yield {"task": task.id, "seed": seed, "program": program, "draws": len(draws), "refused": beyond}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="heldout", help="a source of tasks, as in --tasks of kernrl eval")
    parser.add_argument("--precision", choices=sorted(PROGRAMS), default="tf32")
    parser.add_argument("--seeds", type=int, default=2, help="of draws and roundings, each of every task")
    parser.add_argument("--limit", type=int, help="tasks, at most")
    parser.add_argument("--out", type=Path, help="where a line goes for each program that is refused")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for given in load_tasks(args.tasks, limit=args.limit).tasks:
        try:
            task = with_input_sets(replace(given, precision=args.precision))
            rows += [row for seed in range(args.seeds) for row in refused(task, args.precision, seed)]
        except RuntimeError as error:
            if not (lacks := lacking_on_a_cpu(str(error))):
                raise
            print(f"{given.id} was left out: {lacks}")
    beyond = [row for row in rows if row["refused"]]
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in beyond))
    print(f"{len(rows)} programs of {len({row['task'] for row in rows})} tasks, {sum(row['draws'] for row in rows)} draws")
    print(f"refused: {len(beyond)} programs, {sum(len(row['refused']) for row in beyond)} draws")
    found = Counter((row["task"], row["program"], draw["regime"]) for row in beyond for draw in row["refused"])
    for (task, program, regime), count in found.most_common():
        print(f"  {count} × {task}, {program}, {regime}")


if __name__ == "__main__":
    main()
