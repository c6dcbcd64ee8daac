"""`--resume`: a run goes on with the settings that it was started with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator
from pydantic_core import PydanticUndefined

from kernrl.errors import UsageError
from kernrl.settings import Config, flag_name, flatten, written

RENAMED_VALUES = (("advantage", "none", "raw"), ("baseline", [], ["eager"]))
"""(setting, value in the config.json of an older run, what that is today)."""


WERE_FP32 = ("heldout", "generated", "graph-heldout", "graph-deep", "graph-single")
"""Sources of tasks that are tf32. They were fp32 in runs whose config.json has no `name_gpu`."""


COMMANDS = ("sft", "best-of-n", "reinforce", "reward-weighted", "eval", "optimize")
"""Those with `--resume`."""


MAY_CHANGE_ON_RESUME = (
    "resume", "output", "report_to", "project", "run_name", "push_to_hub", "save_every", "keep_checkpoints", "workers",
    "launch", "num_processes", "fail_under", "yes", "give_up_after", "evaluate_every", "validate_every", "keep_best",
    "server_url", "server_model", "server_timeout_s", "weight_sync", "verifier.executor", "verifier.workers", "verifier.cache",
    "verifier.cache_dir", "verifier.require_sandbox", "verifier.gpu_memory_share",
)  # fmt: skip
"""Settings of any command that do not change what a run computes."""


class ResumableConfig(Config):
    """Base of the commands with `--resume` and `--output`.

    On `--resume` a setting that is not given is as the run's `config.json` has it, whatever its default is by now. Those that
    are given and differ are refused (`require_same`), but for those that `may_change`.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Setting in the config.json of an older run of this command → its name today."""
    BEFORE: ClassVar[Mapping[str, Any]] = {}
    """Setting newer than some runs of this command → what those did, where that is not its default."""
    MAY_CHANGE: ClassVar[tuple[str, ...]] = ()
    """Settings of this command that a resume may change besides those of `MAY_CHANGE_ON_RESUME`, as to make a run longer."""

    def may_change(self, kept: Mapping[str, Any]) -> tuple[str, ...]:
        """Settings that may differ from `kept`, those of the run that is resumed."""
        return (*MAY_CHANGE_ON_RESUME, *self.MAY_CHANGE)

    @model_validator(mode="before")
    @classmethod
    def _as_the_run_began(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("resume"):
            return values
        if not values.get("output"):
            raise ValueError("--resume needs --output, the folder of the run to go on with")
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
    before = cls.BEFORE if kept and issubclass(cls, ResumableConfig) else {}
    today = {**before, **{names.get(name, name): value for name, value in {**kept, **renamed}.items()}}
    table = today.get("verifier")
    if "precision" in cls.model_fields.keys() - today.keys() and isinstance(table, dict):  # it was the table's alone
        today |= {"precision": table.get("precision"), "verifier": {**table, "precision": None}}
    if kept and "name_gpu" in cls.model_fields.keys() - kept.keys():
        return _under_fp32(cls, today)
    return today


def _under_fp32(cls: type[Config], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with fp32 named, where it was the precision because the tasks are of `WERE_FP32`."""
    source = re.split("::|#", str(settings.get("tasks") or settings.get("data")))[0]
    holder = settings if "precision" in cls.model_fields else settings.get("verifier")
    if source not in WERE_FP32 or not isinstance(holder, dict) or holder.get("precision"):
        return settings
    named = {**holder, "precision": "fp32"}
    return named if holder is settings else {**settings, "verifier": named}


def require_same(config: Config, path: Path, kept: Mapping[str, Any]) -> None:
    """Refuse to resume the run in `path` with settings that differ from `kept`, its own.

    Raises:
        UsageError: some differ; the sentence names them as the command line does.
    """
    begun = dict(flatten(with_names_of_today(type(config), kept)))
    before = {name: _default(config, name) for name, _ in flatten(config.model_dump(mode="json"))} | begun
    free = config.may_change(kept) if isinstance(config, ResumableConfig) else MAY_CHANGE_ON_RESUME
    now = dict(flatten(config.model_dump(mode="json")))
    changed = [name for name in now if name not in free and before[name] != now[name]]
    if known := [name for name in changed if name in begun]:
        what = "; ".join(f"{said(type(config), name, before[name])}, not {_value(name, now[name])}" for name in known)
        remedy = "leave them" if len(known) > 1 else "leave it"
        raise UsageError(
            f"--resume: the run in {path} has {what}: {remedy} out to go on with the run's, or give another --output."
        )
    if changed:  # in a setting that is newer than the run
        old = " ".join(said(type(config), name, before[name]) for name in changed)
        raise UsageError(f"--resume: the run in {path} is older than a setting: add {old} to go on as it began.")


def said(cls: type[Config], name: str, value: Any) -> str:
    """A setting as it is given on the command line: `--samples 4`, `--no-facts`, `--precision unset`."""
    flag = written(cls, name)
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    return f"{flag} {_value(name, value)}"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag_name(name) if value else f"--no-{flag_name(name)[2:]}"
    if value is None or value in ([], ""):
        return "unset"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _default(config: Config, name: str) -> Any:
    """The default of a setting, as config.json has it, whatever the model; None where it has none."""
    *tables, field = name.split(".")
    for table in tables:
        config = getattr(config, table)
    described = type(config).model_fields[field]
    by_others: Any = described.default_factory
    default = by_others({}) if by_others else described.default
    return None if default is PydanticUndefined else json.loads(json.dumps(default, default=str))


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
