"""`--resume`: a run goes on with the settings that it was started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from kernrl.settings import Config

RENAMED_VALUES = (("advantage", "none", "raw"), ("baseline", [], ["eager"]))
"""(setting, value in the config.json of an older run, what that is today)."""


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
        return _completed(cls, values, _settings_of_run(cls, Path(values["output"])))


def _settings_of_run(cls: type[ResumableConfig], folder: Path) -> Mapping[str, Any]:
    """The settings in a run's `config.json`; none where there is no run."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    kept = described.get("config") if isinstance(described, dict) else None
    return with_names_of_today(cls, kept) if isinstance(kept, dict) else {}


def with_names_of_today(cls: type[Config], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an older run, they and their values named as they are now."""
    names = cls.RENAMED if issubclass(cls, ResumableConfig) else {}
    renamed = {name: new for name, old, new in RENAMED_VALUES if kept.get(name) == old}
    return {names.get(name, name): value for name, value in {**kept, **renamed}.items()}


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
