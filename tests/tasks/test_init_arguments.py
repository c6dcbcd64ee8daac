"""Arguments that are given by name, in the order of the constructor; and what looks like them and is not."""

from typing import Any

import pytest

from kernrl.tasks.init_arguments import in_order


def layers(sizes: Any, options: Any = None) -> None: ...


def norm(width: int, eps: float = 1e-5, bias: bool = True, last: int = 3) -> None: ...


def stack(*sizes: int) -> None: ...


def apart(width: int, *, eps: float = 1e-5) -> None: ...


def anything(**names: Any) -> None: ...


def optional(first: Any = (), second: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("model", "given", "wanted"),
    [
        (norm, [4, 0.1], [4, 0.1]),
        (norm, (), ()),
        (norm, {"width": 4}, [4]),
        (norm, [[], {"width": 4, "bias": False}], [4, 1e-5, False]),  # less what nobody gave
        (norm, [[4], {"eps": 0.1}], [4, 0.1]),
        (norm, ((4,), {"eps": 0.1}), [4, 0.1]),
        (stack, [[], {}], []),
        (stack, [[1, 2], {}], [[1, 2], {}]),
        (layers, [[3, 4], {"a": 1}], [[3, 4], {"a": 1}]),  # the two arguments themselves
        (layers, [[3], {}], [[3], {}]),
        (layers, [[], {"sizes": [3]}], [[3]]),
        (optional, [[], {}], []),
        (anything, [[], {}], []),
        (object, [], []),
    ],
)
def test_the_arguments_in_order(model: Any, given: Any, wanted: Any) -> None:
    assert in_order(model, given) == wanted


@pytest.mark.parametrize(("model", "named"), [(apart, {"width": 4, "eps": 0.1}), (anything, {"eps": 0.1})])
def test_what_can_be_given_by_name_alone_is_refused(model: Any, named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="by name alone"):
        in_order(model, [[], named])


def test_names_that_do_not_fit_are_no_arguments_in_order() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'sizes'"):
        in_order(layers, [[], {"size": [3]}])
