"""What rewards have in common: the advantages that each gives to the same groups of judged candidates. No GPU is needed.

    python scripts/compare_rewards.py --judged curve --names start 2.5-min 5-min --out rewards.json

`--judged` is a folder of `prove_curve.py` or `prove_training.py`, whose verdicts have both baselines; `--names` are its
models, in the order in which they were trained. A group is what one model wrote for one task. `best-known` knows the fastest
candidates of the models before.

Columns: groups in which all candidates get the same reward, and so teach nothing; the mean correlation of advantages with those
of the first row, over groups in which both teach; of pairs of candidates in a group, those that the two order differently, ties
included; and what a small step along the advantages gains in log-speed (of the correct) and in correctness, each relative to
the first row's: the mean product with the advantages, divided by their RMS.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from side_by_side import tasks_of
from torch import Tensor
from training_table import Replies

from kernrl.files import replace_file
from kernrl.rollouts.best_known import BestKnown
from kernrl.rollouts.reward import Reward, reward
from kernrl.runs.run_directory import environment
from kernrl.training.returns import TIE, Advantage, advantages_of_groups, is_constant
from kernrl.verifier.base.verdict import Verdict

CAP_X = 10.0
"""As nano is rewarded."""

Row = dict[str, Any]
RewardOf = Callable[[Verdict, BestKnown], Reward | None]

REWARDS: dict[str, RewardOf] = {
    "log-speed against eager": lambda v, known: reward(v, "log-speed", baseline="eager", cap_x=CAP_X),
    "log-speed against compile": lambda v, known: reward(v, "log-speed", baseline="compile", cap_x=CAP_X),
    "log-speed against the best known": lambda v, known: reward(v, "best-known", cap_x=CAP_X, known=known),
    "milestones": lambda v, known: reward(v, "milestones"),
    "hierarchical": lambda v, known: reward(v, "hierarchical", baseline="eager", cap_x=CAP_X),
    "best-of-n": lambda v, known: reward(v, "best-of-n", baseline="eager", cap_x=CAP_X),
}


class Rewarded(NamedTuple):
    """The groups under one reward; where a candidate was not judged, its reward counts as none."""

    rewards: list[list[float | None]]
    advantages: list[Tensor]


def groups_of(replies: Replies, names: Sequence[str]) -> list[tuple[str, list[Verdict]]]:
    """(model, verdicts) of each group, model after model."""
    return [
        (name, [sample.verdict for _, sample in rows])
        for name in names
        for rows in replies.by_task(name).values()
    ]  # fmt: skip


def rewarded(
    groups: Sequence[tuple[str, list[Verdict]]], reward_of: RewardOf, kind: Advantage, failure_weight: float
) -> Rewarded:
    """Rewards and advantages of every group."""
    known, rewards, taken = BestKnown(), [], ""
    written: list[Verdict] = []
    for name, verdicts in groups:
        if name != taken:
            known.take(written)
            taken, written = name, []
        found = [reward_of(v, known) for v in verdicts]
        rewards.append([r.value if r else None for r in found])
        written += verdicts
    correct = [[v.correct for v in verdicts] for _, verdicts in groups]
    return Rewarded(rewards, advantages_of_groups(rewards, kind, correct, failure_weight))


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two groups' advantages, whose means are 0."""
    return float((a * b).sum() / (a.norm() * b.norm()))


def order(a: float | None, b: float | None) -> int:
    gap = (a or 0.0) - (b or 0.0)
    return (gap > TIE) - (gap < -TIE)


def step_gains(groups: Sequence[tuple[str, list[Verdict]]], advantages: Sequence[Tensor]) -> tuple[float, float]:
    """What a small step along the advantages gains: (log-speed among a group's correct candidates, correctness), for
    advantages of RMS 1."""
    speed, correct, squares = 0.0, 0.0, 0.0
    for (_, verdicts), advantage in zip(groups, advantages, strict=True):
        values = advantage.double()
        right = torch.tensor([v.correct for v in verdicts])
        timed = [v.speedup("eager") for v in verdicts]
        logs = torch.tensor([math.log(s.value) if s else 0.0 for s in timed]).double()[right]
        # what moves mass from the wrong to the right is the other figure
        speed += float(((values[right] - values[right].mean()) * logs).sum()) if right.any() else 0.0
        correct += float(values[right].sum())
        squares += float(values.square().sum())
    rms = math.sqrt(squares / sum(len(verdicts) for _, verdicts in groups))
    return speed / rms, correct / rms


def compared(groups: Sequence[tuple[str, list[Verdict]]], kind: Advantage, failure_weight: float) -> list[Row]:
    """A row for each reward."""
    rows: list[Row] = []
    first: tuple[Rewarded, tuple[float, float]] | None = None
    for name, reward_of in REWARDS.items():
        mine = rewarded(groups, reward_of, kind, failure_weight)
        gains = step_gains(groups, mine.advantages)
        base, base_gains = first = first or (mine, gains)
        both = [
            correlation(a, b) for a, b in zip(base.advantages, mine.advantages, strict=True) if a.norm() > 0 and b.norm() > 0
        ]
        pairs = [
            order(x[i], x[j]) != order(y[i], y[j])
            for x, y in zip(base.rewards, mine.rewards, strict=True)
            for i, j in combinations(range(len(x)), 2)
        ]
        rows.append({
            "reward": name,
            "constant": sum(map(is_constant, mine.rewards)) / len(groups),
            "correlation": sum(both) / len(both),
            "ordered_differently": sum(pairs) / len(pairs),
            "log_speed": gains[0] / base_gains[0],
            "correctness": gains[1] / base_gains[1],
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judged", type=Path, required=True, help="folder with verdicts.jsonl, and a folder for each model")
    parser.add_argument("--names", nargs="+", required=True, help="folders of its models, in the order of training")
    parser.add_argument("--suites", nargs="+", default=["heldout"], help="the tasks that were asked")
    parser.add_argument("--advantages", nargs="+", choices=get_args(Advantage), default=("rank", "group", "loo"))
    parser.add_argument("--failure-weight", type=float, default=2.0)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    groups = groups_of(Replies(args.judged, args.names, tasks_of(args.suites, None)), args.names)
    candidates = sum(len(verdicts) for _, verdicts in groups)
    print(f"{len(groups)} groups, {candidates} candidates\n")
    print("| --advantage | reward | teach nothing | correlation | ordered differently | log-speed | correctness |")
    print("|---|---|---:|---:|---:|---:|---:|")
    tables = {kind: compared(groups, kind, args.failure_weight) for kind in args.advantages}
    for kind, rows in tables.items():
        for row in rows:
            shares = f"{row['constant']:.0%} | {row['correlation']:.3f} | {row['ordered_differently']:.1%}"
            print(f"| {kind} | {row['reward']} | {shares} | {row['log_speed']:.2f} | {row['correctness']:.2f} |")
    if args.out:
        settings = {"names": args.names, "suites": args.suites, "failure_weight": args.failure_weight}
        found = {**environment(), **settings, "groups": len(groups), "candidates": candidates, "tables": tables}
        replace_file(args.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
