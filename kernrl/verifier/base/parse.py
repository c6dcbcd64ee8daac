"""From a model's reply to a Candidate: finds the code in the text."""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
from dataclasses import dataclass

from kernrl.syntax import parse_python
from kernrl.verifier.base.verdict import Rejection, Status

MAX_SOURCE_CHARS = 200_000

# a fence opens or closes at the start of a line; an answer that was cut off may leave the last one open
# (possessive quantifiers: on a line of spaces and ticks, others take time quadratic in its length)
_FENCE = re.compile(r"^[ \t]*+(?:```++|~~~++)[ \t]*+([\w+.-]*+)[^\n`]*+$", re.MULTILINE)
_QUOTE = re.compile(r"\\.|\"{3}|'{3}|[\"'#\n]", re.DOTALL)
_CLASS = re.compile(r"^[ \t]*+class[ \t]++ModelNew\b", re.MULTILINE)
_STATEMENT = re.compile(r"^([ \t]*+)[^\s#]", re.MULTILINE)
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
    """The code of a reply: its last fenced Python block that defines ModelNew, else the last one, else the bare text.

    Fences inside the code's own strings, such as the example of a docstring, are part of the code.
    """
    text = text.removeprefix("\ufeff")  # with which some editors begin a file
    if "```" in text and _is_module(text):
        return _candidate(text)
    blocks = [body for language, body in _blocks(text) if language.lower() in _PYTHON and body.strip()]
    defining = [body for body in blocks if _CLASS.search(body)]
    source = (defining or blocks or [text])[-1]
    if len(source) > MAX_SOURCE_CHARS:  # before anything parses it, which takes a thousand times its size
        return Rejection(Status.NO_CODE, f"The code is longer than {MAX_SOURCE_CHARS:,} characters.")
    if not blocks and not _looks_like_code(text):
        return Rejection(Status.NO_CODE, "The reply holds no code: put one complete Python module in a ```python block.")
    return _candidate(source)


def _candidate(source: str) -> Candidate | Rejection:
    if len(source) > MAX_SOURCE_CHARS:
        return Rejection(Status.NO_CODE, f"The code is longer than {MAX_SOURCE_CHARS:,} characters.")
    return Candidate(source)


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, body) of every fenced block, in order."""
    blocks: list[tuple[str, str]] = []
    fences = list(_FENCE.finditer(text))
    at, minds_strings = 0, True
    while at < len(fences):
        last = first = next((i for i in range(at + 1, len(fences)) if not fences[i][1]), len(fences))
        if minds_strings:
            last = _closing(text, fences, at)
        if last != first and not _is_module(_between(text, fences, at, last)):
            # a string that is never closed; once is enough, or it would take time quadratic in the reply's length
            last, minds_strings = first, False
        blocks.append((fences[at][1], _between(text, fences, at, last)))
        at = last + 1
    return blocks


def _between(text: str, fences: list[re.Match[str]], opened: int, closing: int) -> str:
    return _dedented(text[fences[opened].end() + 1 : fences[closing].start() if closing < len(fences) else len(text)])


def _dedented(body: str) -> str:
    """A block without the indentation of its first statement, as blocks in a list have it; no module begins with any."""
    first = _STATEMENT.search(body)
    if not first or not first[1]:
        return body
    indent = first[1]
    return "\n".join(x[len(indent) :] if x.startswith(indent) else x.lstrip(" \t") for x in body.split("\n"))


def _closing(text: str, fences: list[re.Match[str]], opened: int) -> int:
    """The fence that closes a block of Python: the first bare one that is in no triple-quoted string; their number if none."""
    inside, at = "", opened + 1
    for token in itertools.chain(_QUOTE.finditer(text, fences[opened].end()), [None]):
        while at < len(fences) and (token is None or fences[at].start() < token.start()):
            if not fences[at][1] and len(inside) < 3:
                return at
            at += 1
        mark = token[0] if token else "\n"
        if not inside:
            inside = "" if mark[0] in "\\\n" else mark
        elif inside == "#":
            inside = "" if mark[-1] == "\n" else inside
        elif mark == inside or (len(inside) == 1 and (mark == "\n" or mark[0] == inside)):
            inside = ""
    return len(fences)


def _looks_like_code(text: str) -> bool:
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    return bool(_CLASS.search(text)) or any(isinstance(node, kinds) for node in _body(text))


def _is_module(text: str) -> bool:
    """Whether text is Python that defines ModelNew, as it is."""
    return len(text) <= MAX_SOURCE_CHARS and bool(_CLASS.search(text)) and bool(_body(text))


def _body(text: str) -> list[ast.stmt]:
    """The statements of Python code; none for any other text."""
    try:
        return parse_python(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
