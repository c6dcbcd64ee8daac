"""Look at a few tasks in every detail, and have each verdict confirmed by a plain evaluation that shares no code with it.

    python scripts/validate_tasks.py --out validation.json [--run checkpoints/eval] [--count 20] [--mutants]

The candidates are a run's first ones for the first tasks of the held-out suite, or without `--run` the suite's worked
solutions; with `--mutants` every second one is changed in one place, so that verdicts of both kinds are looked at. kernrl
judges them as always. Then each is run by itself in a fresh process in the plainest way there is: eager `Model` beside
`ModelNew` under one seed, `torch.allclose` on five inputs of the task's own, Triton's `do_bench` for both. That runs the
candidates' Python with no sandbox: do it with candidates you have read, or where nothing can be lost.

Without a GPU kernrl models the times, and the plain evaluation runs at the task's small shapes in Triton's own interpreter,
which times nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SEEDS = 5
TOLERANCE = 1e-4
"""Absolute and relative, of the plain evaluation: what KernelBench asks of float32."""

PLAIN_MISTAKES = ("dropped helper", "dropped op", "missing term", "other extreme", "stale statistics", "wrong constant")
"""Operators of `mutation_operators.py` whose mistakes a plain evaluation should see, too."""


def main() -> int:
    options = _options()
    if options.plain:
        print(json.dumps(plain(options.plain)))
        return 0
    tasks, texts = chosen(options.run, options.count)
    changes = [
        change(number, task, text) if options.mutants else ("", text)
        for number, (task, text) in enumerate(zip(tasks, texts, strict=True))
    ]
    texts = [text for _, text in changes]
    rows = judge(tasks, texts)
    for row, (what, _) in zip(rows, changes, strict=True):
        row["change"] = what
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        for number, (task, text) in enumerate(zip(tasks, texts, strict=True)):
            place = Path(folder) / str(number)
            place.mkdir()
            # a machine with no GPU could not run the full one
            small = task.input_set("small") if gpu_name() is None else None
            (place / "task.py").write_text(task.source_at(small) if small else task.pytorch_code)
            (place / "candidate.py").write_text(source_of(text))
        for row, found in zip(rows, pool.map(confirm, sorted(Path(folder).iterdir(), key=lambda p: int(p.name))), strict=True):
            row["plain"] = found
            print(line(row), flush=True)
            write(options.out, [one for one in rows if "plain" in one])
    agree = sum(row["verdict"]["correct"] == row["plain"].get("correct") for row in rows)
    refused = sum(not row["verdict"]["correct"] for row in rows)
    print(f"{agree} of {len(rows)} verdicts confirmed, {refused} of them rejections")
    return 0


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """What has been confirmed so far."""
    out.write_text(json.dumps({"gpu": gpu_name(), "versions": rows[0]["verdict"]["versions"], "tasks": rows}, indent=1))


def chosen(run: Path | None, count: int) -> tuple[list[Any], list[str]]:
    """Tasks that take turns through the families, and a candidate for each."""
    from kernrl.reports.kernelbench import read_candidates
    from kernrl.tasks.loaders import load_tasks

    tasks = list(load_tasks("heldout").tasks)
    texts = {task.id: task.solutions[0].triton_code for task in tasks if task.solutions}
    if run is not None:
        found, _ = read_candidates(run, tasks)
        texts = {task.id: text for task, member, text in reversed(found) if member == 0}
    places: dict[str, int] = {}
    turn: dict[str, int] = {}
    for task in tasks:
        turn[task.id] = places[task.family] = places.get(task.family, -1) + 1
    picked = sorted((t for t in tasks if t.id in texts), key=lambda t: (turn[t.id], t.family))[:count]
    return picked, [texts[task.id] for task in picked]


def change(number: int, task: Any, text: str) -> tuple[str, str]:
    """Of every second task a mutant of its candidate with a mistake that shows at any size: what was changed, and the text."""
    from mutation_operators import mutants

    made = [m for m in mutants(source_of(text)) if m.operator in PLAIN_MISTAKES] if number % 2 else []
    if not made:
        return "", text
    kinds = sorted({m.operator for m in made})
    rng = random.Random(task.id)
    kind = kinds[number // 2 % len(kinds)]
    mutant = rng.choice([m for m in made if m.operator == kind])
    return f"{mutant.operator}: {mutant.line}", f"```python\n{mutant.source}\n```"


def judge(tasks: list[Any], texts: list[str]) -> list[dict[str, Any]]:
    """One row a task: both sources and kernrl's whole verdict."""
    from kernrl.config import VerifierConfig
    from kernrl.verifier.verifier import HardenedVerifier

    rows: list[dict[str, Any]] = [
        {"task": t.id, "family": t.family, "composition": t.composition, "reference": t.pytorch_code, "candidate": source_of(x)}
        for t, x in zip(tasks, texts, strict=True)
    ]
    with HardenedVerifier(VerifierConfig(cache=False)) as verifier:
        for index, verdict in verifier.verify_many(zip(tasks, texts, strict=True)):
            rows[index]["verdict"] = verdict.to_json()
    return rows


def source_of(text: str) -> str:
    from kernrl.verifier.base.parse import Candidate, parse_reply

    parsed = parse_reply(text)
    return parsed.source if isinstance(parsed, Candidate) else text


def gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def confirm(folder: Path) -> dict[str, Any]:
    """The plain evaluation of one candidate, in a process of its own."""
    command = [sys.executable, __file__, "--plain", str(folder)]
    environment = os.environ if gpu_name() else os.environ | {"TRITON_INTERPRET": "1"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return {"correct": False, "error": "does not end in 120 s"}
    if ended.returncode:
        return {"correct": False, "error": ended.stderr.strip().splitlines()[-1][:300]}
    return json.loads(ended.stdout.splitlines()[-1])


# --- the plain evaluation: nothing of kernrl below -----------------------------------------------------------------


def plain(folder: Path) -> dict[str, Any]:
    """Whether ModelNew gives what Model gives, and both times in µs."""
    import torch
    from triton.testing import do_bench

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    task, candidate = _module(folder / "task.py"), _module(folder / "candidate.py")
    models = []
    for make in (task.Model, candidate.ModelNew):
        torch.manual_seed(0)
        models.append(make(*task.get_init_inputs()).to(device).eval())
    worst, same = 0.0, True
    with (folder.parent / "lock").open("w") as lock, torch.no_grad():
        fcntl.flock(lock, fcntl.LOCK_EX)  # the GPU is for one at a time
        for seed in range(1, SEEDS + 1):
            torch.manual_seed(seed)
            inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in task.get_inputs()]
            expected, got = (model(*inputs) for model in models)
            worst = max(worst, float((expected - got).abs().max()))
            same &= torch.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
        if device == "cpu":
            return {"correct": same, "worst_error": worst}
        ms: list[Any] = [do_bench(lambda m=model: m(*inputs), return_mode="median") for model in models]
    eager_us, candidate_us = (1000 * value for value in ms)
    times = {"eager_us": eager_us, "candidate_us": candidate_us, "speedup_x": eager_us / candidate_us}
    return {"correct": same, "worst_error": worst, **times}


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(row: dict[str, Any]) -> str:
    verdict, other = row["verdict"], row["plain"]
    ours = f"{verdict['status']} {(verdict['speedup_x'] or {}).get('value', 0):.2f}x"
    timed = f" {other['speedup_x']:.2f}x" if "speedup_x" in other else ""
    return f"{row['task']}: {ours}; plain: {other.get('error') or other['correct']}{timed}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("validation.json"), help="JSON file to write")
    parser.add_argument("--run", type=Path, help="a run whose candidates are looked at")
    parser.add_argument("--count", type=int, default=20, help="how many tasks")
    parser.add_argument("--mutants", action="store_true", help="change every second candidate in one place")
    parser.add_argument("--workers", type=int, default=8, help="plain evaluations started at once; the GPU is for one")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
