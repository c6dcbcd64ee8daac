"""From a model's reply to a Candidate: finds the code in the text."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass

from kernrl.syntax import parse_python
from kernrl.verifier.base.verdict import Rejection, Status

MAX_SOURCE_CHARS = 200_000

# a fence opens or closes at the start of a line; an answer that was cut off may leave the last one open
# (possessive quantifiers: on a line of spaces and ticks, others take time quadratic in its length)
_FENCE = re.compile(r"^[ \t]*+(?:```++|~~~++)[ \t]*+([\w+.-]*+)[^\n`]*+$", re.MULTILINE)
_CLASS = re.compile(r"^[ \t]*+class[ \t]++ModelNew\b", re.MULTILINE)
_PYTHON = frozenset(("python", "py", "python3", "triton", ""))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Source text that a model wrote. Never trusted."""

    source: str

    @property
    def sha(self) -> str:
        """sha256 of the source, hex."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


def parse_reply(text: str) -> Candidate | Rejection:
    """The code of a reply: its last fenced Python block that defines ModelNew, else the last one, else the bare text."""
    blocks = [body for language, body in _blocks(text) if language.lower() in _PYTHON and body.strip()]
    defining = [body for body in blocks if _CLASS.search(body)]
    source = (defining or blocks or [text])[-1]
    if not blocks and not _looks_like_code(text):
        return Rejection(Status.NO_CODE, "The reply holds no code: put one complete Python module in a ```python block.")
    if len(source) > MAX_SOURCE_CHARS:
        return Rejection(Status.NO_CODE, f"The code is longer than {MAX_SOURCE_CHARS} characters.")
    return Candidate(source)


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, body) of every fenced block, in order."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[1]:
            blocks.append((opened[1], text[opened.end() + 1 : fence.start()]))
            opened = None
    if opened is not None:
        blocks.append((opened[1], text[opened.end() + 1 :]))
    return blocks


def _looks_like_code(text: str) -> bool:
    if _CLASS.search(text):
        return True
    try:
        body = parse_python(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef) for node in body)
