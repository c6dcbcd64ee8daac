"""Which styles nano should be taught: `--style-choice` uniform, fast and tagged, for as many steps, with three seeds.

    python scripts/prove_style_choice.py --out choice --steps 150 --model checkpoints/nano --sft=--no-compile --at-once 2
    python scripts/prove_style_choice.py --out choice --steps 1200 --gpus 4          # from random weights
    python scripts/prove_style_choice.py --out choice --parts table                  # what is there

A step has 65,536 tokens. Time would be no equal budget: on an H200 a step takes 0.06 to 0.2 s, and compiling before the first
one 10 to 33 s, depending on what is in Inductor's cache.

Every run trains a nano by `kernrl sft`. Pairs keep the cores busy for longer than steps do the GPU, so two runs may share
one. What all models then write for `--suites` is judged together, beside what `--model` writes. What is done already is
not done again. The figures are in `choice.json` of `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, get_args

import torch
from side_by_side import SAMPLES, TEMPERATURE, judge, tasks_of, write_replies
from training_table import Replies, best_of, figures_of_samples

from kernrl.config import VerifierConfig
from kernrl.files import replace_file
from kernrl.reports.results import compare
from kernrl.runs.run_directory import environment
from kernrl.tasks.nano.graph_pairs import StyleChoice
from kernrl.tasks.task import Task
from kernrl.verifier.verifier import HardenedVerifier

SEEDS = (0, 1, 2)
START = "start"
RECIPE = ["--form", "graph", "--optimizer", "muon", "--schedule", "linear", "--max-length", "2048", "--save-every", "100000"]
TASKS_A_STEP = 100
"""Pairs are made before the first step. These tasks give some 170 pairs of 390 tokens, which fill a step of 65,536."""

Row = dict[str, Any]


def train(choice: str, seed: int, args: argparse.Namespace, free: Queue[int]) -> None:
    """Train one model, on a GPU that is free."""
    folder = args.out / f"{choice}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "sft" / "model").exists():
        return
    gpu = free.get()
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // args.gpus  # runs on one GPU take turns at making pairs and at steps, and share its cores
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": str(gpu)} if torch.cuda.is_available() else {})
    rate = ["--model", str(args.model), "--learning-rate", "2e-3"] if args.model else ["--learning-rate", "4e-3"]
    told = ["--style-choice", choice, "--seed", str(seed), "--steps", str(args.steps), "--workers", str(max(1, share - 1))]
    told += ["--count", str(TASKS_A_STEP * args.steps)]
    words = [sys.executable, "-m", "kernrl", "sft", "--output", str(folder / "sft"), *RECIPE, *rate, *told, *args.sft]
    try:
        with (folder / "sft.log").open("w") as out:
            subprocess.run(words, env=env, stdout=out, stderr=out, check=True)
        print(choice, seed, "trained", flush=True)
    except subprocess.CalledProcessError:
        print(f"{choice} {seed} failed; see {folder / 'sft.log'}", flush=True)
    finally:
        free.put(gpu)


def train_all(args: argparse.Namespace) -> None:
    free: Queue[int] = Queue()
    for gpu in list(range(args.gpus)) * args.at_once:
        free.put(gpu)
    with ThreadPoolExecutor(free.qsize()) as pool:
        runs = [pool.submit(train, choice, seed, args, free) for seed in args.seeds for choice in args.choices]
    for run in runs:
        run.result()


def models(args: argparse.Namespace) -> dict[str, Path]:
    """Name → model of the start and of each run that has ended."""
    names = [f"{choice}-{seed}" for choice in get_args(StyleChoice) for seed in args.seeds]
    trained = {name: args.out / name / "sft" / "model" for name in names}
    every = ({START: args.model} if args.model else {}) | trained
    return {name: model for name, model in every.items() if model.exists()}


def examine(args: argparse.Namespace, tasks: Sequence[Task]) -> None:
    """Have every model answer, and judge what all of them wrote."""
    config = VerifierConfig(baseline=("eager", "compile"), precision=args.precision)
    with HardenedVerifier(config) as verifier:
        for name, model in models(args).items():
            if not (args.out / name / "replies.jsonl").exists():
                write_replies(args.out / name, model, tasks, args.precision, verifier)
        judge(args.out, list(models(args)), tasks, verifier)


def table(args: argparse.Namespace, tasks: Sequence[Task]) -> None:
    """Write the record, and print a line for each choice: the mean over seeds, and the seeds."""
    replies = Replies(args.out, list(models(args)), tasks)
    rows: dict[str, Row] = {}
    for name in replies.runs:
        samples = replies.samples(name)
        rows[name] = figures_of_samples(replies, samples) | {"best_geomean_x": best_of(samples)}
        rows[name] |= {"distinct_a_task": replies.distinct_a_task(name)}
        if (ended := args.out / name / "sft" / "results.json").exists():
            taught = json.loads(ended.read_text())
            rows[name] |= {key: taught.get(key) for key in ("pairs", "tokens", "validation_loss", "train_s")}
    choices = {
        choice: replies.samples(*names)
        for choice in get_args(StyleChoice)
        if (names := [name for name in replies.runs if name.startswith(f"{choice}-")])
    }
    whole = {choice: figures_of_samples(replies, samples) for choice, samples in choices.items()}
    for choice, row in whole.items():
        row["beside"] = {other: compare(choices[other], choices[choice]) for other in choices if other != choice}
    asked = {"suites": args.suites, "precision": args.precision, "samples": SAMPLES, "temperature": TEMPERATURE}
    record = {**environment(), "steps": args.steps, **asked, "choices": whole, "rows": rows}
    replace_file(args.out / "choice.json", json.dumps(record) + "\n")
    for choice in (START, *get_args(StyleChoice)):
        mine = [row for name, row in rows.items() if name.startswith(choice)]
        if not mine:
            continue
        said = [f"{choice}: models {len(mine)}, tasks {mine[0]['tasks']}"]
        said.append(mean("correct", [row["correct"]["value"] for row in mine]))
        for baseline in ("eager", "compile"):
            found = [row["against"].get(baseline, {}) for row in mine]
            for figure in ("fast_1", "geomean_x"):
                values = [(one.get(figure) or {}).get("value") for one in found]
                said.append(mean(f"{figure} against {baseline}", values))
        print("; ".join(said))


def mean(name: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{name} unknown"
    return f"{name} {statistics.fmean(known):.3f} ({', '.join(f'{value:.3f}' for value in known)})"


def main() -> None:
    """Prove what is not proved yet, then show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--steps", type=int, default=1200, help="of each training")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to train on")
    parser.add_argument("--at-once", type=int, default=1, help="trainings side by side on each GPU")
    parser.add_argument("--model", type=Path, help="a nano to go on from, in place of random weights")
    parser.add_argument("--suites", nargs="+", default=["heldout"], help="tasks that are asked, as in --tasks of kernrl eval")
    parser.add_argument("--limit", type=int, help="ask only so many tasks of each suite; all by default")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--choices", nargs="+", default=list(get_args(StyleChoice)), choices=get_args(StyleChoice))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--parts", nargs="+", choices=("train", "examine", "table"), default=("train", "examine", "table"))
    parser.add_argument("--sft", type=shlex.split, default=[], help="more flags of every sft: --sft='--no-compile'")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    if "train" in args.parts:
        train_all(args)
    tasks = tasks_of(args.suites, args.limit)
    if "examine" in args.parts:
        examine(args, tasks)
    if "table" in args.parts:
        table(args, tasks)


if __name__ == "__main__":
    main()
