"""A module must do at other shapes what a new one does there; recorded without a sandbox."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.front import dense, spec
from torch import Tensor, nn

from kernrl.verifier.trace.record_forward import record_forward
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.recording import recording
from kernrl.verifier.trace.state.other_shapes import Earlier
from kernrl.verifier.trace.untraceable import Untraceable


def record(compute: Any, *rows: int) -> list[Any]:
    """Plans of a module whose forward is `compute(self, x)`, at several numbers of rows."""

    class ModelNew(nn.Module):
        kept: Any = None

        def forward(self, x: Tensor) -> Any:
            return compute(self, x)

    plans, earlier = [], list[Earlier]()
    for n in rows:
        recorder = Recorder()
        with recording(recorder):
            plans.append(record_forward(ModelNew, spec(dense(n, 32)), recorder, [], again=True, earlier=earlier))
    return plans


def table_by_shape(self: Any, x: Tensor) -> Tensor:
    self.kept = self.kept or {}
    if x.shape not in self.kept:
        self.kept[x.shape] = torch.arange(x.shape[0], device=x.device).float()
    return x * self.kept[x.shape][:, None]


def growing_workspace(self: Any, x: Tensor) -> Tensor:
    if self.kept is None or self.kept.numel() < x.numel():
        self.kept = torch.empty(x.numel(), device=x.device)
    part = self.kept[: x.numel()].view_as(x)
    part.copy_(x)
    return part * 2


def two_ways(self: Any, x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] < 10 else (x * 2).exp()


@pytest.mark.parametrize("compute", [table_by_shape, growing_workspace, two_ways])
def test_what_depends_on_the_shape_alone_is_allowed(compute):
    assert len(record(compute, 8, 16, 4)) == 3


def first_output(self: Any, x: Tensor) -> Tensor:
    self.kept = self.kept or x.shape[0]
    return (x * 2)[: self.kept]


def smallest(self: Any, x: Tensor) -> Tensor:
    self.kept = min(self.kept or 1000, x.shape[0])
    return x * 2 if self.kept == x.shape[0] else torch.zeros_like(x)


def fails_later(self: Any, x: Tensor) -> Tensor:
    self.kept = self.kept or x.shape[0]
    return x.view(self.kept, 32) * 2


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (first_output, "at shapes that it meets after others"),
        (smallest, "at shapes that it meets after others"),
        (fails_later, "fails at other shapes"),
    ],
)
def test_what_is_kept_of_another_shape_is_refused(compute, said):
    with pytest.raises(Untraceable, match=said):
        record(compute, 8, 17)


def test_modules_that_are_constructed_otherwise_are_not_compared():
    """A width that the constructor is told may be kept."""
    made, earlier = [], list[Earlier]()

    class ModelNew(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

        def forward(self, x: Tensor) -> Tensor:
            return (x * 2)[: self.rows]

    for n in (8, 17):
        recorder = Recorder()
        with recording(recorder):
            told = spec(dense(n, 32), init=[n])
            made.append(record_forward(ModelNew, told, recorder, [], again=True, earlier=earlier))
    assert len(made) == 2
