"""Resolve a stage's settings: defaults, then TOML files, then flags; and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kernrl.errors import UsageError, did_you_mean

# What a field's `json_schema_extra` may say besides its type, default and description. Several are joined by `|`.

ARGUMENT: JsonDict = {"argument": True}
"""The command line takes the field by position instead of by `--name`."""

RARE: JsonDict = {"rare": True}
"""`--help` leaves the field out, or every field of the table, and `--help-all` shows it. The flag works all the same."""

ALSO = "also"
"""Key: another flag of the field, such as `--n`."""

OLD = "old"
"""Key: an earlier spelling of the flag, which still works, in TOML files too, and is not shown."""

MOST_WORKERS = 1024
"""Processes that a setting may ask for: a slip of the finger would start them until the memory is full."""

GROUP = "group"
"""Key: the group that a field belongs to in the help, in `--dry-run` and in the docs; one of `GROUPS`."""

GROUPS = ("Model", "Tasks", "Sampling", "Reward", "Loss", "Optimiser", "Run", "Verifier")
"""In the order in which they are shown."""


WANTED = {
    "int_": "a whole number", "float_": "a number", "bool_": "true or false", "string_type": "a text", "path_": "a path",
    "tuple_": "a list", "list_": "a list", "model_": "a table",
}  # fmt: skip
"""Beginning of the type of one of pydantic's errors → what the value should be."""


BOUNDS = ("greater_than", "less_than", "finite_number")
"""Beginnings of the types of errors in numbers that could be read."""


class Config(BaseModel):
    """Base of every config: frozen, every number finite, and an unknown key is an error, never a silent default."""

    # defer_build: a command builds the validators of its own config only, not of all of them
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True)


ConfigT = TypeVar("ConfigT", bound=Config)


def marks(field: FieldInfo) -> Mapping[str, Any]:
    """What `json_schema_extra` says of a field."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def by_group(cls: type[Config]) -> list[tuple[str, FieldInfo]]:
    """(name, field) of a config, those of a group together, what is required first; before all, what has no group."""
    order = {name: place for place, name in enumerate(GROUPS)}
    return sorted(
        cls.model_fields.items(), key=lambda item: (order.get(marks(item[1]).get(GROUP, ""), -1), not item[1].is_required())
    )


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
        given: set[str] = set()
        for spelling, value in flatten(_read_toml(file)):
            key = _name_today(cls, spelling)
            _check_known(cls, key, f"{file}: ")
            if key in given:
                raise UsageError(f"{file}: {key!r} is given twice, once in an earlier spelling: give {key!r} alone.")
            given.add(key)
            values[key], origin[key] = _at_home(value), f"{file}: {spelling!r}"
    for key, value in (flags or {}).items():
        _check_known(cls, key, "")
        values[key], origin[key] = _at_home(value), written(cls, key)
    try:
        return cls.model_validate(_nest(values))
    except ValidationError as error:
        raise UsageError(_sentence(cls, error.errors()[0], origin)) from None


def _at_home(value: Any) -> Any:
    """A path below `~` as the shell would expand it, which does so in neither a TOML file nor quotes."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_at_home, value))
    return type(value)(os.path.expanduser(value)) if isinstance(value, (str, Path)) and str(value).startswith("~/") else value


def flag_name(key: str) -> str:
    """How a field that is not positional is written on the command line: `verifier.max_bytes` → `--verifier.max-bytes`."""
    return "--" + key.replace("_", "-")


def to_toml(config: Config) -> str:
    """A config as TOML that `--config` reads back. TOML has no null, so unset values become comments."""
    plain, tables, group = [], [], ""
    values = config.model_dump(mode="json")
    for key, field in by_group(type(config)):
        value, nested = values[key], getattr(config, key)
        if isinstance(nested, Config):
            tables.append(f"\n[{key}]\n{to_toml(nested)}")
            continue
        if (name := marks(field).get(GROUP, "")) != group:
            plain += ["\n"] * bool(plain) + [f"# {name}\n"]
            group = name
        plain.append(f"# {key} is not set\n" if value is None else f"{key} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(plain + tables)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
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


def _name_today(cls: type[Config], key: str) -> str:
    """A setting's name where a key is its earlier spelling, and no setting by now; else the key itself."""
    old = {str(marks(field)[OLD]): name for name, field in cls.model_fields.items() if OLD in marks(field)}
    return key if key.partition(".")[0] in cls.model_fields else old.get(flag_name(key), key)


def _check_known(cls: type[Config], key: str, where: str) -> None:
    model: Any = cls
    for part in key.split("."):
        fields = model.model_fields if isinstance(model, type) and issubclass(model, Config) else {}
        if not fields:
            raise UsageError(f"{where}{key.rpartition('.')[0]!r} is a setting and no table, so there is no {key!r}.")
        if part not in fields:
            raise UsageError(f"{where}there is no setting {key!r}: {did_you_mean(part, list(fields))}")
        model = fields[part].annotation


def written(cls: type[Config], key: str) -> str:
    """How the help writes a field: as a flag, or in capitals where it is given by position."""
    table, _, name = key.rpartition(".")
    model: Any = cls.model_fields[table].annotation if table in cls.model_fields else cls
    field = model.model_fields.get(name)
    return key.upper() if field and "argument" in marks(field) else flag_name(key)


def _sentence(cls: type[Config], detail: ErrorDetails, origin: Mapping[str, str]) -> str:
    """pydantic's first error, reworded: where the value came from, what is wrong, what was given."""
    # a list's element is reported as (field, index): the field is what the user wrote
    key = ".".join(part for part in detail["loc"] if isinstance(part, str))
    if detail["type"] == "missing":
        return f"{written(cls, key)} is missing: give it, or put {key!r} in a --config file."
    message = _message(detail)
    given = detail["input"]
    # a flag's value is text: a number in it is shown as one
    shown = given if isinstance(given, str) and detail["type"].startswith(BOUNDS) else repr(given)
    if not key:  # an error over several fields, whose message names them
        return f"{message}."
    whole = detail["type"] == "value_error" and ": " in message  # one of ours, with its reason
    return f"{origin.get(key, key)} {message}." if whole else f"{origin.get(key, key)} {message}, not {shown}."


def _message(detail: ErrorDetails) -> str:
    """What is wrong, without pydantic's words for Python's types and for what its parser did."""
    kind = detail["type"]
    for beginning, wanted in WANTED.items():
        if kind.startswith(beginning):
            return f"should be {wanted}"
    return detail["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
