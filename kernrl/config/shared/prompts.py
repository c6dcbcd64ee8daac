"""Settings of how a model is asked, which the commands that sample or teach share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kernrl.config.groups import MODEL
from kernrl.settings import RARE

PromptForm = Literal["nano", "chat"]
PromptTemplate = Annotated[
    Path | None,
    Field(
        description="Jinja2 file that asks for a task in chat, in place of kernrl's own text.",
        json_schema_extra=MODEL | RARE,
    ),
]
Facts = Annotated[
    bool,
    Field(
        description="End a chat prompt with shapes and costs of every op and what could be one kernel; nano's prompts are "
        "without.",
        json_schema_extra=MODEL | RARE,
    ),
]
NameGpu = Annotated[
    bool,
    Field(
        description="Name in a chat prompt the GPU that candidates are judged on, or are modelled for; nano's prompts are "
        "without.",
        json_schema_extra=MODEL | RARE,
    ),
]
