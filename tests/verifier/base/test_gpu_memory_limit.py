"""What a process may take of a GPU's memory, with torch's figures made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernrl.verifier.base.gpu_memory_limit import limit_gpu_memory


class Process:
    """A process on a GPU of 1,000 bytes, of which it has cached some and keeps others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cached: int, kept: int):
        self.cached, self.kept, self.share, self.forgot = cached, kept, None, False
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: self.cached + self.kept)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(self, "cached", 0))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1000))
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: setattr(self, "share", share))

    def forget(self) -> None:
        self.cached, self.kept, self.forgot = 0, 0, True


@pytest.mark.parametrize(
    ("nbytes", "share", "left"),
    [(500, 0.5, 300), (290, 0.29, 200), (200, 0.2, 200), (100, 0.1, 0), (None, 1.0, 300), (5000, 1.0, 300), (-1, 0.0, 0)],
)
def test_a_limit_holds_from_the_start(monkeypatch: pytest.MonkeyPatch, nbytes: int | None, share: float, left: int) -> None:
    """Cached blocks go first, and what is kept only where that is not enough."""
    process = Process(monkeypatch, cached=100, kept=200)
    limit_gpu_memory(nbytes, process.forget)
    assert process.share == share
    assert torch.cuda.memory_reserved() == left
    assert process.forgot == (left == 0)
