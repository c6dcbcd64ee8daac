"""Settings of the commands that show runs and machines: report, samples, doctor, quickstart."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kernrl.settings import ARGUMENT, Config


class ReportConfig(Config):
    """`kernrl report`."""

    runs: tuple[Path, ...] = Field(
        description="Folders of runs; several are compared with the first.", json_schema_extra=ARGUMENT
    )
    output: Path | None = Field(default=None, description="The page to write; report.html in the first run if not set.")
    title: str | None = Field(default=None, description="Title of the page; the runs' names if not set.")
    gpu_hour_price: float | None = Field(default=None, ge=0, description="Price of a GPU-hour, for the cost.")


class SamplesConfig(Config):
    """`kernrl samples`."""

    run: Path = Field(description="Folder of a run.", json_schema_extra=ARGUMENT)
    step: int | None = Field(default=None, ge=1, description="Only this step (or round).")
    task: str | None = Field(default=None, description="Only this task.")
    status: str | None = Field(default=None, description="Only candidates with this status, such as 'correct' or 'wrong'.")
    show: str | None = Field(
        default=None, description="Show one candidate whole: its id, or 'best' for the best of those listed."
    )
    limit: int = Field(default=20, ge=1, description="At most this many, the best first.")
    export: Path | None = Field(
        default=None, description="Write the best correct candidate of each task into this new folder, as TASK.py."
    )


class DoctorConfig(Config):
    """`kernrl doctor`, which has no settings of its own."""


class QuickstartConfig(Config):
    """`kernrl quickstart`."""

    output: Path | None = Field(
        default=None, description="Folder of everything it makes; the next free checkpoints/quickstart-N if not set."
    )
    model: str = Field(default="nano", description="Model to start from: 'nano' for the shipped one, or a folder.")
    full: bool = Field(default=False, description="Start from nothing: make pairs and train nano first. Needs a GPU.")
