"""What each defence of the verifier is worth and what it costs: switch it off, and count the false verdicts that follow.

    python scripts/prove_verifier.py --out proof.json
    python scripts/ablate_verifier.py --proof proof.json --out ablation.json [--device cpu] [--only poison,decoys]

Judged again are the exploits and the quietly wrong candidates of tests/ whose verdict in the proof the defence in question may
have given: what another rule stopped is stopped by it still. Candidates that hang are left out. Honest candidates are not
asked: a check that is not made refuses nobody. With `--cost N`, N worked solutions are judged with the defence off as well,
their machine code known: core-milliseconds of all processes a verdict, milliseconds of its correctness on the GPU (shared with
other lanes, which wait in it) and of the GPU alone in timing. `nothing` switches nothing off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import bench_verifier  # noqa: E402  # pyright: ignore[reportMissingImports]
from support import suite  # noqa: E402  # pyright: ignore[reportMissingImports]

from kernrl.config import VerifierConfig  # noqa: E402
from kernrl.tasks.task import FULL, Task  # noqa: E402
from kernrl.verifier import funnel  # noqa: E402
from kernrl.verifier.base.verdict import Stage, Status, Verdict  # noqa: E402
from kernrl.verifier.correctness import Defences  # noqa: E402
from kernrl.verifier.funnel import StagedEvaluator  # noqa: E402


@dataclass(frozen=True, slots=True)
class Ablation:
    """One defence, and how it is switched off."""

    what: str
    defences: Defences = field(default_factory=Defences)
    one_shape: bool = False
    """Whether candidates are asked at one input set alone: the full one on a GPU, the small one without."""
    stages: tuple[Stage, ...] = (Stage.CORRECTNESS, Stage.TIMING)
    """The stages whose refusals may have been this defence's."""
    statuses: tuple[Status, ...] = (Status.WRONG,)
    """The statuses that may have been this defence's; `correct` where it may have kept a candidate from being overpaid."""
    words: str = ""
    """Of several sentences, divided by `|`: one is in each reason that this defence gives. Empty where any may be."""


ABLATIONS = {
    "nothing": Ablation("all defences on, for comparison"),
    "plan checks": Ablation(
        "rules on operations, data flow and storages of the plan", Defences(plan_checks=False), stages=(Stage.PLAN,),
        statuses=tuple(Status),
    ),
    "input regimes": Ablation(
        "inputs of other distributions than the task's own", Defences(regimes=("nominal",)), words=" inputs ("
    ),
    "parameter redraw": Ablation("fresh numbers in parameters and statistics", Defences(redraw_parameters=False)),
    "ragged shapes": Ablation("shapes that divide by nothing", one_shape=True),
    "poison": Ablation(
        "numbers in every buffer before each run", Defences(poison=False), statuses=(Status.WRONG, Status.CORRECT)
    ),
    "decoy search": Ablation(
        "each authored launch left out in turn", Defences(decoys=False), statuses=(Status.DECOY,)
    ),
    "overwrite search": Ablation(
        "guards around buffers, inputs compared bit by bit", Defences(overwrites=False),
        words="writes outside its tensors|An input or a parameter is changed",
    ),
    "floor": Ablation(
        "times under the physical floor are not believed", Defences(floor=False), stages=(Stage.TIMING,),
        statuses=(Status.WRONG, Status.CORRECT),
    ),
}  # fmt: skip

BEFORE_RULES = (Status.TIMEOUT, Status.CRASH)
"""Verdicts of the proof that no rule gave, so that no defence here could have."""


def main() -> int:
    options = _options()
    proof = json.loads(options.proof.read_text())
    verdicts = {name: Verdict.from_json(row) for name, row in proof["verdicts"].items()}
    where, fastest = proof["where"], proof["fastest_honest_x"]
    report: dict[str, Any] = {key: proof[key] for key in ("where", "versions", "counts")}
    pairs = bench_verifier.candidates(options.cost, seed=0) if options.cost else []
    report["all_on"] = {key: len(proof[key]) for key in ("escapes", "wrong_accepted", "honest_refused")}
    report["ablations"] = {}
    # the screen is advice, and would stop some before the defence in question is asked
    funnel.screen = lambda source: None
    with tempfile.TemporaryDirectory() as kept:  # machine code and the GPU's noise, shared by all
        folder = options.cache_dir or Path(kept)
        config = VerifierConfig(device=options.device, workers=options.workers, cache_dir=folder, gpu_timeout_s=12)
        for name in options.only.split(",") if options.only else ABLATIONS:
            report["ablations"][name] = ablated(ABLATIONS[name], config, verdicts, where, fastest, pairs)
            options.out.write_text(json.dumps(report, indent=1))
            through = {k: len(v) for k, v in report["ablations"][name].items() if isinstance(v, list)}
            print(f"without {name}, of {report['ablations'][name]['asked']}: {through}", flush=True)
    return 0


def ablated(
    ablation: Ablation,
    config: VerifierConfig,
    proof: dict[str, Verdict],
    where: str,
    fastest: dict[str, float],
    pairs: Sequence[tuple[Task, str]],
) -> dict[str, Any]:
    """Names of the fixtures that get through without one defence, and what a verdict on one of `pairs` costs."""
    exploits, wrong = (
        [f for f in fixtures if may_be_of(ablation, proof.get(f.name))]
        for fixtures in (suite.exploits(), suite.quietly_wrong())
    )
    if ablation == ABLATIONS["nothing"]:
        exploits, wrong = [], []
    started = time.monotonic()
    verdicts, cost_ms = judge([*exploits, *wrong], ablation, config, where, pairs)
    escaped = [
        f.name
        for f in exploits
        if verdicts[f.name].correct and suite.escape(f, verdicts[f.name], where, fastest.get(f.task.id))
    ]
    return {
        "what": ablation.what,
        "asked": len(exploits) + len(wrong),
        "exploits_accepted": [name for name in escaped if not proof[name].correct],
        "exploits_overpaid": [name for name in escaped if proof[name].correct],
        "wrong_accepted": [f.name for f in wrong if verdicts[f.name].correct],
        "cost_ms": cost_ms,
        "seconds": round(time.monotonic() - started, 1),
    }


def may_be_of(ablation: Ablation, verdict: Verdict | None) -> bool:
    """Whether the defence may have given this verdict of the proof: at its stages, by a rule, and in its words."""
    if verdict is None or verdict.status in BEFORE_RULES or verdict.status not in ablation.statuses:
        return False
    said = verdict.correct or any(part in verdict.reason for part in ablation.words.split("|"))
    return said and verdict.stage in ablation.stages


def judge(
    asked: Sequence[suite.Fixture], ablation: Ablation, config: VerifierConfig, where: str, pairs: Sequence[tuple[Task, str]]
) -> tuple[dict[str, Verdict], dict[str, float]]:
    """Verdicts by name with the defence off, and milliseconds for each of `pairs`."""
    if ablation.one_shape:
        asked = [replace(f, task=at_one_shape(f.task, where)) for f in asked]
        pairs = [(at_one_shape(task, where), source) for task, source in pairs]
    evaluator = StagedEvaluator(config, defences=ablation.defences)
    try:
        cost_ms: dict[str, float] = {}
        for _ in range(2 if pairs else 0):  # the machine code is made in the first round
            cost_ms = cost(evaluator, pairs)
        return suite.judge_all(evaluator.evaluate, asked, evaluator.workers), cost_ms
    finally:
        evaluator.close()


def cost(evaluator: StagedEvaluator, pairs: Sequence[tuple[Task, str]]) -> dict[str, float]:
    """What a verdict takes on the average, in milliseconds."""
    evaluator.start()
    begun, cpu_s = time.monotonic(), bench_verifier.cpu_s()
    with ThreadPoolExecutor(evaluator.workers) as pool:
        verdicts = list(pool.map(lambda pair: evaluator.evaluate(*pair), pairs))
    found = {"cores": bench_verifier.cpu_s() - cpu_s, "wall": time.monotonic() - begun}
    for stage, name in (("correctness", "correctness"), ("gpu_busy", "gpu_alone")):
        found[name] = sum(verdict.seconds.get(stage, 0.0) for verdict in verdicts)
    return {name: round(1e3 * s / len(pairs), 2) for name, s in found.items()} | {"verdicts": float(len(pairs))}


def at_one_shape(task: Task, where: str) -> Task:
    """The task without the sets that catch what divides by nothing; the full one is always there, for the time."""
    kept = (FULL,) if where == "gpu" else (FULL, "small")
    return replace(task, input_sets=tuple(s for s in task.input_sets if s.name in kept))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--proof", type=Path, required=True, help="what prove_verifier.py wrote on this kind of machine")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--workers", type=int, help="candidates at once; by default one a core")
    parser.add_argument("--cost", type=int, default=0, help="worked solutions to take the cost of a verdict from")
    parser.add_argument("--cache-dir", type=Path, help="folder of machine code, kept; by default none is kept")
    parser.add_argument("--only", default="", help=f"comma-separated, of: {', '.join(ABLATIONS)}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
