"""What best-of-n and reward-weighted share besides: supervised steps on what was sampled."""

from __future__ import annotations

from pydantic import Field

from kernrl.config.by_model import ByModel
from kernrl.config.groups import OPTIMISER
from kernrl.config.shared.policy_training import ImproveConfig
from kernrl.config.shared.training import Schedule
from kernrl.settings import RARE


class FinetuneOnSamplesConfig(ImproveConfig):
    """What best-of-n and reward-weighted share besides: supervised steps on what was sampled."""

    epochs: float = Field(
        default_factory=ByModel(nano=1.0, others=2.0),
        gt=0,
        description="Passes over the candidates that are learnt.",
        json_schema_extra=OPTIMISER,
    )
    rows_per_step: int = Field(
        default=1, ge=1, description="Packed rows an optimizer step, over all processes.", json_schema_extra=OPTIMISER | RARE
    )
    warmup_ratio: float = Field(
        default_factory=ByModel(nano=0.1, others=0.03),
        ge=0,
        lt=1,
        description="Share of the steps in which the rate rises.",
        json_schema_extra=OPTIMISER | RARE,
    )
    schedule: Schedule = Field(
        default="cosine",
        description="The learning rate after warm-up: it falls to a tenth along a cosine or a line, or stays constant.",
        json_schema_extra=OPTIMISER | RARE,
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's decay of matrices.", json_schema_extra=OPTIMISER | RARE)
