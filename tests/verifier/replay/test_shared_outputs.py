"""The outbox that replay and judge share, in host memory: it grows and shrinks, and gives back what nobody has open."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from kernrl.verifier.replay import shared_outputs as boxes
from kernrl.verifier.replay.shared_outputs import Outbox


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Outbox:
    monkeypatch.setattr(boxes, "FIRST_BYTES", 4096)
    monkeypatch.setattr(boxes, "STEP_BYTES", 1024)
    return Outbox(share=False)


def opened(box: Outbox) -> torch.Tensor:
    """As the judge does, who gets the outbox by pickle."""
    return pickle.loads(pickle.dumps(box)).open()


def test_what_is_put_is_read_elsewhere(box: Outbox) -> None:
    x = torch.randn(3, 5).t()
    place = box.put(x)
    assert torch.equal(place.read(opened(box)), x)
    box.clear()
    assert not opened(box).any(), "the next candidate shall not find this one's outputs"


def test_size_follows_need(box: Outbox) -> None:
    sizes = []
    for nbytes, spare in ((100, True), (9000, True), (5000, True), (5000, False), (100, False), (100, False)):
        before = box.version
        box.reserve(nbytes, spare=spare)
        sizes.append(box.nbytes)
        assert box.version - before == (len(sizes) > 1 and sizes[-1] != sizes[-2])
        assert opened(box).numel() == box.nbytes >= nbytes
    assert sizes == [4096, 9216, 9216, 5120, 4096, 4096]


def test_old_memory_is_given_back_one_candidate_later(box: Outbox) -> None:
    first, descriptor = opened(box), box.handle[1]
    box.put(torch.ones(8))
    box.reserve(20_000)
    os.fstat(descriptor)  # the judge has not been told yet
    assert not first.any(), "erased before it is left"
    box.reserve(20_000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_without_room_the_old_one_stays(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, nbytes: int) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(boxes.os, "ftruncate", full)
        with pytest.raises(torch.OutOfMemoryError):
            box.reserve(20_000)
    assert (box.nbytes, box.version, opened(box).numel()) == (4096, 1, 4096)
