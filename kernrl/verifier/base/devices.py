"""GPUs the verifier knows without having one: peak rates for the roofline, and limits on kernels.

Rates are the vendor's dense peaks (no sparsity), from NVIDIA's data sheets and architecture white papers: H100 and H200
(SXM5, PCIe), A100 (SXM4), L40S, L4, A10, GeForce RTX 3090 and 4090, B200. Shared memory per block (opt-in) follows the
CUDA C++ Programming Guide's table of compute capabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernrl.errors import UsageError
from kernrl.tasks.graph.costs import Rates

DEFAULT_GPU = "NVIDIA H200"
"""Target where there is no GPU and none is named."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU model."""

    name: str
    arch: str
    bandwidth_gb_s: float
    half_tflops: float
    """Tensor cores, fp16 or bf16 operands, fp32 accumulation."""
    tf32_tflops: float
    fp32_tflops: float
    """Outside the tensor cores."""
    fp64_tflops: float
    shared_bytes: int
    """Most shared memory that a block may use."""
    l2_mib: int
    sm_count: int
    memory_gib: int

    def rates(self, precision: str) -> Rates:
        """Peak rates under a precision policy."""
        tflops = {"fp32": self.fp32_tflops, "tf32": self.tf32_tflops}.get(precision, self.half_tflops)
        return Rates(self.name, self.bandwidth_gb_s * 1e9, tflops * 1e12, self.fp32_tflops * 1e12)


_DEVICES = (
    Device("NVIDIA H200", "sm_90", 4800, 989.4, 494.7, 66.9, 66.9, 232_448, 50, 132, 141),
    Device("NVIDIA H100 80GB HBM3", "sm_90", 3350, 989.4, 494.7, 66.9, 66.9, 232_448, 50, 132, 80),
    Device("NVIDIA H100 PCIe", "sm_90", 2000, 756.0, 378.0, 51.2, 51.2, 232_448, 50, 114, 80),
    Device("NVIDIA A100-SXM4-80GB", "sm_80", 2039, 312.0, 156.0, 19.5, 19.5, 166_912, 40, 108, 80),
    Device("NVIDIA A100-SXM4-40GB", "sm_80", 1555, 312.0, 156.0, 19.5, 19.5, 166_912, 40, 108, 40),
    Device("NVIDIA B200", "sm_100", 8000, 2250.0, 1125.0, 80.0, 40.0, 232_448, 126, 148, 180),
    Device("NVIDIA L40S", "sm_89", 864, 362.0, 183.0, 91.6, 1.4, 101_376, 96, 142, 48),
    Device("NVIDIA L4", "sm_89", 300, 121.0, 60.0, 30.3, 0.5, 101_376, 48, 58, 24),
    Device("NVIDIA GeForce RTX 4090", "sm_89", 1008, 165.2, 82.6, 82.6, 1.3, 101_376, 72, 128, 24),
    Device("NVIDIA A10", "sm_86", 600, 125.0, 62.5, 31.2, 1.0, 101_376, 6, 72, 24),
    Device("NVIDIA GeForce RTX 3090", "sm_86", 936, 71.0, 35.6, 35.6, 0.6, 101_376, 6, 82, 24),
)

OLDEST_ARCH = 80
"""The first architecture with TF32, and the first that Triton supports."""

ARCHITECTURES = tuple(dict.fromkeys(d.arch for d in _DEVICES))


def device_for(name_or_arch: str) -> Device | None:
    """The device with this name (the driver's, or part of it) or architecture such as `sm_90`; None if it is not listed."""
    wanted = name_or_arch.lower()
    for device in _DEVICES:
        name = device.name.lower()
        if wanted in (device.arch, name, name.removeprefix("nvidia ")):
            return device
    for device in _DEVICES:
        if wanted in device.name.lower() or device.name.lower() in wanted:
            return device
    return None


def device_aimed_at(asked: str | None, here: Mapping[str, str] | None) -> Device:
    """The target device, for compiling and modelling: the one asked for, else the GPU here, else `DEFAULT_GPU`.

    `here` describes this machine's GPU, or is None. Raises UsageError for a device that is unknown or cannot run here.
    """
    if here and not asked and arch_number(here["arch"]) < OLDEST_ARCH:
        why = f"{here['gpu']} is {here['arch']}: TF32 and Triton need sm_{OLDEST_ARCH} or newer"
        raise UsageError(f"{why}; add --device cpu to judge by the interpreter.")
    device = device_for(asked or (here["gpu"] if here else DEFAULT_GPU))
    if device is None and here and not asked:
        device = device_for(here["arch"])
    if device is None:
        name = asked or (here and here["gpu"])
        raise UsageError(f"--target {name}: no such GPU is known; name an architecture such as sm_90.")
    if here and device.arch != here["arch"]:
        raise UsageError(f"--target {asked}: the GPU here is {here['arch']}; leave it out, or add --device cpu.")
    return device


def gpu_aimed_at(asked: str | None, here: Mapping[str, str] | None) -> str:
    """The GPU that candidates are judged on, or are modelled for, as a prompt names it: `H200`. Raises as `device_aimed_at`."""
    device = device_aimed_at(asked, here)
    return (here["gpu"] if here else device.name).removeprefix("NVIDIA ")


def arch_number(arch: str) -> int:
    """`sm_90` → 90. Raises ValueError on any other form."""
    if not arch.startswith("sm_") or not arch[3:].isdigit():
        raise ValueError(f"{arch!r} is no architecture such as sm_90")
    return int(arch[3:])
