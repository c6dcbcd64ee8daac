"""Inputs are handed over in several ways, and a plan sees the same in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.front import dense, spec
from torch import nn

from kernrl.verifier.trace.call_arguments import arguments, computed, keywords, parameter, partly_computed, sliced, whole
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.recording import recording

TWO = spec(dense(4, 8), {"index": dense(3, dtype="int64"), "scale": 2.0}, dense(5, dtype="bfloat16"))


def tensors(made: Sequence[Any]) -> list[torch.Tensor]:
    return [made[0], made[1]["index"], made[2]]


@pytest.mark.parametrize("kind", [whole, sliced, parameter, computed, lambda recorder: partly_computed(TWO, recorder)])
def test_a_plan_sees_whole_inputs(kind):
    recorder = Recorder()
    with recording(recorder):
        made = arguments(TWO, kind(recorder))
        refs = [recorder.ref(t) for t in tensors(made)]
    assert made[1]["scale"] == 2.0
    assert [(r.dtype, r.shape, r.offset) for r in refs] == [("float32", (4, 8), 0), ("int64", (3,), 0), ("bfloat16", (5,), 0)]
    assert [(recorder.storages[r.storage].kind, recorder.storages[r.storage].source) for r in refs] == [
        ("input", position) for position in range(3)
    ]


def test_views_of_a_slice_are_counted_from_its_beginning():
    recorder = Recorder()
    with recording(recorder):
        x = tensors(arguments(TWO, sliced(recorder)))[0]
        assert recorder.ref(x[1:]).offset == 8
        assert recorder.ref(x.view(torch.int16)[:, 2:]).offset == 2
        assert recorder.extent(x[1:]) == (8, 128)


def test_some_inputs_need_gradients_and_others_do_not():
    recorder = Recorder()
    with recording(recorder):
        x, index, y = tensors(arguments(TWO, partly_computed(TWO, recorder)))
        assert x.requires_grad is not y.requires_grad
        assert not index.requires_grad


class Named(nn.Module):
    def forward(self, a, b, /, c):
        return c


class Takes(nn.Module):
    def forward(self, a, *rest, **named):
        return a


class Positions(nn.Module):
    def forward(self, *inputs):
        return inputs


@pytest.mark.parametrize(
    ("module", "names"), [(Named(), ["c"]), (Takes(), ["a", "y", "z"]), (Positions(), []), (nn.Identity(), [])]
)
def test_names_are_forwards_own_or_the_references(module, names):
    assert [*keywords(module, replace(TWO, names=("x", "y", "z")))] == names
