"""Defaults that depend on the model: nano takes the values it was measured with, any other model takes common ones.

`docs/notes/2026-11-22-training-methods.md` has the measurements. No pretrained model has been trained here with these
commands, and two from random weights were (`docs/notes/2026-11-28-larger-models.md`), so the other values are the field's:

- LoRA on frozen weights, which fits one GPU (7B took 24 GiB) and costs policy gradients nothing, at about ten times the
  rate for all weights (Schulman et al. 2025, "LoRA Without Regret");
- for all weights, 1e-6 under a policy gradient, as in TRL's and verl's examples, and 1e-5 for supervised steps;
- gradient checkpointing, since a row of 16,384 tokens does not fit without it;
- a reward that counts correctness before speed, since most first answers are wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NANO = "nano"
"""What `--model` says for the model that comes with kernrl."""

NANO_SHAPE = {"model_type": "qwen2", "hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 1280}
"""What `config.json` says in every folder with a nano; `kernrl.policy.nano` makes it so."""


def is_nano(model: str) -> bool:
    """Whether a model is nano by its name, or a folder with a nano in it. A hub id is not asked for, so it never is."""
    if model in ("", NANO):
        return model == NANO
    try:
        described = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and NANO_SHAPE.items() <= described.items()


@dataclass(frozen=True)
class ByModel:
    """A `default_factory`: one value for nano, another for any other model, and maybe a third where that has adapters."""

    nano: Any
    others: Any
    lora: Any = None
    """Under `--lora`, `others` if not set."""
    others_text: str = ""
    """What the help says in place of `others`."""

    def __call__(self, validated: dict[str, Any]) -> Any:
        """Takes the fields that were declared, and so validated, before this one."""
        if is_nano(validated.get("model") or ""):
            return self.nano
        return self.others if self.lora is None or not validated.get("lora") else self.lora

    def __str__(self) -> str:
        others = self.others_text or _text(self.others)
        if self.lora is not None:
            others = f"{_text(self.lora)} with LoRA, else {others}"
        return f"{_text(self.nano)} for nano, else {others}" if self.lora is None else f"{_text(self.nano)} for nano, {others}"


def _text(value: Any) -> str:
    """A value as the help writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
