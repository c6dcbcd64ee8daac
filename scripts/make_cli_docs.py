"""Write docs/reference/cli.md from the commands themselves: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from kernrl.cli import app
from kernrl.command import ALIAS, COMMON, OFF

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

INTRODUCTION = """\
# The command line

This page is made from the commands by `make docs`.

Settings come from a command's defaults, then from each `--config` file from left to right, then from its flags. A
config file is TOML with the flags' names, `_` for `-`; a flag with a dot, `--table.name`, is `name` in `[table]`. An
unknown key is an error. A switch `--name` has its opposite, `--no-name`. `--dry-run` prints the resolved settings in
that form and stops.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, or the answer is no |
| 2 | bad input: one sentence on stderr names the file or flag |
| 3 | the infrastructure broke, so nothing can be said |
| 130 | interrupted |

What was asked for goes to stdout, remarks and progress to stderr. `NO_COLOR` is honoured, and nothing is coloured
where the output is no terminal. `kernrl --install-completion` installs completion for the current shell.

## Every command takes

"""


def render() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    common = {parameter.name for parameter in COMMON}
    commands = list(_commands(root, "kernrl"))
    shared = [parameter for parameter in commands[0][1].params if parameter.name in common]
    parts = [INTRODUCTION, _table(shared)]
    for name, command in commands:
        own = [p for p in command.params if p.name not in common and p.name != "help"]
        parts.append(f"\n## `{name}`\n\n{command.help}\n")
        if own:
            parts.append("\n" + _table(own))
    return "".join(parts)


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for child_name, child in group.commands.items():
        full = f"{name} {child_name}"
        if hasattr(child, "commands"):
            yield from _commands(child, full)
        else:
            yield full, child


def _table(parameters: list[Any]) -> str:
    lines = ["| setting | value | what it is |", "|---|---|---|"]
    forms: dict[str, list[Any]] = {}
    for parameter in parameters:  # what help has no room for stands here too
        forms.setdefault(parameter.name.removeprefix(OFF).removeprefix(ALIAS), []).append(parameter)
    for same in forms.values():
        parameter = same[0]
        positional = parameter.param_type_name == "argument"
        written = parameter.metavar if positional else ", ".join(flag for form in same for flag in form.opts)
        switch = parameter.metavar == ""
        cells = (f"`{written}`", "" if switch else _kind(parameter), Text.from_markup(parameter.help or "").plain)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _kind(parameter: Any) -> str:
    """`choice`, whose values the text names; `int`; `list[str]` → `str, repeatable`."""
    kind = "choice" if parameter.metavar == "<choice>" else parameter.display_type(None).strip("<>")
    return f"{kind[5:-1]}, repeatable" if kind.startswith("list[") else kind


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
