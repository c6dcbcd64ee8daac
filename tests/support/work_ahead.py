"""What a fork server does ahead of its workers, and a worker that tells what it finds of that."""

from __future__ import annotations

import os

import torch

done: list[str] = []


def use_no_gpu() -> None:
    """Notes how torch would look for a GPU."""
    done.append(os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"])


def use_gpu() -> None:
    """Leaves torch as CUDA does."""
    done.append("used")
    torch.cuda._initialized = True


def spoil_forks() -> None:
    """Leaves torch as it is when it has asked CUDA for GPUs: only forks notice."""
    done.append("asked")
    os.register_at_fork(after_in_child=lambda: setattr(torch.cuda, "_is_in_bad_fork", lambda: True))


class Heir:
    def healthy(self) -> bool:
        return True

    def found(self) -> tuple[list[str], bool]:
        """What has been done, and whether torch would ask NVML for GPUs here."""
        return done, "PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ
