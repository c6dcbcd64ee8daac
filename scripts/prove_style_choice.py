"""Which styles nano should be taught: `--style-choice` uniform, fast and tagged, for as many steps, with three seeds.

    python scripts/prove_style_choice.py --out choice --steps 1200 --gpus 4               # again until all is done
    python scripts/prove_style_choice.py --out choice --steps 300 --model checkpoints/nano --sft=--no-compile
    python scripts/prove_style_choice.py --out choice --table                             # what is there

A step has 65,536 tokens. Time would be no equal budget: on an H200 a step takes 0.06 to 0.2 s, and compiling before the first
one 10 to 33 s, by what another run has left in Inductor's cache.

Every run trains a nano by `kernrl sft` on a GPU of its own, with its share of the cores, and is asked for `--tasks` by `kernrl
eval`, against eager and `torch.compile`. What is done already is not done again. The figures are in `choice.json` of `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, get_args

import torch

from kernrl.files import replace_file
from kernrl.runs.run_directory import environment
from kernrl.tasks.nano.graph_pairs import StyleChoice

SEEDS = (0, 1, 2)
RECIPE = ["--form", "graph", "--optimizer", "muon", "--schedule", "linear", "--max-length", "2048", "--save-every", "100000"]
TASKS_A_STEP = 100
"""Pairs are made before the first step. These tasks give some 170 pairs of 390 tokens, which fill a step of 65,536."""
EXAM = ["--samples", "8", "--temperature", "0.8", "--max-tokens", "2048", "--sampling-batch", "512"]

Row = dict[str, Any]


def kernrl(words: list[str], env: dict[str, str], log: Path) -> None:
    """Run a command of kernrl. Raises CalledProcessError where it fails; its output is in `log`."""
    with log.open("w") as out:
        subprocess.run([sys.executable, "-m", "kernrl", *words], env=env, stdout=out, stderr=out, check=True)


def prove(choice: str, seed: int, args: argparse.Namespace, free: Queue[int]) -> None:
    """Train and examine one model, on a GPU that is free."""
    folder = args.out / f"{choice}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    gpu = free.get()
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[gpu * len(cores) // args.gpus : (gpu + 1) * len(cores) // args.gpus]
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": str(gpu)} if torch.cuda.is_available() else {})
    workers = str(max(1, len(mine) - 1))
    try:
        if not (folder / "sft" / "model").exists():
            rate = ["--model", str(args.model), "--learning-rate", "2e-3"] if args.model else ["--learning-rate", "4e-3"]
            told = ["--style-choice", choice, "--seed", str(seed), "--steps", str(args.steps), "--workers", workers]
            told += ["--count", str(TASKS_A_STEP * args.steps)]
            kernrl(
                ["sft", "--output", str(folder / "sft"), *RECIPE, *rate, *told, *args.sft],
                env,
                folder / "sft.log",
            )
        if not (folder / "eval" / "results.json").exists():
            asked = ["--tasks", args.tasks, "--precision", args.precision, "--baseline", "eager,compile", "--seed", "0"]
            asked += ["--limit", str(args.limit), "--model", str(folder / "sft" / "model"), "--output", str(folder / "eval")]
            again = ["--resume"] if (folder / "eval").exists() else []
            kernrl(["eval", *asked, *EXAM, "--verifier.workers", workers, *again, *args.eval], env, folder / "eval.log")
        print(choice, seed, "done", flush=True)
    except subprocess.CalledProcessError as error:
        print(f"{choice} {seed} failed: {' '.join(error.cmd[3:5])}; see {folder}/*.log", flush=True)
    finally:
        free.put(gpu)


def figures(folder: Path) -> Row | None:
    """What one run came to; None where it has not ended."""
    ended = [folder / part / "results.json" for part in ("sft", "eval")]
    if not all(path.exists() for path in ended):
        return None
    taught, found = (json.loads(path.read_text()) for path in ended)
    row: Row = {name: taught.get(name) for name in ("pairs", "tokens", "validation_loss", "train_s")}
    row |= {"correct": found["correct"]["value"], "tasks": found["tasks"]}
    for name, against in found["baselines"].items():
        row[name] = {figure: (against.get(figure) or {}).get("value") for figure in ("fast_1", "geomean_x")}
    return row


def table(args: argparse.Namespace) -> None:
    """Write the record, and print a line for each choice: the mean over seeds, and the seeds."""
    rows = {f"{choice}-{seed}": figures(args.out / f"{choice}-{seed}") for choice in get_args(StyleChoice) for seed in SEEDS}
    there = {name: row for name, row in rows.items() if row}
    record = {**environment(), "steps": args.steps, "suite": args.tasks, "precision": args.precision, "rows": there}
    replace_file(args.out / "choice.json", json.dumps(record, indent=1) + "\n")
    for choice in get_args(StyleChoice):
        mine = [row for name, row in there.items() if name.startswith(f"{choice}-")]
        if not mine:
            continue
        said = [f"{choice}: {len(mine)} seeds", _mean("correct", [row["correct"] for row in mine])]
        for baseline in ("eager", "compile"):
            for figure in ("fast_1", "geomean_x"):
                said.append(_mean(f"{figure} against {baseline}", [row.get(baseline, {}).get(figure) for row in mine]))
        print("; ".join(said))


def _mean(name: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{name} unknown"
    return f"{name} {statistics.fmean(known):.3f} ({', '.join(f'{value:.3f}' for value in known)})"


def main() -> None:
    """Prove what is not proved yet, then show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--steps", type=int, default=1200, help="of each training")
    parser.add_argument("--gpus", type=int, default=1, help="trainings side by side")
    parser.add_argument("--model", type=Path, help="a nano to go on from, in place of random weights")
    parser.add_argument("--tasks", default="heldout", help="what is asked")
    parser.add_argument("--limit", type=int, default=64, help="tasks that are asked, at most")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--choices", nargs="+", default=list(get_args(StyleChoice)), choices=get_args(StyleChoice))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--sft", type=shlex.split, default=[], help="more flags of every sft: --sft='--no-compile'")
    parser.add_argument("--eval", type=shlex.split, default=[], help="the same of every eval")
    args = parser.parse_args()
    if not args.table:
        free: Queue[int] = Queue()
        for gpu in range(args.gpus):
            free.put(gpu)
        with ThreadPoolExecutor(args.gpus) as pool:
            for seed in args.seeds:
                for choice in args.choices:
                    pool.submit(prove, choice, seed, args, free).add_done_callback(lambda done: done.result())
    table(args)


if __name__ == "__main__":
    main()
