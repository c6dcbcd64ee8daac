"""Settings of `kernrl reward-weighted`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kernrl.config.by_model import ByModel
from kernrl.config.groups import LOSS, OPTIMISER, RUN, SAMPLING, TASKS
from kernrl.config.shared.finetune_on_samples import FinetuneOnSamplesConfig
from kernrl.settings import ALSO, RARE


def _limit(validated: dict[str, Any]) -> int | None:
    """All tasks are asked at once, so no more are made than a short run can do. A source of tasks is taken whole."""
    return 240 if validated.get("tasks") == "generated" else None


class RewardWeightedConfig(FinetuneOnSamplesConfig):
    """`kernrl reward-weighted`."""

    limit: int | None = Field(
        default_factory=_limit,
        ge=1,
        description="At most this many tasks; if not set, 240 where they are generated.",
        json_schema_extra=TASKS,
    )
    samples: int = Field(
        default_factory=ByModel(nano=8, others=4),
        ge=1,
        description="Candidates a task.",
        json_schema_extra=SAMPLING | {ALSO: "--n"},
    )
    weighting: Literal["reward", "exp"] = Field(
        default_factory=ByModel(nano="exp", others="reward"),
        description="Weight of a candidate: its reward, or exp((reward - best of its task) / --weight-temperature).",
        json_schema_extra=LOSS,
    )
    weight_temperature: float = Field(
        default=0.2,
        gt=0,
        description="With --weighting exp: the lower, the faster the weight falls with the reward.",
        json_schema_extra=LOSS,
    )
    learning_rate: float = Field(
        default_factory=ByModel(nano=3e-5, lora=1e-4, others=1e-5),
        gt=0,
        description="AdamW's highest rate, after the warm-up.",
        json_schema_extra=OPTIMISER,
    )
    time_limit_s: float | None = Field(
        default=None,
        gt=0,
        description="Ask tasks a block at a time, and no more once four fifths of these seconds are over; the rest is for "
        "learning. Where all tasks are asked sooner, the run is shorter.",
        json_schema_extra=RUN | RARE,
    )
