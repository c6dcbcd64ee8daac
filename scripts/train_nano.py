"""Train a nano of the form `graph` and examine it on four sets: held-out compositions, foreign modules, deep and single ops.

    python scripts/train_nano.py --output checkpoints/nano-graph --launch ddp        # two H200s, nine minutes and the exams
    python scripts/train_nano.py --output /tmp/nano --count 64 --steps 1 --tasks 1 --samples 1 --max-tokens 8  # a CPU

Runs `kernrl sft` and one `kernrl eval` a set, and prints each command; what is done already is not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETS = {
    "heldout": "graph-heldout",
    "foreign": str(ROOT / "tests" / "foreign"),
    "deep": "graph-deep",
    "single": "graph-single",
}
"""Name → source of tasks."""

RECIPE = ["--optimizer", "muon", "--learning-rate", 4e-3, "--schedule", "linear", "--styles", 2, "--max-length", 2048]
RECIPE += ["--validate-every", 1000, "--save-every", 100_000]
"""Settings of `kernrl sft`."""


def kernrl(*words: object) -> None:
    """Run a command of kernrl, and stop if it fails."""
    command = [sys.executable, "-m", "kernrl", *map(str, words)]
    print("$ kernrl", *command[3:], flush=True)
    if code := subprocess.run(command, cwd=ROOT).returncode:
        sys.exit(code)


def main() -> None:
    """Train, evaluate, and print a line for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seconds", type=float, default=500.0, help="of the training, the making of its pairs included")
    parser.add_argument("--count", type=int, default=10_000_000, help="Graphs to draw, at most; each gives two pairs")
    parser.add_argument("--steps", type=int, help="optimizer steps, at most")
    parser.add_argument("--launch", default="none", choices=("none", "ddp"), help="ddp trains on every GPU")
    parser.add_argument("--tasks", type=int, default=100, help="tasks of each set, at most")
    parser.add_argument("--samples", type=int, default=8, help="samples a task")
    parser.add_argument("--precision", default="tf32", choices=("fp32", "tf32", "bf16", "fp16"), help="of the evaluations")
    parser.add_argument("--max-tokens", type=int, default=2048, help="longest reply")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    output = args.output.resolve()
    if not (output / "sft" / "model").exists():
        recipe = [*RECIPE, "--count", args.count, "--seed", args.seed, "--time-limit-s", args.seconds, "--launch", args.launch]
        recipe += ["--steps", args.steps] if args.steps else []
        kernrl("sft", "--form", "graph", "--output", output / "sft", *recipe)
    for name, source in SETS.items():
        if (output / name / "results.json").exists():
            continue
        asked = ["--tasks", source, "--limit", args.tasks, "--samples", args.samples, "--max-tokens", args.max_tokens]
        how = ["--temperature", 0.8, "--seed", args.seed, "--sampling-batch", 512, "--precision", args.precision]
        kernrl("eval", "--model", output / "sft" / "model", "--output", output / name, *asked, *how)
    for name in SETS:
        results = json.loads((output / name / "results.json").read_text())
        shown = {k: results[k] for k in ("correct", f"pass@{args.samples}") if k in results}
        print(f"{name}: {json.dumps(shown)}")


if __name__ == "__main__":
    main()
