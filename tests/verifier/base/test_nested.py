"""Nested outputs are taken apart in one way by trace and judge, and put together again as they were."""

import dataclasses
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import Tensor

from kernrl.verifier.base.nested import flatten, nesting, rebuild

A, B = torch.zeros(1), torch.ones(2)
Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Output:
    logits: Tensor
    loss: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


class ModelOutput(OrderedDict):
    """As in transformers: its subclasses are dataclasses, and hold as a dict those fields that are not None."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            if (value := getattr(self, field.name)) is not None:
                super().__setitem__(field.name, value)


@dataclasses.dataclass
class CausalOutput(ModelOutput):
    logits: Tensor
    loss: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


CASES = {
    "tensor": (A, "tensor", [A]),
    "list in a tuple": ((A, [B]), "(tensor, (tensor))", [A, B]),
    "namedtuple": (Pair(A, B), "(tensor, tensor)", [A, B]),
    "dict": ({"logits": A, "hidden": (B, A)}, "{logits: tensor, hidden: (tensor, tensor)}", [A, B, A]),
    "dataclass": (Output(A, hidden=(B, A)), "{logits: tensor, hidden: (tensor, tensor)}", [A, B, A]),
    "dataclass in a list": ([Output(A, B)], "({logits: tensor, loss: tensor})", [A, B]),
    "model output": (CausalOutput(A, hidden=(B, A)), "{logits: tensor, hidden: (tensor, tensor)}", [A, B, A]),
}


@pytest.mark.parametrize(("value", "nested", "leaves"), CASES.values(), ids=CASES.keys())
def test_what_forward_may_return(value, nested, leaves):
    assert nesting(value) == nested
    assert [id(leaf) for leaf in flatten(value)] == [id(leaf) for leaf in leaves]


def test_names_tell_one_structure_from_another():
    assert nesting(Output(A, B)) != nesting(Output(A, hidden=(B,))) != nesting({"logits": A, "other": (B,)})
    assert nesting(Output) == "type"
    assert flatten(Output) == [Output]


def test_a_structure_is_rebuilt_with_other_leaves():
    for value, nested, leaves in CASES.values():
        fresh = [leaf + 1 for leaf in leaves]
        made = rebuild(value, list(fresh))
        assert nesting(made) == nested
        assert [id(leaf) for leaf in flatten(made)] == [id(leaf) for leaf in fresh]
    given = Output(A)
    made = rebuild(given, [B])
    assert type(made) is Output
    assert (made.logits is B, made.loss, given.logits is A) == (True, None, True)
