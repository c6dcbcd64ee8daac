"""Evaluating a model or candidates on disk: sample, judge, summarise. What `kernrl eval` does, and `kernrl sft` at its end.

A sample is in `samples.jsonl` as soon as it is judged, so an evaluation that was killed resumes where it was: tasks are asked
in rounds of fixed size, each with a random stream of its own, and a round that is asked again samples the same text.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrl.config import EvalConfig
from kernrl.console import counted, log
from kernrl.errors import RunError, UsageError
from kernrl.files import next_folder
from kernrl.reports.kernelbench import Found, read_candidates, write_kernelbench
from kernrl.reports.results import summarise
from kernrl.reports.run_files import UNJUDGED, read_rows, read_run
from kernrl.rollouts.collect import Attempt, Collector, Verifier
from kernrl.rollouts.sample_rows import row_of
from kernrl.runs.activity import Activity, SamplingWatch, time_left
from kernrl.runs.run_directory import RunDirectory
from kernrl.service import client
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.prompt import GRAPH_STYLES, read_template
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.training.confirm_samples import confirm_samples
from kernrl.training.lint_tasks import fitting_tasks
from kernrl.verifier.base.verdict import Stage, Status, Verdict

if TYPE_CHECKING:
    from kernrl.rollouts.engines.generate_engine import GenerateEngine
    from kernrl.rollouts.engines.server_engine import ServerEngine

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
    if candidates is None:
        confirm_samples(config.samples, len(tasks), yes=config.yes)
        require_model(config)
        if config.prompt_template:
            read_template(config.prompt_template)  # a wrong one is refused before there is a folder and a model is loaded
        if config.engine == "server":
            from kernrl.training.open_engine import require_server

            require_server(config)  # likewise
    directory = RunDirectory.open(config.output or next_folder(Path("checkpoints"), "eval"), config, resume=config.resume)
    with Activity(directory.path) as activity, activity.shown(), open_verifier(config) as verifier:
        tasks = fitting_tasks(tasks, verifier)
        if candidates is None:
            sample_and_judge(config, tasks, directory, verifier, activity)
        else:
            fit = {task.id for task in tasks}
            judge([one for one in candidates if one[0].id in fit], directory, verifier, activity)

    judged = read_run(directory.path)
    results = summarise(judged.samples, baselines=config.baseline, seed=config.seed)
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
    # a level is picked from all of them; a suite that is made on the spot takes seconds to make whole
    limit = config.limit if config.level is None else None
    columns = parse_columns(config.map)
    loaded = load_tasks(config.tasks, split=split, revision=config.tasks_revision, columns=columns, limit=limit)
    say(map(str, loaded.problems))
    tasks = [task for task in loaded.tasks if config.level in (None, task.level)]
    if not tasks:
        raise UsageError(f"--level {config.level}: {config.tasks} has no task of that level.")
    return tasks[: config.limit]


def require_model(config: EvalConfig) -> None:
    """Refuse the name of no model before anything else is opened."""
    from kernrl.policy.load import find_source

    assert config.model is not None  # there are no candidates on disk
    find_source(config.model, config.revision)


def from_disk(folder: Path, tasks: Sequence[Task]) -> list[Found]:
    """The candidates under `folder` for the tasks; files that belong to no task are listed on stderr."""
    found, problems = read_candidates(folder, tasks)
    say(problems)
    return found


def say(problems: Iterable[str]) -> None:
    """Write what was skipped to stderr."""
    for problem in problems:
        log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)


def open_verifier(config: EvalConfig) -> client.AnyVerifier:
    """The verifier, with the baselines asked for."""
    return client.open_verifier(config.judging)


def newest_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of `samples.jsonl` by id; of rows with one id, the last."""
    return {row["id"]: row for _, row in read_rows(folder / "samples.jsonl", [])}


def done_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows that have a verdict: a sample that could not be judged is judged again."""
    return {key: row for key, row in newest_rows(folder).items() if row["verdict"]["status"] not in UNJUDGED}


def judge(candidates: Sequence[Found], directory: RunDirectory, verifier: Verifier, activity: Activity) -> None:
    """Judge the candidates from disk that have no verdict yet."""
    done = done_rows(directory.path)
    places: dict[str, int] = {}
    for task, _, _ in candidates:
        places.setdefault(task.id, len(places))
    waiting = [(task, member, text) for task, member, text in candidates if f"{task.id}#{member}" not in done]
    waiting.sort(key=lambda one: places[one[0].id])  # what is prepared for a task serves its next candidates
    started = time.perf_counter()
    progress = Progress(task.id for task, _, _ in waiting)
    activity.phase(f"judging {counted(len(waiting), 'candidate')}")
    activity.follow(lambda: progress.line(verifier))
    pairs = ((task, text) for task, _, text in waiting)
    for index, verdict in verifier.verify_many(pairs):
        directory.add_sample(row_of(*waiting[index], verdict))
        progress.judged(waiting[index][0].id)
    if waiting:
        directory.log(step=len(done) + len(waiting), seconds={"verify": time.perf_counter() - started})


class Progress:
    """Of the tasks and verdicts of an evaluation."""

    def __init__(self, expected: Iterable[str]):
        """`expected`: the task of each verdict that is to come."""
        self._left = Counter(expected)
        self._tasks, self._verdicts, self._judged = len(self._left), self._left.total(), 0
        self._began = time.perf_counter()

    def judged(self, task_id: str) -> None:
        """A verdict on a candidate for this task is in."""
        self._judged += 1
        self._left[task_id] -= 1
        if self._left[task_id] <= 0:
            del self._left[task_id]

    def line(self, verifier: Verifier, sampling: str = "") -> str:
        """`3 of 20 tasks, 7 of 40 verdicts, GPU: timing a_task, about 40 s left`; `sampling` comes before the GPU's part."""
        doing = verifier.doing()
        said = [
            f"{self._tasks - len(self._left)} of {counted(self._tasks, 'task')}",
            f"{self._judged} of {counted(self._verdicts, 'verdict')}",
            sampling,
            f"GPU: {doing}" if doing else "",
        ]
        return ", ".join(part for part in said if part) + time_left(self._began, self._judged, self._verdicts)


def sample_and_judge(
    config: EvalConfig, tasks: Sequence[Task], directory: RunDirectory, verifier: Verifier, activity: Activity
) -> None:
    """Sample candidates and judge them, one round of tasks after another; finished rounds are skipped."""
    rounds = [tasks[i : i + ROUND_TASKS] for i in range(0, len(tasks), ROUND_TASKS)]
    done = done_rows(directory.path)
    missing = [
        n for n, part in enumerate(rounds) if any(f"{t.id}#{m}" not in done for t in part for m in range(config.samples))
    ]
    if not missing:
        return
    from kernrl.training.session import lifter_for

    activity.phase(f"loading {config.model}")
    with ExitStack() as stack:
        lifter = stack.enter_context(closing(lifter_for(config)))
        engine, collector = open_model(config, verifier)
        stack.enter_context(closing(engine))
        watch = SamplingWatch()
        collector.watch, collector.prepare = watch, lifter
        if hasattr(engine, "on_tokens"):  # a server tells only of whole replies
            engine.on_tokens = watch.decoded  # pyright: ignore[reportAttributeAccessIssue]
        progress = Progress(task.id for n in missing for task in rounds[n] for _ in range(config.samples))
        activity.follow(lambda: progress.line(verifier, watch.sampling()))
        collector.known = {(row["task"], row["key"]): Verdict.from_json(row["verdict"]) for row in done.values()}

        def write(attempt: Attempt) -> None:
            progress.judged(attempt.task.id)
            identity = f"{attempt.task.id}#{attempt.member}"
            if identity not in done:
                tokens, finish = len(attempt.rollout.token_ids), attempt.rollout.finish
                row = row_of(attempt.task, attempt.member, attempt.text, attempt.verdict, tokens=tokens, finish=finish)
                directory.add_sample(row)

        for number in missing:
            started = time.perf_counter()
            asked = ask_or_refuse(rounds[number], collector, config.samples, done, directory, progress)
            refusing_s = time.perf_counter() - started
            collected = collector.collect(asked, (config.seed, number), on_attempt=write)
            collected.seconds["ask"] += refusing_s
            directory.log(step=number + 1, seconds=dict(collected.seconds))


def ask_or_refuse(
    tasks: Sequence[Task],
    collector: Collector,
    samples: int,
    done: Mapping[str, Any],
    directory: RunDirectory,
    progress: Progress,
) -> list[Task]:
    """The tasks that the model can be asked. Those that have no Graph for a nano to be asked by count as not solved."""
    if collector.style not in GRAPH_STYLES:
        return list(tasks)
    from kernrl.tasks.nano.form import unasked

    collector.prepare(tasks)
    refused = {task.id: (task, reason) for task, reason in unasked(list(tasks))}
    for task, reason in refused.values():
        say([f"{task.id} has no Graph to ask nano for: {reason}"])
        verdict = Verdict(Status.NO_CODE, Stage.PARSE, f"nano cannot be asked: {reason}", task.id, "", task.precision)
        for member in range(samples):
            progress.judged(task.id)
            if f"{task.id}#{member}" not in done:
                directory.add_sample(row_of(task, member, "", verdict))
    return [task for task in tasks if task.id not in refused]


def open_model(config: EvalConfig, verifier: Verifier) -> tuple[GenerateEngine | ServerEngine, Collector]:
    """The engine, and the collector that samples from it."""
    import torch

    from kernrl.policy.load import load_policy
    from kernrl.rollouts.engines.generate_engine import GenerateEngine
    from kernrl.training.open_engine import open_evaluation_engine
    from kernrl.training.session import end_tokens, prompt_style, sampling_of

    assert config.model is not None  # there are no candidates on disk
    if config.engine == "server":  # the weights are elsewhere
        engine, tokenizer, settings = open_evaluation_engine(config)
    else:
        on_gpu = torch.cuda.is_available()
        policy = load_policy(config.model, dtype="bf16" if on_gpu else "fp32", revision=config.revision)
        policy.model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")  # pyright: ignore[reportArgumentType]
        tokenizer, settings = policy.tokenizer, policy.model.generation_config
        turn = partial(verifier.untimed, policy.model.device.index)
        engine = GenerateEngine(policy, batch_size=config.sampling_batch, gpu_turn=turn)
    sampling = sampling_of(config, end_tokens(tokenizer, settings))
    style = prompt_style(tokenizer, config.prompt)
    settings = {"style": style, "precision": config.precision, "facts": config.facts, "name_gpu": config.name_gpu}
    settings["template"] = read_template(config.prompt_template) if config.prompt_template else ""
    return engine, Collector(engine, tokenizer, verifier, lambda verdict: None, sampling, **settings)
