"""Settings of `kernrl tasks ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kernrl.settings import ARGUMENT, MOST_WORKERS, Config


class SourceConfig(Config):
    """Where tasks come from: shared by the commands that read them."""

    source: str = Field(
        default="heldout",
        description="A task .py, a KernelBench folder, a .jsonl, .json or .parquet file, a dataset folder or hub id, "
        "package.module:function, 'heldout' for the shipped suite, or graph-heldout, graph-deep, graph-single or graph-train "
        "for suites that are made on the spot. SOURCE::ID or SOURCE#ROW picks one task.",
        json_schema_extra=ARGUMENT,
    )
    split: str | None = Field(default=None, description="Only this split, such as 'train', 'heldout' or 'level_2'.")
    revision: str | None = Field(default=None, description="Commit or tag of a hub dataset.")
    map: tuple[str, ...] = Field(
        default=(), description="FIELD=COLUMN: read a field, such as pytorch_code, from this column. May be given again."
    )
    limit: int | None = Field(default=None, ge=1, description="At most this many tasks.")


class ListConfig(SourceConfig):
    """`kernrl tasks list`."""


class StatsConfig(SourceConfig):
    """`kernrl tasks stats`."""


class CheckConfig(SourceConfig):
    """`kernrl tasks check`."""

    timeout_s: float = Field(default=60.0, gt=0, description="Longest one reference may run on the CPU.")


class LiftConfig(SourceConfig):
    """`kernrl tasks lift`."""

    svg: Path | None = Field(default=None, description="Draw the graph into this SVG; for one task.")
    solutions: Path | None = Field(
        default=None,
        description="Write the worked Triton solutions of one task into this new folder, a file for each style. They are "
        "written by rule; `kernrl verify` judges them.",
    )
    algebra: bool = Field(
        default=True, description="With --solutions: write those too that do fewer operations than the task asks for."
    )
    target: str = Field(default="H200", description="GPU name or architecture (sm_90) for the roofline.")
    timeout_s: float = Field(default=60.0, gt=0, description="Longest time one reference may take to be traced.")


class ShowConfig(SourceConfig):
    """`kernrl tasks show`."""

    style: str | None = Field(default=None, description="Show the worked solution of this style instead of the first.")
    prompt: bool = Field(default=False, description="Show the task's prompt instead, as plain text.")
    facts: bool = Field(
        default=True, description="With --prompt: end it with facts about the module, as the commands that sample do."
    )
    target: str | None = Field(
        default=None, description="With --prompt: the GPU to name in it; this machine's, or H200 without one, if not set."
    )


class GenerateConfig(Config):
    """`kernrl tasks generate`."""

    out: Path = Field(description="Folder to make; tasks.jsonl is written into it.")
    level: int = Field(default=2, ge=1, le=2, description="1: single ops. 2: fusions of two to eight ops.")
    count: int = Field(default=1000, ge=1, description="How many tasks.")
    seed: int = Field(default=0, ge=0, description="The same seed gives the same tasks on any machine.")
    split: Literal["train", "validation", "heldout"] | None = Field(
        default=None, description="Only compositions of this split; of all three if not set."
    )
    workers: int | None = Field(default=None, ge=1, le=MOST_WORKERS, description="Processes; one a core if not set.")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        default="tf32", description="Precision of the tasks, under which they are judged unless another is given."
    )
    max_bytes: int = Field(
        default=2**31, ge=2**27, le=2**50, description="Most bytes that eager PyTorch may hold at once for a task at full size."
    )
