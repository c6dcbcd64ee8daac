"""Which GPU is meant, and which one a prompt names."""

from __future__ import annotations

import pytest

from kernrl.errors import UsageError
from kernrl.verifier.base.devices import device_aimed_at, device_for, gpu_aimed_at


def gpu(name: str, arch: str) -> dict[str, str]:
    return {"gpu": name, "arch": arch}


def test_a_whole_name_is_not_part_of_another() -> None:
    found = {asked: device_for(asked) for asked in ("L4", "l40s", "A10", "A100", "h100", "NVIDIA A10G", "sm_86")}
    assert {asked: device and device.name for asked, device in found.items()} == {
        "L4": "NVIDIA L4",
        "l40s": "NVIDIA L40S",
        "A10": "NVIDIA A10",
        "A100": "NVIDIA A100-SXM4-80GB",
        "h100": "NVIDIA H100 80GB HBM3",
        "NVIDIA A10G": "NVIDIA A10",
        "sm_86": "NVIDIA A10",
    }


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
