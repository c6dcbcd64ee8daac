"""Prose that scripts write into pages, in lines that fit a page's source."""

import textwrap


def wrapped(text: str, later: str = "") -> str:
    """A paragraph in lines under 120 columns, with no line's end; `later` begins those after the first."""
    return textwrap.fill(text, 119, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
