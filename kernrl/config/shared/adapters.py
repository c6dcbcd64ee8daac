"""Settings of LoRA adapters, which the commands that train share. Whether they are used is each command's own default."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from kernrl.config.groups import MODEL
from kernrl.config.verifier import split_commas
from kernrl.settings import RARE

LoraRank = Annotated[int, Field(ge=1, description="Rank of the adapters.", json_schema_extra=MODEL | RARE)]
LoraAlpha = Annotated[
    int | None,
    Field(
        ge=1,
        description="LoRA's alpha: adapters are scaled by alpha / rank. Twice the rank if not set.",
        json_schema_extra=MODEL | RARE,
    ),
]
LoraDropout = Annotated[float, Field(ge=0, lt=1, description="Dropout before the adapters.", json_schema_extra=MODEL | RARE)]
LoraTargets = Annotated[
    tuple[str, ...],
    BeforeValidator(split_commas),
    Field(
        description="Layers with adapters, such as q_proj,v_proj; every linear one but the head if not set.",
        json_schema_extra=MODEL | RARE,
    ),
]
LoadIn4Bit = Annotated[
    bool,
    Field(
        description="Under LoRA, hold the frozen weights in 4 bits: a quarter of the memory, on a GPU (NF4 of bitsandbytes, "
        "extra '4bit'). The final model is merged into whole weights in bf16.",
        json_schema_extra=MODEL | RARE,
    ),
]
