"""What best-of-n, reinforce and reward-weighted share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from kernrl.config.by_model import ByModel, is_nano
from kernrl.config.groups import MODEL, OPTIMISER, REWARD, RUN, SAMPLING, TASKS, VERIFIER
from kernrl.config.shared.adapters import LoadIn4Bit, LoraAlpha, LoraDropout, LoraRank, LoraTargets
from kernrl.config.shared.prompts import Facts, NameGpu, PromptForm, PromptTemplate
from kernrl.config.shared.reward import COMPARE, preset_or_path
from kernrl.config.shared.sampling import SamplingConfig, differing
from kernrl.config.shared.tracking import TrackingConfig
from kernrl.config.shared.training import Columns, ServerConfig, TrainingConfig
from kernrl.config.verifier import VerifierConfig
from kernrl.settings import ALSO, MOST_WORKERS, OLD, RARE

ADAM_EPSILON = (
    "What AdamW adds to the root mean square of a weight's gradient before it divides by it. Far above that, steps are as long "
    "as gradients, and take a higher --learning-rate."
)


def _adapts(validated: dict[str, Any]) -> bool:
    """LoRA for any model but nano, where adapters will do: a server takes whole weights, and FSDP2 takes no adapters."""
    plain = validated.get("engine") == "generate" and validated.get("launch") != "fsdp2"
    return plain and not is_nano(validated.get("model") or "")


class ImproveConfig(TrainingConfig, ServerConfig, TrackingConfig, SamplingConfig):
    """What best-of-n, reinforce and reward-weighted share: a model, tasks, sampling, a verifier and a reward.

    A default that depends on another setting comes after it.
    """

    RENAMED: ClassVar = {"baseline": "reward_baseline"}
    BEFORE: ClassVar = {"name_gpu": False}
    MAY_CHANGE: ClassVar = ("steps", "rounds", "time_limit_s", "gpu_hour_price")

    model: str = Field(
        description="A model folder, such as one that `kernrl sft` wrote, a hub id, or 'nano' for the shipped model.",
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
    lora: bool = Field(
        default_factory=_adapts,
        description="Train LoRA adapters (extra 'lora'); --no-lora trains all weights. If neither is given: off for nano, with "
        "--engine server and with --launch fsdp2, else on.",
        json_schema_extra=MODEL,
    )
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = None
    lora_dropout: LoraDropout = 0.0
    lora_targets: LoraTargets = ("all-linear",)
    load_in_4bit: LoadIn4Bit = False
    tasks: str = Field(
        default="generated",
        description="'generated' to make tasks, or any source of tasks (`kernrl tasks list --help`).",
        json_schema_extra=TASKS,
    )
    split: str | None = Field(
        default=None,
        description="Only this split of the tasks; generated ones are of 'train' if not set.",
        json_schema_extra=TASKS | RARE,
    )
    map: Columns = Field(default=(), json_schema_extra=TASKS | RARE)
    limit: int | None = Field(
        default=None,
        ge=1,
        description="At most this many tasks; if not set, 2000 where they are generated.",
        json_schema_extra=TASKS | RARE,
    )
    samples: int = Field(default=8, ge=1, description="Candidates a task.", json_schema_extra=SAMPLING)
    temperature: Annotated[float, AfterValidator(differing)] = Field(
        default=1.0,
        ge=0,
        description="Temperature of sampling, and of the log-probs in a policy loss; above 0.",
        json_schema_extra=SAMPLING,
    )
    max_tokens: int = Field(
        default_factory=ByModel(nano=1536, others=4096),
        ge=1,
        description="Longest reply in tokens.",
        json_schema_extra=SAMPLING,
    )
    sampling_batch: int = Field(
        default_factory=ByModel(nano=1024, others=128),
        ge=1,
        description="Replies decoded at once: more are faster, and take more memory.",
        json_schema_extra=SAMPLING | RARE,
    )
    weight_sync: Literal["nccl", "ipc", "checkpoint", "lora", "none"] | None = Field(
        default=None,
        description="How new weights reach the server: vLLM's NCCL or CUDA IPC, a checkpoint or LoRA adapter that it loads, or "
        "not at all; the best that the server offers if not set.",
        json_schema_extra=SAMPLING | RARE,
    )
    reward: Annotated[str, AfterValidator(preset_or_path)] = Field(
        default_factory=ByModel(nano="log-speed", others="hierarchical"),
        description="How a verdict becomes a reward: hierarchical, best-of-n, milestones, log-speed, best-known, or a function "
        "of yours by import path, such as my_package.rewards:fn, which takes a Verdict and returns a number.",
        json_schema_extra=REWARD,
    )
    reward_baseline: str | None = Field(
        default=None,
        description="Baseline whose speedup is rewarded; the first of --verifier.baseline if not set.",
        json_schema_extra=REWARD | RARE | {OLD: "--baseline"},
    )
    speed_cap: float = Field(
        default_factory=ByModel(nano=10.0, others=3.0),
        gt=0,
        description="Speedup beyond which the reward rises no more.",
        json_schema_extra=REWARD | RARE,
    )
    authored_share: bool = Field(
        default=True,
        description="Reward time in the candidate's own kernels more than in library operators that a kernel could replace.",
        json_schema_extra=REWARD | RARE,
    )
    modelled_speed: bool = Field(
        default_factory=ByModel(nano=True, others=False),
        description="Without a GPU, reward speedups of the roofline model as if they were measured.",
        json_schema_extra=REWARD | RARE,
    )
    learning_rate: float = Field(default=1e-5, gt=0, description="AdamW's rate.", json_schema_extra=OPTIMISER)
    adam_epsilon: float = Field(default=1e-8, gt=0, description=ADAM_EPSILON, json_schema_extra=OPTIMISER | RARE)
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Longer gradients are scaled down to this norm.", json_schema_extra=OPTIMISER | RARE
    )
    row_tokens: int | None = Field(
        default_factory=ByModel(nano=2048, others=None, others_text="16384 on a GPU and 4096 on a CPU"),
        ge=16,
        description="Tokens of a packed row, the unit of a forward pass; what is longer is not learnt.",
        json_schema_extra=OPTIMISER | RARE,
    )
    gradient_checkpointing: bool = Field(
        default_factory=ByModel(nano=False, others=True),
        description="Recompute activations: less memory, a third more time.",
        json_schema_extra=OPTIMISER,
    )
    output: Path = Field(description="Folder of the run: a new one, or the run to --resume.", json_schema_extra=RUN)
    resume: bool = Field(
        default=False,
        description="Go on with the run in --output, from its newest checkpoint and with its settings.",
        json_schema_extra=RUN,
    )
    seed: int = Field(default=0, ge=0, description="Of tasks, sampling and shuffles.", json_schema_extra=RUN)
    workers: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS,
        description="Processes that make tasks; one if not set.",
        json_schema_extra=RUN | RARE,
    )
    keep_checkpoints: int = Field(
        default=1, ge=1, description="Newest checkpoints that are kept.", json_schema_extra=RUN | RARE | {ALSO: "--keep"}
    )
    gpu_hour_price: float | None = Field(
        default=None,
        ge=0,
        description="Price of a GPU-hour, for the cost shown beside the time.",
        json_schema_extra=RUN | RARE,
    )
    verifier: VerifierConfig = Field(default=VerifierConfig(), json_schema_extra=VERIFIER | RARE)

    @model_validator(mode="after")
    def _the_rewarded_baseline_is_timed(self) -> ImproveConfig:
        rewarded, timed = self.reward_baseline, self.verifier.baseline
        if rewarded and rewarded not in timed:
            more = ",".join([*timed, rewarded])
            raise ValueError(f"--reward-baseline {rewarded} is not timed: add --verifier.baseline {more}, or leave it out")
        compared = COMPARE.get(self.reward, ())
        if missing := [baseline for baseline in compared if baseline not in timed]:
            if self.resume and (self.output / "config.json").exists():
                return self  # runs of before this was refused go on as they began
            more = ",".join([*timed, *missing])
            raise ValueError(
                f"--reward {self.reward} compares with {' and '.join(compared)}, and {' and '.join(missing)} is not timed: add "
                f"--verifier.baseline {more}, or choose another reward"
            )
        return self
