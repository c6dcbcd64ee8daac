"""Settings of `kernrl reinforce`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kernrl.config.by_model import ByModel
from kernrl.config.groups import LOSS, OPTIMISER, REWARD, RUN, SAMPLING, TASKS
from kernrl.config.shared.heldout_checks import CheckedConfig
from kernrl.config.shared.policy_training import ADAM_EPSILON
from kernrl.config.shared.training import Schedule
from kernrl.settings import ALSO, RARE


class ReinforceConfig(CheckedConfig):
    """`kernrl reinforce`."""

    tasks_per_step: int = Field(
        default_factory=ByModel(nano=24, others=16), ge=1, description="Tasks a step.", json_schema_extra=TASKS
    )
    curriculum: bool = Field(
        default=False,
        description="Draw tasks that succeed half of the time more often than the rest.",
        json_schema_extra=TASKS | RARE,
    )
    samples: int = Field(
        default_factory=ByModel(nano=16, others=8),
        ge=1,
        description="Candidates a task.",
        json_schema_extra=SAMPLING | {ALSO: "--n"},
    )
    turns: int = Field(
        default=1,
        ge=1,
        description="Tries a candidate has; between them the model is told the verdict's reason.",
        json_schema_extra=SAMPLING | RARE,
    )
    gamma: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="With --turns: share of a turn's return that the turn before it earns too.",
        json_schema_extra=REWARD | RARE,
    )
    advantage: Literal["loo", "group", "batch", "mean", "rank", "raw"] = Field(
        default_factory=ByModel(nano="rank", others="loo"),
        description="loo: a reward less the mean of the others of its task. group: standardised in its task. batch: less the "
        "task's mean, over the batch's deviation. mean: less the task's mean. rank: the share of the others that it beats less "
        "the share that beats it. raw: the reward itself.",
        json_schema_extra=LOSS,
    )
    failure_weight: float = Field(
        default=1.0,
        ge=0,
        description="Under rank: the weight of a comparison between a correct and an incorrect candidate; others have 1.",
        json_schema_extra=LOSS | RARE,
    )
    constant_groups: Literal["drop", "keep", "refill"] = Field(
        default="drop",
        description="Tasks whose rewards are all equal: leave out, keep, or replace by other tasks.",
        json_schema_extra=LOSS | RARE,
    )
    loss: Literal["reinforce", "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "gspo", "luspo", "gmpo"] = Field(
        default="reinforce", description="Policy loss.", json_schema_extra=LOSS
    )
    epsilon_low: float = Field(
        default=0.2, gt=0, description="Clip: how far the ratio may fall below 1.", json_schema_extra=LOSS | RARE
    )
    epsilon_high: float | None = Field(
        default=None,
        gt=0,
        description="Clip: how far the ratio may rise above 1; --epsilon-low if not set.",
        json_schema_extra=LOSS | RARE,
    )
    delta: float | None = Field(
        default=None,
        gt=1,
        description="Dual clip: bound of the ratio where the advantage is negative; none if not set.",
        json_schema_extra=LOSS | RARE,
    )
    beta: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the KL to the starting model; 0 loads no second model.",
        json_schema_extra=LOSS,
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="Estimator of that KL.", json_schema_extra=LOSS | RARE
    )
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        default="token_truncate",
        description="Importance weights for the difference between sampler and trainer.",
        json_schema_extra=LOSS | RARE,
    )
    correction_max: float = Field(
        default=2.0,
        gt=1,
        description="Where a truncation cuts those weights, and above which a mask leaves out.",
        json_schema_extra=LOSS | RARE,
    )
    correction_min: float = Field(
        default=0.0, ge=0, lt=1, description="Weight below which a mask leaves out.", json_schema_extra=LOSS | RARE
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.", json_schema_extra=LOSS | RARE)
    learning_rate: float = Field(
        default_factory=ByModel(nano=2e-3, lora=1e-5, others=1e-6),
        gt=0,
        description="AdamW's rate after the warm-up.",
        json_schema_extra=OPTIMISER,
    )
    warmup_steps: int = Field(
        default_factory=ByModel(nano=1, others=5),
        ge=0,
        description="Steps over which the rate rises to --learning-rate.",
        json_schema_extra=OPTIMISER | RARE,
    )
    schedule: Schedule = Field(
        default="constant",
        description="The learning rate after warm-up: it falls to a tenth by the last of --steps or the end of "
        "--time-limit-s, along a cosine or a line, or stays constant.",
        json_schema_extra=OPTIMISER | RARE,
    )
    adam_epsilon: float = Field(
        default_factory=ByModel(nano=1e-2, others=1e-8), gt=0, description=ADAM_EPSILON, json_schema_extra=OPTIMISER | RARE
    )
    max_grad_norm: float = Field(
        default_factory=ByModel(nano=0.2, others=1.0),
        gt=0,
        description="Longer gradients are scaled down to this norm.",
        json_schema_extra=OPTIMISER | RARE,
    )
    epochs: int = Field(default=1, ge=1, description="Passes over a step's candidates.", json_schema_extra=OPTIMISER | RARE)
    updates_per_epoch: int = Field(
        default_factory=ByModel(nano=6, others=1),
        ge=1,
        description="Optimizer steps a pass.",
        json_schema_extra=OPTIMISER | RARE,
    )
    steps: int = Field(default=100, ge=1, description="Steps: each samples, verifies and updates.", json_schema_extra=RUN)
    save_every: int = Field(
        default=5, ge=1, description="Steps between checkpoints: how much a kill can lose.", json_schema_extra=RUN | RARE
    )

    @model_validator(mode="after")
    def _only_ranks_are_weighted(self) -> ReinforceConfig:
        if self.failure_weight != 1 and self.advantage != "rank":
            remedy = "give --advantage rank, or leave it out"
            raise ValueError(f"--failure-weight does nothing under --advantage {self.advantage}: {remedy}")
        return self

    @model_validator(mode="after")
    def _candidates_are_compared(self) -> ReinforceConfig:
        if self.samples == 1 and self.advantage != "raw":
            raise ValueError(f"--samples 1 has nothing to compare under --advantage {self.advantage}: give 2 or more")
        return self
