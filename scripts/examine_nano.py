"""How often a nano of the form `graph` is right: how many replies are worked ones, and how many pass at small sizes.

    python scripts/examine_nano.py --model RUN/model --output exam.json              # a GPU, one to two minutes for four sets
    python scripts/examine_nano.py --model RUN/model --output exam.json --tasks 2 --samples 1 --max-tokens 64   # a CPU

Every worked reply is verified elsewhere, so the share that is equal to one of them, letter by letter, is a lower bound of the
share that is correct. `--verify 120` judges the replies too, as far as 120 seconds go, without a GPU: at the derived sets that
the interpreter takes. `kernrl eval` judges at full size. Modules of `foreign` that have no worked reply count as not equal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from kernrl.config import VerifierConfig
from kernrl.errors import UsageError
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.nano.assemble import MalformedReplyError
from kernrl.tasks.nano.form import ask, candidate, replies
from kernrl.tasks.nano.suites import SUITES, suite
from kernrl.tasks.task import Task
from kernrl.verifier.verifier import HardenedVerifier

FOREIGN = Path(__file__).parents[1] / "tests" / "foreign"
SETS = ("graph-heldout", "foreign", "graph-deep", "graph-single")


def tasks_of(name: str, most: int) -> list[Task]:
    """The tasks of a set, at most so many."""
    return list(suite(name, tasks=most)) if name in SUITES else list(load_tasks(str(FOREIGN)).tasks)[:most]


def asked(task: Task) -> tuple[str, list[str]]:
    """The prompt, and the bodies of the worked replies; an empty prompt where there is no Graph."""
    try:
        return ask(task, "fp32"), [body(reply) for reply in replies(task, "fp32")]
    except UsageError:
        return "", []


def body(reply: str) -> str:
    """A reply without its first line, which names the style."""
    return reply.partition("\n")[2].strip()


def first_difference(reply: str, worked: list[str]) -> str:
    """The first line in which a reply leaves the worked one that it follows longest."""
    best = (-1, "", "")
    for right in worked:
        ours, theirs = reply.splitlines(), right.splitlines()
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        if same > best[0]:
            best = (same, "".join(ours[same : same + 1]), "".join(theirs[same : same + 1]))
    return f"line {best[0] + 1}: wrote `{best[1].strip()}`, worked `{best[2].strip()}`"


def main() -> None:
    """Sample, compare, print a line for each set, and write what differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--tasks", type=int, default=146, help="tasks of each set, at most")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-tokens", type=int, default=1536)
    parser.add_argument("--batch", type=int, default=1024, help="replies decoded at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verify", type=float, default=0.0, metavar="SECONDS", help="judge replies for so long")
    args = parser.parse_args()

    started = time.perf_counter()
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(partial(tasks_of, most=args.tasks), args.sets))
        tasks = [(name, task) for name, of_set in zip(args.sets, found, strict=True) for task in of_set]
        prepared = list(pool.map(asked, [task for _, task in tasks], chunksize=4))
    print(f"{len(tasks)} tasks in {time.perf_counter() - started:.0f} s", flush=True)
    texts = sample(args, [prompt for prompt, _ in prepared])
    print(f"sampled at {time.perf_counter() - started:.0f} s", flush=True)

    results: dict[str, Any] = {}
    differed: list[dict[str, Any]] = []
    lines: Counter[str] = Counter()
    for name in args.sets:
        right = total = solved = 0
        parts: dict[str, int] = defaultdict(int)
        for (of_set, task), (_, worked), replied in zip(tasks, prepared, texts, strict=True):
            if of_set != name:
                continue
            hits = sum(body(text) in worked for text in replied)
            right, total, solved = right + hits, total + args.samples, solved + (hits > 0)
            parts["without a worked reply"] += not worked
            wrong = [first_difference(body(text), worked) for text in replied if body(text) not in worked]
            lines.update(wrong if worked else [])
            differed += (
                [{"set": name, "task": task.id, "right": hits, "differs": Counter(wrong).most_common(2)}] if wrong else []
            )
        count = sum(of_set == name for of_set, _ in tasks)
        results[name] = {"exact": right / total, "any": solved / count, "tasks": count, **parts}
        print(f"{name}: exact {right / total:.1%}, any of {args.samples} {solved / count:.1%}", flush=True)
    for line, times in lines.most_common(25):
        print(f"{times:4} {line:.180}")
    replied = [[of_set, task.id, *answers] for (of_set, task), answers in zip(tasks, texts, strict=True)]
    record = {"sets": results, "differed": differed, "replies": replied}
    args.output.write_text(json.dumps(record, indent=1))
    if args.verify:
        judged = judge(tasks, texts, args.verify, args.seed)
        for name in args.sets:
            results[name] |= judged[name]
            print(f"{name}: {judged[name]}", flush=True)
        args.output.write_text(json.dumps(record, indent=1))


def judge(tasks: list[tuple[str, Task]], texts: list[list[str]], seconds: float, seed: int) -> dict[str, dict[str, Any]]:
    """For each set, the share of replies that is correct among those judged in time, and reasons of the others."""
    until = time.perf_counter() + seconds
    # a task's replies at once, so that what is counted are whole tasks
    order = random.Random(seed).sample(range(len(tasks)), len(tasks))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    solved: dict[str, dict[int, bool]] = defaultdict(dict)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    asked_for: list[tuple[int, int]] = []

    def pairs() -> Iterator[tuple[Task, str]]:
        for index in order:
            name, task = tasks[index]
            for reply, times in Counter(texts[index]).items():
                if time.perf_counter() > until:
                    return
                try:
                    source = candidate(task, reply)
                except (UsageError, MalformedReplyError) as error:
                    counts[name]["malformed"] += times
                    solved[name].setdefault(index, False)
                    reasons[name][str(error)[:160]] += times
                    continue
                asked_for.append((index, times))
                yield task, source

    with HardenedVerifier(VerifierConfig(device="cpu", cache=False)) as verifier:
        for position, verdict in verifier.verify_many(pairs()):
            index, times = asked_for[position]
            name = tasks[index][0]
            counts[name][str(verdict.status)] += times
            solved[name][index] = solved[name].get(index, False) or verdict.correct
            if not verdict.correct:
                reasons[name][f"{tasks[index][1].id}: {verdict.status}: {verdict.reason[:160]}"] += times
    found: dict[str, dict[str, Any]] = {}
    for name, of_set in counts.items():
        judged = of_set.total() - of_set["needs_gpu"]
        found[name] = {"judged": judged, "correct": of_set["correct"] / max(1, judged), "statuses": dict(of_set)}
        found[name] |= {"solved": sum(solved[name].values()) / max(1, len(solved[name]))}
        found[name] |= {"reasons": reasons[name].most_common(12)}
    return {name: found.get(name, {}) for name, _ in tasks}


def sample(args: argparse.Namespace, prompts: list[str]) -> list[list[str]]:
    """So many replies to each prompt; none to an empty one."""
    import torch

    from kernrl.policy.examples import prompt_text
    from kernrl.policy.load import load_policy
    from kernrl.rollouts.engines.engine import Sampling
    from kernrl.rollouts.engines.generate_engine import GenerateEngine

    on_gpu = torch.cuda.is_available()
    policy = load_policy(str(args.model), dtype="bf16" if on_gpu else "fp32")
    model: Any = policy.model.requires_grad_(False).eval()
    model.to("cuda" if on_gpu else "cpu")
    tokenizer: Any = policy.tokenizer
    sampling = Sampling(args.samples, args.max_tokens, args.temperature, stop_ids=(tokenizer.eos_token_id,), seed=args.seed)
    there = [i for i, prompt in enumerate(prompts) if prompt]
    texts = [prompt_text([{"role": "user", "content": prompts[i]}], tokenizer) for i in there]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    found: list[list[str]] = [[] for _ in prompts]
    for rollout in GenerateEngine(policy, batch_size=args.batch).generate(ids, sampling):
        ended = rollout.token_ids[:-1] if rollout.finish == "stop" else rollout.token_ids
        found[there[rollout.prompt]].append(tokenizer.decode(ended))
    return found


if __name__ == "__main__":
    main()
