"""`kernrl eval`: ask a model, or take candidates from disk, have every one judged, and say how good they are.

What has been judged is in `samples.jsonl` from that moment on, so a run that was killed goes on where it was: tasks are
asked in rounds of fixed size with a random stream each, and a round that is asked again samples the same text.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Group
from rich.text import Text

from kernrl.config import EvalConfig, VerifierConfig
from kernrl.console import Result, log, progress
from kernrl.errors import RunError, UsageError
from kernrl.files import next_folder
from kernrl.reports.kernelbench import Found, read_candidates, write_kernelbench
from kernrl.reports.results import THRESHOLDS_X, pass_ks, summarise
from kernrl.reports.run_files import UNJUDGED, read_rows, read_run
from kernrl.reports.tables import results_view
from kernrl.rollouts.collect import Attempt, Collector, Verifier, candidate_key
from kernrl.rollouts.engines.engine import RolloutEngine, Sampling
from kernrl.runs.run_directory import RunDirectory
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

ROUND_TASKS = 32
"""Tasks asked at once. Part of what a seed means: a round is sampled as a whole."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure that must not be lower than a value."""

    baseline: str | None
    name: str
    value: float


def run(config: EvalConfig) -> Result:
    """Run the stage: `samples.jsonl`, `results.json` and KernelBench's form of both; 1 where a limit is not held."""
    limits = [parse_limit(text) for text in config.fail_under]
    for limit in limits:
        require_measured(limit, config)
    tasks = read_tasks(config)
    candidates = from_disk(config.from_run, tasks) if config.from_run is not None else None
    directory = RunDirectory.open(config.output or next_folder(Path("checkpoints"), "eval"), config, resume=config.resume)
    with open_verifier(config) as verifier:
        if candidates is None:
            ask(config, tasks, directory, verifier)
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

    broken = [sentence for limit in limits if (sentence := below(limit, results))]
    view = Group(results_view(results), Text(f"\n{directory.path}"), *(Text(s, style="red") for s in broken))
    return Result({"output": str(directory.path), **results}, view, exit_code=1 if broken else 0)


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
    """The candidates under `folder` for the tasks; what fits no task is said on stderr."""
    found, problems = read_candidates(folder, tasks)
    say(problems)
    return found


def say(problems: Iterator[str] | list[str]) -> None:
    for problem in problems:
        log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)


def open_verifier(config: EvalConfig) -> Any:
    """The verifier, with the baselines asked for."""
    from kernrl.verifier.verifier import HardenedVerifier

    settings: VerifierConfig = config.verifier
    if config.baseline:
        settings = settings.model_copy(update={"baseline": config.baseline})
    return HardenedVerifier(settings)


# --- judging -----------------------------------------------------------------------------------------------------


def newest_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of `samples.jsonl` by id; of rows with one id, the last."""
    return {row["id"]: row for _, row in read_rows(folder / "samples.jsonl", [])}


def done_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows that need no second look: a sample that could not be judged is judged again."""
    return {key: row for key, row in newest_rows(folder).items() if row["verdict"]["status"] not in UNJUDGED}


def row_of(task: Task, member: int, text: str, verdict: Verdict, **rest: Any) -> dict[str, Any]:
    """One line of `samples.jsonl`, of the form that training stages write; nothing is rewarded here."""
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
    """Judge what is on disk and not judged yet."""
    done = done_rows(directory.path)
    waiting = [(task, member, text) for task, member, text in candidates if f"{task.id}#{member}" not in done]
    started = time.perf_counter()
    with progress() as bar:
        pairs = ((task, text) for task, _, text in waiting)
        for index, verdict in bar.track(verifier.verify_many(pairs), total=len(waiting), description="candidates"):
            directory.add_sample(row_of(*waiting[index], verdict))
    if waiting:
        directory.log(step=len(done) + len(waiting), seconds={"verify": time.perf_counter() - started})


def ask(config: EvalConfig, tasks: Sequence[Task], directory: RunDirectory, verifier: Verifier) -> None:
    """Sample candidates and judge them, a round of tasks after the other; rounds that are done are left alone."""
    rounds = [tasks[i : i + ROUND_TASKS] for i in range(0, len(tasks), ROUND_TASKS)]
    done = done_rows(directory.path)
    missing = [
        n for n, part in enumerate(rounds) if any(f"{t.id}#{m}" not in done for t in part for m in range(config.samples))
    ]
    if not missing:
        return
    engine, collector = load_model(config, verifier)
    collector.known = {(row["task"], row["key"]): Verdict.from_json(row["verdict"]) for row in done.values()}

    def keep(attempt: Attempt) -> None:
        identity = f"{attempt.task.id}#{attempt.member}"
        if identity not in done:
            tokens, finish = len(attempt.rollout.token_ids), attempt.rollout.finish
            row = row_of(attempt.task, attempt.member, attempt.text, attempt.verdict, tokens=tokens, finish=finish)
            directory.add_sample(row)

    collector.on_attempt = keep
    with closing(engine), progress() as bar:
        for number in bar.track(missing, description=f"rounds of {ROUND_TASKS} tasks"):
            collected = collector.collect(rounds[number], (config.seed, number))
            directory.log(step=number + 1, seconds=dict(collected.seconds))


def load_model(config: EvalConfig, verifier: Verifier) -> tuple[RolloutEngine, Collector]:
    """What samples, and the collector that asks it."""
    import torch

    from kernrl.policy.load import load_policy
    from kernrl.rollouts.engines.generate import GenerateEngine
    from kernrl.training.engines import open_server
    from kernrl.training.workbench import end_tokens, prompt_style

    assert config.model is not None  # there are no candidates on disk
    if config.engine == "server":  # the weights are elsewhere
        engine, tokenizer, settings = open_server(config)
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


# --- limits ------------------------------------------------------------------------------------------------------

FIGURES = r"correct|compiled|pass@[1-9]\d*|fast_[\d.]+|geomean_x"
LIMIT = re.compile(rf"(?:(?P<baseline>eager|compile)\.)?(?P<name>{FIGURES})=(?P<value>.+)")


def parse_limit(text: str) -> Limit:
    """`fast_1=0.5`, or `compile.fast_1=0.5` for a baseline that is not the first."""
    match = LIMIT.fullmatch(text.replace(" ", ""))
    if match is None:
        _bad_limit(text)
    try:
        value = float(match["value"])
    except ValueError:
        _bad_limit(text)
    if not math.isfinite(value):  # nothing is lower than NaN: every figure would pass
        _bad_limit(text)
    return Limit(match["baseline"], match["name"], value)


def require_measured(limit: Limit, config: EvalConfig) -> None:
    """Refuse a limit to a figure that this evaluation does not make, before it takes its minutes."""
    kind, _, number = limit.name.replace("@", "_").partition("_")
    baselines = config.baseline or config.verifier.baseline
    if limit.baseline and limit.baseline not in baselines:
        more = ",".join([*baselines, limit.baseline])
        raise UsageError(f"--fail-under: nothing is timed against {limit.baseline}; add --baseline {more}.")
    if kind == "fast" and number not in (known := [f"{p:g}" for p in THRESHOLDS_X]):
        raise UsageError(f"--fail-under: there is no {limit.name}; p is one of {', '.join(known)}.")
    if kind == "pass" and config.model is not None and int(number) not in (ks := pass_ks(config.samples)):
        among = ", ".join(map(str, ks))
        raise UsageError(f"--fail-under: there is no {limit.name} of --samples {config.samples}; k is one of {among}.")


def _bad_limit(text: str) -> NoReturn:
    names = "correct, compiled, pass@1, fast_1, geomean_x, or compile.fast_1"
    raise UsageError(f"--fail-under: {text!r} is not NAME=VALUE with a name such as {names}.")


def below(limit: Limit, results: dict[str, Any]) -> str | None:
    """A sentence where the figure is lower than the limit or was not found, else None."""
    figures = results["baselines"].get(limit.baseline, {}) if limit.baseline else results
    name = f"{limit.baseline}.{limit.name}" if limit.baseline else limit.name
    value = figures.get(limit.name, {}).get("value")
    if value is None:
        return f"{name} was not measured, so it cannot be {limit.value:g} or more."
    return f"{name} is {value:.3g}, less than {limit.value:g}." if value < limit.value else None
