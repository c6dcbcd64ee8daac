"""One frozen model a stage: the single place where a setting has its name, type, default and help.

The command line, the TOML files and `docs/cli.md` are all made from these models. Nothing here imports torch.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails

from kernrl.errors import UsageError

ARGUMENT: JsonDict = {"argument": True}
"""`json_schema_extra` of a field that the command line takes by position instead of by `--name`."""


class Config(BaseModel):
    """Base of every config: frozen, and an unknown key is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


ConfigT = TypeVar("ConfigT", bound=Config)


class VerifierConfig(Config):
    """How candidates are judged."""


class DoctorConfig(Config):
    """What `kernrl doctor` looks at: it has no settings of its own."""


class SourceConfig(Config):
    """Where tasks come from: shared by the commands that read them."""

    source: str = Field(
        "heldout",
        description="A task .py, a KernelBench folder, a .jsonl, .json or .parquet file, a dataset folder or hub id, or "
        "'heldout' for the shipped suite. SOURCE::ID or SOURCE#ROW picks one task.",
        json_schema_extra=ARGUMENT,
    )
    split: str | None = Field(None, description="Only this split, such as 'train', 'heldout' or 'level_2'.")
    revision: str | None = Field(None, description="Commit or tag of a hub dataset.")
    map: tuple[str, ...] = Field((), description="FIELD=COLUMN: read a field, such as pytorch_code, from this column.")
    limit: int | None = Field(None, ge=1, description="At most this many tasks.")


class ListConfig(SourceConfig):
    """`kernrl tasks list`."""


class StatsConfig(SourceConfig):
    """`kernrl tasks stats`."""


class CheckConfig(SourceConfig):
    """`kernrl tasks check`."""

    timeout_s: float = Field(60.0, gt=0, description="Longest time one reference may run on the CPU.")


class ShowConfig(SourceConfig):
    """`kernrl tasks show`."""

    style: str | None = Field(None, description="Show the worked solution of this style instead of the first.")
    prompt: bool = Field(False, description="Show the prompt a model is given for the task instead.")


class GenerateConfig(Config):
    """`kernrl tasks generate`."""

    out: Path = Field(description="Folder to make; tasks.jsonl is written into it.")
    level: int = Field(2, ge=1, le=2, description="1: single ops. 2: fusions of two to eight ops.")
    count: int = Field(1000, ge=1, description="How many tasks.")
    seed: int = Field(0, ge=0, description="The same seed gives the same tasks on any machine.")
    split: Literal["train", "validation", "heldout"] | None = Field(None, description="Only compositions of this split.")
    workers: int | None = Field(None, ge=1, description="Processes; by default one a core.")
    max_bytes: int = Field(2**31, ge=2**20, description="Most memory eager PyTorch may hold at once for a task at full size.")


class SftConfig(Config):
    """`kernrl sft`."""

    output: Path = Field(description="Folder of the run; made, or gone on with under --resume.")
    model: str = Field("nano", description="'nano' to make the small model from nothing, a model folder, or a hub id.")
    data: str = Field(
        "generated",
        description="'generated', or pairs from a file, folder or hub id: tasks with solutions, messages, or prompt and "
        "completion.",
    )
    count: int = Field(40_000, ge=20, description="Tasks to make when data is generated; each has several solutions.")
    map: tuple[str, ...] = Field((), description="FIELD=COLUMN: read a field, such as triton_code, from this column.")
    revision: str | None = Field(None, description="Commit or tag of a hub model or dataset.")
    prompt: Literal["nano", "chat"] | None = Field(None, description="How tasks are put to the model; by the model if not set.")
    epochs: float = Field(3.0, gt=0, description="Passes over the data, unless --steps is given.")
    steps: int | None = Field(None, ge=1, description="Optimizer steps.")
    max_length: int = Field(4096, ge=16, description="Longest pair in tokens; longer ones are counted and left out.")
    row_tokens: int | None = Field(
        None, ge=16, description="Tokens of a packed row, the unit of a forward pass: 65536 on a GPU and 4096 on a CPU."
    )
    rows_per_step: int = Field(4, ge=1, description="Packed rows an optimizer step, over all processes.")
    learning_rate: float = Field(1e-3, gt=0, description="Highest rate of the cosine schedule; use about 1e-5 for a hub model.")
    warmup_ratio: float = Field(0.03, ge=0, lt=1, description="Share of the steps in which the rate rises.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW's decay of matrices.")
    lora: bool = Field(False, description="Train LoRA adapters in place of the weights (extra 'lora').")
    lora_rank: int = Field(16, ge=1, description="Rank of the adapters.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, a third more time.")
    compile: bool = Field(True, description="Compile the decoder where there is a GPU.")
    evaluate_every: int = Field(200, ge=1, description="Steps between validation losses.")
    save_every: int = Field(500, ge=1, description="Steps between checkpoints.")
    seed: int = Field(0, ge=0, description="Of weights, data and shuffles.")
    workers: int | None = Field(None, ge=1, description="Processes that make data; by default one a core.")
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = Field("none", description="Tracker, besides metrics.jsonl.")
    resume: bool = Field(False, description="Go on from the newest checkpoint in --output.")


class ImproveConfig(Config):
    """What best-of-n, reinforce and reward-weighted share: a model, tasks, sampling, a verifier and a reward."""

    output: Path = Field(description="Folder of the run; made, or gone on with under --resume.")
    model: str = Field(description="A model folder, such as one that `kernrl sft` wrote, or a hub id.")
    revision: str | None = Field(None, description="Commit or tag of a hub model or dataset.")
    tasks: str = Field("generated", description="'generated' for train compositions made here, or a source of tasks.")
    split: str | None = Field(None, description="Only this split of the tasks; generated ones are of 'train'.")
    map: tuple[str, ...] = Field((), description="FIELD=COLUMN: read a field, such as pytorch_code, from this column.")
    limit: int | None = Field(None, ge=1, description="At most this many tasks; 2000 when they are generated.")
    prompt: Literal["nano", "chat"] | None = Field(None, description="How tasks are put to the model; by the model if not set.")
    samples: int = Field(8, ge=1, description="Rollouts a task.")
    temperature: float = Field(1.0, gt=0, description="Of sampling, and of every log-prob in the loss.")
    max_tokens: int = Field(2048, ge=1, description="Longest rollout.")
    sampling_batch: int = Field(256, ge=1, description="Rollouts decoded at once.")
    reward: Literal["hierarchical", "best-of-n", "milestones", "log-speed"] = Field(
        "hierarchical", description="Preset that turns a verdict into a reward."
    )
    baseline: str | None = Field(None, description="Baseline whose speedup is rewarded; by default the first that is timed.")
    speed_cap: float = Field(3.0, gt=0, description="Speedup beyond which a reward rises no more.")
    authored_share: bool = Field(False, description="Scale the speed reward by the share of time in the candidate's kernels.")
    learning_rate: float = Field(1e-5, gt=0, description="AdamW's rate.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this norm.")
    row_tokens: int | None = Field(
        None, ge=16, description="Tokens of a packed row, the unit of a forward pass: 16384 on a GPU and 4096 on a CPU."
    )
    lora: bool = Field(False, description="Train LoRA adapters in place of the weights (extra 'lora').")
    lora_rank: int = Field(16, ge=1, description="Rank of the adapters.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, a third more time.")
    gpu_hour_price: float | None = Field(None, ge=0, description="Price of a GPU-hour, for the cost shown beside the time.")
    seed: int = Field(0, ge=0, description="Of tasks, sampling and shuffles.")
    workers: int | None = Field(None, ge=1, description="Processes that make tasks; by default one a core.")
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = Field("none", description="Tracker, besides metrics.jsonl.")
    resume: bool = Field(False, description="Go on from the newest checkpoint in --output.")
    verifier: VerifierConfig = VerifierConfig()


class ReinforceConfig(ImproveConfig):
    """`kernrl reinforce`."""

    steps: int = Field(100, ge=1, description="Steps: each samples, verifies and updates once.")
    tasks_per_step: int = Field(16, ge=1, description="Groups a step.")
    turns: int = Field(1, ge=1, description="Tries a rollout has; the verdict's reason goes back to the model between them.")
    gamma: float = Field(0.4, ge=0, le=1, description="How much a turn earns of what the next one earns.")
    advantage: Literal["loo", "group", "batch", "none"] = Field(
        "loo", description="Baseline: mean of the others, standardised in the group or the batch, or none."
    )
    loss: Literal["reinforce", "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "gspo"] = Field(
        "reinforce", description="Policy loss."
    )
    epsilon_low: float = Field(0.2, gt=0, description="Clip: how far the ratio may fall below 1.")
    epsilon_high: float | None = Field(None, gt=0, description="Clip: how far it may rise above 1; as far by default.")
    delta: float | None = Field(None, gt=1, description="Dual clip: bound of the ratio where the advantage is negative.")
    beta: float = Field(0.0, ge=0, description="Weight of the KL to the starting model; 0 loads no second model.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of that KL.")
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "token_truncate", description="Importance weights for the difference between sampler and trainer."
    )
    correction_max: float = Field(2.0, gt=1, description="Where those weights are cut, or masked.")
    entropy_coef: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    epochs: int = Field(1, ge=1, description="Passes over a step's rollouts.")
    updates_per_epoch: int = Field(1, ge=1, description="Optimizer steps a pass.")
    constant_groups: Literal["drop", "keep", "refill"] = Field(
        "drop", description="Groups in which all rewards are equal: leave out, keep, or replace by other tasks."
    )
    curriculum: bool = Field(False, description="Draw tasks that succeed half of the time more often than the rest.")
    save_every: int = Field(1, ge=1, description="Steps between checkpoints: how much a kill can lose.")


class FinetuneOnSamplesConfig(ImproveConfig):
    """What best-of-n and reward-weighted share besides: supervised steps on what was sampled."""

    epochs: float = Field(2.0, gt=0, description="Passes over the rollouts that are learnt.")
    rows_per_step: int = Field(1, ge=1, description="Packed rows an optimizer step.")
    warmup_ratio: float = Field(0.03, ge=0, lt=1, description="Share of the steps in which the rate rises.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decay of matrices.")


class BestOfNConfig(FinetuneOnSamplesConfig):
    """`kernrl best-of-n`."""

    samples: int = Field(10, ge=1, description="Rollouts a task.")
    keep: int = Field(3, ge=1, description="Most distinct candidates of a task that are learnt, the best first.")
    threshold: float = Field(0.5, description="Least reward of a candidate that is learnt.")
    rounds: int = Field(1, ge=1, description="Rounds of sampling and fine-tuning, each on tasks of its own.")
    tasks_per_round: int = Field(256, ge=1, description="Tasks a round.")


class RewardWeightedConfig(FinetuneOnSamplesConfig):
    """`kernrl reward-weighted`."""

    samples: int = Field(4, ge=1, description="Rollouts a task.")
    weighting: Literal["reward", "exp"] = Field(
        "reward", description="Weight of a rollout: its reward, or exp((reward - best of its group) / --weight-temperature)."
    )
    weight_temperature: float = Field(0.2, gt=0, description="How fast the exponential weight falls with the reward.")


class SamplesConfig(Config):
    """`kernrl samples`."""

    run: Path = Field(description="Folder of a run.", json_schema_extra=ARGUMENT)
    step: int | None = Field(None, ge=1, description="Only this step (or round).")
    task: str | None = Field(None, description="Only this task.")
    status: str | None = Field(None, description="Only candidates with this status, such as 'correct' or 'wrong'.")
    show: str | None = Field(None, description="Show the candidate with this id whole, or 'best' for the best of those listed.")
    limit: int = Field(20, ge=1, description="At most this many, the best first.")


def load_config(cls: type[ConfigT], files: Sequence[Path] = (), flags: Mapping[str, Any] | None = None) -> ConfigT:
    """Resolve a config: defaults, then TOML files from left to right, then flags.

    Args:
        files: TOML files whose keys are the config's field names; a nested config is a table.
        flags: Dotted field name (`verifier.gpu`) → value, for the flags that were given.

    Raises:
        UsageError: An unreadable file, an unknown key or a bad value, naming the file or flag it came from.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for file in files:
        for key, value in _flatten(_read_toml(file)):
            _check_known(cls, key, f"{file}: ")
            values[key], origin[key] = value, f"{file}: {key!r}"
    for key, value in (flags or {}).items():
        _check_known(cls, key, "")
        values[key], origin[key] = value, _written(cls, key)
    try:
        return cls.model_validate(_nest(values))
    except ValidationError as error:
        raise UsageError(_sentence(cls, error.errors()[0], origin)) from None


def flag_name(key: str) -> str:
    """How a field that is not positional is written on the command line: `verifier.max_bytes` → `--verifier.max-bytes`."""
    return "--" + key.replace("_", "-")


def to_toml(config: Config) -> str:
    """A config as TOML that `--config` reads back. TOML has no null, so unset values become comments."""
    plain, tables = [], []
    for key, value in config.model_dump(mode="json").items():
        nested = getattr(config, key)
        if isinstance(nested, Config):
            tables.append(f"\n[{key}]\n{to_toml(nested)}")
        else:
            plain.append(f"# {key} is not set\n" if value is None else f"{key} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(plain + tables)


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """A closing half-sentence for an unknown name: the nearest known one, or all there are."""
    near = get_close_matches(word, words, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(words) or '(none)'}."


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--config: there is no file {file}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--config: {file} cannot be read as TOML: {error}.") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return nested


def _check_known(cls: type[Config], key: str, where: str) -> None:
    model: Any = cls
    for part in key.split("."):
        fields = model.model_fields if isinstance(model, type) and issubclass(model, Config) else {}
        if part not in fields:
            raise UsageError(f"{where}there is no setting {key!r}: {did_you_mean(part, list(fields))}")
        model = fields[part].annotation


def _written(cls: type[Config], key: str) -> str:
    field = cls.model_fields.get(key)
    return key.upper() if field and field.json_schema_extra == ARGUMENT else flag_name(key)


def _sentence(cls: type[Config], detail: ErrorDetails, origin: Mapping[str, str]) -> str:
    """pydantic's first error, reworded: where the value came from, what is wrong, what was given."""
    # a list's element is reported as (field, index): the field is what the user wrote
    key = ".".join(part for part in detail["loc"] if isinstance(part, str))
    if detail["type"] == "missing":
        return f"{_written(cls, key)} is missing: give it, or put {key!r} in a --config file."
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    # an error over several fields has no key, and its message names them
    return f"{origin.get(key, key)} {message}, not {detail['input']!r}." if key else f"{message}."
