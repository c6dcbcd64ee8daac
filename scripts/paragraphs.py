"""Prose that scripts write into pages, in lines that fit a page's source."""

import textwrap


def wrapped(text: str) -> str:
    """A paragraph in lines under 120 columns, with no line's end."""
    return textwrap.fill(text, 119, break_long_words=False, break_on_hyphens=False)
