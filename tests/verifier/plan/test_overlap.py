"""Two views of one buffer: whether they share an element."""

from __future__ import annotations

import random

import pytest
import torch

from kernrl.verifier.plan.overlap import overlaps, share
from kernrl.verifier.plan.plan import TensorRef


def ref(view: torch.Tensor) -> TensorRef:
    return TensorRef(0, "float32", tuple(view.shape), view.stride(), int(view.storage_offset()))


ROWS = torch.empty(6, 20)
APART = {
    "heads of one projection": (ROWS[:, :8].view(6, 2, 4), ROWS[:, 8:12].view(6, 1, 4)),
    "columns of other ranks": (ROWS[:, :6], ROWS[:, 7:19].view(6, 3, 4)),
    "columns that begin earlier in a later row": (ROWS[:5, 12:], ROWS[1:, :12]),
    "every second": (ROWS[:, 0::2], ROWS[:, 1::2]),
    "blocks of one matrix": (ROWS[:3, :15], ROWS[3:, 5:]),
    "transposed halves": (ROWS[:, :10].t(), ROWS[:, 10:].t()),
}
SHARED = {
    "a row": (ROWS, ROWS[2]),
    "columns that meet": (ROWS[:, :9], ROWS[:, 8:]),
    "blocks that meet": (ROWS[:4, :15], ROWS[3:, 5:]),
    "a view and its transpose": (ROWS, ROWS.t()),
    "an expanded column and its neighbours": (ROWS[:, :1].expand(6, 20), ROWS[:, 0]),
}


@pytest.mark.parametrize(("pair", "shared"), [(p, False) for p in APART.values()] + [(p, True) for p in SHARED.values()])
def test_parts_of_one_buffer_share_nothing(pair: tuple[torch.Tensor, torch.Tensor], shared: bool) -> None:
    a, b = map(ref, pair)
    assert (share(a, b), share(b, a)) == (shared, shared)


def places(view: TensorRef) -> set[int]:
    return set(torch.arange(200).as_strided(view.shape, view.stride, view.offset).flatten().tolist())


def test_views_that_share_an_element_are_never_apart() -> None:
    draw = random.Random(3)
    views = []
    for _ in range(160):
        strides = [draw.choice((1, 2, 3, 4, 6, 8, 12, 24)) for _ in range(draw.randint(0, 3))]
        views.append(TensorRef(0, "float32", tuple(draw.randint(1, 4) for _ in strides), tuple(strides), draw.randint(0, 12)))
    views = [view for view in views if not overlaps(view)]
    where = [places(view) for view in views]
    wrong = [
        (a, b)
        for a, at in zip(views, where, strict=True)
        for b, other in zip(views, where, strict=True)
        if at & other and not share(a, b)
    ]
    assert not wrong
