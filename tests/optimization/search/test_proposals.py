"""How `kernrl optimize` samples a model: as its flags say, in the search and in the training."""

from pathlib import Path
from typing import Any

import pytest

from kernrl.config import OptimizeConfig
from kernrl.optimization.improve import training
from kernrl.optimization.search.proposals import Model
from kernrl.training import evaluation
from kernrl.training.session import sampling_of


@pytest.mark.parametrize("improve", ["reinforce", "best-of-n"])
def test_the_cuts_reach_what_samples(monkeypatch: pytest.MonkeyPatch, improve: str) -> None:
    given: dict[str, Any] = {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "temperature": 0.7, "improve": improve}
    config = OptimizeConfig(source="my.py", model="nano", **given)
    opened = []
    monkeypatch.setattr(evaluation, "open_model", lambda settings, verifier: opened.append(settings) or (None, None))
    Model(config, None)
    for settings in (opened[0], training(config, Path("tasks"), Path("run"), 60.0, 1, 2)):
        found = sampling_of(settings, (1,))
        assert (found.top_p, found.top_k, found.min_p, found.temperature) == (0.9, 5, 0.1, 0.7)
