"""Evaluating a model or candidates on disk: sample, judge, summarise. What `kernrl eval` does, and `kernrl sft` at its end.

A sample is in `samples.jsonl` as soon as it is judged, so an evaluation that was killed resumes where it was: tasks are asked
in rounds of fixed size, each with a random stream of its own, and a round that is asked again samples the same text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kernrl.config import EvalConfig, VerifierConfig
from kernrl.console import log, progress
from kernrl.errors import RunError, UsageError
from kernrl.files import next_folder
from kernrl.reports.kernelbench import Found, read_candidates, write_kernelbench
from kernrl.reports.results import summarise
from kernrl.reports.run_files import UNJUDGED, read_rows, read_run
from kernrl.rollouts.collect import Attempt, Collector, Verifier, candidate_key
from kernrl.rollouts.engines.engine import RolloutEngine, Sampling
from kernrl.runs.run_directory import RunDirectory
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

ROUND_TASKS = 32
"""Tasks asked at once. It decides what a seed samples: each round has its own random stream."""


def evaluate(config: EvalConfig) -> dict[str, Any]:
    """Judge candidates; write `samples.jsonl`, `results.json` and both in KernelBench's form.

    Returns:
        The results, with the folder of the run as `output`.

    Raises:
        RunError: not one candidate could be judged.
    """
    tasks = read_tasks(config)
    candidates = from_disk(config.from_run, tasks) if config.from_run is not None else None
    directory = RunDirectory.open(config.output or next_folder(Path("checkpoints"), "eval"), config, resume=config.resume)
    with open_verifier(config) as verifier:
        if candidates is None:
            sample_and_judge(config, tasks, directory, verifier)
        else:
            judge(candidates, directory, verifier)

    judged = read_run(directory.path)
    results = summarise(judged.samples, baselines=config.baseline or config.verifier.baseline, seed=config.seed)
    if not results["samples"]:
        reason = next((s.verdict.reason for s in judged.samples), "there were none")
        raise RunError(f"No candidate could be judged: {reason}")
    phases = [row["seconds"] for row in judged.metrics]
    results["seconds"] = {name: sum(p.get(name, 0.0) for p in phases) for name in sorted({n for p in phases for n in p})}
    results |= {key: judged.config[key] for key in ("versions", "gpu", "commit")}
    directory.write_results(results)
    write_kernelbench(directory.path / "kernelbench", tasks, (row for row in newest_rows(directory.path).values()))
    return {"output": str(directory.path), **results}


def read_tasks(config: EvalConfig) -> list[Task]:
    """The tasks to ask."""
    split = config.split or (f"level_{config.level}" if config.level else None)
    loaded = load_tasks(config.tasks, split=split, revision=config.tasks_revision, columns=parse_columns(config.map))
    say(map(str, loaded.problems))
    tasks = [task for task in loaded.tasks if config.level in (None, task.level)]
    if not tasks:
        raise UsageError(f"--level {config.level}: {config.tasks} has no task of that level.")
    return tasks[: config.limit]


def from_disk(folder: Path, tasks: Sequence[Task]) -> list[Found]:
    """The candidates under `folder` for the tasks; files that belong to no task are listed on stderr."""
    found, problems = read_candidates(folder, tasks)
    say(problems)
    return found


def say(problems: Iterable[str]) -> None:
    """Write what was skipped to stderr."""
    for problem in problems:
        log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)


def open_verifier(config: EvalConfig) -> Any:
    """The verifier, with the baselines asked for."""
    from kernrl.verifier.verifier import HardenedVerifier

    settings: VerifierConfig = config.verifier
    if config.baseline:
        settings = settings.model_copy(update={"baseline": config.baseline})
    return HardenedVerifier(settings)


def newest_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of `samples.jsonl` by id; of rows with one id, the last."""
    return {row["id"]: row for _, row in read_rows(folder / "samples.jsonl", [])}


def done_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows that have a verdict: a sample that could not be judged is judged again."""
    return {key: row for key, row in newest_rows(folder).items() if row["verdict"]["status"] not in UNJUDGED}


def row_of(task: Task, member: int, text: str, verdict: Verdict, **rest: Any) -> dict[str, Any]:
    """One line of `samples.jsonl`, with the fields that training stages write; there is no reward."""
    return {
        "id": f"{task.id}#{member}",
        "step": 0,
        "task": task.id,
        "family": task.family,
        "composition": list(task.composition),
        "level": task.level,
        "group": 0,
        "member": member,
        "turn": 1,
        "finish": "stop",
        "tokens": 0,
        "text": text,
        "key": candidate_key(text),
        "reward": None,
        "reward_parts": None,
        "verdict": verdict.to_json(),
    } | rest


def judge(candidates: Sequence[Found], directory: RunDirectory, verifier: Verifier) -> None:
    """Judge the candidates from disk that have no verdict yet."""
    done = done_rows(directory.path)
    waiting = [(task, member, text) for task, member, text in candidates if f"{task.id}#{member}" not in done]
    started = time.perf_counter()
    with progress() as bar:
        pairs = ((task, text) for task, _, text in waiting)
        for index, verdict in bar.track(verifier.verify_many(pairs), total=len(waiting), description="candidates"):
            directory.add_sample(row_of(*waiting[index], verdict))
    if waiting:
        directory.log(step=len(done) + len(waiting), seconds={"verify": time.perf_counter() - started})


def sample_and_judge(config: EvalConfig, tasks: Sequence[Task], directory: RunDirectory, verifier: Verifier) -> None:
    """Sample candidates and judge them, one round of tasks after another; finished rounds are skipped."""
    rounds = [tasks[i : i + ROUND_TASKS] for i in range(0, len(tasks), ROUND_TASKS)]
    done = done_rows(directory.path)
    missing = [
        n for n, part in enumerate(rounds) if any(f"{t.id}#{m}" not in done for t in part for m in range(config.samples))
    ]
    if not missing:
        return
    engine, collector = open_model(config, verifier)
    collector.known = {(row["task"], row["key"]): Verdict.from_json(row["verdict"]) for row in done.values()}

    def write(attempt: Attempt) -> None:
        identity = f"{attempt.task.id}#{attempt.member}"
        if identity not in done:
            tokens, finish = len(attempt.rollout.token_ids), attempt.rollout.finish
            row = row_of(attempt.task, attempt.member, attempt.text, attempt.verdict, tokens=tokens, finish=finish)
            directory.add_sample(row)

    with closing(engine), progress() as bar:
        for number in bar.track(missing, description=f"rounds of {ROUND_TASKS} tasks"):
            collected = collector.collect(rounds[number], (config.seed, number), on_attempt=write)
            directory.log(step=number + 1, seconds=dict(collected.seconds))


def open_model(config: EvalConfig, verifier: Verifier) -> tuple[RolloutEngine, Collector]:
    """The engine, and the collector that samples from it."""
    import torch

    from kernrl.policy.load import load_policy
    from kernrl.rollouts.engines.generate_engine import GenerateEngine
    from kernrl.training.open_engine import open_evaluation_engine
    from kernrl.training.session import end_tokens, prompt_style

    assert config.model is not None  # there are no candidates on disk
    if config.engine == "server":  # the weights are elsewhere
        engine, tokenizer, settings = open_evaluation_engine(config)
    else:
        on_gpu = torch.cuda.is_available()
        policy = load_policy(config.model, dtype="bf16" if on_gpu else "fp32", revision=config.revision)
        policy.model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")  # pyright: ignore[reportArgumentType]
        tokenizer, settings = policy.tokenizer, policy.model.generation_config
        engine = GenerateEngine(policy, batch_size=config.sampling_batch, gpu_turn=verifier.untimed)
    sampling = Sampling(config.samples, config.max_tokens, config.temperature, stop_ids=end_tokens(tokenizer, settings))
    style = config.prompt or prompt_style(tokenizer)
    precision = config.verifier.precision
    return engine, Collector(engine, tokenizer, verifier, lambda verdict: None, sampling, style=style, precision=precision)
