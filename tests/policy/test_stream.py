"""Rows from examples that are still coming: new ones first, each row as `PackedDataset` lays it out; and Muon's step."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernrl.errors import UsageError
from kernrl.policy.examples import Example
from kernrl.policy.muon import Muon, orthogonal
from kernrl.policy.packing import PackedDataset
from kernrl.policy.stream import ExampleStream, FlatExamples


def examples(count: int, first: int = 0) -> list[Example]:
    """Of 3 to 7 tokens, each with a token of its own."""
    return [Example([100 + i] * (1 + i % 2), [100 + i] * (2 + i % 4)) for i in range(first, first + count)]


def own_tokens(ids: torch.Tensor) -> set[int]:
    return set(ids.flatten().tolist()) - {0}


def test_a_row_is_laid_out_as_a_packed_dataset_does() -> None:
    held = examples(3)
    stream = ExampleStream(64, pad_id=0, seed=0, max_length=32)
    stream.add(FlatExamples.of(held))
    row = next(stream.rows())
    order = list(dict.fromkeys((t - 100) for t in row.input_ids[0].tolist() if t))
    assert sorted(order) == [0, 1, 2]
    # drawn again once all were new: the same examples in that order, without shuffling
    bounds = row.cu_seqlens.tolist()
    drawn = [int(row.input_ids[0, a]) - 100 for a, b in pairwise(bounds) if b > a and row.input_ids[0, a]]
    same = PackedDataset([held[i] for i in drawn], 64, 0, None)
    expected = same.pack(range(len(drawn)))
    assert torch.equal(row.input_ids, expected.input_ids)
    assert torch.equal(row.targets, expected.targets)
    assert torch.equal(row.weights, expected.weights)
    n = row.num_tokens
    assert torch.equal(row.position_ids[:, :n], expected.position_ids[:, :n])
    assert (row.num_tokens, row.num_targets, row.num_pairs) == (n, expected.num_targets, expected.num_pairs)


def test_new_examples_come_before_old_ones_and_each_comes_once_before_any_again() -> None:
    stream = ExampleStream(40, pad_id=0, seed=3, max_length=16)
    stream.add(FlatExamples.of(examples(50)))
    rows = stream.rows()
    seen: list[int] = []
    while len(set(seen)) < 50:
        row = next(rows)
        seen += [int(row.input_ids[0, a]) for a, b in pairwise(row.cu_seqlens) if b > a]
        seen = [t for t in seen if t]
    assert len(seen) - 50 < 20  # at most the last row drew any again
    stream.add(FlatExamples.of(examples(3, first=500)))
    assert {600, 601, 602} <= own_tokens(next(rows).input_ids)


def test_rows_keep_their_bounds_whatever_comes() -> None:
    random = np.random.default_rng(0)
    stream = ExampleStream(128, pad_id=0, seed=1, max_length=40)
    lengths = random.integers(1, 20, (300, 2)).tolist()
    stream.add(FlatExamples.of([Example([7] * a, [8] * b) for a, b in lengths]))
    rows = stream.rows()
    sizes = set()
    for _ in range(50):
        row = next(rows)
        gaps = row.cu_seqlens.diff()
        assert int(gaps.min()) >= 0
        assert int(gaps.max()) <= 40
        assert int(row.cu_seqlens[-1]) == 128
        assert 0 < row.num_tokens <= 128
        sizes.add(len(row.cu_seqlens))
    assert len(sizes) == 1  # compiled code is reused


def test_examples_that_are_too_long_are_left_out_and_none_at_all_is_an_error() -> None:
    stream = ExampleStream(64, pad_id=0, seed=0, max_length=4)
    stream.add(FlatExamples.of([Example([5] * 4, [6] * 4)]))
    stream.complete()
    with pytest.raises(UsageError, match="--max-length"):
        next(stream.rows())


def test_what_ends_a_worker_is_raised_where_rows_are_read() -> None:
    stream = ExampleStream(64, pad_id=0, seed=0, max_length=32, few=10)
    stream.add(FlatExamples.of(examples(2)))
    stream.fail(MemoryError("a worker was killed"))
    with pytest.raises(MemoryError, match="killed"):
        next(stream.rows())


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_orthogonal_keeps_singular_vectors_and_evens_out_values(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64)
    found = orthogonal(matrices)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    along = u.mT @ found @ vh.mT
    assert torch.allclose(along, torch.diag_embed(along.diagonal(dim1=1, dim2=2)), atol=1e-8)
    values = along.diagonal(dim1=1, dim2=2)
    assert float(values.min()) > 0.3
    assert float(values.max()) < 1.3


def test_muon_moves_marked_matrices_by_the_rate_and_leaves_the_rest_to_adamw() -> None:
    torch.manual_seed(0)
    matrix, vector = torch.nn.Parameter(torch.randn(32, 16)), torch.nn.Parameter(torch.randn(8))
    plain = torch.nn.Parameter(vector.detach().clone())
    groups = [{"params": [matrix], "muon": True, "weight_decay": 0.0}, {"params": [vector], "muon": False}]
    ours, adamw = Muon(groups, lr=0.01), torch.optim.AdamW([plain], lr=0.01)
    before = matrix.detach().clone()
    for p in (matrix, vector):
        p.grad = torch.randn_like(p)
    plain.grad = vector.grad.clone()  # pyright: ignore[reportOptionalMemberAccess]
    ours.step()
    adamw.step()
    assert torch.equal(vector, plain)
    assert len(ours.param_groups) == 2
    rms = float((matrix - before).detach().square().mean().sqrt())
    assert 0.1 * 0.01 < rms < 0.5 * 0.01  # of the size that AdamW's steps have


def test_muon_goes_on_from_its_state() -> None:
    torch.manual_seed(0)
    gradients = [(torch.randn(32, 16), torch.randn(8)) for _ in range(3)]

    def made() -> tuple[list[torch.nn.Parameter], Muon]:
        parts = [torch.nn.Parameter(torch.ones(32, 16)), torch.nn.Parameter(torch.ones(8))]
        return parts, Muon([{"params": parts[:1], "muon": True}, {"params": parts[1:], "muon": False}], lr=0.01)

    def step(parts: list[torch.nn.Parameter], optimizer: Muon, which: int) -> None:
        for part, gradient in zip(parts, gradients[which], strict=True):
            part.grad = gradient.clone()
        optimizer.step()

    (parts, whole), (resumed, again) = made(), made()
    for which in range(3):
        step(parts, whole, which)
        if which == 1:
            again.load_state_dict(copy.deepcopy(whole.state_dict()))
            for part, kept in zip(resumed, parts, strict=True):
                part.data.copy_(kept.detach())
    step(resumed, again, 2)
    assert len(again.param_groups) == 2
    assert all(torch.equal(part, kept) for part, kept in zip(resumed, parts, strict=True))
