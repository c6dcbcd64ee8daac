"""Take a picture of a report in headless Chromium: `python scripts/screenshot_report.py REPORT.html --out PICTURE.png`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="1150x1500", help="width x height in pixels; at least 500 wide")
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(f"There is none of {', '.join(BROWSERS)} here: install one.", file=sys.stderr)
        return 2
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={arguments.size.replace('x', ',')}",
        f"--blink-settings=preferredColorScheme={0 if arguments.dark else 1}",
        f"--screenshot={arguments.out.resolve()}",
        arguments.page.resolve().as_uri(),
    ]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
