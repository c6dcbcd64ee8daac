"""Settings of the verifier: the table `verifier` of the commands that train or evaluate, and `kernrl verify` itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from kernrl.config.groups import VERIFIER
from kernrl.settings import ARGUMENT, MOST_WORKERS, OLD, RARE, Config


def split_commas(value: Any) -> Any:
    """`("eager,compile",)` as `("eager", "compile")`: a flag may be given twice, or once with commas. A text does too."""
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        return value
    return tuple(part for item in items for part in item.split(","))


Baselines = Annotated[tuple[Literal["eager", "compile", "max-autotune"], ...], BeforeValidator(split_commas)]


class VerifierConfig(Config):
    """How candidates are judged."""

    EXECUTOR: ClassVar[str] = "--verifier.executor"
    """The flag of `executor` where this is a table of the settings."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = Field(
        default=None,
        description="Precision of reference, baseline and candidate; the task's own if not set: tf32 for those that kernrl "
        "makes, fp32 for a file.",
        json_schema_extra=VERIFIER,
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        default="auto",
        description="cuda: run kernels and measure their time. cpu: interpret them at small sizes and model their time. auto: "
        "cuda where there is a GPU.",
        json_schema_extra=VERIFIER,
    )
    target: str | None = Field(
        default=None,
        description="GPU to compile for and to model time on: an architecture (sm_90) or a name (H100); this machine's, or "
        "H200 without one, if not set.",
        json_schema_extra=VERIFIER,
    )
    baseline: Baselines = Field(
        default=("eager",),
        description="What candidates are timed against: eager, compile, max-autotune (slow to make), or several, with commas.",
        json_schema_extra=VERIFIER,
    )
    executor: str = Field(
        default="local",
        description="Where candidates are judged: 'local' for this machine, 'ray' for its Ray cluster (started if there is "
        "none), ray://HOST:PORT, or the http:// address of a `kernrl serve`, whose token is read from KERNRL_VERIFIER_TOKEN.",
        json_schema_extra=VERIFIER | {OLD: "--verifier"},
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS,
        description="CPU cores to use: that many candidates are traced or compiled at once, a few less beside GPUs; all cores "
        "if not set. A Ray cluster uses all of its own.",
        json_schema_extra=VERIFIER,
    )
    cache: bool = Field(
        default=True, description="Keep verdicts and machine code, and use those kept.", json_schema_extra=VERIFIER
    )
    cache_dir: Path | None = Field(
        default=None, description="Folder of the cache; ~/.cache/kernrl if not set.", json_schema_extra=VERIFIER | RARE
    )
    require_sandbox: bool = Field(
        default=False,
        description="Fail where this machine lacks a layer of the sandbox, instead of a warning.",
        json_schema_extra=VERIFIER | RARE,
    )
    any_shape: bool = Field(
        default=False,
        description="Refuse a candidate that is right at the task's own sizes and fails at derived ones, which is otherwise "
        "`correct` and marked `specialised`.",
        json_schema_extra=VERIFIER,
    )
    trace_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Longest a candidate's Python may run. At 10 s of CPU time it ends in any case.",
        json_schema_extra=VERIFIER | RARE,
    )
    compile_timeout_s: float = Field(
        default=15.0,
        gt=0,
        description="CPU seconds that a candidate's kernels may take to compile, all together. Configurations of an autotuned "
        "kernel that are not ready then are left out; a kernel without any is refused.",
        json_schema_extra=VERIFIER | RARE,
    )
    candidate_cpu_s: float = Field(
        default=20.0,
        gt=0,
        description="Core-seconds that a candidate may cost in all before a GPU runs it, the interpreter's included. The "
        "compiler gets at least 4 s and the interpreter 3 s, whatever was used before.",
        json_schema_extra=VERIFIER | RARE,
    )
    gpu_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Longest a candidate may keep a GPU in all: its correctness runs and its timing. Baselines do not count, "
        "and the interpreter on a CPU has limits of its own.",
        json_schema_extra=VERIFIER | RARE,
    )
    gpu_memory_share: float = Field(
        default=0.15,
        gt=0,
        le=1,
        description="Share of a GPU's free memory that may be held between candidates: inputs, baselines and answers of tasks.",
        json_schema_extra=VERIFIER | RARE,
    )

    @property
    def cache_folder(self) -> Path | None:
        """Where verdicts, machine code and derived input sets are kept; None where nothing is."""
        return (self.cache_dir or Path("~/.cache/kernrl").expanduser()) if self.cache else None

    @field_validator("executor")
    @classmethod
    def _an_executor_that_there_is(cls, value: str) -> str:
        if not re.fullmatch(r"local|ray(://\S+)?|https?://\S+", value):
            raise ValueError("should be 'local', 'ray', ray://HOST:PORT or http://HOST:PORT")
        return value


class VerifyConfig(VerifierConfig):
    """`kernrl verify`."""

    EXECUTOR: ClassVar[str] = "--executor"

    task: str | None = Field(
        default=None, description="A task .py, or SOURCE::ID or SOURCE#ROW of any source of tasks.", json_schema_extra=ARGUMENT
    )
    candidate: str | None = Field(
        default=None,
        description="A file with the code or with a model's whole reply, or '-' for stdin.",
        json_schema_extra=ARGUMENT,
    )
    pairs: Path | None = Field(
        default=None,
        description="Judge many: a .jsonl file with rows {task, candidate}. A task is a path, an id or the source; a candidate "
        "is the text itself. Rows {task, candidate_file} name a file.",
    )
    out: Path | None = Field(
        default=None,
        description="With --pairs: the .jsonl file for the verdicts, written as they come. Run again to judge the rest.",
    )
    source: str | None = Field(
        default=None, description="With --pairs: the source of tasks whose ids the rows name; 'heldout' if not set."
    )
    explain: Path | None = Field(
        default=None, description="Draw the kernels of reference and candidate side by side into this SVG file."
    )

    @model_validator(mode="after")
    def _no_flag_is_ignored(self) -> VerifyConfig:
        given = "--out" if self.out else "--source" if self.source else None
        if given and self.pairs is None:
            raise ValueError(f"{given} needs --pairs: add that, or leave it out")
        if self.explain and self.pairs is not None:
            raise ValueError("--explain draws one candidate: leave it out, or --pairs")
        return self
