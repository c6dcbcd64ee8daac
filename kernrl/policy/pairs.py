"""Training pairs: from tasks with worked solutions, and from rows in TRL's formats of SFT data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from kernrl.tasks.prompt import GRAPH_STYLES, render_prompt
from kernrl.tasks.task import Task
from kernrl.tasks.worker_pool import Map

Message = dict[str, str]
PromptStyle = Literal["nano", "graph", "graph-fast", "chat"]
"""`nano` and `graph` are the two forms that a nano may speak: the whole program, or the Graph's listing."""

PAIR_FIELDS = ("messages", "prompt", "completion")
"""Columns of TRL's formats of SFT data."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt, as chat messages, and the reply to learn."""

    messages: list[Message]
    completion: str
    weight: float = 1.0


class UnusableRow(ValueError):
    """Why a row holds no pair; the message completes the sentence "the row ..."."""


def task_messages(
    task: Task, style: PromptStyle, precision: str | None = None, *, gpu: str = "", facts: bool = False, template: str = ""
) -> list[Message]:
    """The messages that ask a policy for a task. `gpu`, `facts` and `template` belong to `chat` alone."""
    prompt: Any = render_prompt(task, style, precision=precision, gpu=gpu, facts=facts, template=template)
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def task_pairs(
    tasks: Iterable[Task],
    style: PromptStyle,
    precision: str | None = None,
    *,
    template: str = "",
    gpu: str = "",
    facts: bool = False,
    over: Map | None = None,
) -> Iterator[Pair]:
    """One pair for each worked solution. nano answers with bare code; every other model with one fenced block.

    In the form `graph`, solutions are written from the task's Graph, whatever solutions it brings.

    Args:
        facts: whether a prompt in chat ends with them; they take 0.1 s a task.
        over: the map of a `worker_pool` that is to write the prompts of all tasks.
    """
    ask = partial(task_messages, style=style, precision=precision, gpu=gpu, facts=facts, template=template)
    if over is None:
        asked = ((task, ask(task)) for task in tasks)
    else:
        tasks = list(tasks)
        asked = zip(tasks, over(ask, tasks), strict=True)
    for task, messages in asked:
        if style in GRAPH_STYLES:
            from kernrl.tasks.nano.form import replies

            yield from (Pair(messages, reply) for reply in replies(task, precision or task.precision))
            continue
        for solution in task.solutions:
            code = solution.triton_code.strip()
            yield Pair(messages, f"{code}\n" if style == "nano" else f"```python\n{code}\n```")


def has_pair(row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Whether a row has `messages`, or `prompt` and `completion`, whether or not they are valid."""
    messages, prompt, completion = (row.get(columns.get(field, field)) for field in PAIR_FIELDS)
    return messages is not None or (prompt is not None and completion is not None)


def row_pair(row: Mapping[str, Any], columns: Mapping[str, str] | None = None) -> Pair:
    """The pair of one row in either of TRL's forms: `messages`, or `prompt` and `completion` (texts or message lists).

    Of a conversation, the last assistant message is learnt and everything before it is the prompt.

    Args:
        columns: field → column, for the fields of `PAIR_FIELDS` whose column has another name.

    Raises:
        UnusableRow: neither form is there, a part of it is empty or no text, or the conversation does not end with the
            assistant.
    """
    if not has_pair(row, columns or {}):
        raise UnusableRow(f"has neither `messages` nor `prompt` and `completion`; its columns are {', '.join(row)}")
    messages, prompt, completion = (row.get((columns or {}).get(field, field)) for field in PAIR_FIELDS)
    if messages is None:
        *before, last = [*_messages("prompt", prompt, "user"), *_messages("completion", completion, "assistant")]
    else:
        *before, last = _messages("messages", messages)
    if last["role"] != "assistant" or not before or not last["content"]:
        raise UnusableRow("has messages that do not end with the assistant's answer to something")
    return Pair(before, last["content"])


def _messages(field: str, value: Any, role: str = "") -> list[Message]:
    """A list of messages, or one text as the message of `role`."""
    if isinstance(value, str) and value and role:
        return [{"role": role, "content": value}]
    listed: Any = value if isinstance(value, list | tuple) else ()
    if not listed or not all(_is_message(m) for m in listed):
        what = "a text or messages" if role else "messages"
        raise UnusableRow(f"has a column `{field}` that is not {what} of a role and a content: {value!r:.60}")
    return [{"role": m["role"], "content": m["content"]} for m in listed]


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))
