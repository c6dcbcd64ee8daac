"""Write docs/reference/cli.md from the commands themselves: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from kernrl.cli import app
from kernrl.command import EARLIER, NUMBERS, OFF

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

SHARED = "Every command"
"""Panel of the flags that all commands have."""

INTRODUCTION = """\
# The command line

This page is made from the commands by `make docs`.

Settings come from a command's defaults, then from each `--config` file from left to right, then from its flags. A
config file is TOML with the flags' names, `_` for `-`; a flag with a dot, `--table.name`, is `name` in `[table]`. An
unknown key is an error. A switch `--name` has its opposite, `--no-name`. `--dry-run` prints the resolved settings in
that form and stops. `--help` shows the settings that are used most, `--help-all` every one.

Some defaults depend on the model: "for nano" means `--model nano` or a folder with a nano, such as `kernrl sft` makes.
With `--resume`, a setting that is not given stays as the run has it.

All settings of the verifier are `--verifier.NAME` in commands that train or evaluate, and `--NAME` in `kernrl verify`.
Where candidates are judged is `--verifier.executor`; its old spelling, `--verifier`, still works.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, or the answer is no |
| 2 | bad input: one sentence on stderr names the file or flag |
| 3 | the infrastructure broke, so nothing can be said |
| 4 | `kernrl verify`: only a GPU can tell |
| 130 | interrupted |

What was asked for goes to stdout, remarks and progress to stderr. `NO_COLOR` is honoured, and nothing is coloured
where the output is no terminal. `kernrl --install-completion` installs completion for the current shell.

## Every command takes

"""


def render() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    commands = list(_commands(root, "kernrl"))
    parts = [INTRODUCTION, _table(_by_panel(commands[0][1])[SHARED])]
    for name, command in commands:
        parts.append(f"\n## `{name}`\n\n{command.help}\n")
        for panel, parameters in _by_panel(command).items():
            if panel != SHARED:
                parts.append((f"\n**{panel}**\n" if panel else "") + "\n" + _table(parameters))
    return "".join(parts)


def _by_panel(command: Any) -> dict[str, list[Any]]:
    """A command's parameters by the panel of the help that they are in, "" for none; earlier spellings are left out."""
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if not parameter.name.startswith(EARLIER):
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
    return panels


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
    for parameter in parameters:
        forms.setdefault(parameter.name.removeprefix(OFF), []).append(parameter)
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
    said = parameter.metavar if parameter.metavar in ("<choice>", *NUMBERS.values()) else parameter.display_type(None)
    kind = said.strip("<>")
    return f"{kind[5:-1]}, repeatable" if kind.startswith("list[") else kind


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
