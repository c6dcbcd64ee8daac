"""Resolve a stage's settings: defaults, then TOML files, then flags; and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails

from kernrl.errors import UsageError, did_you_mean

ARGUMENT: JsonDict = {"argument": True}
"""`json_schema_extra` of a field that the command line takes by position instead of by `--name`."""

ALSO = "also"
"""Key of `json_schema_extra`: another flag of the field, such as `--n`."""


class Config(BaseModel):
    """Base of every config: frozen, every number finite, and an unknown key is an error, never a silent default."""

    # defer_build: a command builds the validators of its own config only, not of all of them
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True)


ConfigT = TypeVar("ConfigT", bound=Config)


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
        for key, value in flatten(_read_toml(file)):
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


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--config: there is no file {file}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--config: {file} cannot be read as TOML: {error}.") from None


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of what is in nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
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
    """How the help writes a field: a positional in capitals, and a nested one by its short name where it has one."""
    table, _, name = key.rpartition(".")
    model: Any = cls.model_fields[table].annotation if table in cls.model_fields else cls
    field = model.model_fields.get(name)
    extra = field.json_schema_extra if field else None
    if extra == ARGUMENT:
        return key.upper()
    return str(extra[ALSO]) if table and isinstance(extra, dict) and ALSO in extra else flag_name(key)


def _sentence(cls: type[Config], detail: ErrorDetails, origin: Mapping[str, str]) -> str:
    """pydantic's first error, reworded: where the value came from, what is wrong, what was given."""
    # a list's element is reported as (field, index): the field is what the user wrote
    key = ".".join(part for part in detail["loc"] if isinstance(part, str))
    if detail["type"] == "missing":
        return f"{_written(cls, key)} is missing: give it, or put {key!r} in a --config file."
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    # an error over several fields has no key, and its message names them
    return f"{origin.get(key, key)} {message}, not {detail['input']!r}." if key else f"{message}."
