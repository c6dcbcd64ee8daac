"""Settings of `kernrl eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from kernrl.config.by_model import NANO
from kernrl.config.groups import MODEL, RUN, SAMPLING, TASKS
from kernrl.config.resume import ResumableConfig
from kernrl.config.shared.judging import JudgingConfig
from kernrl.config.shared.prompts import Facts, NameGpu, PromptForm, PromptTemplate
from kernrl.config.shared.sampling import SamplingConfig
from kernrl.config.shared.training import Columns, ServerConfig
from kernrl.settings import ALSO, RARE


def _model(validated: dict[str, Any]) -> str | None:
    """The shipped nano, unless candidates on disk are judged."""
    return NANO if validated.get("from_run") is None else None


class EvalConfig(ResumableConfig, ServerConfig, SamplingConfig, JudgingConfig):
    """`kernrl eval`."""

    BEFORE: ClassVar = {"name_gpu": False}

    from_run: Path | None = Field(
        default=None,
        description="Judge candidates on disk instead: a folder of .py files, a run of kernrl, or a run of KernelBench.",
        json_schema_extra=MODEL,
    )
    model: str | None = Field(
        default_factory=_model,
        description="Model to ask: a folder, such as one that `kernrl sft` wrote, or a hub id; 'nano', the shipped one, if "
        "neither this nor --from-run is given.",
        json_schema_extra=MODEL,
    )
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.", json_schema_extra=MODEL | RARE)
    prompt: PromptForm | None = Field(
        default=None,
        description="Form of the prompt: nano's short one, or the model's chat template; by the model's tokenizer if not set.",
        json_schema_extra=MODEL | RARE,
    )
    prompt_template: PromptTemplate = None
    facts: Facts = True
    name_gpu: NameGpu = True
    tasks: str = Field(
        default="heldout",
        description="Any source of tasks (`kernrl tasks list --help`); 'heldout' is the shipped suite.",
        json_schema_extra=TASKS,
    )
    level: int | None = Field(default=None, ge=1, description="Only tasks of this level.", json_schema_extra=TASKS)
    split: str | None = Field(default=None, description="Only this split of the tasks.", json_schema_extra=TASKS)
    map: Columns = Field(default=(), json_schema_extra=TASKS | RARE)
    tasks_revision: str | None = Field(
        default=None, description="Commit or tag of a hub dataset of tasks.", json_schema_extra=TASKS | RARE
    )
    limit: int | None = Field(default=None, ge=1, description="At most this many tasks.", json_schema_extra=TASKS)
    temperature: float = Field(
        default=1.0,
        ge=0,
        description="Temperature of sampling; 0 takes the likeliest token each time, for one candidate a task.",
        json_schema_extra=SAMPLING,
    )
    samples: int = Field(
        default_factory=lambda validated: 1 if validated.get("temperature") == 0 else 8,
        ge=1,
        description="Candidates a task. [default: 8]",
        json_schema_extra=SAMPLING | {ALSO: "--n"},
    )
    max_tokens: int = Field(default=2048, ge=1, description="Longest reply in tokens.", json_schema_extra=SAMPLING)
    sampling_batch: int = Field(
        default=256,
        ge=1,
        description="Replies decoded at once: more are faster, and take more memory.",
        json_schema_extra=SAMPLING | RARE,
    )
    output: Path | None = Field(
        default=None, description="Folder of the run; the next free checkpoints/eval-N if not set.", json_schema_extra=RUN
    )
    resume: bool = Field(
        default=False,
        description="Go on with the run in --output and its settings: what it has judged is kept.",
        json_schema_extra=RUN,
    )
    seed: int = Field(default=0, ge=0, description="Of sampling and of the intervals' resamples.", json_schema_extra=RUN)
    fail_under: tuple[str, ...] = Field(
        default=(),
        description="NAME=VALUE, such as fast_1=0.5: exit with 1 if that figure is lower. May be given again.",
        json_schema_extra=RUN,
    )

    @model_validator(mode="after")
    def _one_origin(self) -> EvalConfig:
        if (self.model is None) == (self.from_run is None):
            raise ValueError("Give either --model, to ask a model, or --from-run, to judge candidates on disk")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"--temperature 0 gives the same reply each time: leave out --samples {self.samples}, or give 1")
        return self
