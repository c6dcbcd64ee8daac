"""Put the verifier to its proof on this machine: every exploit, every quietly wrong and every honest candidate of tests/.

    python scripts/prove_verifier.py --out proof.json [--device cpu] [--rounds 5] [--ablate]

Prints what escaped and what was refused by mistake, and what each exploit that ended as `correct` was credited with. With
`--rounds` all of it is repeated on fresh secrets, and the fixtures whose verdict varied are listed;
`scripts/prove_schedules.py` finds rarer chances. With `--ablate` defences are switched off in turn, and the fixtures that then
get through are listed.
Exit code 1 when an exploit or a wrong candidate got through, or an honest one did not, in any round.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import suite  # noqa: E402  # pyright: ignore[reportMissingImports]

from kernrl.config import VerifierConfig  # noqa: E402
from kernrl.console import counted, waiting  # noqa: E402
from kernrl.tasks.task import Task  # noqa: E402
from kernrl.verifier import funnel  # noqa: E402
from kernrl.verifier.base.verdict import Verdict  # noqa: E402
from kernrl.verifier.correctness import Defences  # noqa: E402
from kernrl.verifier.funnel import StagedEvaluator  # noqa: E402

ABLATIONS: dict[str, Defences] = {
    "input regimes": Defences(regimes=("nominal",)),
    "parameter redraw": Defences(redraw_parameters=False),
    "poison": Defences(poison=False),
    "decoy search": Defences(decoys=False),
    "overwrite search": Defences(overwrites=False),
    "plan checks": Defences(plan_checks=False),
}


def main() -> int:
    options = _options()
    kept = tempfile.TemporaryDirectory()  # machine code and the GPU's noise, shared by the ablations
    config = VerifierConfig(
        device=options.device,
        workers=options.workers,
        cache_dir=Path(kept.name),
        trace_timeout_s=8,
        compile_timeout_s=30,
        gpu_timeout_s=12,
    )
    where = "gpu" if options.device != "cpu" and torch.cuda.is_available() else "cpu"
    begun = time.monotonic()
    _rows.append(options.out.with_suffix(".rows.jsonl"))
    report: dict[str, Any] = {"where": where, "versions": _versions(), "rounds": options.rounds}
    rounds = []
    for number in range(1, options.rounds + 1):
        with waiting(f"round {number} of {options.rounds}"):
            rounds.append(_round(config, options.only))
    honest, wrong, exploits, _ = rounds[-1]
    fastest = fastest_honest(suite.honest(), honest)
    made = {fixture.name: fixture for fixture in suite.quietly_wrong()}
    for key in ("escapes", "wrong_accepted", "wrong_refused_elsewhere", "honest_refused", "changed_afterwards"):
        report[key] = {}
    for right, mistaken, hostile, later in rounds:
        report["escapes"] |= _escapes(hostile, where, fastest)
        report["wrong_accepted"] |= {n: v.reason for n, v in mistaken.items() if v.correct}
        report["wrong_refused_elsewhere"] |= {
            n: how for n, v in mistaken.items() if not v.correct and (how := suite.quietly_accepted(made[n], v))
        }
        report["honest_refused"] |= {n: _line(v) for n, v in right.items() if not v.correct}
        report["changed_afterwards"] |= {n: _line(v) for n, v in later.items() if v.status != right[n].status}
    report["varied"] = _varied([{**h, **w, **e} for h, w, e, _ in rounds])
    report["credited"] = {n: round(x, 3) for n, v in exploits.items() if (x := suite.measured_x(v))}
    report["fastest_honest_x"] = {n: round(x, 3) for n, x in fastest.items()}
    report["verdicts"] = {n: v.to_json() for n, v in {**honest, **wrong, **exploits}.items()}
    report["counts"] = {"honest": len(honest), "wrong": len(wrong), "exploits": len(exploits)}
    names = options.ablate if options.ablate else ABLATIONS if options.ablate == [] else ()
    report["ablations"] = {name: _ablated(config, ABLATIONS[name], where, fastest, options.only) for name in names}
    report["seconds"] = round(time.monotonic() - begun, 1)
    options.out.write_text(json.dumps(report, indent=1))
    _print(report)
    return int(bool(report["escapes"] or report["honest_refused"] or report["wrong_accepted"]))


def _round(config: VerifierConfig, only: str) -> tuple[dict[str, Verdict], ...]:
    """Verdicts on honest, wrong and hostile fixtures, and on some honest ones again; on secrets of its own."""
    with_screen = funnel.screen
    evaluator = StagedEvaluator(config)
    try:
        evaluator.start()
        honest = _judge(evaluator, _chosen(suite.honest(), only))
        wrong = _judge(evaluator, _chosen(suite.quietly_wrong(), only))
        # the screen is advice: what follows must be stopped without it
        funnel.screen = lambda source: None
        exploits = _judge(evaluator, _chosen(suite.exploits(), only))
        after = _judge(evaluator, [f for f in suite.honest() if f.name in honest][::12])
    finally:
        funnel.screen = with_screen
        evaluator.close()
    return honest, wrong, exploits, after


def _varied(rounds: Sequence[dict[str, Verdict]]) -> dict[str, list[str]]:
    """Fixture → its outcomes, where they are not the same in every round."""
    seen = {name: [f"{found[name].status} at {found[name].stage}" for found in rounds] for name in rounds[0]}
    return {name: outcomes for name, outcomes in seen.items() if len(set(outcomes)) > 1}


def fastest_honest(fixtures: Sequence[suite.Fixture], verdicts: dict[str, Verdict]) -> dict[str, float]:
    """Task id → the greatest measured speed-up of an honest candidate."""
    best: dict[str, float] = {}
    for fixture in fixtures:
        credited = suite.measured_x(verdicts[fixture.name]) if fixture.name in verdicts else None
        if credited and fixture.precision == "fp32":
            best[fixture.task.id] = max(best.get(fixture.task.id, 0.0), credited)
    return best


def _judge(evaluator: StagedEvaluator, fixtures: Sequence[suite.Fixture]) -> dict[str, Verdict]:
    """Verdicts by name; each is added to the rows file when it is there, for a run that is cut off."""
    names, lock = {(f.task.id, f.source): f.name for f in fixtures}, threading.Lock()

    def told(task: Task, source: str) -> Verdict:
        verdict = evaluator.evaluate(task, source)
        with lock, _rows[-1].open("a") if _rows else contextlib.nullcontext(io.StringIO()) as file:
            file.write(json.dumps({"name": names[task.id, source]} | verdict.to_json()) + "\n")
        return verdict

    return suite.judge_all(told, fixtures, evaluator.workers)


_rows: list[Path] = []
"""The rows file of this run."""


def _chosen(fixtures: Sequence[suite.Fixture], only: str) -> list[suite.Fixture]:
    return [f for f in fixtures if any(word in f.name for word in only.split(","))]


def _escapes(verdicts: dict[str, Verdict], where: str, fastest: dict[str, float]) -> dict[str, str]:
    fixtures = {f.name: f for f in suite.exploits()}
    found = {n: suite.escape(fixtures[n], v, where, fastest.get(fixtures[n].task.id)) for n, v in verdicts.items()}
    return {name: how for name, how in found.items() if how}


def _ablated(config: VerifierConfig, defences: Defences, where: str, fastest: dict[str, float], only: str) -> list[str]:
    """Fixtures that get through when one defence is off."""
    quick = [f for f in suite.exploits() if "timeout" not in f.expectation(where).statuses]
    fixtures = _chosen([*quick, *suite.quietly_wrong()], only)
    evaluator = StagedEvaluator(config, defences=defences)
    screen, funnel.screen = funnel.screen, lambda source: None
    try:
        verdicts = _judge(evaluator, fixtures)
    finally:
        funnel.screen = screen
        evaluator.close()
    return sorted(
        f.name
        for f in fixtures
        if (v := verdicts[f.name]).correct and ("entry" not in f.header or suite.escape(f, v, where, fastest.get(f.task.id)))
    )


def _line(verdict: Verdict) -> str:
    return f"{verdict.status} at {verdict.stage}: {verdict.reason}"


def _versions() -> dict[str, str]:
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__, "gpu": gpu}


def _print(report: dict[str, Any]) -> None:
    counts = report["counts"]
    print(f"{counted(counts['exploits'], 'exploit')}, {counted(len(report['escapes']), 'escape')}:")
    for name, how in report["escapes"].items():
        print(f"  {name}: {how[:300]}")
    print(f"{counts['wrong']} quietly wrong, accepted: {', '.join(report['wrong_accepted']) or 'none'}")
    for name, line in report["wrong_refused_elsewhere"].items():
        print(f"  {name}: {line[:200]}")
    print(f"{counts['honest']} honest, {len(report['honest_refused'])} refused:")
    for name, line in report["honest_refused"].items():
        print(f"  {name}: {line[:300]}")
    for name, line in report["changed_afterwards"].items():
        print(f"  changed after the exploits: {name}: {line[:200]}")
    if report["rounds"] > 1:
        print(f"{len(report['varied'])} verdicts varied over {report['rounds']} rounds:")
    for name, outcomes in report["varied"].items():
        print(f"  {name}: {', '.join(outcomes)}")
    for name, through in report.get("ablations", {}).items():
        print(f"without {name}: {', '.join(through) or 'nothing gets through'}")
    print(f"{report['seconds']} s on {report['versions']}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--workers", type=int, help="candidates at once; by default one a core")
    parser.add_argument("--only", default="", help="comma-separated parts of fixture names")
    parser.add_argument("--rounds", type=int, default=1, help="how often all is judged, on fresh secrets each time")
    parser.add_argument(
        "--ablate", nargs="*", choices=list(ABLATIONS), help="defences to switch off in turn as well; all if none is named"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
