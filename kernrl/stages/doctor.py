"""`kernrl doctor`: what this machine can do for kernrl, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kernrl import console
from kernrl.config import DoctorConfig
from kernrl.console import Result

REQUIRED = ("torch", "triton", "transformers", "accelerate", "datasets")
EXTRAS = {
    "peft": ("lora", "LoRA adapters"),
    "bitsandbytes": ("4bit", "LoRA on weights in 4 bits"),
    "trl": ("trl", "kernrl's reward inside TRL's trainers"),
    "ray": ("ray", "verification on several machines"),
    "trackio": ("trackio", "local experiment tracking"),
    "tensorboard": ("tensorboard", "TensorBoard logs"),
    "wandb": ("wandb", "Weights & Biases logs"),
    "uvicorn": ("serve", "verdicts over HTTP, by kernrl serve"),
    "prometheus-client": ("serve", "its counters"),
    "nvidia-ml-py": ("gpu", "GPU clocks and temperature beside measured times"),
    "cuda-core": ("gpu", "the driver's API from Python"),
}
"""Optional package → (the extra that installs it, what it is for)."""

DEFAULT_ARCHITECTURE = "sm_90"
"""What kernels are compiled for where there is no GPU to ask."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    section: str
    name: str
    ok: bool
    detail: str
    remedy: str = ""
    """What to do about it; empty where nothing needs to be done."""


def run(_: DoctorConfig) -> Result:
    """Look at everything; always exits 0, since a missing GPU is not a failure."""
    with console.waiting("looking"):
        findings = [*_packages(), *gpu_findings(), *_compiler(), *_sandbox(), *_machine(), *_optional()]
    return Result([asdict(finding) for finding in findings], _view(findings))


def _packages() -> list[Finding]:
    found = [Finding("packages", "python", True, platform.python_version())]
    for name in REQUIRED:
        version = _version(name)
        remedy = "" if version else "pip install kernrl"
        found.append(Finding("packages", name, bool(version), version or "not installed", remedy))
    return found


def gpu_findings() -> list[Finding]:
    import torch

    from kernrl.verifier.base.devices import OLDEST_ARCH

    if not torch.cuda.is_available():
        why = "torch was installed without CUDA" if torch.version.cuda is None else "the driver finds none"
        remedy = "on a machine with an NVIDIA GPU, install the CUDA build of torch; without one, times are modelled"
        return [
            Finding("gpu", "gpu", False, f"none ({why})", remedy),
            Finding("gpu", "target architecture", True, f"{DEFAULT_ARCHITECTURE} (compiled for, not run)"),
        ]
    found = []
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        detail = f"{p.name}, {p.total_memory / 2**30:.0f} GiB, sm_{p.major}{p.minor}, UUID {getattr(p, 'uuid', 'unknown')}"
        found.append(Finding("gpu", f"gpu {index}", True, detail))
    major, minor = torch.cuda.get_device_capability(0)
    found.append(Finding("gpu", "driver", True, _driver()))
    new_enough = 10 * major + minor >= OLDEST_ARCH
    remedy = "" if new_enough else f"TF32 and Triton need sm_{OLDEST_ARCH} or newer; judge with --device cpu"
    found.append(Finding("gpu", "target architecture", new_enough, f"sm_{major}{minor}", remedy))
    return found


def _compiler() -> list[Finding]:
    import triton

    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if os.access(ptxas, os.X_OK):
        return [Finding("compiler", "ptxas", True, "comes with triton: kernels compile here, GPU or not")]
    return [Finding("compiler", "ptxas", False, "missing from triton", "pip install --force-reinstall triton")]


def _sandbox() -> list[Finding]:
    from kernrl.verifier.sandbox.isolation import features

    remedy = "candidates run with one layer of the sandbox fewer; see SECURITY.md"
    return [Finding("sandbox", name, ok, detail, "" if ok else remedy) for name, (ok, detail) in features().items()]


def _machine() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    free_gib = shutil.disk_usage(".").free / 2**30
    return [
        Finding("machine", "cores", True, str(cores)),
        Finding("machine", "memory", True, f"{memory_gib:.0f} GiB"),
        Finding("machine", "disk", free_gib > 5, f"{free_gib:.0f} GiB free here", "" if free_gib > 5 else "free 5 GiB"),
    ]


def _optional() -> list[Finding]:
    found = []
    for name, (extra, purpose) in EXTRAS.items():
        version = _version(name)
        remedy = "" if version else f"pip install 'kernrl[{extra}]'"
        found.append(Finding("optional", name, bool(version), f"{version or 'not installed'}: {purpose}", remedy))
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown (nvidia-smi does not answer)"
    return done.stdout.splitlines()[0]


def _view(findings: list[Finding]) -> Group:
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in range(3):
        table.add_column(no_wrap=column < 2)
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            table.add_section()
            table.add_row(Text(section, style="bold"))
        mark = Text("ok", style="green") if finding.ok else Text("--", style="yellow")
        table.add_row(mark, finding.name, Text(finding.detail))
    remedies: list[Any] = [Text(f"{f.name}: {f.remedy}") for f in findings if f.remedy]
    return Group(table, *([Text("\nTo have the rest", style="bold"), *remedies] if remedies else []))
