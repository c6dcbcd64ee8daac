"""One frozen model a stage: the single place where a setting has its name, type, default and help.

The command line, the TOML files and `docs/cli.md` are all made from these models. Nothing here imports torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from kernrl.settings import ALSO, ARGUMENT, Config, flag_name


def split_commas(value: Any) -> Any:
    """`("eager,compile",)` as `("eager", "compile")`: a flag may be given twice, or once with commas."""
    return tuple(part for item in value for part in item.split(",")) if isinstance(value, list | tuple) else value


Baselines = Annotated[tuple[Literal["eager", "compile"], ...], BeforeValidator(split_commas)]

Engine = Annotated[
    Literal["generate", "server"],
    Field(description="What samples: the model here, or an OpenAI-compatible server such as vLLM or SGLang."),
]
ServerUrl = Annotated[str | None, Field(description="Address of --engine server, such as http://localhost:8000.")]
ServerModel = Annotated[
    str | None, Field(description="Name of the model on the server; the first that it lists if not set, or --model.")
]
ServerTimeout = Annotated[float, Field(gt=0, description="Longest the server may take for one answer, or for new weights.")]


class VerifierConfig(Config):
    """How candidates are judged."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = Field(
        default=None,
        description="Precision policy of reference, baseline and candidate; the task's own (mostly fp32) if not set.",
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        default="auto", description="Judge on the GPUs, or on the CPU by Triton's interpreter, where time is modelled."
    )
    target: str | None = Field(
        default=None, description="Architecture (sm_90) or GPU name to compile and model for; this machine's GPU if not set."
    )
    baseline: Baselines = Field(default=("eager",), description="What speed is measured against: eager, compile, or both.")
    executor: str = Field(
        default="local",
        description="Where candidates are judged: 'local', 'ray' for the Ray cluster of this machine, or ray://HOST:PORT.",
        json_schema_extra={ALSO: "--verifier"},
    )
    workers: int | None = Field(
        default=None, ge=1, description="Candidates traced and compiled at once; by default one a core."
    )
    cache: bool = Field(default=True, description="Keep verdicts and machine code, and use those kept.")
    cache_dir: Path | None = Field(default=None, description="Folder of the caches; by default under ~/.cache/kernrl.")
    require_sandbox: bool = Field(
        default=False, description="Fail where a layer of the sandbox is missing, instead of a warning."
    )
    trace_timeout_s: float = Field(default=30.0, gt=0, description="Longest a candidate's Python may run.")
    compile_timeout_s: float = Field(default=60.0, gt=0, description="Longest its kernels may compile.")
    gpu_timeout_s: float = Field(
        default=10.0, gt=0, description="Longest its kernels may run before the GPU process is killed."
    )
    gpu_memory_share: float = Field(
        default=0.15,
        gt=0,
        le=1,
        description="Of a GPU's free memory, what may be held between candidates: inputs, baselines and answers of tasks.",
    )

    @field_validator("executor")
    @classmethod
    def _an_executor_that_there_is(cls, value: str) -> str:
        if not re.fullmatch(r"local|ray(://\S+)?", value):
            raise ValueError("should be 'local', 'ray' or ray://HOST:PORT")
        return value


class VerifyConfig(VerifierConfig):
    """`kernrl verify`."""

    task: str | None = Field(
        default=None, description="A task .py, SOURCE::ID or SOURCE#ROW of any source of tasks.", json_schema_extra=ARGUMENT
    )
    candidate: str | None = Field(
        default=None,
        description="A file with the code or with a model's whole reply, or '-' for stdin.",
        json_schema_extra=ARGUMENT,
    )
    pairs: Path | None = Field(
        default=None, description="Judge many: rows {task, candidate}, each a path, an id or the text itself."
    )
    out: Path | None = Field(
        default=None, description="Verdicts of --pairs, a JSON row each as it completes; a second run goes on."
    )
    source: str | None = Field(default=None, description="Where the ids of --pairs are looked up: any source of tasks.")
    explain: Path | None = Field(default=None, description="Draw reference and candidate as columns, here and into this SVG.")


class DoctorConfig(Config):
    """What `kernrl doctor` looks at: it has no settings of its own."""


class SourceConfig(Config):
    """Where tasks come from: shared by the commands that read them."""

    source: str = Field(
        default="heldout",
        description="A task .py, a KernelBench folder, a .jsonl, .json or .parquet file, a dataset folder or hub id, or "
        "'heldout' for the shipped suite. SOURCE::ID or SOURCE#ROW picks one task.",
        json_schema_extra=ARGUMENT,
    )
    split: str | None = Field(default=None, description="Only this split, such as 'train', 'heldout' or 'level_2'.")
    revision: str | None = Field(default=None, description="Commit or tag of a hub dataset.")
    map: tuple[str, ...] = Field(default=(), description="FIELD=COLUMN: read a field, such as pytorch_code, from this column.")
    limit: int | None = Field(default=None, ge=1, description="At most this many tasks.")


class ListConfig(SourceConfig):
    """`kernrl tasks list`."""


class StatsConfig(SourceConfig):
    """`kernrl tasks stats`."""


class CheckConfig(SourceConfig):
    """`kernrl tasks check`."""

    timeout_s: float = Field(default=60.0, gt=0, description="Longest time one reference may run on the CPU.")


class LiftConfig(SourceConfig):
    """`kernrl tasks lift`."""

    svg: Path | None = Field(default=None, description="Draw the graph into this SVG; for one task.")
    target: str = Field(default="H200", description="GPU name or architecture (sm_90) for the roofline.")
    timeout_s: float = Field(default=60.0, gt=0, description="Longest time one reference may take to be traced.")


class ShowConfig(SourceConfig):
    """`kernrl tasks show`."""

    style: str | None = Field(default=None, description="Show the worked solution of this style instead of the first.")
    prompt: bool = Field(default=False, description="Show the prompt a model is given for the task instead.")


class GenerateConfig(Config):
    """`kernrl tasks generate`."""

    out: Path = Field(description="Folder to make; tasks.jsonl is written into it.")
    level: int = Field(default=2, ge=1, le=2, description="1: single ops. 2: fusions of two to eight ops.")
    count: int = Field(default=1000, ge=1, description="How many tasks.")
    seed: int = Field(default=0, ge=0, description="The same seed gives the same tasks on any machine.")
    split: Literal["train", "validation", "heldout"] | None = Field(
        default=None, description="Only compositions of this split."
    )
    workers: int | None = Field(default=None, ge=1, description="Processes; by default one a core.")
    max_bytes: int = Field(
        default=2**31, ge=2**20, description="Most memory eager PyTorch may hold at once for a task at full size."
    )


class TrainingConfig(Config):
    """What every stage that trains shares: how many processes, and what each holds."""

    launch: Literal["none", "ddp", "fsdp2"] = Field(
        default="none",
        description="Start one process a GPU, each with a replica of the policy (ddp) or with a part of it (fsdp2).",
    )
    num_processes: int | None = Field(default=None, ge=1, description="Processes that --launch starts; by default one a GPU.")

    @model_validator(mode="after")
    def _processes_are_launched(self) -> TrainingConfig:
        if self.num_processes and self.launch == "none":
            raise ValueError("--num-processes is of --launch: add --launch ddp or --launch fsdp2, or leave it out")
        return self


class SftConfig(TrainingConfig):
    """`kernrl sft`."""

    output: Path = Field(description="Folder of the run; made, or gone on with under --resume.")
    model: str = Field(default="nano", description="'nano' to make the small model from nothing, a model folder, or a hub id.")
    data: str = Field(
        default="generated",
        description="'generated', or pairs from a file, folder or hub id: tasks with solutions, messages, or prompt and "
        "completion.",
    )
    count: int = Field(default=40_000, ge=20, description="Tasks to make when data is generated; each has several solutions.")
    map: tuple[str, ...] = Field(
        default=(), description="FIELD=COLUMN: read a field, such as triton_code or messages, from this column."
    )
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.")
    data_revision: str | None = Field(default=None, description="Commit or tag of a hub dataset.")
    prompt: Literal["nano", "chat"] | None = Field(
        default=None, description="How tasks are put to the model; by the model if not set."
    )
    epochs: float | None = Field(
        default=None, gt=0, description="Passes over the data, unless --steps is given; 6 for nano and 1 for others if not set."
    )
    steps: int | None = Field(default=None, ge=1, description="Optimizer steps.")
    max_length: int = Field(
        default=4096,
        ge=16,
        description="Longest pair in tokens, or the model's context if that is shorter; longer ones are counted and left out.",
    )
    row_tokens: int | None = Field(
        default=None,
        ge=16,
        description="Tokens of a packed row, the unit of a forward pass; if not set, 65536 for nano and 16384 for others on a "
        "GPU, 4096 on a CPU.",
    )
    rows_per_step: int | None = Field(
        default=None,
        ge=1,
        description="Packed rows an optimizer step, over all processes; if not set, 1 for nano, 4 for others.",
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="Highest rate of the cosine schedule; 1.5e-3 for nano, 1e-5 for others and 2e-4 with --lora if not set.",
    )
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1, description="Share of the steps in which the rate rises.")
    weight_decay: float = Field(default=0.1, ge=0, description="AdamW's decay of matrices.")
    lora: bool = Field(default=False, description="Train LoRA adapters in place of the weights (extra 'lora').")
    lora_rank: int = Field(default=16, ge=1, description="Rank of the adapters.")
    gradient_checkpointing: bool = Field(default=False, description="Recompute activations: less memory, a third more time.")
    compile: bool = Field(default=True, description="Compile the decoder where there is a GPU.")
    evaluate_every: int = Field(default=200, ge=1, description="Steps between validation losses.")
    save_every: int = Field(default=500, ge=1, description="Steps between checkpoints.")
    verify_every: int | None = Field(
        default=None, ge=1, description="Steps between looks at what the model writes; none are taken if not set."
    )
    verify_tasks: int = Field(default=64, ge=1, description="Validation compositions asked at such a look, one sample each.")
    heldout_samples: int | None = Field(
        default=None,
        ge=1,
        description="Samples a task of an eval on the held-out suite at the end, for the model card; none if not set.",
    )
    seed: int = Field(default=0, ge=0, description="Of weights, data and shuffles.")
    workers: int | None = Field(default=None, ge=1, description="Processes that make data; by default one a core.")
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = Field(
        default="none", description="Tracker, besides metrics.jsonl."
    )
    resume: bool = Field(default=False, description="Go on from the newest checkpoint in --output.")
    verifier: VerifierConfig = VerifierConfig()

    @model_validator(mode="after")
    def _no_adapters_on_nothing(self) -> SftConfig:
        if self.lora and self.model == "nano":
            raise ValueError("--lora cannot teach nano, which is made from nothing: leave it out, or give another --model")
        return self


class ImproveConfig(TrainingConfig):
    """What best-of-n, reinforce and reward-weighted share: a model, tasks, sampling, a verifier and a reward."""

    output: Path = Field(description="Folder of the run; made, or gone on with under --resume.")
    model: str = Field(description="A model folder, such as one that `kernrl sft` wrote, or a hub id.")
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.")
    tasks: str = Field(default="generated", description="'generated' for train compositions made here, or a source of tasks.")
    split: str | None = Field(default=None, description="Only this split of the tasks; generated ones are of 'train'.")
    map: tuple[str, ...] = Field(default=(), description="FIELD=COLUMN: read a field, such as pytorch_code, from this column.")
    limit: int | None = Field(default=None, ge=1, description="At most this many tasks; 2000 when they are generated.")
    prompt: Literal["nano", "chat"] | None = Field(
        default=None, description="How tasks are put to the model; by the model if not set."
    )
    samples: int = Field(default=8, ge=1, description="Rollouts a task.")
    temperature: float = Field(default=1.0, gt=0, description="Of sampling, and of every log-prob in the loss.")
    max_tokens: int = Field(default=2048, ge=1, description="Longest rollout.")
    sampling_batch: int = Field(default=256, ge=1, description="Rollouts decoded at once.")
    sampling_compile: bool = Field(default=False, description="Compile decoding where there is a GPU: slow at first.")
    engine: Engine = "generate"
    server_url: ServerUrl = None
    server_model: ServerModel = None
    server_timeout_s: ServerTimeout = 600.0
    weight_sync: Literal["nccl", "ipc", "checkpoint", "lora", "none"] | None = Field(
        default=None,
        description="How new weights get to the server: vLLM's NCCL or CUDA IPC, a checkpoint or a LoRA adapter that it reads, "
        "or not at all; by the server if not set.",
    )
    reward: Literal["hierarchical", "best-of-n", "milestones", "log-speed"] = Field(
        default="hierarchical", description="Preset that turns a verdict into a reward."
    )
    baseline: str | None = Field(
        default=None, description="Baseline whose speedup is rewarded; by default the first that is timed."
    )
    speed_cap: float = Field(default=3.0, gt=0, description="Speedup beyond which a reward rises no more.")
    authored_share: bool = Field(
        default=False, description="Scale the speed reward by the share of time in the candidate's kernels."
    )
    modelled_speed: bool = Field(
        default=False, description="Without a GPU, reward speedups by the roofline model as if they had been measured."
    )
    learning_rate: float = Field(default=1e-5, gt=0, description="AdamW's rate.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled down to this norm.")
    row_tokens: int | None = Field(
        default=None, ge=16, description="Tokens of a packed row, the unit of a forward pass: 16384 on a GPU and 4096 on a CPU."
    )
    lora: bool = Field(default=False, description="Train LoRA adapters in place of the weights (extra 'lora').")
    lora_rank: int = Field(default=16, ge=1, description="Rank of the adapters.")
    gradient_checkpointing: bool = Field(default=False, description="Recompute activations: less memory, a third more time.")
    gpu_hour_price: float | None = Field(
        default=None, ge=0, description="Price of a GPU-hour, for the cost shown beside the time."
    )
    seed: int = Field(default=0, ge=0, description="Of tasks, sampling and shuffles.")
    workers: int | None = Field(default=None, ge=1, description="Processes that make tasks; by default one a core.")
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = Field(
        default="none", description="Tracker, besides metrics.jsonl."
    )
    resume: bool = Field(default=False, description="Go on from the newest checkpoint in --output.")
    verifier: VerifierConfig = VerifierConfig()

    @model_validator(mode="after")
    def _a_server_has_an_address(self) -> ImproveConfig:
        _require_server(self)
        return self


class ReinforceConfig(ImproveConfig):
    """`kernrl reinforce`."""

    steps: int = Field(default=100, ge=1, description="Steps: each samples, verifies and updates once.")
    warmup_steps: int = Field(
        default=5, ge=0, description="Steps over which the rate rises to --learning-rate: AdamW's first steps are its longest."
    )
    adam_epsilon: float = Field(
        default=1e-8,
        gt=0,
        description="Added to the root mean square of a weight's gradient, by which AdamW divides: far above it, steps are as "
        "long as gradients, and what has hardly any stays as it is.",
    )
    tasks_per_step: int = Field(default=16, ge=1, description="Groups a step.")
    turns: int = Field(
        default=1, ge=1, description="Tries a rollout has; the verdict's reason goes back to the model between them."
    )
    gamma: float = Field(default=0.4, ge=0, le=1, description="How much a turn earns of what the next one earns.")
    advantage: Literal["loo", "group", "batch", "mean", "rank", "none"] = Field(
        default="loo",
        description="Reward less the mean of the others, standardised in the group or over the batch, less the mean, the share "
        "of the others it beats less the share that beats it, or bare.",
    )
    loss: Literal["reinforce", "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "gspo"] = Field(
        default="reinforce", description="Policy loss."
    )
    epsilon_low: float = Field(default=0.2, gt=0, description="Clip: how far the ratio may fall below 1.")
    epsilon_high: float | None = Field(default=None, gt=0, description="Clip: how far it may rise above 1; as far by default.")
    delta: float | None = Field(
        default=None, gt=1, description="Dual clip: bound of the ratio where the advantage is negative."
    )
    beta: float = Field(default=0.0, ge=0, description="Weight of the KL to the starting model; 0 loads no second model.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="Estimator of that KL.")
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        default="token_truncate", description="Importance weights for the difference between sampler and trainer."
    )
    correction_max: float = Field(default=2.0, gt=1, description="Where those weights are cut, or masked.")
    correction_min: float = Field(default=0.0, ge=0, lt=1, description="Below which they are masked, under a mask.")
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    epochs: int = Field(default=1, ge=1, description="Passes over a step's rollouts.")
    updates_per_epoch: int = Field(default=1, ge=1, description="Optimizer steps a pass.")
    constant_groups: Literal["drop", "keep", "refill"] = Field(
        default="drop", description="Groups in which all rewards are equal: leave out, keep, or replace by other tasks."
    )
    curriculum: bool = Field(default=False, description="Draw tasks that succeed half of the time more often than the rest.")
    overlap: int = Field(
        default=0,
        ge=0,
        le=1,
        description="Steps that sampling is ahead: at 1 a step is sampled, by weights one update older, while the one before "
        "is verified.",
    )
    save_every: int = Field(default=1, ge=1, description="Steps between checkpoints: how much a kill can lose.")
    time_limit_s: float | None = Field(
        default=None, gt=0, description="Stop after the step in which this many seconds have been spent, over every resume."
    )

    @model_validator(mode="after")
    def _one_batch_ahead(self) -> ReinforceConfig:
        other = {
            "--turns": self.turns > 1,
            "--constant-groups refill": self.constant_groups == "refill",
            "--sampling-compile": self.sampling_compile and self.engine == "generate",
        }
        if self.overlap and any(other.values()):
            flag = next(flag for flag, given in other.items() if given)
            raise ValueError(f"--overlap 1 samples a step in one go, beside another: leave out {flag}, or --overlap")
        return self


class FinetuneOnSamplesConfig(ImproveConfig):
    """What best-of-n and reward-weighted share besides: supervised steps on what was sampled."""

    epochs: float = Field(default=2.0, gt=0, description="Passes over the rollouts that are learnt.")
    rows_per_step: int = Field(default=1, ge=1, description="Packed rows an optimizer step.")
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1, description="Share of the steps in which the rate rises.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's decay of matrices.")


class BestOfNConfig(FinetuneOnSamplesConfig):
    """`kernrl best-of-n`."""

    samples: int = Field(default=10, ge=1, description="Rollouts a task.", json_schema_extra={ALSO: "--n"})
    keep: int = Field(default=3, ge=1, description="Most distinct candidates of a task that are learnt, the best first.")
    threshold: float = Field(default=0.5, description="Least reward of a candidate that is learnt.")
    against: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Push the worst candidates of a group away with this share of the weight that draws to its best; tasks "
        "whose candidates are all as good are then left out.",
    )
    rounds: int = Field(default=1, ge=1, description="Rounds of sampling and fine-tuning, each on tasks of its own.")
    tasks_per_round: int = Field(default=256, ge=1, description="Tasks a round.")


class RewardWeightedConfig(FinetuneOnSamplesConfig):
    """`kernrl reward-weighted`."""

    samples: int = Field(default=4, ge=1, description="Rollouts a task.")
    weighting: Literal["reward", "exp"] = Field(
        default="reward",
        description="Weight of a rollout: its reward, or exp((reward - best of its group) / --weight-temperature).",
    )
    weight_temperature: float = Field(default=0.2, gt=0, description="How fast the exponential weight falls with the reward.")


class SamplesConfig(Config):
    """`kernrl samples`."""

    run: Path = Field(description="Folder of a run.", json_schema_extra=ARGUMENT)
    step: int | None = Field(default=None, ge=1, description="Only this step (or round).")
    task: str | None = Field(default=None, description="Only this task.")
    status: str | None = Field(default=None, description="Only candidates with this status, such as 'correct' or 'wrong'.")
    show: str | None = Field(
        default=None, description="Show the candidate with this id whole, or 'best' for the best of those listed."
    )
    limit: int = Field(default=20, ge=1, description="At most this many, the best first.")


class EvalConfig(Config):
    """`kernrl eval`."""

    model: str | None = Field(
        default=None,
        description="Model to ask: a folder, such as `kernrl sft` wrote, or a hub id; 'nano', the shipped one, if not set.",
    )
    from_run: Path | None = Field(
        default=None,
        description="Judge candidates on disk instead of asking a model: a folder of .py files, a run of kernrl, or a run "
        "directory of KernelBench.",
    )
    tasks: str = Field(default="heldout", description="Any source of tasks; 'heldout' for the shipped suite.")
    level: int | None = Field(default=None, ge=1, description="Only tasks of this level.")
    split: str | None = Field(default=None, description="Only this split of the tasks.")
    map: tuple[str, ...] = Field(default=(), description="FIELD=COLUMN: read a field, such as pytorch_code, from this column.")
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.")
    tasks_revision: str | None = Field(default=None, description="Commit or tag of a hub dataset of tasks.")
    limit: int | None = Field(default=None, ge=1, description="At most this many tasks.")
    output: Path | None = Field(default=None, description="Folder of the run; the next free checkpoints/eval-N if not set.")
    samples: int = Field(default=8, ge=1, description="Candidates a task.")
    temperature: float = Field(default=1.0, gt=0, description="Of sampling.")
    max_tokens: int = Field(default=2048, ge=1, description="Longest reply.")
    prompt: Literal["nano", "chat"] | None = Field(
        default=None, description="How tasks are put to the model; by the model if not set."
    )
    sampling_batch: int = Field(default=256, ge=1, description="Replies decoded at once.")
    engine: Engine = "generate"
    server_url: ServerUrl = None
    server_model: ServerModel = None
    server_timeout_s: ServerTimeout = 600.0
    seed: int = Field(default=0, ge=0, description="Of sampling and of the intervals' resamples.")
    baseline: Baselines = Field(default=(), description="eager, compile, or eager,compile; as --verifier.baseline if not set.")
    fail_under: tuple[str, ...] = Field(
        default=(), description="NAME=VALUE, such as fast_1=0.5: exit with 1 when that figure is lower. May be given again."
    )
    resume: bool = Field(default=False, description="Go on with the run in --output: what it has judged is kept.")
    verifier: VerifierConfig = VerifierConfig()

    @model_validator(mode="before")
    @classmethod
    def _nano_by_default(cls, values: dict[str, Any]) -> dict[str, Any]:
        given = any(values.get(name) is not None for name in ("model", "from_run"))
        return values if given else {**values, "model": "nano"}

    @model_validator(mode="after")
    def _one_origin(self) -> EvalConfig:
        if self.model is not None and self.from_run is not None:
            raise ValueError("Give either --model, to ask a model, or --from-run, to judge candidates on disk")
        if self.resume and self.output is None:
            raise ValueError("--resume needs --output, the folder of the run to go on with")
        _require_server(self)
        return self


def _require_server(config: ImproveConfig | EvalConfig) -> None:
    """Of flags that concern a server none may be ignored."""
    if config.engine == "server" and not config.server_url:
        raise ValueError("--engine server needs --server-url, such as http://localhost:8000")
    concern = {name: getattr(config, name, None) for name in ("server_url", "server_model", "weight_sync")}
    given = next((name for name, value in concern.items() if value is not None), None)
    if given and config.engine != "server":
        raise ValueError(f"{flag_name(given)} is for --engine server: add that, or leave it out")


class ReportConfig(Config):
    """`kernrl report`."""

    runs: tuple[Path, ...] = Field(
        description="Folders of runs; several are compared with the first.", json_schema_extra=ARGUMENT
    )
    output: Path | None = Field(default=None, description="The page to write; report.html in the first run if not set.")
    title: str | None = Field(default=None, description="Title of the page; the runs' names if not set.")
    gpu_hour_price: float | None = Field(default=None, ge=0, description="Price of a GPU-hour, for the cost.")


class QuickstartConfig(Config):
    """`kernrl quickstart`."""

    output: Path | None = Field(
        default=None, description="Folder of everything it makes; the next free checkpoints/quickstart-N if not set."
    )
    model: str = Field(default="nano", description="Model to start from: 'nano' for the shipped one, or a folder.")
    full: bool = Field(default=False, description="Start from nothing: make pairs and train nano first. Needs a GPU.")
