"""Which dicts have changed, and whether something else hangs on a function, is read from memory."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import pytest

from kernrl.verifier.trace.state.library_state import Attributes, Dicts, namespace


class Named:
    number = 1


def test_dicts_that_change_are_named() -> None:
    dicts = {i: {"a": i, "b": None} for i in range(5000)}
    watched = Dicts(dicts)
    if not watched.have_tags:
        pytest.skip("this Python does not tell, and then each is looked through")
    assert watched.changed() == []
    dicts[0]["a"] = 1
    dicts[1023]["c"] = 0
    dicts[1024]["b"] = 0
    del dicts[4999]["a"]
    assert watched.changed() == [0, 1023, 1024, 4999]


def test_a_class_that_changes_is_noticed() -> None:
    watched = Dicts({"class": namespace(Named), "module": namespace(pytest)})
    if not watched.have_tags:
        pytest.skip("this Python does not tell, and then each is looked through")
    assert watched.changed() == []
    Named.number = 2
    assert watched.changed() == ["class"]


def another_dict(function: FunctionType) -> None:
    function.__dict__ = {}


def a_number(function: FunctionType) -> None:
    function.number = 1  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize("change", [another_dict, a_number])
def test_what_hangs_on_a_function_is_noticed(change: Callable[[FunctionType], None]) -> None:
    def first() -> None: ...

    def second() -> None: ...

    watched = Attributes([first, second])  # pyright: ignore[reportArgumentType]
    before = watched.changed()
    change(second)  # pyright: ignore[reportArgumentType]
    assert (before, watched.changed()) == ([], [1])
