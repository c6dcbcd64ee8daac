"""Run directories made up for tests: the files a run leaves, with verdicts as the verifier writes them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict
from support import TESTS

HONEST = TESTS / "honest"

FAMILIES = {
    "linear": ("linear", "gelu"),
    "conv2d": ("conv2d", "group_norm", "relu"),
    "bmm": ("bmm", "softmax"),
    "pointwise": ("mul", "add", "mish", "clamp"),
}

FAILURES = [
    (Status.WRONG, Stage.CORRECTNESS, "the output differs from the reference: 3.1e-02 RMS where 1.2e-06 is allowed (ragged)"),
    (Status.COMPILE_ERROR, Stage.TRACE, "kernel 'fused' does not compile: arange's range must be a power of 2"),
    (Status.POLICY, Stage.SCREEN, "imports 'os': only torch, triton, math and typing may be imported"),
    (Status.POLICY, Stage.PLAN, "the output does not depend on any authored kernel: torch computes it"),
    (Status.DECOY, Stage.CORRECTNESS, "kernel 'decoy' can be skipped and the output stays the same"),
    (Status.NO_CODE, Stage.PARSE, "the reply holds no Python code"),
    (Status.UNTRACEABLE, Stage.TRACE, "forward asks for a tensor's value (.item()): compute it inside a kernel"),
]


def timing(speedup_x: float, *, kind: str = "measured", device: str = "NVIDIA H200", spread: float = 0.03) -> Timing:
    """Times for a candidate that is `speedup_x` as fast as eager, and less so against compile."""
    candidate_us = 40.0

    def speedup(value: float) -> Speedup:
        return Speedup(value, value * (1 - spread), value * (1 + spread), significant=abs(math.log(value)) > 0.05)

    baseline_us = {"eager": candidate_us * speedup_x, "compile": candidate_us * speedup_x * 0.8}
    return Timing(kind, device, candidate_us, baseline_us, {"eager": speedup(speedup_x), "compile": speedup(speedup_x * 0.8)})


def verdict(task_id: str, status: Status, stage: Stage, reason: str, sha: str = "0" * 64, **rest: Any) -> Verdict:
    seconds = {"trace": 0.02, "compile": 0.15, "correctness": 0.01, "timing": 0.02}
    return Verdict(status, stage, reason, task_id, sha, "fp32", seconds=seconds, **rest)


def correct(task_id: str, speedup_x: float | None = None, plan: dict[str, Any] | None = None, **clock: Any) -> Verdict:
    times = timing(speedup_x, **clock) if speedup_x else None
    stage = Stage.TIMING if times else Stage.CORRECTNESS
    return verdict(task_id, Status.CORRECT, stage, "", timing=times, plan=plan or {})


def plan_of(composition: tuple[str, ...]) -> dict[str, Any]:
    """A plan that fuses all but the first op, as the verifier prices it."""
    nodes = [
        {"name": "aten.addmm.default", "kind": "library", "bytes_moved": 1 << 20, "flops": 1e9, "us": 30.0},
        {"name": f"fused_{'_'.join(composition[1:])}", "kind": "authored", "bytes_moved": 1 << 20, "flops": 0.0, "us": 10.0},
    ]
    return {"input_set": "full", "nodes": nodes, "launches": 1, "unfused": 0, "modelled_us": 40.0}


def row(judged: Verdict, *, step: int = 0, member: int = 0, family: str = "linear", text: str = "") -> dict[str, Any]:
    """A line of samples.jsonl."""
    return {
        "id": f"{step}-{judged.task_id}-{member}-1",
        "step": step,
        "task": judged.task_id,
        "family": family,
        "composition": list(FAMILIES.get(family, (family,))),
        "group": 0,
        "member": member,
        "turn": 1,
        "finish": "stop",
        "tokens": 400,
        "text": f"Here it is.\n```python\n{text}\n```",
        "reward": 0.7 if judged.correct else 0.0,
        "reward_parts": {"correct": float(judged.correct)},
        "verdict": judged.to_json(),
    }


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def write_config(folder: Path, stage: str, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "config": {"model": "nano", "seed": 0, **config},
        "argv": ["kernrl", stage, "--model", "nano"],
        "versions": {"kernrl": "0.1.0", "torch": "2.13.0", "triton": "3.7.1"},
        "gpu": "NVIDIA H200",
        "commit": "0123456789abcdef",
        "started": "2026-01-02T03:04:05+0000",
    }
    (folder / "config.json").write_text(json.dumps(described))


def sampled_rows(rng: random.Random, *, step: int, tasks: int, samples: int, skill: float) -> list[dict[str, Any]]:
    """Rows of one round: about `skill` of them correct, and the faster the more skill there is."""
    sources = sorted(HONEST.glob("*.py"))
    rows = []
    for t in range(tasks):
        family = list(FAMILIES)[t % len(FAMILIES)]
        task_id, ease = f"{family}-{t:03d}", rng.betavariate(8 * skill + 0.5, 8 * (1 - skill) + 0.5)
        for s in range(samples):
            source = sources[(t * samples + s) % len(sources)].read_text()
            if rng.random() < ease:
                judged = correct(task_id, math.exp(rng.gauss(0.5 * skill, 0.35)), plan=plan_of(FAMILIES[family]))
            else:
                status, stage, reason = FAILURES[min(int(rng.expovariate(0.7)), len(FAILURES) - 1)]
                judged = verdict(task_id, status, stage, reason, sha=f"{t:032d}{s:032d}")
            rows.append(row(judged, step=step, member=s, family=family, text=source))
    return rows


def make_eval_run(folder: Path, *, tasks: int = 12, samples: int = 4, skill: float = 0.6, seed: int = 0) -> Path:
    """An eval as `kernrl eval` leaves it, but for results.json."""
    write_config(folder, "eval", samples=samples)
    rng = random.Random(seed)
    write_lines(folder / "samples.jsonl", sampled_rows(rng, step=0, tasks=tasks, samples=samples, skill=skill))
    return folder


def make_reinforce_run(folder: Path, *, steps: int = 30, seed: int = 0) -> Path:
    """A training run that learns."""
    write_config(folder, "reinforce", steps=steps, gpu_hour_price=3.0)
    rng, rows, metrics = random.Random(seed), [], []
    for step in range(1, steps + 1):
        skill = 0.25 + 0.6 * step / steps
        rows += sampled_rows(rng, step=step, tasks=4, samples=4, skill=skill)
        metrics.append(
            {
                "step": step,
                "reward": 0.2 + 0.6 * skill + rng.gauss(0, 0.03),
                "correct": min(1.0, max(0.0, skill + rng.gauss(0, 0.05))),
                "fast_1": max(0.0, 0.7 * skill + rng.gauss(0, 0.05)),
                "speed_geomean_x": math.exp(0.4 * skill + rng.gauss(0, 0.05)),
                "loss": rng.gauss(0, 0.1),
                "entropy": 1.2 - 0.6 * skill,
                "kl_ref": 0.02 * step / steps,
                "length": 400 + 50 * skill,
                "seconds": {"ask": 0.3, "generate": 4.0 + rng.random(), "verify": 1.5, "update": 2.2},
                "alarms": ["12% of the attempts broke the rules"] if step == 3 else [],
            }
        )
    write_lines(folder / "samples.jsonl", rows)
    write_lines(folder / "metrics.jsonl", metrics)
    return folder
