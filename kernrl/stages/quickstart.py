"""`kernrl quickstart`: all of kernrl on nano, in the commands that a user would type.

Each step is an ordinary command line, printed and then run as it is; nothing here knows how a stage works.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernrl.config import QuickstartConfig
from kernrl.console import Prose, Result, log
from kernrl.errors import RunError, UsageError
from kernrl.files import new_folder, next_folder
from kernrl.reports.comparable_runs import comparisons, summarise_run
from kernrl.reports.run_files import read_run
from kernrl.reports.tables import comparison_text
from kernrl.signals import INTERRUPTED


@dataclass(frozen=True, slots=True)
class Step:
    """One command."""

    why: str
    """What it does, for someone who sees it for the first time."""
    command: str
    """What follows `kernrl` on the command line."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: what the machine at hand can do in minutes."""

    held_out: int
    """Tasks of the suite that are asked before and after."""
    samples: int
    """Candidates a task, except in reinforce."""
    rounds: int
    round_tasks: int
    """Rounds of best-of-n, and tasks a round."""
    steps: int
    step_tasks: int
    step_samples: int
    updates: int
    """Steps of reinforce, and what each takes."""
    train_tasks: int
    """Tasks that both stages learn from."""
    search: str
    """Flags of optimize: what it may spend."""
    max_tokens: int
    """Longest reply: half are shorter than 230 tokens, one in ten is longer than 730, one in a hundred than 1,060."""
    evaluation: str = ""
    """Further flags of the two evaluations."""


# some five minutes on two cores
ON_CPU = Size(
    held_out=6,
    samples=3,
    rounds=1,
    round_tasks=8,
    steps=1,
    step_tasks=6,
    step_samples=4,
    updates=1,
    train_tasks=40,
    search="--budget 90s --n 8",
    max_tokens=1024,
)
ON_GPU = Size(
    held_out=64,
    samples=8,
    rounds=2,
    round_tasks=48,
    steps=3,
    step_tasks=24,
    step_samples=16,
    updates=6,
    train_tasks=500,
    search="--budget 60s",
    max_tokens=1536,
    evaluation=" --sampling-batch 1024",  # a small model decodes a thousand replies as fast as ten
)

LEARNING = "--time-limit-s 300"
"""Of SFT under --full: pairs are made while it trains."""

HELD_OUT = "graph-heldout"
"""Where the tasks come from that are asked before and after."""

SHOWN = "heldout#2"
"""The task that is shown first, and optimised last."""


def run(config: QuickstartConfig) -> Result:
    """Print and run every step; ends with what changed on the held-out tasks, and the module that was made faster."""
    import torch

    from kernrl.policy.load import find_source

    on_gpu = torch.cuda.is_available()
    if config.full and not on_gpu:
        raise UsageError("--full trains from nothing, which needs a GPU; leave it out to start from the shipped model.")
    if not config.full:
        find_source(config.model)  # a wheel is without nano: say so before anything is done
    folder = new_folder(config.output or next_folder(Path("checkpoints"), "quickstart"), "--output")
    steps = story(config, folder, ON_GPU if on_gpu else ON_CPU)
    if not on_gpu:
        say(
            "No GPU here: candidates are judged at small sizes by an interpreter of their kernels, and their times are "
            "modelled. `kernrl doctor` says what else this machine can do."
        )
    began, seconds = time.perf_counter(), []
    for number, step in enumerate(steps, 1):
        say(f"\n[{number}/{len(steps)}] {step.why}", style="bold")
        started = time.perf_counter()
        run_command(step.command)
        seconds.append({"command": f"kernrl {step.command}", "seconds": time.perf_counter() - started})
        say(f"({seconds[-1]['seconds']:.0f} s)", style="dim")
    return ending(folder, seconds, time.perf_counter() - began)


def story(config: QuickstartConfig, folder: Path, size: Size) -> list[Step]:
    """The steps, from a look at a task to a faster form of it."""
    made = {
        name: shlex.quote(str(folder / name))
        for name in (
            "sft",
            "before",
            "tasks",
            "after",
            "best-of-n",
            "reinforce",
            "report.html",
            "optimize",
        )
    }
    sampling = f"--max-tokens {size.max_tokens}{size.evaluation} --temperature 0.8"
    asked = f"--tasks {HELD_OUT} --limit {size.held_out} --samples {size.samples} {sampling}"
    taught = Step(
        "SFT: teach a small model from nothing on random tasks and worked solutions, which are made meanwhile.",
        f"sft {LEARNING} --output {made['sft']}",
    )
    model = f"{made['sft']}/model" if config.full else shlex.quote(config.model)
    shown = ["before", "after", *(["sft"] if config.full else []), "best-of-n", "reinforce"]
    return [
        Step(
            "A task: PyTorch to rewrite as fused Triton kernels, and a worked solution.",
            f"tasks show {SHOWN}",
        ),
        *([taught] if config.full else []),
        Step(
            f"Ask the model for candidates of {size.held_out} held-out tasks, {size.samples} each, and have them judged. No "
            "task that it learned from has their compositions of ops.",
            f"eval --model {model} {asked} --output {made['before']}",
        ),
        Step(
            # the seed of the SFT data: on tasks that the model mostly solves, what is left to learn is speed
            "Make tasks to practise on.",
            f"tasks generate --count {size.train_tasks} --split train --out {made['tasks']}",
        ),
        *practice(model, made["tasks"], folder, size),
        Step(
            "Ask the improved model for the same held-out tasks.",
            f"eval --model {made['reinforce']}/model {asked} --output {made['after']}",
        ),
        Step(
            "Make a report of all of it, for a browser.",
            f"report {' '.join(made[name] for name in shown)} --title quickstart --output {made['report.html']}",
        ),
        Step(
            "What it is for: a faster form of the task of step 1. Worked solutions, the improved model's candidates, and "
            "variants of the best are judged.",
            f"optimize {SHOWN} --model {made['reinforce']}/model --max-tokens {size.max_tokens} {size.search} --keep-tie "
            f"--output {made['optimize']}",
        ),
    ]


def practice(model: str, tasks: str, folder: Path, size: Size) -> list[Step]:
    """Both ways of learning from verdicts; the second starts from the first one's model."""
    best, rl = (shlex.quote(str(folder / name)) for name in ("best-of-n", "reinforce"))
    return [
        Step(
            "Best-of-N: sample on training tasks, and fine-tune on the best correct candidates of each, against its worst.",
            f"best-of-n --model {model} --tasks {tasks} --rounds {size.rounds} --tasks-per-round {size.round_tasks} "
            f"--samples {size.samples} --max-tokens {size.max_tokens} --output {best}",
        ),
        Step(
            "REINFORCE: sample again, and push every token by how much better its candidate was than the others of its task.",
            f"reinforce --model {best}/model --tasks {tasks} --steps {size.steps} --tasks-per-step {size.step_tasks} "
            f"--samples {size.step_samples} --max-tokens {size.max_tokens} --updates-per-epoch {size.updates}"
            f" --seed 1 --output {rl}",
        ),
    ]


def run_command(words: str) -> None:
    """Print a command line and run it.

    Raises:
        RunError: it ended with another code than 0.
    """
    command = [*program(), *shlex.split(words)]
    say(f"$ {shlex.join(command)}", style="cyan")
    # stdout is for the result of this command, --json above all
    shown = subprocess.DEVNULL if log.quiet else sys.stderr.fileno()
    process = subprocess.Popen([*command, *(["--quiet"] if log.quiet else [])], stdout=shown)
    try:
        ended = process.wait()
    except KeyboardInterrupt:
        process.terminate()  # a scheduler may have told this process alone; with Ctrl-C it takes both as one
        if process.wait() == INTERRUPTED:  # and has said so
            raise SystemExit(INTERRUPTED) from None
        raise
    if ended:
        raise RunError(f"`{shlex.join(command)}` ended with {ended}; see its last messages above.")


def program() -> list[str]:
    """How to call kernrl from here, so that what is shown can be copied: the script of this very installation."""
    script = Path(sys.executable).with_name("kernrl")
    if not script.exists():
        return [sys.executable, "-m", "kernrl"]
    on_path = shutil.which("kernrl")
    if on_path and Path(on_path).resolve() == script.resolve():
        return ["kernrl"]
    return [_as_typed(script)]


def _as_typed(program: Path) -> str:
    """A program of this installation, as short as it can be typed from here."""
    return os.path.relpath(program) if program.is_relative_to(Path.cwd()) else str(program)


def _what_to_do_with(folder: Path, file: str | None) -> str:
    """Where the optimised module is, and the commands that come next."""
    if file is None:
        return f"What was tried: {folder / 'report.html'}"
    return (
        f"Read it: {folder / file}\n"
        f"Check it: {_as_typed(Path(sys.executable))} {folder / file}\n"
        f"Your own: {shlex.join(program())} optimize my_module.py"
    )


def say(text: str, style: str = "") -> None:
    log.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


def ending(folder: Path, seconds: list[dict[str, Any]], total_s: float) -> Result:
    """What changed on the held-out tasks, where to look next, and what became of the optimised module."""
    before, after = (read_run(folder / name) for name in ("before", "after"))
    figures = {run.name: summarise_run(run) for run in (before, after)}
    [change] = comparisons([before, after])
    page = folder / "report.html"
    optimized = json.loads((folder / "optimize" / "results.json").read_text(encoding="utf-8"))
    view = (
        f"\n{comparison_text(before.name, change)}\n"
        "A training this short changes little, and not the same in every run: look at the interval.\n"
        f"Report: {page}\n"
        f"{total_s / 60:.1f} minutes in all.\n\n"
        f"The module of step 1, optimised: {optimized['sentence']}\n"
        f"{_what_to_do_with(folder / 'optimize', optimized['file'])}"
    )
    data = {"output": str(folder), "page": str(page), "seconds": total_s, "steps": seconds}
    return Result(data | figures | {"change": change, "optimized": optimized["sentence"]}, Prose(view))
