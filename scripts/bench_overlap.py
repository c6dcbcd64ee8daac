"""What sampling a step ahead is worth: `kernrl reinforce` with --overlap 0 and 1 in turn, equally long, each with a verifier
that knows nothing yet.

    python scripts/bench_overlap.py --model checkpoints/nano --out overlap.json --seconds 20

Both learn on the same tasks in the same order. Steps are timed from the third on: the first ones compile kernels and fill
caches. On a GPU that samples, trains and verifies, a clock runs only while the other two rest, so what is hidden there is
tracing, compiling and correctness; `--device cpu` judges on the CPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bench_scaling import fresh_verifier

from kernrl.config import ReinforceConfig
from kernrl.files import replace_file
from kernrl.runs.run_directory import environment, read_lines
from kernrl.stages import reinforce
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.rows import write_tasks

WARM_STEPS = 2
PHASES = ("generate", "verify", "update", "step")


def main() -> None:
    """Run, write `--out` after every run, print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="checkpoints/nano")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="of steps, in each run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each kind, with seeds of their own")
    parser.add_argument("--tasks-per-step", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--row-tokens", type=int, default=32_768)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--noise", type=Path, help="folder that keeps the noise of GPUs, which takes 20 s each to measure")
    args = parser.parse_args()

    found: dict[str, Any] = {"environment": environment(), "arguments": {k: str(v) for k, v in vars(args).items()}, "runs": []}
    with tempfile.TemporaryDirectory() as scratch:
        tasks = Path(scratch) / "tasks.jsonl"
        write_tasks(tasks, list(generate_tasks(level=2, count=1000, seed=0, split="train")))
        for number in range(2 * args.rounds):
            overlap, seed = number % 2, number // 2
            folder = Path(scratch) / f"run-{number}"
            settings = {
                "model": args.model, "tasks": str(tasks), "output": folder, "overlap": overlap, "seed": seed,
                "tasks_per_step": args.tasks_per_step, "samples": args.samples, "max_tokens": args.max_tokens,
                "sampling_batch": 1024, "row_tokens": args.row_tokens, "learning_rate": args.learning_rate,
                "steps": 10_000, "save_every": 10_000, "time_limit_s": args.seconds,
            }  # fmt: skip
            with fresh_verifier(args.noise, args.device) as verifier:
                reinforce.run(ReinforceConfig.model_validate(settings), verifier)
            lines = read_lines(folder / "metrics.jsonl")
            found["runs"].append({"overlap": overlap, "seed": seed, **summary(lines), "steps": lines})
            replace_file(args.out, json.dumps(found))
            print(f"overlap {overlap}, seed {seed}:", summary(lines), flush=True)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the warm steps; rewards of the first and of the last warm half."""
    warm = lines[WARM_STEPS:]
    if not warm:
        return {"warm_steps": 0}
    middle = max(1, len(warm) // 2)
    return {
        "warm_steps": len(warm),
        **{f"{phase}_s": round(fmean(line["seconds"][phase] for line in warm), 3) for phase in PHASES},
        "attempts_per_s": round(fmean(line["attempts_per_s"] for line in warm), 2),
        "staleness": fmean(line["staleness"] for line in warm),
        "reward": [round(fmean(line["reward"] or 0.0 for line in part), 4) for part in (warm[:middle], warm[-middle:])],
        "mismatch_kl": fmean(line.get("mismatch_kl", 0.0) for line in warm),
        "correction_mean": fmean(line.get("correction_mean", 1.0) for line in warm),
    }


if __name__ == "__main__":
    main()
