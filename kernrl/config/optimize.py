"""Settings of `kernrl optimize`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from kernrl.config.groups import MODEL, RUN, SAMPLING, TASKS, VERIFIER
from kernrl.config.resume import ResumableConfig
from kernrl.config.shared.judging import JudgingConfig
from kernrl.config.shared.prompts import PromptForm
from kernrl.config.shared.sampling import CutsConfig, differing
from kernrl.config.shared.training import Columns, ServerConfig
from kernrl.config.verifier import Baselines
from kernrl.settings import ALSO, ARGUMENT, OLD, RARE

NO_MODEL = "none"
"""What `--model` says for worked styles and variants alone."""

LEAST_BUDGET_S = 20.0
"""Reading a module, starting the verifier and judging the first candidates take up to so long; from here on a budget holds."""


def seconds_of(text: str) -> float:
    """`120s`, `2m`, `1.5h` or `90` in seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None:
        raise ValueError("is a time such as 120s, 2m or 1h")
    return float(match[1]) * {"m": 60.0, "min": 60.0, "h": 3600.0}.get(match[2] or "s", 1.0)


class OptimizeConfig(ResumableConfig, ServerConfig, CutsConfig, JudgingConfig):
    """`kernrl optimize`."""

    MAY_CHANGE: ClassVar = ("budget", "candidates", "keep_tie", "improve", "keep_model", "tasks_at_once")

    source: str = Field(
        description="What to make faster: a task .py, a folder, table or dataset of tasks, SOURCE::ID or SOURCE#ROW, or "
        "package.module:Class with --inputs.",
        json_schema_extra=ARGUMENT,
    )
    inputs: str | None = Field(
        default=None,
        description="For package.module:Class: the arguments of forward, such as 'x=float32[64,128], ids=int64[64]<1000'.",
        json_schema_extra=TASKS,
    )
    init: str = Field(
        default="",
        description="For package.module:Class: literal arguments of its constructor, such as '128, bias=False'.",
        json_schema_extra=TASKS,
    )
    split: str | None = Field(default=None, description="Only this split of the tasks.", json_schema_extra=TASKS)
    map: Columns = Field(default=(), json_schema_extra=TASKS | RARE)
    tasks_revision: str | None = Field(
        default=None, description="Commit or tag of a hub dataset of tasks.", json_schema_extra=TASKS | RARE
    )
    limit: int | None = Field(default=None, ge=1, description="At most this many tasks.", json_schema_extra=TASKS)
    model: str = Field(
        default=NO_MODEL,
        description="Sample candidates from this model too: a folder, a hub id, or 'nano'; 'none' for worked solutions and "
        "their variants alone.",
        json_schema_extra=MODEL,
    )
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.", json_schema_extra=MODEL | RARE)
    prompt: PromptForm | None = Field(
        default=None,
        description="Form of the prompt: nano's short one, or the model's chat template; by the model's tokenizer if not set.",
        json_schema_extra=MODEL | RARE,
    )
    candidates: int = Field(
        default=64, ge=1, description="Most candidates that are tried for a task.", json_schema_extra=SAMPLING | {ALSO: "--n"}
    )
    budget: str = Field(
        default="120s",
        description="Longest that one task may take, from its lift to its file: 120s, 2m, 1h; at least 20s. Counts anew on "
        "--resume.",
        json_schema_extra=SAMPLING,
    )
    tasks_at_once: int | None = Field(
        default=None,
        ge=1,
        description="Tasks of a folder or dataset that are searched side by side; by the number of cores if not set.",
        json_schema_extra=SAMPLING | RARE,
    )
    temperature: float = Field(default=1.0, ge=0, description="Temperature of sampling; above 0.", json_schema_extra=SAMPLING)
    max_tokens: int = Field(default=2048, ge=1, description="Longest reply in tokens.", json_schema_extra=SAMPLING | RARE)
    improve: Literal["best-of-n", "reinforce"] | None = Field(
        default=None,
        description="After a first round, train --model on these very tasks with what is left of the budget, and try samples "
        "of it then.",
        json_schema_extra=SAMPLING,
    )
    keep_model: Path | None = Field(
        default=None, description="New folder for the model that --improve has trained.", json_schema_extra=RUN
    )
    algebra: bool = Field(
        default=True,
        description="Try worked solutions too that do fewer operations than the module asks for.",
        json_schema_extra=SAMPLING,
    )
    from_run: Path | None = Field(
        default=None,
        description="Try these candidates too: a folder of .py files, a run of kernrl, or a run of KernelBench.",
        json_schema_extra=SAMPLING,
    )
    output: Path | None = Field(
        default=None, description="Folder of the run; the next free checkpoints/optimize-N if not set.", json_schema_extra=RUN
    )
    resume: bool = Field(
        default=False,
        description="Go on with the run in --output and its settings: what it has judged is kept.",
        json_schema_extra=RUN,
    )
    keep_tie: bool = Field(
        default=False,
        description="Write best.py even where the best candidate is no faster than the baseline.",
        json_schema_extra=RUN,
    )
    seed: int = Field(default=0, ge=0, description="Of sampling.", json_schema_extra=RUN)
    baseline: Baselines = Field(
        default=("eager", "compile"),
        description="What candidates are timed against; the first decides who is faster. On a CPU only eager is modelled.",
        json_schema_extra=VERIFIER | {OLD: "--verifier.baseline"},
    )

    @field_validator("temperature")
    @classmethod
    def _samples_differ(cls, value: float) -> float:
        return differing(value, "a search wants different ones")

    @field_validator("budget")
    @classmethod
    def _a_time(cls, value: str) -> str:
        if seconds_of(value) < LEAST_BUDGET_S:
            raise ValueError(
                f"is too small: reading a module and judging first candidates take seconds, so give {LEAST_BUDGET_S:g}s or more"
            )
        return value

    @model_validator(mode="after")
    def _flags_go_together(self) -> OptimizeConfig:
        if self.engine == "server" and self.model == NO_MODEL:
            raise ValueError("--engine server needs --model, whose tokenizer and prompt form are used")
        if self.improve and self.model == NO_MODEL:
            raise ValueError("--improve needs --model, such as nano, which it trains")
        if self.improve and self.engine == "server":
            raise ValueError("--improve trains the model in this process, not the one on a server: leave out --engine server")
        if self.keep_model and not self.improve:
            raise ValueError("--keep-model keeps what --improve has trained: add that, or leave it out")
        if not self.baseline:
            raise ValueError("--baseline names eager, compile, or both")
        return self

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return seconds_of(self.budget)
