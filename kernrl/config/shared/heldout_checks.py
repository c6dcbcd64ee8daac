"""What reinforce and best-of-n share: evaluations on held-out tasks while they train, and the checkpoint that did best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from kernrl.config.groups import RUN
from kernrl.config.shared.policy_training import ImproveConfig
from kernrl.settings import RARE


class CheckedConfig(ImproveConfig):
    """Base of the commands that train in steps or rounds on what they sample."""

    def may_change(self, kept: Mapping[str, Any]) -> tuple[str, ...]:
        """The size of an evaluation too, unless the best step is chosen by its figures, which must be of one exam."""
        exam = () if self.keep_best or kept.get("keep_best") else ("evaluate_limit", "evaluate_samples", "evaluate_tasks")
        return (*super().may_change(kept), *exam)

    give_up_after: int = Field(
        default=3,
        ge=0,
        description="End with exit code 1 after this many steps in a row that learnt nothing; 0 never does.",
        json_schema_extra=RUN | RARE,
    )
    time_limit_s: float | None = Field(
        default=None,
        gt=0,
        description="Stop after the step (or round) in which the run has taken this many seconds, over every resume.",
        json_schema_extra=RUN | RARE,
    )
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="Steps (or rounds) between evaluations on held-out tasks; none if not set.",
        json_schema_extra=RUN | RARE,
    )
    evaluate_tasks: str = Field(
        default="heldout",
        description="Tasks of those evaluations: any source that is not trained on.",
        json_schema_extra=RUN | RARE,
    )
    evaluate_limit: int = Field(
        default=32, ge=1, description="At most this many tasks in such an evaluation.", json_schema_extra=RUN | RARE
    )
    evaluate_samples: int = Field(
        default=4, ge=1, description="Candidates a task in such an evaluation.", json_schema_extra=RUN | RARE
    )
    keep_best: bool = Field(
        default=False,
        description="Keep the checkpoint that earned the highest mean reward in those evaluations, and export it at the end "
        "in place of the last one.",
        json_schema_extra=RUN | RARE,
    )

    @model_validator(mode="after")
    def _the_best_of_what_was_evaluated(self) -> CheckedConfig:
        if self.keep_best and self.evaluate_every is None:
            raise ValueError("--keep-best needs --evaluate-every N: without evaluations there is no best checkpoint")
        if self.keep_best and self.launch == "fsdp2":
            raise ValueError("--keep-best does not go with --launch fsdp2: leave one of them out")
        return self
