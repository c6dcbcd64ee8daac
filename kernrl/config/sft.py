"""Settings of `kernrl sft`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kernrl.config.by_model import NANO, ByModel
from kernrl.config.groups import MODEL, OPTIMISER, RUN, TASKS, VERIFIER
from kernrl.config.shared.adapters import LoadIn4Bit, LoraAlpha, LoraDropout, LoraRank, LoraTargets
from kernrl.config.shared.prompts import Facts, NameGpu, PromptForm, PromptTemplate
from kernrl.config.shared.tracking import TrackingConfig
from kernrl.config.shared.training import Schedule, TrainingConfig
from kernrl.config.verifier import VerifierConfig
from kernrl.settings import ALSO, MOST_WORKERS, RARE


class SftConfig(TrainingConfig, TrackingConfig):
    """`kernrl sft`. What is left open here is chosen by the stage, which knows the GPU."""

    RENAMED: ClassVar = {"evaluate_every": "validate_every"}
    BEFORE: ClassVar = {"facts": False, "name_gpu": False}
    LENGTH: ClassVar = ("steps", "epochs", "time_limit_s")
    """What decides when the run ends."""
    MAY_CHANGE: ClassVar = (*LENGTH, "verify_every", "verify_tasks", "heldout_samples")

    model: str = Field(
        default=NANO,
        description="'nano' to make the small model from nothing, a model folder, or a hub id.",
        json_schema_extra=MODEL,
    )
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.", json_schema_extra=MODEL | RARE)
    prompt: PromptForm | None = Field(
        default=None,
        description="Form of the prompt: nano's short one, or the model's chat template; by the model if not set.",
        json_schema_extra=MODEL | RARE,
    )
    prompt_template: PromptTemplate = None
    facts: Facts = True
    name_gpu: NameGpu = True
    form: Literal["graph", "program"] | None = Field(
        default=None,
        description="What a new nano reads and writes. graph: the Graph's listing, and kernels with forward. program: a task's "
        "source, and a whole file. graph if not set and data is generated; a nano from a folder keeps its form.",
        json_schema_extra=MODEL,
    )
    lora: bool = Field(
        default=False, description="Train LoRA adapters in place of the weights (extra 'lora').", json_schema_extra=MODEL
    )
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = None
    lora_dropout: LoraDropout = 0.0
    lora_targets: LoraTargets = ("all-linear",)
    load_in_4bit: LoadIn4Bit = False
    data: str = Field(
        default="generated",
        description="'generated' to make tasks with worked solutions, or pairs from a file, folder or hub id: tasks with "
        "solutions, messages, or prompt and completion.",
        json_schema_extra=TASKS,
    )
    count: int | None = Field(
        default=None,
        ge=20,
        description="Tasks to make when data is generated; each has several solutions. If not set, 40,000, or as many as "
        "can be made within --time-limit-s.",
        json_schema_extra=TASKS,
    )
    styles: int = Field(
        default=2,
        ge=1,
        description="Solutions of a Graph when pairs of --form graph are generated, each in a style of its own.",
        json_schema_extra=TASKS | RARE,
    )
    style_choice: Literal["uniform", "fast", "tagged"] | None = Field(
        default=None,
        description="Which styles those are. uniform: any. fast: the fastest of six drawn, by a model of their time on an "
        "H200. tagged: any, and those of the six within 10 % of the fastest answer a prompt that asks for it, as all later "
        "prompts of this model do. If not set, tagged for a model that was taught so before, and uniform for others.",
        json_schema_extra=TASKS | RARE,
    )
    map: tuple[str, ...] = Field(
        default=(),
        description="FIELD=COLUMN: read a field, such as triton_code or messages, from this column. May be given again.",
        json_schema_extra=TASKS | RARE,
    )
    data_revision: str | None = Field(
        default=None, description="Commit or tag of a hub dataset.", json_schema_extra=TASKS | RARE
    )
    max_length: int = Field(
        default=4096,
        ge=16,
        description="Longest pair in tokens, or --row-tokens or the model's context if shorter; longer ones are counted and "
        "left out.",
        json_schema_extra=TASKS,
    )
    learning_rate: float = Field(
        default_factory=ByModel(nano=3e-3, lora=2e-4, others=1e-5),
        gt=0,
        description="Highest learning rate.",
        json_schema_extra=OPTIMISER,
    )
    epochs: float = Field(
        default_factory=ByModel(nano=6.0, others=1.0),
        gt=0,
        description="Passes over the data, unless --steps is given.",
        json_schema_extra=OPTIMISER,
    )
    steps: int | None = Field(
        default=None, ge=1, description="Optimizer steps, in place of --epochs.", json_schema_extra=OPTIMISER
    )
    time_limit_s: float | None = Field(
        default=None,
        gt=0,
        description="Train until the command has taken this many seconds, in place of --epochs; the learning rate falls to 0 "
        "by the time. With --form graph, pairs are made while training.",
        json_schema_extra=OPTIMISER,
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default_factory=ByModel(nano="muon", others="adamw"),
        description="muon: the matrices of the layers move along their orthogonalised momentum; AdamW for the rest.",
        json_schema_extra=OPTIMISER | RARE,
    )
    rows_per_step: int | None = Field(
        default=None,
        ge=1,
        description="Packed rows an optimizer step, over all processes; if not set, 1 for nano, else 4, or what makes them "
        "a multiple of the processes.",
        json_schema_extra=OPTIMISER | RARE,
    )
    row_tokens: int | None = Field(
        default=None,
        ge=16,
        description="Tokens of a packed row, the unit of a forward pass; if not set, 65536 for nano and 16384 for others on "
        "a GPU, 4096 on a CPU.",
        json_schema_extra=OPTIMISER | RARE,
    )
    warmup_ratio: float = Field(
        default=0.03,
        ge=0,
        lt=1,
        description="Share of the steps in which the rate rises.",
        json_schema_extra=OPTIMISER | RARE,
    )
    schedule: Schedule = Field(
        default_factory=ByModel(nano="linear", others="cosine"),
        description="The learning rate after warm-up: it falls to a tenth (to 0 under --time-limit-s) along a cosine or a "
        "line, or stays constant.",
        json_schema_extra=OPTIMISER | RARE,
    )
    weight_decay: float = Field(default=0.1, ge=0, description="AdamW's decay of matrices.", json_schema_extra=OPTIMISER | RARE)
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations: less memory, a third more time.", json_schema_extra=OPTIMISER
    )
    compile: bool = Field(
        default=True, description="Compile the decoder where there is a GPU.", json_schema_extra=OPTIMISER | RARE
    )
    output: Path = Field(description="Folder of the run: a new one, or the run to --resume.", json_schema_extra=RUN)
    resume: bool = Field(
        default=False,
        description="Go on with the run in --output, from its newest checkpoint and with its settings.",
        json_schema_extra=RUN,
    )
    seed: int = Field(default=0, ge=0, description="Of weights, data and shuffles.", json_schema_extra=RUN)
    validate_every: int = Field(default=200, ge=1, description="Steps between validation losses.", json_schema_extra=RUN)
    save_every: int = Field(default=500, ge=1, description="Steps between checkpoints.", json_schema_extra=RUN)
    keep_checkpoints: int = Field(
        default=1, ge=1, description="Newest checkpoints that are kept.", json_schema_extra=RUN | RARE | {ALSO: "--keep"}
    )
    verify_every: int | None = Field(
        default=None,
        ge=1,
        description="Steps between checks of what the model writes by then; none if not set.",
        json_schema_extra=RUN,
    )
    verify_tasks: int = Field(
        default=64,
        ge=1,
        description="Validation tasks asked at each such check, one sample each.",
        json_schema_extra=RUN | RARE,
    )
    heldout_samples: int | None = Field(
        default=None,
        ge=1,
        description="End with an eval on the held-out suite, of this many samples a task, for the model card; none if not set.",
        json_schema_extra=RUN,
    )
    workers: int | None = Field(
        default=None, ge=1, le=MOST_WORKERS, description="Data processes; one a core if not set.", json_schema_extra=RUN | RARE
    )
    verifier: VerifierConfig = Field(default=VerifierConfig(), json_schema_extra=VERIFIER | RARE)

    @model_validator(mode="after")
    def _no_adapters_on_nothing(self) -> SftConfig:
        if self.lora and self.model == NANO:
            raise ValueError("--lora cannot teach nano, which is made from nothing: leave it out, or give another --model")
        return self
