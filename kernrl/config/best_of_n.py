"""Settings of `kernrl best-of-n`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from kernrl.config.by_model import ByModel
from kernrl.config.groups import LOSS, OPTIMISER, RUN, SAMPLING, TASKS
from kernrl.config.shared.finetune_on_samples import FinetuneOnSamplesConfig
from kernrl.config.shared.heldout_checks import CheckedConfig
from kernrl.settings import ALSO, RARE


class BestOfNConfig(FinetuneOnSamplesConfig, CheckedConfig):
    """`kernrl best-of-n`."""

    RENAMED: ClassVar = {**FinetuneOnSamplesConfig.RENAMED, "keep": "keep_candidates"}

    tasks_per_round: int = Field(
        default_factory=ByModel(nano=80, others=256), ge=1, description="Tasks a round.", json_schema_extra=TASKS
    )
    samples: int = Field(
        default_factory=ByModel(nano=8, others=10),
        ge=1,
        description="Candidates a task.",
        json_schema_extra=SAMPLING | {ALSO: "--n"},
    )
    keep_candidates: int = Field(
        default=3,
        ge=1,
        description="Most distinct candidates of a task that are learnt, the best first.",
        json_schema_extra=LOSS,
    )
    threshold: float = Field(
        default=0.5, description="Least reward of a candidate that is learnt.", json_schema_extra=LOSS | RARE
    )
    against: float = Field(
        default_factory=ByModel(nano=0.5, others=0.0),
        ge=0,
        le=1,
        description="Learn a task's worst candidates with a negative weight: this share of its best ones' weight. Tasks whose "
        "candidates are all as good are then left out.",
        json_schema_extra=LOSS,
    )
    learning_rate: float = Field(
        default_factory=ByModel(nano=5e-5, lora=1e-4, others=1e-5),
        gt=0,
        description="AdamW's highest rate, after the warm-up.",
        json_schema_extra=OPTIMISER,
    )
    rounds: int = Field(
        default_factory=ByModel(nano=3, others=1),
        ge=1,
        description="Rounds of sampling and fine-tuning, each on the next tasks.",
        json_schema_extra=RUN,
    )

    @model_validator(mode="after")
    def _the_worst_is_another(self) -> BestOfNConfig:
        if self.samples == 1 and self.against:
            raise ValueError("--samples 1 has no worst candidate to learn --against: give 2 or more, or --against 0")
        return self
