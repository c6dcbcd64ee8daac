"""The accelerator of a training stage, and the tracker that `--report-to` names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from kernrl.config import ImproveConfig, SftConfig
from kernrl.config.shared.tracking import require_tracker
from kernrl.errors import UsageError
from kernrl.settings import flatten


def open_accelerator(report_to: str, folder: Path) -> Accelerator:
    """An accelerator in bf16 on a GPU, float32 on a CPU. The tracker writes under `folder` once `start_tracker` was called.

    Raises:
        UsageError: the tracker is not installed, or the launcher's config shards in a way that is not FSDP2.
    """
    require_tracker(report_to)
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" or os.environ.get("FSDP_VERSION", "2") != "2":
        raise UsageError(
            "The launcher's config asks for DeepSpeed or FSDP1: use --launch fsdp2, or a config with fsdp_version: 2."
        )
    on_gpu = torch.cuda.is_available()
    # on a CPU, accelerate joins the launcher's other processes only with cpu=True
    tracker = None if report_to == "none" else report_to
    return Accelerator(mixed_precision="bf16" if on_gpu else "no", cpu=not on_gpu, log_with=tracker, project_dir=folder)


def start_tracker(accelerator: Accelerator, config: SftConfig | ImproveConfig) -> None:
    """Start the tracker, if there is one. The folder of the run must exist.

    Raises:
        UsageError: it does not start, as where nobody has logged in.
    """
    if accelerator.log_with:
        # trackers take plain values; wandb needs to be told to write into the run's folder, and that a resume is the same run
        plain = {k: str(v) for k, v in flatten(config.model_dump(mode="json"))}
        folder = Path(accelerator.project_dir)
        name = config.run_name or folder.name
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        init = {
            "wandb": {"dir": str(folder), "name": name, "id": identity, "resume": "allow"},
            "trackio": {"name": name, "resume": "allow"},
        }
        try:
            accelerator.init_trackers(config.project, plain, init_kwargs=init)
        except Exception as error:  # each tracker has errors of its own, and says in them what it lacks
            said = str(error).strip().partition("\n")[0].rstrip(".")
            raise UsageError(f"--report-to {config.report_to} does not start: {said or type(error).__name__}.") from None


def track(accelerator: Accelerator, metrics: Mapping[str, Any], step: int) -> None:
    """Give a step's numbers to the tracker, under their dotted names."""
    numbers = {k: v for k, v in flatten(metrics) if isinstance(v, int | float) and k != "step"}
    accelerator.log(numbers, step=step)
