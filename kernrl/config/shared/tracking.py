"""Where a run is shown and put besides its folder: a tracker, the hub."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from kernrl.config.groups import RUN
from kernrl.errors import UsageError
from kernrl.settings import RARE, Config

Tracker = Literal["none", "tensorboard", "trackio", "wandb"]


def require_tracker(name: str) -> None:
    """Raise UsageError where the tracker is not installed."""
    if name != "none" and find_spec(name) is None:
        raise UsageError(f"--report-to {name} needs {name}: pip install 'kernrl[{name}]'.")


class TrackingConfig(Config):
    """A tracker, and an upload of the final model."""

    report_to: Tracker = Field(default="none", description="Tracker, besides metrics.jsonl.", json_schema_extra=RUN | RARE)
    project: str = Field(default="kernrl", description="The tracker's project.", json_schema_extra=RUN | RARE)
    run_name: str | None = Field(
        default=None,
        description="The run's name in wandb or trackio; the name of its folder if not set.",
        json_schema_extra=RUN | RARE,
    )
    push_to_hub: str | None = Field(
        default=None,
        description="Upload the final model to this repository of the hub, such as me/my-model, made private if it is new.",
        json_schema_extra=RUN | RARE,
    )
