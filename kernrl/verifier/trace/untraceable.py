"""What is raised where code cannot be traced, and what it says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import ClassVar


class Untraceable(RuntimeError):
    """The code needs a tensor's value, or does what a plan cannot express. The message says what to write instead."""

    last: ClassVar[Untraceable | None] = None
    """The one raised last, kept because code may catch it: that would select a path that never runs outside the trace."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        Untraceable.last = self


@contextlib.contextmanager
def none_swallowed() -> Iterator[None]:
    """Raise Untraceable if code within catches one and goes on."""
    Untraceable.last = None
    yield
    if (swallowed := Untraceable.last) is not None:
        raise Untraceable(f"{swallowed}; it must not be caught")


ADVICE = ", which cannot be traced: decide from shapes, or do it in the kernel"
VALUE_NEEDED = "forward() reads a tensor's value on the host ({what})" + ADVICE

WITHOUT_SHAPE = (
    "makes a tensor whose shape depends on numbers, or whose shape torch does not know without them: "
    "do it in a kernel, or by operations whose results have a known size, such as scatter_add, where and masks"
)


def without_shape(error: BaseException) -> str:
    """The operator that cannot be called on tensors without values, of torch's exception; '' if it is another one."""
    text = str(error).strip()
    lower = text.lower()
    without = "meta tensor" in lower or "'meta' backend" in lower or "internal assert failed" in lower
    if not without and not (isinstance(error, NotImplementedError) and "meta" in lower):
        return ""
    named = re.search(r"(aten::\w+|torch\.\w+\(\)|'aten::\w+)", text) or re.search(r"(\w+) a meta tensor", text)
    return named.group(1).strip("'") if named else "an operation"
