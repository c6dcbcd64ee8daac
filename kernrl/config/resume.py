"""`--resume`: a run goes on with the settings that it was started with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from kernrl.settings import Config, flag_name

RENAMED_VALUES = (("advantage", "none", "raw"), ("baseline", [], ["eager"]))
"""(setting, value in the config.json of an older run, what that is today)."""


COMMANDS = ("sft", "best-of-n", "reinforce", "reward-weighted", "eval", "optimize")
"""Those with `--resume`."""


class ResumableConfig(Config):
    """Base of the commands with `--resume` and `--output`.

    On `--resume` a setting that is not given is as the run's `config.json` has it, whatever its default is by now. Those that
    are given and differ are refused by `kernrl.runs.run_directory`.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Setting in the config.json of an older run of this command → its name today."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_run_began(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("resume") or not values.get("output"):
            return values
        folder = Path(values["output"])
        described = _described(folder)
        missing = [name for name, field in cls.model_fields.items() if field.is_required() and name not in values]
        if missing and not described:
            flags = " and ".join(map(flag_name, missing))
            raise ValueError(f"--resume: there is no run in {folder}: name the folder of one, or give {flags} to begin one")
        made_by, this = _command(described), re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Config")).lower()
        if made_by not in (None, this):
            raise ValueError(f"--resume: {folder} was made by `kernrl {made_by}`, and this is `kernrl {this}`")
        kept = described.get("config")
        return _completed(cls, values, with_names_of_today(cls, kept) if isinstance(kept, dict) else {})


def _described(folder: Path) -> Mapping[str, Any]:
    """A run's `config.json`; nothing where there is no run."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def _command(described: Mapping[str, Any]) -> str | None:
    """The command that made a folder; None where it was Python."""
    if isinstance(named := described.get("command"), str):
        return named
    words = described.get("argv")
    return next((word for word in words[1:2] if word in COMMANDS), None) if isinstance(words, list) else None


def with_names_of_today(cls: type[Config], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an older run, they and their values named as they are now."""
    names = cls.RENAMED if issubclass(cls, ResumableConfig) else {}
    renamed = {name: new for name, old, new in RENAMED_VALUES if kept.get(name) == old}
    today = {names.get(name, name): value for name, value in {**kept, **renamed}.items()}
    table = today.get("verifier")
    if "precision" in cls.model_fields.keys() - today.keys() and isinstance(table, dict):  # it was the table's alone
        today |= {"precision": table.get("precision"), "verifier": {**table, "precision": None}}
    return today


def _completed(cls: type[Config], given: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, and what was kept of the rest. A setting that no longer exists is left out."""
    values = {name: value for name, value in kept.items() if name in cls.model_fields} | dict(given)
    for name, field in cls.model_fields.items():
        table, before = field.annotation, kept.get(name)
        if isinstance(table, type) and issubclass(table, Config) and isinstance(before, dict):
            now = given.get(name, {})
            now = now.model_dump(exclude_unset=True) if isinstance(now, Config) else now
            values[name] = _completed(table, now, before) if isinstance(now, dict) else now
    return values
