"""At which sets a candidate is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.suite import fixture_task

from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.pool.task_facts import gather_facts


def asked(task: Task, *, on_gpu: bool) -> list[str]:
    device = device_for("sm_90")
    assert device
    return [s.name for s in gather_facts(task, "fp32", device, on_gpu=on_gpu).sets]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_set_that_a_task_states_is_asked(on_gpu: bool) -> None:
    """Solutions that only the small set shows to be wrong, whose grids come to nothing there, were accepted on a GPU."""
    assert asked(fixture_task("mish_chain"), on_gpu=on_gpu) == ["small", "ragged", "full"]


def test_a_derived_small_set_is_left_to_the_ragged_one_where_there_is_a_gpu() -> None:
    task = fixture_task("mish_chain")
    derived = replace(task, input_sets=tuple(replace(s, derived=s.name != "full") for s in task.input_sets))
    assert asked(derived, on_gpu=True) == ["ragged", "full"]
    assert asked(derived, on_gpu=False) == ["small", "ragged", "full"]
    small = replace(task, input_sets=tuple(s for s in derived.input_sets if s.name != "ragged"))
    assert asked(small, on_gpu=True) == ["small", "full"]
