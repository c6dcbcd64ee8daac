"""Make a Typer command of a config model: one definition a field serves the flag, its type, its default and its help."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.markup import escape

from kernrl import console
from kernrl.config import TrainingConfig
from kernrl.config.by_model import ByModel
from kernrl.config.resume import ResumableConfig
from kernrl.config.shared.tracking import TrackingConfig, require_tracker
from kernrl.console import Prose, Result, Whole
from kernrl.errors import UsageError
from kernrl.settings import ALSO, GROUP, OLD, Config, by_group, flag_name, load_config, marks, to_toml

OFF, EARLIER = "no__", "old__"
"""What the Python names of a switch's `--no-` form and of a flag's earlier spelling begin with."""

NUMBERS = {int: "<int>", float: "<float>"}
"""What help shows for them."""


@dataclass(frozen=True)
class Flag:
    """A parameter of a command, and the field of the config that it sets."""

    key: str
    """The field's dotted name."""
    parameter: inspect.Parameter
    rare: bool = False
    """Whether it is `--help-all` alone that shows it."""


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
            print(console.out.by_words(view) if isinstance(view, Prose) else view)
        else:
            console.out.print(Whole(view), crop=False)  # what is wider than a terminal, it wraps; in a pipe, it stays whole
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
        options = dict(_options(config_class))

        @functools.wraps(stage)
        def invoke(config: list[Path] | None, dry_run: bool, json: bool, quiet: bool, **given: Any) -> Output | Launch:
            console.log.quiet = quiet or not console.leads()
            said = {name: given[name] for name in options if given[name] not in (None, [])}
            for name in said:
                if said.get(EARLIER + name, said[name]) != said[name]:
                    flag = flag_name(options[name].key)
                    raise UsageError(f"{flag} is given twice, once in an earlier spelling: give {flag} alone.")
            flags = {options[name].key: False if name.startswith(OFF) else value for name, value in said.items()}
            resolved = load_config(config_class, config or (), flags)
            if isinstance(resolved, ResumableConfig):
                resolved = startable(resolved, dry_run=dry_run)
            if dry_run:
                return Output(Result(resolved.model_dump(mode="json"), to_toml(resolved).rstrip()), json)
            if isinstance(resolved, TrainingConfig) and resolved.launch != "none" and not console.launched():
                return Launch(resolved.launch, resolved.num_processes)
            return Output(stage(resolved), json)

        rare = [name for name, flag in options.items() if flag.rare]
        parameters = [flag.parameter for flag in options.values()]
        signature = inspect.Signature([*parameters, *COMMON, *_help_flags(rare)])
        # typer reads both: the signature for the options, the annotations for forward references
        invoke.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        invoke.__annotations__ = {}
        epilog = f"--help-all shows {console.counted(len(rare), 'more setting')}." if rare else None
        group.command(stage.__name__.strip("_").replace("_", "-"), add_help_option=False, epilog=epilog)(invoke)
        return invoke

    return decorate


def startable(config: ResumableConfig, *, dry_run: bool) -> ResumableConfig:
    """The config of a run that can start, or go on: what is refused is refused before torch is loaded and tasks are made.

    Raises:
        UsageError: A folder that is not empty, other settings than those of the run that is resumed, a tracker that is not
            installed, very many samples.
    """
    from kernrl.runs.run_directory import require_startable
    from kernrl.training.confirm_samples import confirmed

    output: Any = getattr(config, "output", None)
    resume = bool(getattr(config, "resume", False))
    if output and not console.launched() and (resume or not dry_run):  # the launcher has asked for its ranks
        require_startable(output, config, resume=resume)
    if dry_run:
        return config
    if isinstance(config, TrackingConfig):
        require_tracker(config.report_to)
    return confirmed(config)


def _options(
    config_class: type[Config], table: str = "", *, rare: bool = False, taken: Collection[str] = ()
) -> Iterator[tuple[str, Flag]]:
    """Python name → flag, for one or two parameters a field. A nested config gives `--table.field`.

    Every parameter defaults to None, which means "not given": config files come before the model's own default.

    Args:
        rare: whether the table as a whole is left to `--help-all`.
        taken: flags of the table that are earlier spellings of a setting outside it.
    """
    earlier = {str(marks(field)[OLD]) for _, field in by_group(config_class) if OLD in marks(field)}
    for name, field in by_group(config_class):
        kind: Any = field.annotation
        key, marked = table + name, marks(field)
        hidden = rare or "rare" in marked
        if isinstance(kind, type) and issubclass(kind, Config):
            yield from _options(kind, f"{key}.", rare=hidden, taken=earlier)
        elif flag_name(key) in taken:
            continue
        elif "argument" in marked:
            info: Any = typer.Argument(metavar=name.upper(), help=_help(field), show_default=False)
            yield key, Flag(key, _parameter(key, None, _typer_type(kind) | None, info))
        elif kind is bool:
            yield from _switch(key, field, hidden)
        else:
            python = key.replace(".", "__")
            shown: Any = {"metavar": _metavar(kind), "help": _help(field), "rich_help_panel": marked.get(GROUP)}
            also = [str(marked[ALSO])] if ALSO in marked else []
            info = typer.Option(flag_name(key), *also, hidden=hidden, show_default=False, **shown)
            yield python, Flag(key, _parameter(python, None, _typer_type(kind) | None, info), hidden)
            if OLD in marked and marked[OLD] != flag_name(key):
                info = typer.Option(marked[OLD], hidden=True)
                yield EARLIER + python, Flag(key, _parameter(EARLIER + python, None, _typer_type(kind) | None, info))


def _switch(key: str, field: FieldInfo, rare: bool) -> Iterator[tuple[str, Flag]]:
    """`--name` and `--no-name`. Help shows the one that changes something: with both, 80 columns cut long names short."""
    for on in (True, False):
        flag = flag_name(key) if on else f"--no-{flag_name(key)[2:]}"
        name = ("" if on else OFF) + key.replace(".", "__")
        help_text = _help(field) if on else f"Switch off: {_help(field)}"
        useless = on == (field.default is True)
        panel = marks(field).get(GROUP)
        info = typer.Option(flag, metavar="", help=help_text, show_default=False, hidden=useless or rare, rich_help_panel=panel)
        yield name, Flag(key, _parameter(name, None, bool | None, info), rare and not useless)


def _parameter(name: str, default: Any, kind: Any, info: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _typer_type(kind: Any) -> Any:
    """The type typer parses: `X | None` as X, a tuple of any length as a list, and a number as text, which the config reads."""
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        kind = typing.Union[tuple(a for a in arguments if a is not type(None))]  # noqa: UP007
    if kind in NUMBERS:
        return str
    if typing.get_origin(kind) is not tuple:
        return kind
    # typer knows no list of choices: the config checks them
    return list[str if typing.get_origin(arguments[0]) is Literal else arguments[0]]


def _metavar(kind: Any) -> str | None:
    """What help shows for a value, where typer's own word would leave the text little room: nothing for a switch."""
    if typing.get_origin(kind) is tuple:
        return "<path>" if Path in typing.get_args(kind) else "<str>"
    for number, shown in NUMBERS.items():
        if number in (kind, *typing.get_args(kind)):
            return shown
    return "<choice>" if _choices(kind) else "" if kind is bool else None


def _choices(kind: Any) -> list[Any]:
    """The values of a Literal, which may be optional; none for another type."""
    parts = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    return [choice for part in parts if typing.get_origin(part) is Literal for choice in typing.get_args(part)]


def _help(field: FieldInfo) -> str:
    """The field's description, its choices and its default, as rich markup."""
    default = field.default_factory if isinstance(field.default_factory, ByModel) else field.default
    notes = [f"one of {', '.join(map(str, choices))}"] if (choices := _choices(field.annotation)) else []
    if field.is_required():
        notes.append("required")
    elif isinstance(default, bool):
        notes.append(f"default: {'on' if default else 'off'}")
    elif default not in (None, (), PydanticUndefined):
        notes.append(f"default: {', '.join(map(str, default)) if isinstance(default, tuple) else default}")
    text = escape(field.description or "")
    return f"{text} [dim]{escape('[' + '; '.join(notes) + ']')}[/dim]" if notes else text


def _common(name: str, default: Any, kind: Any, help_text: str, **more: Any) -> inspect.Parameter:
    flags = ["--" + name.replace("_", "-"), *(["-h"] if name == "help" else [])]
    metavar = "" if kind is bool else "<path>"
    info = typer.Option(*flags, metavar=metavar, help=help_text, show_default=False, rich_help_panel="Every command", **more)
    return _parameter(name, default, kind, info)


COMMON = [
    _common(
        "config", None, list[Path] | None, "TOML file of settings. May be given again: later files win, and flags win over all."
    ),
    _common("dry_run", False, bool, "Print the resolved settings as TOML and stop."),
    _common("json", False, bool, "Print nothing but data on stdout, as JSON."),
    _common("quiet", False, bool, "No remarks and no progress bar."),
]


def _help_flags(rare: Sequence[str]) -> list[inspect.Parameter]:
    """`--help`, and `--help-all`, which shows the parameters of the names `rare` too."""

    def show(context: typer.Context, wanted: bool) -> None:
        if wanted:
            context.get_help()  # typer prints it at once
            raise typer.Exit

    def show_all(context: typer.Context, wanted: bool) -> None:
        if wanted:
            command = context.command = copy.copy(context.command)  # the next command line of this process has the other
            command.params = [copy.copy(parameter) for parameter in command.params]
            for parameter in command.params:
                if parameter.name in rare:
                    cast(Any, parameter).hidden = False
            command.epilog = None
            show(context, wanted)

    return [
        _common("help", False, bool, "Show this and stop.", is_eager=True, callback=show, expose_value=False),
        _common("help_all", False, bool, "Show every setting and stop.", is_eager=True, callback=show_all, expose_value=False),
    ]
