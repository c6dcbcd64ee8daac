"""The memory that replay and judge share, on the host: it grows and shrinks, and gives back what nobody has open."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from kernrl.verifier.replay import shared_outputs
from kernrl.verifier.replay.shared_outputs import SharedOutputs


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> SharedOutputs:
    monkeypatch.setattr(shared_outputs, "LEAST_BYTES", 4096)
    monkeypatch.setattr(shared_outputs, "STEP_BYTES", 1024)
    return SharedOutputs(on_device=False)


def opened(outputs: SharedOutputs) -> torch.Tensor:
    """As the judge opens it, from what it is sent by pickle."""
    return pickle.loads(pickle.dumps(outputs.shared)).open()


def test_what_is_put_is_read_elsewhere(outputs: SharedOutputs) -> None:
    x = torch.randn(3, 5).t()
    place = outputs.put(x)
    assert torch.equal(place.read(opened(outputs)), x)
    outputs.clear()
    assert not opened(outputs).any(), "the next candidate shall not find this one's outputs"


def test_size_follows_need(outputs: SharedOutputs) -> None:
    sizes = []
    for nbytes, spare in ((100, True), (9000, True), (5000, True), (5000, False), (100, False), (100, False)):
        before = outputs.shared.version
        outputs.reserve(nbytes, spare=spare)
        sizes.append(outputs.nbytes)
        assert outputs.shared.version - before == (len(sizes) > 1 and sizes[-1] != sizes[-2])
        assert opened(outputs).numel() == outputs.nbytes >= nbytes
    assert sizes == [4096, 9216, 9216, 5120, 4096, 4096]


def test_old_memory_is_given_back_one_candidate_later(outputs: SharedOutputs) -> None:
    first, descriptor = opened(outputs), outputs.shared.handle[1]
    outputs.put(torch.ones(8))
    outputs.reserve(20_000)
    os.fstat(descriptor)  # the judge has not been told yet
    assert not first.any(), "erased before it is left"
    outputs.reserve(20_000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_without_room_the_old_one_stays(outputs: SharedOutputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, nbytes: int) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(shared_outputs.os, "ftruncate", full)
        with pytest.raises(torch.OutOfMemoryError):
            outputs.reserve(20_000)
    assert (outputs.nbytes, outputs.shared.version, opened(outputs).numel()) == (4096, 1, 4096)
