"""What `kernrl eval` and `kernrl optimize` share: the table `verifier`, and those of its settings that are flags of theirs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from kernrl.config.groups import VERIFIER
from kernrl.config.verifier import Baselines, VerifierConfig, split_commas
from kernrl.settings import OLD, RARE, Config


def _moved_out(values: Any) -> Any:
    """The settings of a command, with what the table `verifier` says of its own `baseline` and `precision` moved to them.

    Raises ValueError where both are given, and differ. A table with the defaults is what `--dry-run` wrote.
    """
    table = values.get("verifier") if isinstance(values, dict) else None
    table = table.model_dump(exclude_unset=True) if isinstance(table, VerifierConfig) else table
    if not isinstance(table, dict):
        return values
    given = {name: table[name] for name in ("baseline", "precision") if table.get(name)}
    for name, inner in given.items():
        outer = values.get(name)
        default = name == "baseline" and tuple(split_commas(inner)) == ("eager",)
        if outer and not default and split_commas(inner) != split_commas(outer):
            raise ValueError(f"--{name} and the table verifier's {name} are one setting: leave the one in the table out")
    rest = {name: value for name, value in table.items() if name not in ("baseline", "precision")}
    return {**values, **{name: values.get(name) or inner for name, inner in given.items()}, "verifier": rest}


class JudgingConfig(Config):
    """Where a command's candidates are judged: the verifier's table, with what people set most as flags of the command."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = Field(
        default=None,
        description="Precision of reference, baselines and candidates; the task's own if not set: tf32 for those that kernrl "
        "makes, fp32 for a file.",
        json_schema_extra=VERIFIER | {OLD: "--verifier.precision"},
    )
    baseline: Baselines = Field(
        default=("eager",),
        description="What candidates are timed against: eager, compile, max-autotune (slow to make), or several, with commas.",
        json_schema_extra=VERIFIER | {OLD: "--verifier.baseline"},
    )
    verifier: VerifierConfig = Field(default=VerifierConfig(), json_schema_extra=VERIFIER | RARE)

    @model_validator(mode="before")
    @classmethod
    def _one_meaning(cls, values: Any) -> Any:
        return _moved_out(values)

    @property
    def judging(self) -> VerifierConfig:
        """The verifier's settings, with `--precision` and `--baseline` in them."""
        return self.verifier.model_copy(update={"baseline": self.baseline, "precision": self.precision})
