"""How replies are sampled: what an evaluation and the stages that train share."""

from __future__ import annotations

from pydantic import Field

from kernrl.config.groups import SAMPLING
from kernrl.settings import RARE, Config


def differing(temperature: float) -> float:
    """The temperature, if candidates differ at it. Raises ValueError."""
    if temperature == 0:
        raise ValueError(
            "should be above 0: greedy candidates of a task are all the same, and these stages learn from how they differ"
        )
    return temperature


class SamplingConfig(Config):
    """Cuts of the distribution that is sampled from, and the size of what is asked."""

    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample only among the likeliest tokens that together have this probability; 1 for all.",
        json_schema_extra=SAMPLING | RARE,
    )
    top_k: int = Field(
        default=0,
        ge=0,
        description="Sample only among this many of the likeliest tokens; 0 for all.",
        json_schema_extra=SAMPLING | RARE,
    )
    min_p: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Leave out tokens whose probability is below this share of the likeliest token's; 0 for none.",
        json_schema_extra=SAMPLING | RARE,
    )
    yes: bool = Field(
        default=False,
        description="Sample very many candidates without asking first; needed where there is no terminal to ask in.",
        json_schema_extra=SAMPLING | RARE,
    )
