"""What a model is asked, word for word: the templates beside this file, filled in for one task."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import jinja2

from kernrl.errors import UsageError, did_you_mean
from kernrl.tasks.task import Task

Style = Literal["plain", "chat", "nano"]
Message = dict[Literal["role", "content"], str]

PRECISIONS = {
    "fp32": "fp32 (no TF32: matrix products are exact to fp32)",
    "tf32": "fp32 tensors, with matrix products in TF32",
    "bf16": "bf16 tensors, accumulating in fp32",
    "fp16": "fp16 tensors, accumulating in fp32",
}
"""Precision policy → how the prompt says it."""


def render_prompt(
    task: Task, style: Style = "plain", *, example: Task | None = None, precision: str | None = None, gpu: str = ""
) -> str | list[Message]:
    """The prompt for a task.

    Args:
        style: `plain`: one text, for a base model. `chat`: a list of messages, for a chat template. `nano`: the code between
            two short markers and nothing else, for a small model trained on just that; its completion is the bare code.
        example: A task with a worked solution to show first; not for `nano`.
        precision: The precision policy to name, in place of the task's own.
        gpu: A GPU to name, such as `H200`; not for `nano`.

    Raises:
        UsageError: An unknown style or precision, or an example without a solution.
    """
    precision = precision or task.precision
    if precision not in PRECISIONS:
        raise UsageError(f"precision: there is no policy {precision!r}: {did_you_mean(precision, list(PRECISIONS))}")
    if example is not None and not example.solutions:
        raise UsageError(f"example: the task {example.id} has no worked solution to show.")
    if style == "nano":
        return _fill("nano.j2", task=task, precision=precision)
    system = _fill("system.j2")
    request = _fill("task.j2", task=task, precision_words=PRECISIONS[precision], example=example, gpu=gpu)
    if style == "chat":
        return [{"role": "system", "content": system.strip()}, {"role": "user", "content": request.strip()}]
    if style == "plain":
        return f"{system}\n{request}"
    raise UsageError(f"style: there is no prompt style {style!r}: {did_you_mean(style, ['plain', 'chat', 'nano'])}")


def _fill(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates"
    # the output is read by a model, not a browser: nothing is escaped
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
