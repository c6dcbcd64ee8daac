"""Compare the verdicts of two proofs row by row: status, stage and reason.

    python scripts/prove_verifier.py --out before.json        # on the one version
    python scripts/prove_verifier.py --out after.json         # on the other
    python scripts/compare_verdicts.py before.json after.json

What differs from run to run is left out of a reason: numbers, and which secret draw showed an error first. Exit code 1 when
rows differ.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

_DRAWN = re.compile(r"^(Wrong on the )\w+( shapes with )\w+ inputs.*", re.DOTALL)
"""A wrong result is reported for the draw with the largest error, and draws are secret and new in every run."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")


def row(verdict: dict[str, Any]) -> tuple[str, str, str]:
    """What must not change of a verdict."""
    reason = _NUMBER.sub("N", _DRAWN.sub(r"\1…\2…", verdict["reason"]))
    return verdict["status"], verdict["stage"], reason


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name → (line before, line after) of every verdict that differs or is in one of the two alone."""
    found = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or row(old) != row(new):
            found[name] = _line(old), _line(new)
    return found


def _line(verdict: dict[str, Any] | None) -> str:
    return "absent" if verdict is None else f"{verdict['status']} at {verdict['stage']}: {verdict['reason']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    before, after = (json.loads(path.read_text())["verdicts"] for path in (options.before, options.after))
    found = differences(before, after)
    for name, (old, new) in found.items():
        print(f"{name}\n  before: {old[:300]!r}\n  after:  {new[:300]!r}")
    print(f"{len(before)} verdicts before, {len(after)} after: {len(found)} differ")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
