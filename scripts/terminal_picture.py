"""Run commands and draw what a terminal showed, as an SVG for the README.

    python scripts/terminal_picture.py --out docs/images/optimize.svg \\
        "kernrl optimize tests/foreign/wide_projection_norm.py --output /tmp/faster" "python /tmp/faster/best.py"

The commands run as they stand, one after the other, and all that they print is drawn. It ends with the first that fails.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> None:
    """Run, echo and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the SVG to write")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--title", default="kernrl", help="of the window")
    given = parser.parse_args()
    picture = Console(record=True, width=given.columns, file=io.StringIO())
    environment = os.environ | {"COLUMNS": str(given.columns), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in given.commands:
        picture.print(Text.assemble(("$ ", "green"), (command, "bold")))
        ran = subprocess.run(command, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        print(f"$ {command}\n{ran.stdout}", flush=True)
        picture.print(Text.from_ansi(ran.stdout))
        if ran.returncode:
            sys.exit(f"{command} exited with {ran.returncode}; nothing was drawn.")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    picture.save_svg(str(given.out), title=given.title)


if __name__ == "__main__":
    main()
