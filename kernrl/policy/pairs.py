"""Training pairs: from tasks with worked solutions, and from the forms of SFT data that people keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kernrl.tasks.prompt import render_prompt
from kernrl.tasks.task import Task

Message = dict[str, str]
PromptStyle = Literal["nano", "chat"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt, as chat messages, and the reply to learn."""

    messages: list[Message]
    completion: str
    weight: float = 1.0


class UnusableRow(ValueError):
    """Why a row holds no pair; the message completes the sentence "the row ..."."""


def task_messages(task: Task, style: PromptStyle, precision: str | None = None) -> list[Message]:
    """The messages a policy is asked a task with."""
    prompt: Any = render_prompt(task, style, precision=precision)
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def task_pairs(tasks: Iterable[Task], style: PromptStyle, precision: str | None = None) -> Iterator[Pair]:
    """One pair a worked solution. nano answers with bare code; every other model with one fenced block."""
    for task in tasks:
        messages = task_messages(task, style, precision)
        for solution in task.solutions:
            code = solution.triton_code.strip()
            yield Pair(messages, f"{code}\n" if style == "nano" else f"```python\n{code}\n```")


def row_pair(row: Mapping[str, Any]) -> Pair:
    """The pair of one row in either of TRL's forms: `messages`, or `prompt` and `completion` (texts or message lists).

    Of a conversation, the last assistant message is learnt and everything before it is the prompt.

    Raises:
        UnusableRow: neither form is there, or the conversation does not end with the assistant.
    """
    if row.get("messages"):
        *before, last = row["messages"]
        if last.get("role") != "assistant" or not before:
            raise UnusableRow("has messages that do not end with the assistant's answer to something")
        return Pair([_message(m) for m in before], str(last["content"]))
    prompt, completion = row.get("prompt"), row.get("completion")
    if prompt and completion:
        messages = [_message(m) for m in prompt] if isinstance(prompt, list) else [{"role": "user", "content": str(prompt)}]
        return Pair(messages, str(completion[-1]["content"]) if isinstance(completion, list) else str(completion))
    raise UnusableRow(f"has neither `messages` nor `prompt` and `completion`; its columns are {', '.join(row)}")


def _message(message: Mapping[str, Any]) -> Message:
    return {"role": str(message["role"]), "content": str(message["content"])}
