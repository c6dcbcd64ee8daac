"""The command lines of a page of the documentation."""

from __future__ import annotations

import re
import shlex

CODE = re.compile(r"```(?:bash|console|text)?\n(.*?)```|((?:^    .*\n|^\n(?=    ))+)", re.DOTALL | re.MULTILINE)
"""Fenced blocks that are no Python, and indented ones."""


def commands(text: str) -> list[list[str]]:
    """The words after `kernrl` of every command line in a page's blocks of code."""
    found = []
    for block in CODE.finditer(text):
        for line in (block[1] or block[2]).replace("\\\n", " ").splitlines():
            # shlex would also take for a comment what follows the `#` of `heldout#2`
            bare = re.sub(r"\s#.*", "", line).strip().removeprefix("$ ")
            words = shlex.split(bare) if re.match(r"\s*(\$ )?kernrl ", line) else []
            if words and "..." not in words:  # an excerpt
                found.append(words[1 : words.index("|") if "|" in words else None])
    return found
