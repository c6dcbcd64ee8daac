"""What verified reward makes of a model: four methods at equal GPU time, three seeds, and what single choices are worth.

    python scripts/prove_training.py train --model checkpoints/nano --out proof --seconds 60
    python scripts/prove_training.py judge --out proof
    python scripts/prove_training.py table --out proof --to docs/benchmarks/training

Every run starts from the same model and learns on train compositions alone; what it then writes for the held-out suite
is judged together with what all the others wrote, a task at a time, so that all are timed side by side. Each part skips what
is in `--out` already, so the proof may be made in pieces (`train --runs best-of-n`, `judge --budget-s 120`), and its runs on
several GPUs at once. Without a GPU it does the same with modelled times, which only shows that the script runs.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from kernrl.config import BestOfNConfig, ReinforceConfig, RewardWeightedConfig, SftConfig, VerifierConfig
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.policy.examples import prompt_text
from kernrl.policy.load import load_policy
from kernrl.policy.pairs import task_messages
from kernrl.reports.results import compare, summarise
from kernrl.reports.run_files import Sample
from kernrl.reports.tables import figure_text
from kernrl.rollouts.collect import candidate_key
from kernrl.rollouts.engine import Sampling
from kernrl.rollouts.generate_engine import GenerateEngine
from kernrl.stages import best_of_n, reinforce, reward_weighted, sft
from kernrl.stages.improve import prompt_style, stop_ids
from kernrl.stages.run import environment, read_lines
from kernrl.tasks.loaders import load_tasks
from kernrl.verifier.hardened import HardenedVerifier
from kernrl.verifier.verdict import Verdict

SAMPLES, TEMPERATURE, MAX_TOKENS = 8, 0.8, 512
"""Of the held-out replies."""

Row = dict[str, Any]

# --- the runs ----------------------------------------------------------------------------------------------------

RECIPES = Path(__file__).parent / "recipes"
AGAINST, WEIGHTED, REINFORCE = (
    tomllib.loads((RECIPES / f"{name}_nano.toml").read_text()) | {"limit": 1000}
    for name in ("best_of_n", "reward_weighted", "reinforce")
)
REINFORCE |= {"steps": 10_000, "save_every": 10_000}
CHOICES: dict[str, Row] = {  # `--short-steps` steps each: all ask the same tasks, with the same seed
    "loo": {},
    "no-baseline": {"advantage": "none"},
    "group-scaled": {"advantage": "group"},
    "reward-best-of-n": {"reward": "best-of-n"},
    "reward-milestones": {"reward": "milestones"},
    "reward-hierarchical": {"reward": "hierarchical"},
}
SEEDS = (0, 1, 2)
METHODS = ("further-sft", "best-of-n", "reward-weighted", *(f"reinforce-{seed}" for seed in SEEDS))
RUNS = ("start", *METHODS, *CHOICES)


def train_one(name: str, args: argparse.Namespace, seconds: float, verifier: HardenedVerifier, folder: Path) -> None:
    """One run in `folder`. Methods without a time limit get as many tasks as reinforce's pace allows in `seconds`."""
    base: Row = {"model": str(args.model), "output": folder, "workers": args.workers}
    if name == "further-sft":
        data = {"count": 20_000, "seed": 7, "steps": args.sft_steps, "learning_rate": 2e-5, "rows_per_step": 2}
        sft.run(SftConfig.model_validate(base | data | {"compile": False}))
    elif name == "best-of-n":
        rounds = {"tasks_per_round": tasks_for(args, seconds / AGAINST["rounds"]), "seed": 8}
        best_of_n.run(BestOfNConfig.model_validate(base | AGAINST | rounds), verifier)
    elif name == "reward-weighted":
        sizes = {"limit": tasks_for(args, seconds), "seed": 9}
        reward_weighted.run(RewardWeightedConfig.model_validate(base | WEIGHTED | sizes), verifier)
    else:
        own = {"steps": args.short_steps, "seed": 20} | CHOICES[name] if name in CHOICES else {"seed": 10 + int(name[-1])}
        given = {"tasks_per_step": args.tasks_per_step} if args.tasks_per_step else {}
        settings = base | REINFORCE | given | {"time_limit_s": seconds} | own
        reinforce.run(ReinforceConfig.model_validate(settings), verifier)


def tasks_for(args: argparse.Namespace, seconds: float) -> int:
    """How many tasks are asked in `seconds`, at `--rate` attempts a second or as fast as reinforce was in `--out`."""
    done = [path.parent.name for path in args.out.glob("reinforce-*/train.json")]
    if not args.rate and not done:
        raise UsageError("--rate must say how many attempts a second there will be: no run of reinforce is in --out yet.")
    rate = args.rate or training_figures(args.out, done)["attempts_per_s"]
    return max(1, round(rate * seconds / REINFORCE["samples"]))


def train(args: argparse.Namespace) -> None:
    """Train each run that has no replies yet, and have its model answer the held-out suite."""
    names = [name for name in args.runs if not (args.out / name / "replies.jsonl").exists()]
    opened = time.perf_counter()
    with HardenedVerifier(VerifierConfig(cache_dir=args.cache_dir)) as verifier, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            left_s = args.budget_s - (time.perf_counter() - opened)
            if name != "start" and left_s < args.seconds / 2:
                print(name, "was left out: too little time", flush=True)
                continue
            (args.out / name).mkdir(parents=True, exist_ok=True)
            folder, model, lines = Path(scratch) / name, args.model, []
            if name != "start":
                begun = time.perf_counter()
                train_one(name, args, min(args.seconds, left_s), verifier, folder)
                model = folder / "model"
                lines = read_lines(folder / "metrics.jsonl")
                facts = {"wall_s": time.perf_counter() - begun, "steps": lines, **environment()}
                (args.out / name / "train.json").write_text(json.dumps(facts))
            replies = "".join(json.dumps(row) + "\n" for row in answer(model, verifier, args.heldout))
            replace_file(args.out / name / "replies.jsonl", replies)
            if args.keep == name:
                model.rename(args.out / name / "model")
            print(name, f"{spent_s(lines):.0f} s", *(last_line(lines)), flush=True)


def last_line(lines: Sequence[Row]) -> list[str]:
    shown = ("reward", "correct", "fast_1", "speed_geomean_x", "entropy", "attempts_per_s")
    ends = [(key, lines[0].get(key), lines[-1].get(key)) for key in shown if lines]
    return [f"{key} {first:.3g} -> {last:.3g}" for key, first, last in ends if first is not None and last is not None]


def answer(model: Path, verifier: HardenedVerifier, count: int | None) -> Iterator[Row]:
    """The model's replies to the held-out suite, or to its first `count` tasks, in a fixed order."""
    tasks = load_tasks("heldout", limit=count).tasks
    policy = load_policy(str(model), dtype="bf16")
    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore
    style, tokenizer = prompt_style(policy.tokenizer), policy.tokenizer
    prompts: Any = tokenizer([prompt_text(task_messages(t, style), tokenizer) for t in tasks], add_special_tokens=False)
    sampling = Sampling(SAMPLES, MAX_TOKENS, TEMPERATURE, stop_ids=stop_ids(policy), seed=0)
    engine = GenerateEngine(policy, batch_size=1024, gpu_turn=verifier.untimed)
    for r in sorted(engine.generate(prompts["input_ids"], sampling), key=lambda r: (r.prompt, r.sample)):
        ids = r.token_ids[:-1] if r.finish == "stop" else r.token_ids
        text = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        yield {"task": tasks[r.prompt].id, "member": r.sample, "tokens": len(r.token_ids), "finish": r.finish, "text": text}


# --- the judgement -----------------------------------------------------------------------------------------------


def judge(args: argparse.Namespace) -> None:
    """Verdicts on all replies, equal ones once, task after task; `verdicts.jsonl` grows with each."""
    tasks = {task.id: task for task in load_tasks("heldout").tasks}
    path = args.out / "verdicts.jsonl"
    known = {(row["task"], row["key"]) for row in read_lines(path)}
    waiting: dict[tuple[str, str], str] = {}
    for name in args.runs:
        for row in read_lines(args.out / name / "replies.jsonl"):
            waiting.setdefault((row["task"], candidate_key(row["text"])), row["text"])
    keys = sorted(waiting.keys() - known, key=lambda key: (list(tasks).index(key[0]), key[1]))
    begun = time.perf_counter()

    def pairs() -> Iterator[Any]:
        for task, key in keys:
            if time.perf_counter() - begun > args.budget_s:
                return
            yield tasks[task], waiting[task, key]

    settings = VerifierConfig(baseline=args.baseline, cache_dir=args.cache_dir)
    with HardenedVerifier(settings) as verifier, path.open("a") as file:
        for index, verdict in verifier.verify_many(pairs()):
            row = {"task": keys[index][0], "key": keys[index][1], "verdict": {**verdict.to_json(), "errors": []}}
            file.write(json.dumps(row) + "\n")
    done = len(read_lines(path)) - len(known)
    print(f"{done} of {len(keys)} distinct candidates in {time.perf_counter() - begun:.0f} s", flush=True)


def samples_of(out: Path, names: Sequence[str]) -> list[Sample]:
    """The judged replies of these runs together: of several seeds, as if each task had been asked that much more often."""
    tasks = {task.id: task for task in load_tasks("heldout").tasks}
    verdicts = {(row["task"], row["key"]): Verdict.from_json(row["verdict"]) for row in read_lines(out / "verdicts.jsonl")}
    found = []
    for name in names:
        for row in read_lines(out / name / "replies.jsonl"):
            task, verdict = tasks[row["task"]], verdicts.get((row["task"], candidate_key(row["text"])))
            if verdict:
                sample = Sample(f"{name}-{task.id}#{row['member']}", task.id, verdict, 0, task.family, task.composition)
                found.append(replace(sample, tokens=row["tokens"]))
    return found


# --- the table ---------------------------------------------------------------------------------------------------


def spent_s(lines: Sequence[Row]) -> float:
    """Seconds of a run's steps: what loading and the verifier's start took is not a method's doing."""
    return sum(line["seconds"]["step"] if isinstance(line["seconds"], dict) else line["seconds"] for line in lines)


def training_figures(out: Path, names: Sequence[str]) -> Row:
    """How a run's time was spent, summed over the runs named."""
    lines = [line for name in names for line in json.loads((out / name / "train.json").read_text())["steps"]]
    sampled = [line for line in lines if "attempts" in line]
    total = spent_s(lines)
    figures: Row = {"seconds": total / len(names), "steps": len(lines) / len(names)}
    if sampled:
        attempts = sum(line["attempts"] for line in sampled)
        distinct = sum(line["attempts"] * (1 - line["duplicates"]) for line in sampled)
        phases = {p: sum(line["seconds"].get(p, 0.0) for line in sampled) / total for p in ("generate", "verify", "update")}
        figures |= {"attempts": attempts / len(names), "attempts_per_s": attempts / total, "distinct_per_s": distinct / total}
        figures |= {"share_of_time": phases | {"rest": 1 - sum(phases.values())}}
    return figures


def figures_of(out: Path, names: Sequence[str], start: Sequence[Sample]) -> Row:
    """Everything about one row of the table."""
    samples = samples_of(out, names)
    results = summarise(samples, baselines=("eager", "compile"))
    kept = ("correct", f"pass@{SAMPLES}", "statuses", "tasks", "samples", "unjudged", "interval", "timing")
    speeds = {
        baseline: {key: figures[key] for key in ("fast_1", "fast_1_significant", "fast_1.2", "geomean_x")}
        for baseline, figures in results["baselines"].items()
    }
    row: Row = {"runs": list(names), **{key: results.get(key) for key in kept}, "against": speeds}
    row["mean_tokens"] = fmean(s.tokens for s in samples)
    if names != ["start"]:
        row["change"] = compare(start, samples)
        row["training"] = training_figures(out, names)
    return row


COLUMNS = (
    "",
    "correct, pass@1",
    "fast_1, eager",
    "fast_1, compile",
    "geomean, eager",
    "Δ correct, points",
    "speed, solved by both",
    "seconds",
    "attempts/s",
)


def markdown_row(name: str, row: Row) -> str:
    speeds, change, training = row["against"], row.get("change", {}), row.get("training", {})
    cells = [
        name,
        figure_text(row["correct"]),
        *(figure_text(speeds.get(baseline, {}).get("fast_1")) for baseline in ("eager", "compile")),
        figure_text(speeds.get("eager", {}).get("geomean_x"), as_times=True),
        points(change.get("correct")),
        figure_text(change.get("speed_ratio_x"), as_times=True),
        f"{training['seconds']:.0f}" if training else "",
        f"{training['attempts_per_s']:.0f}" if "attempts_per_s" in training else "",
    ]
    return f"| {' | '.join(cells)} |"


def points(figure: Row | None) -> str:
    """A difference of shares in points, with its interval."""
    if not figure or figure["value"] is None:
        return ""
    ends = [figure[key] for key in ("low", "high")]
    return f"{100 * figure['value']:+.1f}" + (f" [{100 * ends[0]:+.1f}, {100 * ends[1]:+.1f}]" if None not in ends else "")


def table(args: argparse.Namespace) -> None:
    """JSON with everything, and markdown with what a reader wants first."""
    there = {name for name in RUNS if samples_of(args.out, [name])}  # the runs that were judged, if only in part
    start = samples_of(args.out, ["start"])
    rows: dict[str, Row] = {name: figures_of(args.out, [name], start) for name in RUNS if name in there}
    seeds = [f"reinforce-{seed}" for seed in SEEDS if f"reinforce-{seed}" in there]
    if len(seeds) > 1:
        rows["reinforce, all seeds"] = figures_of(args.out, seeds, start)
    facts = next(json.loads((args.out / name / "train.json").read_text()) for name in there - {"start"})
    about = {key: facts[key] for key in ("versions", "gpu", "commit")}
    settings: Row = {"best-of-n": AGAINST, "reward-weighted": WEIGHTED, "reinforce": REINFORCE, "choices": CHOICES}
    settings |= {"temperature": TEMPERATURE}
    curves = {name: curve(args.out, name) for name in rows if name in seeds or name in CHOICES}
    text = json.dumps({**about, "settings": settings, "rows": rows, "curves": curves}, indent=1)
    lines = [
        f"Measured on one {about['gpu']}: torch {about['versions']['torch']}, triton {about['versions']['triton']}, "
        f"commit {(about['commit'] or 'unknown')[:7]}. {rows['start']['tasks']} held-out tasks × {SAMPLES} candidates at "
        f"T = {TEMPERATURE}; 95 % intervals over tasks.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|---{'|---:' * (len(COLUMNS) - 1)}|",
        *(markdown_row(name, row) for name, row in rows.items()),
    ]
    replace_file(args.to.with_suffix(".json"), text + "\n")
    replace_file(args.to.with_suffix(".md"), "\n".join(lines) + "\n")
    print("\n".join(lines))


def curve(out: Path, name: str) -> list[Row]:
    """What each step of a run saw of its own tasks."""
    kept = (
        "step",
        "reward",
        "correct",
        "fast_1",
        "speed_geomean_x",
        "entropy",
        "mismatch_kl",
        "length",
        "duplicates",
        "seconds",
    )
    return [{k: line.get(k) for k in kept} for line in json.loads((out / name / "train.json").read_text())["steps"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part: dict[str, argparse.ArgumentParser] = {}
    stages: tuple[Callable[[argparse.Namespace], None], ...] = (train, judge, table)
    for stage in stages:
        part[stage.__name__] = one = parts.add_parser(stage.__name__, help=stage.__doc__)
        one.set_defaults(stage=stage)
        one.add_argument("--out", type=Path, required=True, help="folder of the proof")
        one.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, metavar="RUN", help=", ".join(RUNS))
        one.add_argument("--cache-dir", type=Path, help="folder of the verifier's caches")
    part["train"].add_argument("--model", type=Path, required=True, help="model folder that every run starts from")
    part["train"].add_argument("--seconds", type=float, default=60, help="time of each method's steps")
    part["train"].add_argument("--budget-s", type=float, default=math.inf, help="time of all: what does not fit is left out")
    part["train"].add_argument("--rate", type=float, help="attempts a second; by default what reinforce reached in --out")
    part["train"].add_argument("--tasks-per-step", type=int, help="groups of a step of reinforce; by default the recipe's")
    part["train"].add_argument("--workers", type=int, help="processes that make tasks; by default one a core")
    part["train"].add_argument("--heldout", type=int, help="ask only this many held-out tasks; all by default")
    part["train"].add_argument("--sft-steps", type=int, default=300, help="steps of further-sft that take as long")
    part["train"].add_argument("--short-steps", type=int, default=8, help="steps of the runs that differ in one choice")
    part["train"].add_argument("--keep", choices=RUNS, help="run whose model is kept in --out")
    part["judge"].add_argument("--baseline", nargs="+", default=("eager", "compile"), help="eager, compile, or both")
    part["judge"].add_argument("--budget-s", type=float, default=math.inf, help="seconds after which no more are begun")
    part["table"].add_argument("--to", type=Path, required=True, help="where the .json and the .md go")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    args.stage(args)


if __name__ == "__main__":
    main()
