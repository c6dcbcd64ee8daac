"""How replies are sampled: what an evaluation, the search of `kernrl optimize` and the stages that train share."""

from __future__ import annotations

from pydantic import Field

from kernrl.config.groups import SAMPLING
from kernrl.settings import RARE, Config


def differing(temperature: float, why: str = "these stages learn from how they differ") -> float:
    """The temperature, if candidates differ at it. Raises ValueError.

    Args:
        why: they have to.
    """
    if temperature == 0:
        raise ValueError(f"should be above 0: greedy candidates of a task are all the same, and {why}")
    return temperature


class CutsConfig(Config):
    """Cuts of the distribution that is sampled from."""

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


class SamplingConfig(CutsConfig):
    """How replies are sampled, and a yes to very many of them."""

    yes: bool = Field(
        default=False,
        description="Sample very many candidates without asking first; needed where there is no terminal to ask in.",
        json_schema_extra=SAMPLING | RARE,
    )
