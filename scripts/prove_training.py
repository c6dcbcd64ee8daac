"""What verified reward makes of a model: three methods with one time limit, three seeds, and what single choices gain.

    python scripts/prove_training.py train --model checkpoints/nano --out proof --seconds 60 --long-seconds 300
    python scripts/prove_training.py judge --out proof
    python scripts/prove_training.py table --out proof --to docs/benchmarks/training
    python scripts/prove_training.py answer --kept proof --model checkpoints/nano --out bf16 --precision bf16  # then judge

Every run starts from the same model and learns on the same tasks of train compositions, in its own order; best-of-n,
reward-weighted and reinforce are given `--seconds` each, as `--time-limit-s`; `best-of-n-even` takes the even steps of
reinforce (`--adam-epsilon`), `best-of-n-then-reinforce` divides the time between the two (`--first-share`), and
`reinforce-long` is `reinforce-0` gone on with. What a model then writes for the tasks of `--suites` is judged together with
what all the others wrote, a task at a time, so that all are timed side by side. Each part skips what is in `--out` already, so
the proof may be made in pieces (`train --runs best-of-n`, `judge --budget-s 120`), and its runs on several GPUs at once (`judge
--share 2/8`). `table` is of the suites that it is given; `TO_tasks.md` beside it has the tasks that were not faster than
compile. Without a GPU it does the same with modelled times, which only shows that the script runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import side_by_side
import torch
from side_by_side import SAMPLES, TEMPERATURE, part_of, tasks_of, write_replies
from training_table import UNCHANGED, spent_s, write_table
from training_tasks import write_tasks_page

from kernrl.config import BestOfNConfig, ReinforceConfig, RewardWeightedConfig, SftConfig, VerifierConfig
from kernrl.config.shared.reward import COMPARE
from kernrl.runs.run_directory import environment, read_lines
from kernrl.stages import best_of_n, reinforce, reward_weighted, sft
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.verifier import HardenedVerifier

Row = dict[str, Any]

# --- the runs ----------------------------------------------------------------------------------------------------

OF_ITS_PLACE = {"model", "output", "tasks", "workers", "resume"}
"""Settings of a run that differ with the machine and the moment."""

AGAINST, WEIGHTED, REINFORCE = (  # what each command takes for nano where nothing else is given
    stage(model="nano", output=Path()).model_dump(mode="json", exclude=OF_ITS_PLACE)
    for stage in (BestOfNConfig, RewardWeightedConfig, ReinforceConfig)
)
# time ends them, and nothing else
AGAINST |= {"rounds": 10_000}
WEIGHTED |= {"limit": None}
REINFORCE |= {"steps": 10_000, "save_every": 10_000}
CHOICES: dict[str, Row] = {  # `--short-steps` steps each: all ask the same tasks, with the same seed
    UNCHANGED: {},
    "loo": {"advantage": "loo"},
    "no-baseline": {"advantage": "raw"},
    "group-scaled": {"advantage": "group"},
    "reward-best-of-n": {"reward": "best-of-n"},
    "reward-milestones": {"reward": "milestones"},
    "reward-hierarchical": {"reward": "hierarchical"},
    "reward-compile": {"reward_baseline": "compile"},
    "reward-best-known": {"reward": "best-known"},
    # so few that each is asked several times: only then is a candidate known from before
    "few-tasks": {"limit": 48},
    "few-tasks-best-known": {"limit": 48, "reward": "best-known"},
}
EVEN = "best-of-n-even"
EVEN_STEPS = {name: REINFORCE[name] for name in ("adam_epsilon", "learning_rate", "max_grad_norm")}
"""How reinforce keeps what is correct: weights without much gradient stay as they are."""

SEEDS = (0, 1, 2)
ALONE, BOTH = "reinforce-", "best-of-n-then-reinforce-"
"""Runs of several seeds."""
METHODS = (
    "further-sft", "best-of-n", EVEN, "reward-weighted", *(f"{kind}{seed}" for kind in (ALONE, BOTH) for seed in SEEDS),
)  # fmt: skip
LONG = "reinforce-long"
RUNS = ("start", *METHODS, LONG, *CHOICES)
TASKS = 1000
"""Train compositions that all runs draw from."""


def train_one(name: str, args: argparse.Namespace, seconds: float, verifier: HardenedVerifier, folder: Path) -> Row:
    """One run in `folder`, of `seconds` where its method has a time limit; the settings that it ran with."""
    base: Row = {"model": str(args.model), "output": folder, "workers": args.workers}
    judged = {"verifier": verifier_settings(args) | {"baseline": baselines_of(name)}}
    learn = base | {"tasks": str(args.out / "tasks.jsonl")}
    if name == "further-sft":
        data = {"count": 20_000, "seed": 7, "steps": args.sft_steps, "learning_rate": 2e-5, "rows_per_step": 2}
        sft.run(config := SftConfig.model_validate(base | data | {"compile": False}))
    elif name in ("best-of-n", EVEN):
        own = {"time_limit_s": seconds, "seed": 8} | (EVEN_STEPS if name == EVEN else {})
        best_of_n.run(config := BestOfNConfig.model_validate(learn | AGAINST | judged | own), verifier)
    elif name == "reward-weighted":
        own = {"time_limit_s": seconds, "seed": 9}
        reward_weighted.run(config := RewardWeightedConfig.model_validate(learn | WEIGHTED | judged | own), verifier)
    else:
        if name in CHOICES:  # as many steps each, however long they take
            own = {"steps": args.short_steps, "seed": 20} | CHOICES[name]
        elif name.startswith(BOTH):
            first = learn | AGAINST | judged | {"output": first_of(folder), "seed": 30 + seed_of(name)}
            best_of_n.run(BestOfNConfig.model_validate(first | {"time_limit_s": args.first_share * seconds}), verifier)
            left_s = max(1.0, seconds - spent_s(read_lines(first_of(folder) / "metrics.jsonl")))
            own = {"time_limit_s": left_s, "seed": 40 + seed_of(name), "model": str(first_of(folder) / "model")}
        else:
            own = {"time_limit_s": spent_s(read_lines(folder / "metrics.jsonl")) + seconds, "seed": 10 + seed_of(name)}
        settings = learn | REINFORCE | judged | dict(args.set) | {"resume": folder.exists()} | own
        reinforce.run(config := ReinforceConfig.model_validate(settings), verifier)
    whole = {"time_limit_s": seconds, "first_share": args.first_share} if name.startswith(BOTH) else {}
    return config.model_dump(mode="json", exclude=OF_ITS_PLACE) | whole


def verifier_settings(args: argparse.Namespace) -> Row:
    """Of every run, whatever it is timed against."""
    return REINFORCE["verifier"] | {"precision": args.precision, "compile_timeout_s": args.compile_timeout_s}


def first_of(folder: Path) -> Path:
    """Where a run of both methods keeps that of the first."""
    return folder.with_name(f"{folder.name}-first")


def steps_of(folder: Path) -> list[Row]:
    """Every step of a run, with those of its first method where it has two."""
    return read_lines(first_of(folder) / "metrics.jsonl") + read_lines(folder / "metrics.jsonl")


def baselines_of(name: str) -> tuple[str, ...]:
    """What a run's candidates are timed against: eager alone, unless its reward compares with more."""
    choice, usual = CHOICES.get(name, {}), tuple(REINFORCE["verifier"]["baseline"])
    if baseline := choice.get("reward_baseline"):
        return (*usual, baseline)
    return COMPARE.get(choice.get("reward", ""), usual)


def seed_of(name: str) -> int:
    return 0 if name == LONG else int(name[-1])


def train(args: argparse.Namespace) -> None:
    """Train each run that has no replies yet, and have its model answer the suites."""
    names = [name for name in args.runs if not (args.out / name / "replies.jsonl").exists()]
    opened = time.perf_counter()
    settings = verifier_settings(args) | {"cache_dir": args.cache_dir}
    scratches = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # verdicts under way when a run ends come after it
    with scratches as scratch:
        for baselines in dict.fromkeys(map(baselines_of, names)):
            config = VerifierConfig.model_validate(settings | {"baseline": baselines})
            with HardenedVerifier(config) as verifier:
                starting = threading.Thread(target=verifier.evaluator.start)
                starting.start()
                make_tasks(args)
                starting.join()
                for name in names:
                    if baselines_of(name) == baselines:
                        train_and_answer(name, args, args.budget_s - (time.perf_counter() - opened), verifier, Path(scratch))


def train_and_answer(name: str, args: argparse.Namespace, left_s: float, verifier: HardenedVerifier, scratch: Path) -> None:
    """One run and its model's replies, if `left_s` allows."""
    folder, model, lines = scratch / (f"reinforce-{seed_of(name)}" if name == LONG else name), args.model, []
    wanted_s = args.long_seconds - spent_s(read_lines(folder / "metrics.jsonl")) if name == LONG else args.seconds
    least_s = wanted_s / 2 if name == LONG else wanted_s  # the methods get the same time or none
    if name != "start" and (left_s < least_s or wanted_s <= 0):
        print(name, "was left out: too little time", flush=True)
        return
    (args.out / name).mkdir(parents=True, exist_ok=True)
    if name != "start":
        begun = time.perf_counter()
        settings = train_one(name, args, min(wanted_s, left_s), verifier, folder)
        model = folder / "model"
        lines = steps_of(folder)
        facts = {"wall_s": time.perf_counter() - begun, "steps": lines, "settings": settings, **environment()}
        facts |= {"commit": args.commit} if args.commit else {}
        (args.out / name / "train.json").write_text(json.dumps(facts))
    if name in args.keep:
        shutil.copytree(model, args.out / name / "model")
    write_replies(args.out / name, model, tasks_of(args.suites, args.limit), args.precision, verifier)
    print(name, f"{spent_s(lines):.0f} s", *(last_line(lines)), flush=True)


def make_tasks(args: argparse.Namespace) -> None:
    """The tasks of all runs, in `tasks.jsonl`; another process that makes them makes the same.

    Train compositions, or as many of each of `--practise-on`, by turns.
    """
    path = args.out / "tasks.jsonl"
    if not path.exists():
        args.out.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"tasks.{os.getpid()}.jsonl")
        each = TASKS // len(args.practise_on)
        sources = [practice(source, each, args.workers) for source in args.practise_on]
        write_tasks(made, filter(None, chain.from_iterable(zip_longest(*sources))))
        made.replace(path)


def practice(source: str, count: int, workers: int | None) -> Iterable[Task]:
    """Tasks to learn on."""
    if source == "generated":
        return generate_tasks(level=2, count=count, seed=4, split="train", workers=workers)
    return load_tasks(source, limit=count).tasks


def setting(text: str) -> tuple[str, Any]:
    """("epochs", 2) of `epochs=2`. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or name not in ReinforceConfig.model_fields:
        raise ValueError(text)
    return name, json.loads(value)


def last_line(lines: Sequence[Row]) -> list[str]:
    shown = ("reward", "correct", "fast_1", "speed_geomean_x", "entropy", "attempts_per_s")
    ends = [(key, lines[0].get(key), lines[-1].get(key)) for key in shown if lines]
    return [f"{key} {first:.3g} -> {last:.3g}" for key, first, last in ends if first is not None and last is not None]


def answer(args: argparse.Namespace) -> None:
    """Have the models that `train --keep` left in `--kept` answer the suites, under another precision say."""
    config = VerifierConfig(cache_dir=args.cache_dir, precision=args.precision)
    with HardenedVerifier(config) as verifier:
        for name in args.runs:
            model = args.model if name == "start" else args.kept / name / "model"
            if model is None or not model.exists() or (args.out / name / "replies.jsonl").exists():
                continue
            (args.out / name).mkdir(parents=True, exist_ok=True)
            if (facts := args.kept / name / "train.json").exists():
                shutil.copy(facts, args.out / name)
            write_replies(args.out / name, model, tasks_of(args.suites, args.limit), args.precision, verifier)


# --- the judgement -----------------------------------------------------------------------------------------------


def judge(args: argparse.Namespace) -> None:
    """Verdicts on all replies, equal ones once, a few tasks at a time; `verdicts.jsonl` grows with each.

    Several may share the work, each on a GPU of its own and with its `--share` of the tasks.
    """
    number, shares = args.share
    tasks = tasks_of(args.suites, args.limit)[number - 1 :: shares]
    config = VerifierConfig(baseline=args.baseline, cache_dir=args.cache_dir, precision=args.precision)
    with HardenedVerifier(config) as verifier:
        if args.standby:
            verifier.evaluator.start()
            sys.stdin.readline()
        side_by_side.judge(args.out, args.runs, tasks, verifier, args.budget_s)


def table(args: argparse.Namespace) -> None:
    """JSON with everything, and markdown with what a reader wants first; the same of the tasks, one by one."""
    asked = {
        "choices": list(CHOICES),
        "precision": args.precision,
        "suites": args.suites,
        "temperature": TEMPERATURE,
        "samples": SAMPLES,
    }
    tasks = tasks_of(args.suites, args.limit)
    seeds = {f"{kind[:-1]}, all seeds": [f"{kind}{seed}" for seed in SEEDS] for kind in (ALONE, BOTH)}
    write_table(args.out, args.to, RUNS, seeds, asked, tasks)
    write_tasks_page(args.out, args.to, RUNS, tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part: dict[str, argparse.ArgumentParser] = {}
    stages: tuple[Callable[[argparse.Namespace], None], ...] = (train, answer, judge, table)
    for stage in stages:
        part[stage.__name__] = one = parts.add_parser(stage.__name__, help=stage.__doc__)
        one.set_defaults(stage=stage)
        one.add_argument("--out", type=Path, required=True, help="folder of the proof")
        one.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, metavar="RUN", help=", ".join(RUNS))
        one.add_argument("--suites", nargs="+", default=["heldout"], help="tasks that are asked, as in --tasks of kernrl eval")
        one.add_argument("--limit", type=int, help="ask only so many tasks of each suite; all by default")
        one.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="tf32")
        one.add_argument("--cache-dir", type=Path, help="folder of the verifier's caches")
    part["train"].add_argument("--model", type=Path, required=True, help="model folder that every run starts from")
    part["train"].add_argument("--seconds", type=float, default=60, help="time limit of each method")
    part["train"].add_argument(
        "--first-share", type=float, default=0.5, help="of the time of a run of both, how much is for best-of-n"
    )
    part["train"].add_argument(
        "--long-seconds", type=float, default=300, help=f"time of {LONG}'s steps, reinforce-0's with them"
    )
    part["train"].add_argument("--budget-s", type=float, default=math.inf, help="time of all: what does not fit is left out")
    part["train"].add_argument(
        "--practise-on", nargs="+", default=["generated"], metavar="SOURCE", help="'generated', or sources of tasks"
    )
    part["train"].add_argument(
        "--set", nargs="+", type=setting, default=[], metavar="NAME=VALUE", help="settings of reinforce, as JSON"
    )
    part["train"].add_argument("--workers", type=int, help="processes that make tasks; by default one a core")
    part["train"].add_argument("--sft-steps", type=int, default=300, help="steps of further-sft that take as long")
    part["train"].add_argument("--short-steps", type=int, default=8, help="steps of the runs that differ in one choice")
    part["train"].add_argument(
        "--compile-timeout-s", type=float, default=REINFORCE["verifier"]["compile_timeout_s"], help="as of kernrl reinforce"
    )
    part["train"].add_argument("--commit", help="of this code, where its folder is not a repository")
    part["train"].add_argument(
        "--keep", nargs="+", choices=RUNS, default=[], metavar="RUN", help="runs whose models are kept in --out"
    )
    part["answer"].add_argument("--kept", type=Path, required=True, help="the --out of `train --keep`")
    part["answer"].add_argument("--model", type=Path, help="model folder of the run `start`")
    part["judge"].add_argument("--baseline", nargs="+", default=("eager", "compile"), help="eager, compile, or both")
    part["judge"].add_argument(
        "--standby", action="store_true", help="be ready, and begin when standard input has a line or ends"
    )
    part["judge"].add_argument(
        "--share", type=part_of, default=(1, 1), metavar="I/N", help="judge the I-th of N equal parts of the tasks"
    )
    part["judge"].add_argument("--budget-s", type=float, default=math.inf, help="seconds after which no more are begun")
    part["table"].add_argument("--to", type=Path, required=True, help="where the .json and the .md go")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    args.stage(args)


if __name__ == "__main__":
    main()
