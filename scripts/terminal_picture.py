"""Run commands and draw what a terminal showed, as an SVG for the README.

    cp docs/examples/depthwise_block.py "$EMPTY" && cd "$EMPTY"
    python "$REPOSITORY"/scripts/terminal_picture.py --out optimize.svg --transcript optimize.json \\
        "kernrl optimize depthwise_block.py --precision tf32 --output faster" "python faster/best.py"
    python "$REPOSITORY"/scripts/terminal_picture.py --out optimize.svg --transcript optimize.json --columns 90

The commands run as they stand, one after the other, and all that they print is drawn and kept in the transcript, with their
seconds and what they ran on; of paths, what is particular to this machine is left out. It ends with the first that fails.
Without commands, the transcript is drawn again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kernrl.runs.run_directory import environment


def recorded(commands: Sequence[str], columns: int) -> list[dict[str, Any]]:
    """Run commands; what each printed, and how long it took. Exits where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        if shutil.which("kernrl", path=path) is None:  # a checkout that is not installed
            script = Path(folder) / "kernrl"
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kernrl "$@"\n')
            script.chmod(0o755)
        return _recorded(commands, columns, f"{path}:{folder}")


def _recorded(commands: Sequence[str], columns: int, path: str) -> list[dict[str, Any]]:
    shown = []
    for command in commands:
        began = time.monotonic()
        ran = subprocess.run(
            command,
            shell=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"COLUMNS": str(columns), "PATH": path},
        )
        output = without_places(ran.stdout)
        print(f"$ {command}\n{output}", flush=True)
        if ran.returncode:
            sys.exit(f"{command} exited with {ran.returncode}; nothing was drawn.")
        shown.append({"command": command, "output": output, "seconds": round(time.monotonic() - began, 1)})
    return shown


def without_places(text: str) -> str:
    """Text without where this machine has its packages, the folder of work, and the user's."""
    text = re.sub(r"[^\s\"'(]*/site-packages/", "site-packages/", text)
    for folder, name in ((Path.cwd(), "."), (Path.home(), "~")):
        if folder != folder.parent:
            text = re.sub(rf"(?<![\w/.-]){re.escape(str(folder))}(?![\w-])", name, text)
    return text


def draw(shown: Sequence[dict[str, Any]], columns: int, title: str) -> str:
    """The picture of a terminal."""
    picture = Console(record=True, width=columns, file=io.StringIO())
    for number, entry in enumerate(shown):
        if number:
            picture.print()
        picture.print(Text.assemble(("$ ", "green"), (entry["command"], "bold")))
        picture.print(Text.from_ansi(entry["output"].rstrip("\n")))
    return picture.export_svg(title=title)


def main(words: Sequence[str] | None = None) -> None:
    """Run, echo and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*")
    parser.add_argument("--out", type=Path, required=True, help="the SVG to write")
    parser.add_argument("--transcript", type=Path, help="what the commands printed: written with commands, read without")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--commit", help="of this code, where its folder is not a repository")
    parser.add_argument("--title", default="kernrl", help="of the window")
    given = parser.parse_args(words)
    if given.commands:
        about = environment()
        kept = about | {"commit": given.commit or about["commit"], "commands": recorded(given.commands, given.columns)}
        if given.transcript:
            given.transcript.parent.mkdir(parents=True, exist_ok=True)
            given.transcript.write_text(json.dumps(kept, indent=2) + "\n")
    elif given.transcript and given.transcript.exists():
        kept = json.loads(given.transcript.read_text())
    else:
        parser.error("name commands to run, or the --transcript of some that were run")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(draw(kept["commands"], given.columns, given.title))


if __name__ == "__main__":
    main()
