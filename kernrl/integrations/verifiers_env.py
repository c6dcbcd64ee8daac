"""kernrl's tasks and verifier as a taskset of `verifiers` (its v1 interface), for prime-rl and `eval`.

`verifiers` finds a taskset by the name of a top-level module, so make one, say `kernels.py`, with

    from kernrl.integrations.verifiers_env import KernelTaskset
    __all__ = ["KernelTaskset"]

whose name, `kernels`, is then the taskset's id; `KernelTasksetConfig` has its settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from pydantic import Field

from kernrl.config import VerifierConfig
from kernrl.rollouts.reward import UNKNOWN, reward
from kernrl.service.client import gpu_judged_on
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.prompt import render_prompt
from kernrl.tasks.rows import task_from_row, task_to_row
from kernrl.training.lint_tasks import sound_tasks
from kernrl.verifier.verifier import HardenedVerifier

__all__ = ["KernelTaskset"]


class KernelData(vf.TaskData):
    """One task, as a row of `tasks.jsonl`."""

    row: dict[str, Any]


class KernelTaskConfig(vf.TaskConfig):
    """How a reply is judged and what it is worth."""

    preset: Literal["hierarchical", "best-of-n", "milestones", "log-speed"] = "hierarchical"
    verifier: dict[str, Any] = Field(default_factory=dict)
    """Settings of `kernrl verify`, such as {"precision": "tf32"}."""


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    """Asks for a candidate; the reward is the verdict's."""

    @vf.reward(weight=1.0)
    async def verified(self, trace: vf.Trace) -> float:
        """The preset's reward. Where nothing could be known of the candidate, scoring fails, so that it is not taken for 0."""
        config: Any = VerifierConfig(**self.config.verifier)
        verifier = _verifier(config)
        task = task_from_row(self.data.row, self.data.id or "")
        verdict = await asyncio.to_thread(verifier.verify, task, trace.last_reply)
        worth = reward(verdict, self.config.preset)
        if verdict.status in UNKNOWN or worth is None:
            raise RuntimeError(f"{verdict.status}: {verdict.reason}")
        return worth.value


class KernelTasksetConfig(vf.TasksetConfig):
    """Where tasks come from."""

    source: str = "heldout"
    """Whatever `kernrl tasks list` takes."""
    split: str | None = None
    precision: str | None = None
    """Precision policy named in the prompt, in place of the task's own."""
    task: KernelTaskConfig = KernelTaskConfig()


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    """The tasks of a source, in its order."""

    def load(self) -> Iterator[KernelTask]:
        """One task a reference."""
        tasks = load_tasks(self.config.source, split=self.config.split).tasks
        judging = VerifierConfig(**self.config.task.verifier)
        precision, gpu = self.config.precision or judging.precision, gpu_judged_on(judging)
        for task in sound_tasks(tasks, judging):
            system, user = render_prompt(task, "chat", precision=precision, gpu=gpu)
            data = KernelData(
                id=task.id,
                name=task.name or task.id,
                prompt=user["content"],  # pyright: ignore
                system_prompt=system["content"],  # pyright: ignore
                row=task_to_row(task),
            )
            yield KernelTask(data, self.config.task)


@cache
def _verifier(config: VerifierConfig) -> HardenedVerifier:
    """One verifier a process and setting: it starts workers, and holds the caches."""
    return HardenedVerifier(config)
