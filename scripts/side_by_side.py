"""What several models write for the same tasks, judged together: candidates of a task are timed side by side.

`OUT/NAME/replies.jsonl` has the replies of the model NAME, and `OUT/verdicts.jsonl` a verdict on each different candidate:
equal ones are judged once.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from training_tasks import style_of

from kernrl.files import replace_file
from kernrl.policy.examples import prompt_text
from kernrl.policy.load import load_policy
from kernrl.policy.pairs import task_messages
from kernrl.rollouts.collect import Collector, candidate_key
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.run_directory import read_lines
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.nano.lifter import Lifter, worker_count
from kernrl.tasks.prompt import GRAPH_STYLES
from kernrl.tasks.task import Task
from kernrl.training.session import prompt_style, stop_ids
from kernrl.verifier.verifier import HardenedVerifier

SAMPLES, TEMPERATURE, MAX_TOKENS = 8, 0.8, 1536
"""Of the replies that are judged."""

BLOCK = 16
"""Tasks whose candidates are judged side by side."""

Row = dict[str, Any]


def tasks_of(suites: Sequence[str], limit: int | None) -> list[Task]:
    """The tasks of the suites, or the first of each."""
    return [task for suite in suites for task in load_tasks(suite, limit=limit).tasks]


def write_replies(folder: Path, model: Path, tasks: Sequence[Task], precision: str, verifier: HardenedVerifier) -> None:
    """Have a model answer the tasks."""
    rows = "".join(json.dumps(row) + "\n" for row in replies_of(model, tasks, precision, verifier))
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "replies.jsonl", rows)


def replies_of(model: Path, tasks: Sequence[Task], precision: str, verifier: HardenedVerifier) -> Iterator[Row]:
    """What the model writes for the tasks, in a fixed order."""
    policy = load_policy(str(model), dtype="bf16")
    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore
    style, tokenizer = prompt_style(policy.tokenizer), policy.tokenizer
    with closing(Lifter(worker_count() if style in GRAPH_STYLES else 0)) as lift:
        lift(tasks)  # of a nano, side by side: the prompts below would lift them one after the other
    texts = [prompt_text(task_messages(t, style, precision), tokenizer) for t in tasks]
    prompts: Any = tokenizer(texts, add_special_tokens=False)
    sampling = Sampling(SAMPLES, MAX_TOKENS, TEMPERATURE, stop_ids=stop_ids(policy), seed=0)
    engine = GenerateEngine(policy, batch_size=1024, gpu_turn=partial(verifier.untimed, policy.model.device.index))
    collector = Collector(engine, tokenizer, verifier, lambda verdict: None, sampling, style=style)
    for r in sorted(engine.generate(prompts["input_ids"], sampling), key=lambda r: (r.prompt, r.sample)):
        task = tasks[r.prompt]
        text, reply, _ = collector.read(task, r)
        found = {"text": text, "style": style_of(reply or text)}  # the candidate that is made of a reply names no style
        yield {"task": task.id, "member": r.sample, "tokens": len(r.token_ids), "finish": r.finish} | found


def judge(
    out: Path, runs: Sequence[str], tasks: Sequence[Task], verifier: HardenedVerifier, budget_s: float = math.inf
) -> None:
    """Verdicts on all replies to the tasks, a few tasks at a time; `verdicts.jsonl` grows with each. After `budget_s` none is
    begun. Several processes may share the work, each with a GPU and tasks of its own."""
    by_id = {task.id: task for task in tasks}
    begun = time.perf_counter()
    asked: list[tuple[str, str]] = []

    def pairs() -> Iterator[Any]:
        for task, key, text in unjudged(out, runs, list(by_id)):
            if time.perf_counter() - begun > budget_s:
                return
            asked.append((task, key))
            yield by_id[task], text

    with (out / "verdicts.jsonl").open("a", buffering=1 << 24) as file:  # a row is one write, which others' do not cut
        for index, verdict in verifier.verify_many(pairs()):
            task, key = asked[index]
            row = {"task": task, "key": key, "verdict": {**verdict.to_json(), "errors": []}}
            file.write(json.dumps(row) + "\n")
            file.flush()
    print(f"{len(asked)} distinct candidates in {time.perf_counter() - begun:.0f} s", flush=True)


def part_of(text: str) -> tuple[int, int]:
    """(2, 8) of `2/8`. Raises ValueError."""
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def unjudged(out: Path, runs: Sequence[str], tasks: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(task, key, reply) of each distinct candidate that has no verdict, `BLOCK` tasks after the other.

    Within a block by turns: no lane of the verifier waits for one that prepares a task, and each task is prepared in one alone.
    Files are read anew for each block, and all blocks gone through twice: what was answered or judged meanwhile counts.
    """
    blocks = [tasks[start : start + BLOCK] for start in range(0, len(tasks), BLOCK)]
    asked: set[tuple[str, str]] = set()
    for block in blocks * 2:
        asked |= {(row["task"], row["key"]) for row in read_lines(out / "verdicts.jsonl")}
        candidates: dict[str, dict[str, str]] = {task: {} for task in block}
        for row in chain.from_iterable(read_lines(out / name / "replies.jsonl") for name in runs):
            if row["task"] in candidates and (row["task"], key := candidate_key(row["text"])) not in asked:
                candidates[row["task"]].setdefault(key, row["text"])
        turns = zip_longest(*([(task, *one) for one in sorted(found.items())] for task, found in candidates.items()))
        for candidate in filter(None, chain.from_iterable(turns)):
            asked.add(candidate[:2])
            yield candidate
