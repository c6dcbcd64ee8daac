"""The verifier as a reward function of TRL's trainers.

tasks = load_tasks("tasks/tasks.jsonl").tasks
with HardenedVerifier() as verifier:
    trainer = GRPOTrainer(
        model=...,
        reward_funcs=kernel_reward(tasks, verifier),
        train_dataset=Dataset.from_list(prompt_rows(tasks, gpu=verifier.gpu())),
    )
    trainer.train()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kernrl.errors import UsageError
from kernrl.policy.pairs import PromptStyle, task_messages
from kernrl.rollouts.collect import RewardOf, Verifier
from kernrl.rollouts.reward import reward
from kernrl.tasks.task import Task

RewardFunction = Callable[..., list[float | None]]


def prompt_rows(
    tasks: Iterable[Task], style: PromptStyle = "chat", precision: str | None = None, *, gpu: str = ""
) -> list[dict[str, Any]]:
    """Rows for a `datasets.Dataset`: a conversational `prompt`, and the `task_id` that `kernel_reward` finds the task by.

    Args:
        gpu: The GPU to name in the prompt: `verifier.gpu()`.
    """
    return [{"prompt": task_messages(task, style, precision, gpu=gpu), "task_id": task.id} for task in tasks]


def kernel_reward(tasks: Iterable[Task], verifier: Verifier, reward_of: RewardOf = reward) -> RewardFunction:
    """A function for `reward_funcs`.

    Args:
        tasks: those of the dataset, by whose `task_id` column they are found.
        reward_of: what a verdict is worth; `functools.partial(reward, preset="milestones")`, say.

    Returns:
        A function from a batch of completions to as many rewards; None, which TRL leaves out, where nothing could be known.
    """
    by_id = {task.id: task for task in tasks}

    def kernel_reward(completions: Sequence[Any], task_id: Sequence[str], **_: Any) -> list[float | None]:
        unknown = sorted({i for i in task_id if i not in by_id})
        if unknown:
            raise UsageError(f"task_id {unknown[0]!r} is not among the tasks that kernel_reward was made with.")
        pairs = [(by_id[i], completion_text(c)) for i, c in zip(task_id, completions, strict=True)]
        rewards: list[float | None] = [None] * len(pairs)
        for index, verdict in verifier.verify_many(pairs):
            worth = reward_of(verdict)
            rewards[index] = worth.value if worth else None
        return rewards

    return kernel_reward


def completion_text(completion: Any) -> str:
    """The text of a completion in TRL's standard (text) or conversational (messages) form."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
