"""What a model is asked, word for word: the templates beside this file, filled in for one task."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, get_args

import jinja2

from kernrl.errors import UsageError, did_you_mean
from kernrl.tasks.task import Task

Style = Literal["chat", "nano", "graph", "graph-fast"]
Message = dict[Literal["role", "content"], str]

GRAPH_STYLES: tuple[Literal["graph", "graph-fast"], ...] = ("graph", "graph-fast")
"""What asks by the Graph in place of the source."""

PRECISIONS = {
    "fp32": "fp32 (no TF32: matrix products are exact to fp32)",
    "tf32": "fp32 tensors, with matrix products in TF32",
    "bf16": "bf16 tensors, accumulating in fp32",
    "fp16": "fp16 tensors, accumulating in fp32",
}
"""Precision policy → how the prompt says it."""


def render_prompt(
    task: Task,
    style: Style = "chat",
    *,
    precision: str | None = None,
    gpu: str = "",
    facts: bool = False,
    template: str = "",
) -> str | list[Message]:
    """The prompt for a task.

    Args:
        style: `chat`: a list of messages, for a chat template. `nano`: the code between two short markers and nothing else,
            for a small model trained on just that; its completion is the bare code. `graph`: the listing of its Graph, for a
            nano that answers with kernels and `forward`; `graph-fast` asks it for its fastest style.
        precision: The precision policy to name, in place of the task's own.
        gpu: A GPU to name, such as `H200`; not for `nano`.
        facts: Add the shapes, bytes and FLOPs of every op, what could be one kernel, and what memory that saves, to a `chat`
            prompt, where the task can be lifted.
        template: Jinja2 text in place of our own request (`templates/task.j2`), which it may include; not for a nano.

    Raises:
        UsageError: An unknown style or precision.
        LiftError: `graph` of a task that has no Graph.
    """
    precision = precision or task.precision
    if precision not in PRECISIONS:
        raise UsageError(f"precision: there is no policy {precision!r}: {did_you_mean(precision, list(PRECISIONS))}")
    if style == "nano":
        return _fill("nano.j2", task=task, precision=precision)
    if style in GRAPH_STYLES:
        from kernrl.tasks.nano.form import ask  # which loads torch

        return ask(task, precision, fast=style == "graph-fast")
    if style != "chat":
        raise UsageError(f"style: there is no prompt style {style!r}: {did_you_mean(style, list(get_args(Style)))}")
    system = _fill("system.j2")
    given = {"task": task, "precision": precision, "precision_words": PRECISIONS[precision], "gpu": gpu}
    request = _templates().from_string(template).render(**given) if template else _fill("task.j2", **given)
    request += _facts(task) if facts else ""
    return [{"role": "system", "content": system.strip()}, {"role": "user", "content": request.strip()}]


def read_template(path: Path) -> str:
    """The text of a prompt template of the user's own.

    Raises:
        UsageError: It cannot be read, is no Jinja2, uses a name that there is not, or leaves the task out.
    """
    where = f"--prompt-template {path}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}; name a file.") from None
    probe = Task("a-task", "the source of the task")
    try:
        asked = render_prompt(probe, "chat", template=text)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"{where}: line {error.lineno}: {str(error.message).rstrip('.')}.") from None
    except jinja2.TemplateError as error:
        raise UsageError(f"{where}: {error}; it is given task, precision, precision_words and gpu.") from None
    if probe.pytorch_code not in str(asked):
        raise UsageError(f"{where}: it leaves the task out: put {{{{ task.pytorch_code }}}} where the source belongs.")
    return text


def _facts(task: Task) -> str:
    """The facts of a task's Graph as a block of a prompt; nothing where there is none."""
    from kernrl.tasks.graph.costs import facts_text
    from kernrl.tasks.graph.lift import lift

    try:
        return f"\n\n{facts_text(lift(task))}\n"
    except UsageError:
        return ""


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
