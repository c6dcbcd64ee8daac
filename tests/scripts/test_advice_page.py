"""docs/reference/advice.md quotes what models are told: the words there are those that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from support import ROOT

from kernrl.verifier.judge.regimes import REGIMES

PAGE = ROOT / "docs" / "reference" / "advice.md"
FREE = re.compile(r"\((?:syntax_error|compile_error)\): .*? (?=Reply with|Block sizes must)")
"""Reasons that are Python's or Triton's own."""
FILLED_IN = re.compile(rf"\b(?:{'|'.join([*REGIMES, 'nominal'])})\b|[\w.]+ [\d.]+ MB \d+ µs")
"""Names of kinds of inputs, and the operations of a candidate."""
WORD = re.compile(r"[^\W\d_]{2,}")


@cache
def pieces() -> list[str]:
    """The texts of the verifier and of the advice, without what is filled in: those of two words and more."""
    found: set[str] = set()
    for folder in ("verifier", "rollouts"):
        for file in (ROOT / "kernrl" / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text()))
            texts = [n.value.strip() for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            found |= {text for text in texts if len(WORD.findall(text)) > 1 and len(text) < 1000}
    return sorted(found, key=len, reverse=True)


def unsaid(message: str) -> list[str]:
    """What is in a message and in no text of the code: five words in a row and more."""
    for piece in pieces():
        message = message.replace(piece, "|")
    return [part.strip(" .") for part in FILLED_IN.sub("|", message).split("|") if len(WORD.findall(part)) > 4]


def told() -> list[str]:
    """What the page says that a model is told, each message in one line."""
    found = re.findall(r"The model is told:\n\n~~~text\n(.*?)\n~~~", PAGE.read_text(), re.DOTALL)
    return [FREE.sub("|", block.replace("\n", " ")) for block in found]


def test_every_message_is_read() -> None:
    assert len(told()) == PAGE.read_text().count("The model is told:") > 8


@pytest.mark.slow
@pytest.mark.parametrize("message", told(), ids=lambda message: message[:40])
def test_the_code_says_so(message: str) -> None:
    assert unsaid(message) == []


@pytest.mark.slow
def test_what_no_code_says_is_found() -> None:
    advice = "Numbers overflow: subtract the maximum before an exponential, and scale before numbers are squared or summed"
    assert unsaid(f"Wrong on all 8 inputs tried. {advice}. Write the whole file again, corrected.") == [advice]
