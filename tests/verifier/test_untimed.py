"""Who keeps a GPU busy says which: on the others, candidates are timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kernrl.config import VerifierConfig
from kernrl.verifier.verifier import HardenedVerifier


class Gpu:
    """A GPU that notes whether it is held."""

    held = False

    @contextmanager
    def untimed(self) -> Iterator[None]:
        self.held = True
        yield
        self.held = False

    def close(self) -> None: ...


@pytest.mark.parametrize(("gpu", "held"), [(None, [True, True]), (0, [True, False]), (1, [False, True]), (2, [False, False])])
def test_only_the_gpu_that_is_busy_is_held(gpu: int | None, held: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus: list[Any] = [Gpu(), Gpu()]
    with HardenedVerifier(VerifierConfig(device="cpu", cache=False)) as verifier:
        monkeypatch.setattr(verifier.evaluator, "start", lambda: None)
        monkeypatch.setattr(verifier.evaluator, "gpus", gpus)
        with verifier.untimed(gpu):
            assert [one.held for one in gpus] == held
        assert not any(one.held for one in gpus)
