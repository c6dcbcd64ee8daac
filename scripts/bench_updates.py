"""What one update rule gains over another, from rollouts that are judged once.

    python scripts/bench_updates.py sample --model checkpoints/nano --out updates
    python scripts/bench_updates.py weigh --model checkpoints/nano --out updates --to docs/benchmarks/update_rules.json

`sample` asks train compositions and has the answers judged. `weigh` learns from one half of the tasks by `kernrl reinforce`'s
own update, as one step of it would, and finds by importance weights what that changes on the other half; then the other way
round. A rollout's weight is its probability after the update over that before: E_old[w r] is what the new policy would earn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from kernrl.config import ReinforceConfig
from kernrl.files import replace_file
from kernrl.policy.examples import Example
from kernrl.rollouts.batch import pack_rollouts
from kernrl.rollouts.best_known import BestKnown
from kernrl.rollouts.collect import Attempt
from kernrl.rollouts.reward import reward
from kernrl.runs.run_directory import environment, read_lines
from kernrl.stages import reinforce
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.training.returns import advantages_of_groups
from kernrl.training.session import Session, open_session
from kernrl.verifier.base.verdict import Verdict

Row = dict[str, Any]

ROW_TOKENS = 4096
WEIGHED = {"preset": "log-speed", "cap_x": 10.0}
"""The reward whose change is told, whatever was learnt from."""

BASE: Row = {"advantage": "loo", "reward": "log-speed", "speed_cap": 10.0, "loss": "reinforce", "learning_rate": 1.2e-4}
RULES: dict[str, Row] = {
    "none": {"advantage": "raw"},
    "loo": {},
    "group": {"advantage": "group"},
    "rank": {"advantage": "rank"},
    "loo, hierarchical": {"reward": "hierarchical"},
    "loo, best-of-n": {"reward": "best-of-n"},
    "loo, milestones": {"reward": "milestones"},
    "loo, best-known": {"reward": "best-known"},
    "group, best-of-n": {"advantage": "group", "reward": "best-of-n"},
    "group, grpo, three epochs": {"advantage": "group", "loss": "grpo", "epochs": 3},
    "loo, 7e-5": {"learning_rate": 7e-5},
    "group, 7e-5": {"advantage": "group", "learning_rate": 7e-5},
    "rank, 7e-5": {"advantage": "rank", "learning_rate": 7e-5},
    "group, 7e-5, 32 an update": {"advantage": "group", "learning_rate": 7e-5, "per_update": 32},
    "group, 7e-5, 128 an update": {"advantage": "group", "learning_rate": 7e-5, "per_update": 128},
    "loo, 2e-4, 128 an update": {"learning_rate": 2e-4, "per_update": 128},
    "group, 2e-4, 128 an update": {"advantage": "group", "learning_rate": 2e-4, "per_update": 128},
    "rank, 2e-4, 128 an update": {"advantage": "rank", "learning_rate": 2e-4, "per_update": 128},
    "group, 3e-4, 128 an update": {"advantage": "group", "learning_rate": 3e-4, "per_update": 128},
    "rank, 3e-4, 256 an update": {"advantage": "rank", "learning_rate": 3e-4, "per_update": 256},
    "rank, 8 of each 16": {"advantage": "rank", "members": 8},
    "rank, half of the tasks": {"advantage": "rank", "share": 0.5},
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A rollout with its verdict."""

    example: Example
    logprobs: list[float]
    verdict: Verdict

    def value(self, preset: Any, cap_x: float, known: BestKnown | None = None) -> float | None:
        worth = reward(self.verdict, preset, cap_x=cap_x, modelled=True, known=known)
        return worth.value if worth else None


class NoVerifier:
    """Everything is judged already."""

    def gpu(self) -> str:
        return ""

    def unfit(self, task: Any) -> str:
        return ""

    def doing(self) -> str:
        return ""

    def untimed(self, gpu: int | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def verify_many(self, pairs: Any) -> Iterator[tuple[int, Verdict]]:
        yield from ()


def settings(args: argparse.Namespace, scratch: str, **more: Any) -> ReinforceConfig:
    """Of a run that takes no step of its own."""
    base: Row = {"model": str(args.model), "output": Path(scratch) / "run", "tasks": str(args.out / "tasks.jsonl"), "steps": 1}
    both = {"verifier": {"baseline": ("eager", "compile")}}  # some rewards compare with both
    return ReinforceConfig.model_validate(
        base | both | {"max_tokens": 512, "row_tokens": ROW_TOKENS, "warmup_steps": 0, "sampling_batch": 1024} | more
    )


def sample(args: argparse.Namespace) -> None:
    """Ask `--tasks` train compositions `--samples` times each; the answers and their verdicts go to `rollouts.jsonl`."""
    args.out.mkdir(parents=True)
    tasks = list(generate_tasks(level=2, count=args.tasks, seed=args.seed, split="train", workers=1))
    write_tasks(args.out / "tasks.jsonl", tasks)
    with tempfile.TemporaryDirectory() as scratch, open_session(settings(args, scratch, samples=args.samples)) as session:
        attempts = session.collector.collect(tasks, (args.seed, 1)).attempts
    replace_file(args.out / "rollouts.jsonl", "".join(json.dumps(rollout_row(a)) + "\n" for a in attempts))


def rollout_row(a: Attempt) -> Row:
    rollout = {"prompt_ids": a.prompt_ids, "token_ids": a.rollout.token_ids, "logprobs": a.rollout.logprobs}
    return {"task": a.task.id, **rollout, "verdict": a.verdict.to_json()}


def read_groups(path: Path) -> dict[str, list[Judged]]:
    """Rollouts by task, without those that could not be judged."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in read_lines(path):
        judged = Judged(Example(row["prompt_ids"], row["token_ids"]), row["logprobs"], Verdict.from_json(row["verdict"]))
        if judged.value(**WEIGHED) is not None:
            groups[row["task"]].append(judged)
    return groups


def weigh(args: argparse.Namespace) -> None:
    """A row a rule: KL in nats a reply, and the change of reward and of the share of correct ones, × 100, ± 95 % over tasks."""
    groups = read_groups(args.out / "rollouts.jsonl")
    names = sorted(groups)
    random.Random(0).shuffle(names)
    halves = [[groups[name] for name in part] for part in (names[: len(names) // 2], names[len(names) // 2 :])]
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as scratch, open_session(settings(args, scratch), NoVerifier()) as session:
        start = {name: tensor.clone() for name, tensor in session.policy.model.state_dict().items()}
        before = [log_probs(session, args, scratch, half) for half in halves]
        for name in args.rules:
            changes: list[Row] = []
            updates = 0
            for half in (0, 1):
                session.policy.model.load_state_dict(start)
                updates += learn(session, args, scratch, halves[1 - half], {"per_update": 64, **BASE, **RULES[name]})
                after = log_probs(session, args, scratch, halves[half])
                changes += [change(*group) for group in zip(halves[half], before[half], after, strict=True)]
            rows[name] = {"rule": RULES[name], "updates": updates / 2, **{key: mean_of(changes, key) for key in changes[0]}}
            print(name, {key: rows[name][key] for key in ("kl", "reward", "correct")}, flush=True)
    about = {key: value for key, value in environment().items() if key in ("versions", "gpu", "commit")}
    counts = {"tasks": len(names), "rollouts": sum(map(len, groups.values())), "base": BASE, "weighed": WEIGHED}
    record = {**about, **counts, "rules": rows}
    replace_file(args.to, json.dumps(record, indent=1) + "\n")
    print(table(record))


def learn(session: Session, args: argparse.Namespace, scratch: str, groups: Sequence[list[Judged]], rule: Row) -> int:
    """One step of reinforce by a rule; returns its number of updates."""
    rule = dict(rule)
    members, share, per_update = rule.pop("members", None), rule.pop("share", 1.0), rule.pop("per_update")
    groups = [group[:members] for group in groups[: round(share * len(groups))]]
    values = [values_of(group, rule["reward"], rule["speed_cap"]) for group in groups]
    examples, logprobs = [], []
    for group, advantages in zip(groups, advantages_of_groups(values, rule["advantage"]), strict=True):
        for rollout, advantage in zip(group, advantages.tolist() if advantages.any() else (), strict=False):
            examples.append(Example(rollout.example.prompt_ids, rollout.example.completion_ids, advantage))
            logprobs.append(rollout.logprobs)
    config = settings(args, scratch, **rule, updates_per_epoch=max(1, round(len(examples) / per_update)))
    rows = list(pack_rollouts(examples, logprobs, row_tokens=ROW_TOKENS, pad_id=session.pad_id))
    reinforce.Learner(session, config).update(rows)
    return math.ceil(len(rows) / math.ceil(len(rows) / config.updates_per_epoch)) * config.epochs


def values_of(group: Sequence[Judged], preset: str, cap_x: float) -> list[float | None]:
    """What a task's rollouts are worth; under `best-known` when the task is asked again and the fastest of them is known."""
    known = BestKnown(modelled=True)
    known.take(rollout.verdict for rollout in group)
    return [rollout.value(preset, cap_x, known) for rollout in group]


def log_probs(session: Session, args: argparse.Namespace, scratch: str, groups: Sequence[list[Judged]]) -> list[torch.Tensor]:
    """Of whole rollouts under the policy as it is: float64 [G] of each group."""
    session.policy.model.eval()
    examples = [rollout.example for group in groups for rollout in group]
    learner = reinforce.Learner(session, settings(args, scratch))
    rows = pack_rollouts(examples, [None] * len(examples), row_tokens=session.row_tokens, pad_id=session.pad_id)
    logprobs_of = learner.policy_loss.logprobs
    found = chain.from_iterable(logprobs_of(row.to(session.device))[row.mask.nonzero()[:, 0]].tolist() for row in rows)
    sums = torch.tensor([sum(islice(found, len(e.completion_ids))) for e in examples], dtype=torch.float64)
    return list(sums.split([len(group) for group in groups]))


def change(group: list[Judged], before: torch.Tensor, after: torch.Tensor) -> dict[str, float]:
    """Of one task. The mean of the others is each rollout's baseline, which leaves the estimate unbiased."""
    log_ratio = after - before
    weights = log_ratio.clamp(-5, 5).exp()
    found = {"kl": float((weights - 1 - log_ratio).mean())}
    rewards = [rollout.value(**WEIGHED) for rollout in group]
    for key, values in (("reward", rewards), ("correct", [float(rollout.verdict.correct) for rollout in group])):
        (baselined,) = advantages_of_groups([values], "loo")
        found[key] = 100 * float(((weights - 1) * baselined).mean())
    return found


def mean_of(changes: Sequence[Row], key: str) -> list[float]:
    """Mean over tasks and the half-width of its 95 % interval."""
    values = [one[key] for one in changes]
    return [round(fmean(values), 3), round(1.96 * stdev(values) / math.sqrt(len(values)), 3)]


def table(record: Row) -> str:
    """The record as markdown."""
    lines = ["| rule | updates | KL, nats a reply | reward | correct |", "|---|---|---|---|---|"]
    for name, rule in record["rules"].items():
        (reward_, reward_half), (correct, correct_half) = rule["reward"], rule["correct"]
        changes = f"{reward_:+.1f} ± {reward_half:.1f} | {correct:+.1f} ± {correct_half:.1f}".replace("-", "−")
        lines.append(f"| {name} | {rule['updates']:g} | {rule['kl'][0]:.2f} | {changes} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    for stage in (sample, weigh):
        part = parts.add_parser(stage.__name__, help=(stage.__doc__ or "").replace("%", "%%"))
        part.set_defaults(stage=stage)
        part.add_argument("--model", type=Path, required=True, help="model folder")
        part.add_argument("--out", type=Path, required=True, help="folder of the rollouts")
        if stage is sample:
            part.add_argument("--tasks", type=int, default=80)
            part.add_argument("--samples", type=int, default=16)
            part.add_argument("--seed", type=int, default=6)
        else:
            part.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
            part.add_argument("--to", type=Path, required=True, help="JSON of what was found")
    args = parser.parse_args()
    args.stage(args)


if __name__ == "__main__":
    main()
