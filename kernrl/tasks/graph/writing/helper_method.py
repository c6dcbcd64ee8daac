"""A `forward` that ends in another method, as some people write it."""

from __future__ import annotations

import re
from collections.abc import Sequence


def end_in_helper(lines: list[str], arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`forward`, and the method that ends it, indented as the class's; none where no single value is alive between two lines.

    Args:
        lines: of the whole `forward`.
        arguments: its arguments, without `self`.
    """
    for cut in range(1, len(lines) - 1):
        defined = {m[1] for line in lines[:cut] if (m := re.match(r"(\w+) [-+*/]?= ", line))} | set(arguments)
        later = "\n".join(lines[cut:])
        alive = {name for name in defined if reads(later, name)}
        if len(alive) == 1:
            [name] = alive
            helper = ["", f"    def _finish(self, {name}):", *(f"        {line}" for line in lines[cut:])]
            return [*lines[:cut], f"return self._finish({name})"], helper
    return lines, []


def reads(text: str, variable: str) -> bool:
    """Whether `text` reads that variable."""
    return re.search(rf"(?<![\w.]){variable}\b", text) is not None
