"""Make a Typer command of a config model: one definition a field serves the flag, its type, its default and its help."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from kernrl import console
from kernrl.config import TrainingConfig
from kernrl.console import Result
from kernrl.settings import ALSO, ARGUMENT, Config, flag_name, load_config, to_toml

Options = dict[str, tuple[str, inspect.Parameter]]
"""Python parameter name → (dotted config key, typer parameter)."""

OFF, ALIAS = "no__", "also__"
"""What the Python names of a switch's `--no-` form and of a flag's longer form begin with."""


@dataclass(frozen=True)
class Output:
    """What a command ends with: a Result, and the form it was asked for in."""

    result: Result
    as_json: bool

    def print(self) -> None:
        """Write it to stdout; raises BrokenPipeError when the reader has gone."""
        view = self.result.view
        if self.as_json:
            encoding = (sys.stdout.encoding if sys.stdout else None) or ""
            print(json.dumps(self.result.data, indent=2, ensure_ascii=not encoding.lower().startswith("utf")))
        elif isinstance(view, str):
            print(view)
        else:
            console.out.print(view)
        print(end="", flush=True)  # unlike sys.stdout.flush(), does nothing where stdout is closed


@dataclass(frozen=True)
class Launch:
    """What a command ends with instead where it is to run in several processes."""

    kind: str
    num_processes: int | None


def command(
    group: typer.Typer, config_class: type[Config]
) -> Callable[[Callable[[Any], Result]], Callable[..., Output | Launch]]:
    """Decorate a function from a config to a Result as a command of `group`, named after the function (`list_` is
    `list`, `best_of_n` is `best-of-n`).

    The command resolves the config, stops there under `--dry-run`, and returns the function's Result for the CLI to print.
    """

    def decorate(stage: Callable[[Any], Result]) -> Callable[..., Output | Launch]:
        options: Options = dict(_options(config_class))

        @functools.wraps(stage)
        def invoke(config: list[Path] | None, dry_run: bool, json: bool, quiet: bool, **given: Any) -> Output | Launch:
            console.log.quiet = quiet or not console.leads()
            said = {name: given[name] for name in options if given[name] not in (None, [])}
            flags = {options[name][0]: False if name.startswith(OFF) else value for name, value in said.items()}
            resolved = load_config(config_class, config or (), flags)
            if dry_run:
                return Output(Result(resolved.model_dump(mode="json"), to_toml(resolved).rstrip()), json)
            if isinstance(resolved, TrainingConfig) and resolved.launch != "none" and not console.launched():
                return Launch(resolved.launch, resolved.num_processes)
            return Output(stage(resolved), json)

        signature = inspect.Signature([parameter for _, parameter in options.values()] + COMMON)
        # typer reads both: the signature for the options, the annotations for forward references
        invoke.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        invoke.__annotations__ = {}
        group.command(stage.__name__.strip("_").replace("_", "-"))(invoke)
        return invoke

    return decorate


def _options(config_class: type[Config], table: str = "") -> Iterator[tuple[str, tuple[str, inspect.Parameter]]]:
    """One typer parameter a field; a nested config gives `--table.field`, in a panel of its own.

    Every parameter defaults to None, which means "not given": config files come before the model's own default.
    """
    for name, field in config_class.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, Config):
            yield from _options(kind, f"{table}{name}.")
            continue
        key = table + name
        if field.json_schema_extra == ARGUMENT:
            info: Any = typer.Argument(metavar=name.upper(), help=_help(field), show_default=False)
        else:
            extra = field.json_schema_extra
            also = [str(extra[ALSO])] if isinstance(extra, dict) and ALSO in extra else []
            panel = table.rstrip(".").capitalize() or None
            if kind is bool:
                yield from _switch(key, field, panel)
                continue
            # help shows the short name where the long one leaves no room for it in a column of 80
            flags = [*also] if table and also else [flag_name(key), *also]
            common: Any = {"metavar": _metavar(kind), "help": _help(field), "show_default": False, "rich_help_panel": panel}
            info = typer.Option(*flags, **common)
            if table and also:
                name = ALIAS + key.replace(".", "__")
                long = typer.Option(flag_name(key), hidden=True, **common)
                yield name, (key, _parameter(name, None, _typer_type(kind) | None, long))
        yield key.replace(".", "__"), (key, _parameter(key.replace(".", "__"), None, _typer_type(kind) | None, info))


def _switch(key: str, field: FieldInfo, panel: str | None) -> Iterator[tuple[str, tuple[str, inspect.Parameter]]]:
    """`--name` and `--no-name`. Help shows the one that changes something: with both, 80 columns cut long names short."""
    for on in (True, False):
        flag = flag_name(key) if on else f"--no-{flag_name(key)[2:]}"
        name = ("" if on else OFF) + key.replace(".", "__")
        help_text = _help(field) if on else f"Switch off: {_help(field)}"
        hidden = on == field.get_default()
        info = typer.Option(flag, metavar="", help=help_text, show_default=False, hidden=hidden, rich_help_panel=panel)
        yield name, (key, _parameter(name, None, bool | None, info))


def _parameter(name: str, default: Any, kind: Any, info: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _typer_type(kind: Any) -> Any:
    """The type typer parses: `X | None` as X, and a tuple of any length as a list."""
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        return typing.Union[tuple(a for a in arguments if a is not type(None))]  # noqa: UP007
    if typing.get_origin(kind) is not tuple:
        return kind
    # typer knows no list of choices: the config checks them
    return list[str if typing.get_origin(arguments[0]) is Literal else arguments[0]]


def _metavar(kind: Any) -> str | None:
    """What help shows for a value, where typer's own word would leave the text little room: nothing for a switch."""
    if typing.get_origin(kind) is tuple:
        return "<path>" if Path in typing.get_args(kind) else "<str>"
    return "<choice>" if _choices(kind) else "" if kind is bool else None


def _choices(kind: Any) -> list[Any]:
    """The values of a Literal, which may be optional; none for another type."""
    parts = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    return [choice for part in parts if typing.get_origin(part) is Literal for choice in typing.get_args(part)]


def _help(field: FieldInfo) -> str:
    """The field's description, its choices and its default, as rich markup."""
    default = field.get_default(call_default_factory=True)
    notes = [f"one of {', '.join(map(str, choices))}"] if (choices := _choices(field.annotation)) else []
    if field.is_required():
        notes.append("required")
    elif isinstance(default, bool):
        notes.append(f"default: {'on' if default else 'off'}")
    elif default not in (None, ()):
        notes.append(f"default: {', '.join(map(str, default)) if isinstance(default, tuple) else default}")
    text = escape(field.description or "")
    return f"{text} [dim]{escape('[' + '; '.join(notes) + ']')}[/dim]" if notes else text


def _common(name: str, default: Any, kind: Any, help_text: str) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    metavar = "" if kind is bool else "<path>"
    info = typer.Option(flag, metavar=metavar, help=help_text, show_default=False, rich_help_panel="Every command")
    return _parameter(name, default, kind, info)


COMMON = [
    _common(
        "config", None, list[Path] | None, "TOML file of settings; may be given again. Later files win, and flags win over all."
    ),
    _common("dry_run", False, bool, "Print the resolved config as TOML and stop."),
    _common("json", False, bool, "Print data alone on stdout, as JSON."),
    _common("quiet", False, bool, "No remarks and no progress bar."),
]
