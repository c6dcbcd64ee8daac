"""What a long run of `kernrl reinforce` learns, and when: its checkpoints judged side by side, and what its steps saw.

    kernrl reinforce --model nano --output run --time-limit-s 3600 --save-every 5 --keep-checkpoints 200 --steps 100000
    python scripts/prove_curve.py --run run --start checkpoints/nano --minutes 2.5 5 10 20 40 60 --out curve
    python scripts/prove_curve.py --run run --start checkpoints/nano --minutes 2.5 5 --out curve --parts answer

For each minute, the last checkpoint that was saved by then is used, once the run has got that far. The run may still be
training. Checkpoints and the start answer `--suites`, and all replies are judged together. Parts that are done are not done
again: `judge` may be shared by several processes (`--share 1/2`), and `table` prints the table and writes `curve.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from side_by_side import SAMPLES, TEMPERATURE, judge, part_of, tasks_of, write_replies
from training_table import Replies, best_of, figures_of_samples, points

from kernrl.config import VerifierConfig
from kernrl.files import replace_file
from kernrl.reports.tables import figure_text
from kernrl.runs.run_directory import environment, read_lines
from kernrl.verifier.verifier import HardenedVerifier

Row = dict[str, Any]

START = "start"
SEEN = ("reward", "correct", "fast_1", "speed_geomean_x", "entropy", "mismatch_kl", "duplicates", "length", "attempts_per_s")
"""Metrics of a step, each the mean over its attempts."""
MOST_FREQUENT = 10


def checkpoints(run: Path, minutes: Sequence[float]) -> dict[str, tuple[int, float]]:
    """Name of each minute's model → the step after which it was saved, and the seconds that the run had taken."""
    spent, seconds = {}, 0.0
    for line in read_lines(run / "metrics.jsonl"):
        spent[line["step"]] = seconds = seconds + line["seconds"]["step"]
    saved = sorted(step for step in spent if (run / f"step_{step}").exists())
    ended = (run / "results.json").exists()
    found: dict[str, tuple[int, float]] = {}
    for minute in sorted(minutes):
        until = [step for step in saved if spent[step] <= 60 * minute] if ended or seconds >= 60 * minute else []
        if until and (step := until[-1]) not in {taken for taken, _ in found.values()}:
            found[f"{minute:g} min"] = step, spent[step]
    return found


def folder_of(name: str) -> str:
    return name.replace(" ", "-")


def answer(args: argparse.Namespace, found: dict[str, tuple[int, float]], verifier: HardenedVerifier) -> None:
    """Have the start and each checkpoint answer, if they have not."""
    tasks = tasks_of(args.suites, args.limit)
    models = {START: args.start} | {name: args.run / f"step_{step}" for name, (step, _) in found.items()}
    for name, model in models.items():
        folder = args.out / folder_of(name)
        if not (folder / "replies.jsonl").exists():
            write_replies(folder, model, tasks, args.precision, verifier)
            print(name, "answered", flush=True)


def window(lines: Sequence[Row], samples: Sequence[Row]) -> Row:
    """What some steps saw: means over steps, and how many of a group's attempts are different ones."""
    seen = {name: _mean([line.get(name) for line in lines]) for name in SEEN}
    phases = {p: _mean([line["seconds"].get(p) for line in lines]) for p in ("generate", "verify", "update", "step")}
    groups: dict[tuple[int, int], set[str]] = {}
    for row in samples:
        groups.setdefault((row["step"], row["group"]), set()).add(row["key"])
    alarms = [alarm for line in lines for alarm in line.get("alarms") or ()]
    distinct = fmean(map(len, groups.values())) if groups else None
    return {"steps": len(lines), **seen, "seconds": phases, "distinct_a_group": distinct, "alarms": alarms}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def styles(rows: Sequence[Row]) -> Row:
    """How a model's replies spread over styles: entropy in nats, the share of the most frequent ones, and their number."""
    counts = Counter(row["style"] for row in rows)
    total = counts.total()
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    share = sum(n for _, n in counts.most_common(MOST_FREQUENT)) / total
    return {"entropy": entropy, f"share_of_{MOST_FREQUENT}": share, "styles": len(counts)}


def curve(args: argparse.Namespace, found: dict[str, tuple[int, float]]) -> list[Row]:
    """A row of the start and of each checkpoint: what it wrote for the suites, and what the steps before it saw."""
    names = [START, *found]
    tasks = tasks_of(args.suites, args.limit)
    replies = Replies(args.out, [folder_of(name) for name in names], tasks)
    lines, samples = read_lines(args.run / "metrics.jsonl"), read_lines(args.run / "samples.jsonl")
    rows, before = [], 0
    for name in names:
        if folder_of(name) not in replies.runs:
            continue
        written = replies.samples(folder_of(name))
        row = {"name": name, **figures_of_samples(replies, written), "best_geomean_x": best_of(written)}
        row |= {"distinct_a_task": replies.distinct_a_task(folder_of(name))}
        row |= {"written_styles": styles(read_lines(args.out / folder_of(name) / "replies.jsonl"))}
        if name != START:
            step, seconds = found[name]
            between = [line for line in lines if before < line["step"] <= step]
            row |= {"step": step, "run_s": seconds}
            row |= {"window": window(between, [one for one in samples if before < one["step"] <= step])}
            before = step
        rows.append(row)
    return rows


COLUMNS = (
    "", "steps", "correct", "faster than eager", "faster than compile", "mean against it", "points", "speed, solved by both",
    "distinct of 8", "styles, nats", "entropy a token", "mismatch KL", "attempts/s",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row of the printed table."""
    against, change, seen = row["against"], row.get("change", {}), row.get("window", {})
    compiled = against.get("compile", {})
    return [
        row["name"],
        f"{row['step']}" if "step" in row else "",
        figure_text(row["correct"]),
        figure_text(against.get("eager", {}).get("fast_1")),
        figure_text(compiled.get("fast_1")),
        figure_text(compiled.get("geomean_x"), as_times=True),
        points(change.get("correct")),
        figure_text(change.get("speed_ratio_x"), as_times=True),
        f"{row['distinct_a_task']:.1f}",
        f"{row['written_styles']['entropy']:.2f}",
        *(f"{seen[name]:.2g}" if seen.get(name) is not None else "" for name in ("entropy", "mismatch_kl", "attempts_per_s")),
    ]


def table(args: argparse.Namespace, found: dict[str, tuple[int, float]]) -> None:
    """Print the curve, and write it beside the run's settings."""
    rows = curve(args, found)
    asked = {"suites": args.suites, "precision": args.precision, "samples": SAMPLES, "temperature": TEMPERATURE}
    config = json.loads((args.run / "config.json").read_text()) if (args.run / "config.json").exists() else {}
    replace_file(args.out / "curve.json", json.dumps({**environment(), **asked, "settings": config, "rows": rows}) + "\n")
    print(f"| {' | '.join(COLUMNS)} |", f"|---{'|---:' * (len(COLUMNS) - 1)}|", sep="\n")
    for row in rows:
        print(f"| {' | '.join(cells(row))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run, with its checkpoints")
    parser.add_argument("--start", type=Path, required=True, help="model folder that the run started from")
    parser.add_argument("--minutes", type=float, nargs="+", required=True, help="of the run, after which its model is asked")
    parser.add_argument("--out", type=Path, required=True, help="folder of replies and verdicts")
    parser.add_argument("--parts", nargs="+", choices=("answer", "judge", "table"), default=("answer", "judge", "table"))
    parser.add_argument("--suites", nargs="+", default=["heldout"], help="tasks that are asked, as in --tasks of kernrl eval")
    parser.add_argument("--limit", type=int, help="ask only so many tasks of each suite; all by default")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="tf32")
    parser.add_argument("--share", type=part_of, default=(1, 1), metavar="I/N", help="judge the I-th of N parts of the tasks")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="seconds after which no more candidates are judged")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    args.out.mkdir(parents=True, exist_ok=True)
    found = checkpoints(args.run, args.minutes)
    if {"answer", "judge"} & set(args.parts):
        with HardenedVerifier(VerifierConfig(baseline=("eager", "compile"), precision=args.precision)) as verifier:
            if "answer" in args.parts:
                answer(args, found, verifier)
            if "judge" in args.parts:
                number, shares = args.share
                names = [folder_of(name) for name in (START, *found)]
                judge(args.out, names, tasks_of(args.suites, args.limit)[number - 1 :: shares], verifier, args.budget_s)
    if "table" in args.parts:
        table(args, found)


if __name__ == "__main__":
    main()
