"""The shape of the house: imports point down only, and the command line is light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, TESTS

PACKAGE = ROOT / "kernrl"

FLOORS = [
    {"cli"},
    {"stages", "integrations"},
    {"training"},
    {"runs"},
    {"rollouts", "reports"},
    {"policy", "verifier"},
    {"kernels", "tasks"},
    {"base"},
]
"""Rooms by floor, the highest first. A room may import itself and the rooms of lower floors."""

ROOM_OF_MODULE = {"__main__": "cli", "cli": "cli", "command": "cli"} | dict.fromkeys(
    ("__init__", "config", "console", "errors", "files", "settings", "syntax"), "base"
)
"""Module at the package's top → its room; every folder is a room of its own name."""


def room_of(dotted: str) -> str:
    """`kernrl.tasks.rows` → `tasks`."""
    parts = dotted.split(".")
    top = parts[1] if len(parts) > 1 else "__init__"
    return ROOM_OF_MODULE.get(top, top)


def imports_of(source: str, dotted: str) -> Iterator[str]:
    """The kernrl modules that the module `dotted` imports, wherever in its text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "kernrl")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*dotted.split(".")[: -node.level], *base.split(".")]).rstrip(".")
            if base == "kernrl":
                # `from kernrl import console` imports a module, `from kernrl import __version__` the package
                yield from (f"kernrl.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
            elif base.startswith("kernrl."):
                yield base


def may_import(room: str, other: str) -> bool:
    floor = {name: height for height, rooms in enumerate(FLOORS) for name in rooms}
    return room == other or floor[other] > floor[room]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    dotted = ".".join(["kernrl", *path.relative_to(PACKAGE).with_suffix("").parts])
    room = room_of(dotted)
    wrong = [target for target in imports_of(path.read_text(), dotted) if not may_import(room, room_of(target))]
    assert not wrong, f"{dotted} ({room}) may not import {wrong}"


def test_rule_sees_every_form_of_import() -> None:
    source = (
        "import kernrl.stages.tasks\n"
        "from kernrl import cli\n"
        "from kernrl import __version__\n"
        "from ..policy import nano\n"
        "def late():\n    from kernrl.verifier.plan.plan import Plan\n"
        "import torch\n"
    )
    found = list(imports_of(source, "kernrl.tasks.rows"))
    assert sorted(found) == ["kernrl.cli", "kernrl.policy", "kernrl.stages.tasks", "kernrl.verifier.plan.plan"]
    assert not any(may_import("tasks", room_of(target)) for target in found)


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.stem)
def test_test_files_do_not_import_each_other(path: Path) -> None:
    """What tests share lies in `tests/support/` and in conftest.py."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in names if any(part.startswith("test_") for part in name.split("."))]


def test_rooms_of_one_floor_are_apart() -> None:
    assert not may_import("policy", "verifier")
    assert not may_import("kernels", "tasks")
    assert may_import("stages", "tasks")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tasks", "generate", "--help"], []])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("torch", "transformers", "triton", "datasets", "numpy")
    code = (
        "import sys; from kernrl.cli import run; code = run(sys.argv[1:]);"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert "kernrl" in done.stdout
