"""Runs of the training stages that take a second: their command lines, the rule they are judged by, and what they left."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM

from kernrl.runs.run_directory import read_lines
from kernrl.verifier.base.verdict import Status, Verdict
from support.tiny import verdict_of

TIMED = ("seconds", "gpu_hours", "cost", "attempts_per_s")
"""Metrics that depend on the clock."""


class Killed(BaseException):
    """Stands for a kill: nothing in the loop may catch it."""


def judge(text: str) -> Verdict:
    """The toy task: write small letters. The more of them, the "faster"."""
    share = sum("a" <= c <= "z" for c in text) / max(1, len(text))
    return verdict_of(text, Status.CORRECT, speedup_x=0.1 + 2.9 * share)


def reinforce_arguments(model: Path, tasks: Path, output: Path, *more: str, steps: int = 3, samples: int = 4) -> list[str]:
    sizes = ["--tasks-per-step", "2", "--samples", str(samples), "--max-tokens", "8", "--row-tokens", "256"]
    where = ["--model", str(model), "--tasks", str(tasks), "--output", str(output), "--steps", str(steps)]
    whole = [] if "--lora" in more else ["--no-lora", "--no-gradient-checkpointing"]
    return [
        "reinforce",
        *where,
        *sizes,
        "--learning-rate",
        "0.01",
        *whole,
        "--reward",
        "best-of-n",
        "--save-every",
        "1",
        "--quiet",
        *more,
    ]


def sft_arguments(model: Path, pairs: Path, output: Path, *more: str) -> list[str]:
    sizes = ["--row-tokens", "128", "--rows-per-step", "4", "--max-length", "64", "--steps", "4", "--learning-rate", "0.01"]
    where = ["--model", str(model), "--data", str(pairs), "--output", str(output)]
    return ["sft", *where, *sizes, "--validate-every", "4", "--save-every", "2", "--quiet", *more]


def write_pairs(file: Path) -> Path:
    rows = [{"prompt": f"say {n}", "completion": f"{n}" * (n % 5 + 2)} for n in range(160)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def metrics(output: Path) -> dict[int, dict[str, Any]]:
    """Step → its metrics, less what depends on the clock; the last line of a step counts."""
    return {line["step"]: {k: v for k, v in line.items() if k not in TIMED} for line in read_lines(output / "metrics.jsonl")}


def losses(output: Path) -> dict[int, list[float]]:
    """Step → what was learnt and how well; the last line of a step counts."""
    names = ("loss", "grad_norm", "validation_loss", "entropy", "reward", "learnt_tokens")
    return {line["step"]: [line[n] for n in names if n in line] for line in read_lines(output / "metrics.jsonl")}


def rewards(output: Path) -> list[float]:
    return [line["reward"] for line in read_lines(output / "metrics.jsonl")]


def texts(output: Path) -> dict[str, str]:
    """Sample id → what was written."""
    return {row["id"]: row["text"] for row in read_lines(output / "samples.jsonl")}


def weights(folder: Path) -> dict[str, Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()
