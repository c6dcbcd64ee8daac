"""What the commands share that train or sample: processes, and a server to sample from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kernrl.config.by_model import is_nano
from kernrl.config.groups import RUN, SAMPLING
from kernrl.config.resume import ResumableConfig
from kernrl.settings import MOST_WORKERS, RARE, Config, flag_name

Schedule = Literal["cosine", "linear", "constant"]
Columns = Annotated[
    tuple[str, ...],
    Field(description="FIELD=COLUMN: read a field, such as pytorch_code, from this column. May be given again."),
]


class TrainingConfig(ResumableConfig):
    """What every stage that trains shares: how many processes, and what each holds."""

    launch: Literal["none", "ddp", "fsdp2"] = Field(
        default="none",
        description="Start one process a GPU, each with a replica of the model (ddp) or with a part of it (fsdp2).",
        json_schema_extra=RUN,
    )
    num_processes: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS,
        description="Processes that --launch starts; one a GPU if not set.",
        json_schema_extra=RUN | RARE,
    )

    @model_validator(mode="after")
    def _processes_are_launched(self) -> TrainingConfig:
        if self.num_processes and self.launch == "none":
            raise ValueError("--num-processes needs --launch ddp or --launch fsdp2: add one, or leave it out")
        return self

    @model_validator(mode="after")
    def _four_bits_are_frozen(self) -> TrainingConfig:
        if getattr(self, "load_in_4bit", False):
            if self.launch == "fsdp2":
                raise ValueError("--load-in-4bit does not go with --launch fsdp2: use --launch ddp, with a replica on each GPU")
            if is_nano(getattr(self, "model", "")):
                raise ValueError("--load-in-4bit is for large models, and nano is a small one: leave it out")
            if not getattr(self, "lora", False):
                raise ValueError(
                    "--load-in-4bit holds frozen weights, which only adapters can train: add --lora, or leave it out"
                )
        return self


class ServerConfig(Config):
    """What samples: the model in this process, or a server."""

    engine: Literal["generate", "server"] = Field(
        default="generate",
        description="generate: sample in this process. server: ask an OpenAI-compatible server, such as vLLM or SGLang.",
        json_schema_extra=SAMPLING,
    )
    server_url: str | None = Field(
        default=None,
        description="Address of --engine server, such as http://localhost:8000.",
        json_schema_extra=SAMPLING,
    )
    server_model: str | None = Field(
        default=None,
        description="The model's name on the server; the first that it lists if not set, or --model with `transformers serve`.",
        json_schema_extra=SAMPLING | RARE,
    )
    server_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="Longest the server may take for one answer, or to load new weights.",
        json_schema_extra=SAMPLING | RARE,
    )

    @model_validator(mode="after")
    def _no_flag_of_a_server_is_ignored(self) -> ServerConfig:
        if self.engine == "server" and not self.server_url:
            raise ValueError("--engine server needs --server-url, such as http://localhost:8000")
        if self.server_url and not self.server_url.startswith(("http://", "https://")):
            raise ValueError(f"--server-url {self.server_url}: give an address such as http://localhost:8000")
        names = ("server_url", "server_model", "weight_sync")
        given = next((name for name in names if getattr(self, name, None) is not None), None)
        if given and self.engine != "server":
            raise ValueError(f"{flag_name(given)} needs --engine server: add that, or leave it out")
        return self
