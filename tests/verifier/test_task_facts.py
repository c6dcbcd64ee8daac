"""At which sets a candidate is asked, and the GPU that it is judged on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.suite import fixture_task

from kernrl.errors import UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.task_facts import device_aimed_at, gather_facts, gpu_aimed_at


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


def gpu(name: str, arch: str) -> dict[str, str]:
    return {"gpu": name, "arch": arch}


def test_the_gpu_that_is_named_is_the_one_that_judges() -> None:
    assert gpu_aimed_at(None, None) == "H200"
    assert gpu_aimed_at("A100", None) == "A100-SXM4-80GB"
    assert gpu_aimed_at(None, gpu("NVIDIA GH200 480GB", "sm_90")) == "GH200 480GB"
    assert gpu_aimed_at("H100", gpu("NVIDIA H200", "sm_90")) == "H200"  # code for the one is timed on the other


def test_a_gpu_without_tf32_is_refused_in_a_sentence() -> None:
    turing = gpu("Tesla T4", "sm_75")
    with pytest.raises(UsageError, match=r"^Tesla T4 is sm_75: TF32 and Triton need sm_80 or newer; add --device cpu"):
        device_aimed_at(None, turing)
    assert device_aimed_at(None, gpu("NVIDIA A100-SXM4-80GB", "sm_80")).arch == "sm_80"
