"""What `kernrl doctor` says of machines other than this one."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch
from support import ROOT

from kernrl.config import DoctorConfig
from kernrl.stages import doctor
from kernrl.stages.doctor import Finding


def found(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_gpu_is_named_with_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0, uuid="GPU-1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: h200)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    findings = found(doctor.gpu_findings())
    assert findings["gpu 0"].detail == "NVIDIA H200, 140 GiB, sm_90, UUID GPU-1"
    assert findings["target architecture"].detail == "sm_90"
    assert all(finding.ok for finding in findings.values())


def test_a_gpu_without_tf32_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    t4 = SimpleNamespace(name="Tesla T4", total_memory=16 * 2**30, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: t4)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    found_there = found(doctor.gpu_findings())["target architecture"]
    assert not found_there.ok
    assert "TF32 and Triton need sm_80" in found_there.remedy


def test_no_gpu_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    gpu = found(doctor.gpu_findings())["gpu"]
    assert not gpu.ok
    assert "the driver finds none" in gpu.detail
    assert gpu.remedy


def test_missing_wall_and_missing_package_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernrl.verifier.sandbox import isolation

    def version(package: str) -> str:
        if package in ("peft", "transformers"):
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(isolation, "features", lambda: {"landlock": (False, "not in this kernel"), "seccomp": (True, "")})
    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    result = doctor.run(DoctorConfig())
    remedies = {finding["name"]: finding["remedy"] for finding in result.data}
    assert "SECURITY.md" in remedies["landlock"]
    assert remedies["seccomp"] == ""
    assert remedies["peft"] == "pip install 'kernrl[lora]'"
    assert remedies["transformers"] == "pip install kernrl"
    assert result.exit_code == 0


def test_the_doctor_names_every_extra() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {extra for extra, _ in doctor.EXTRAS.values()} == project["optional-dependencies"].keys() - {"dev"}
    for package, (extra, _) in doctor.EXTRAS.items():
        assert any(line.startswith(package) for line in project["optional-dependencies"][extra])
    assert all(any(line.startswith(package) for line in project["dependencies"]) for package in doctor.REQUIRED)
