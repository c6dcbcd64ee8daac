"""A task of any size, one right candidate, and candidates that fail in each way from a size on, and are right below it."""

from __future__ import annotations

from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status

_TASK = """
import torch

ROWS = {rows}
COLUMNS = {columns}


class Model(torch.nn.Module):
    def forward(self, x):
        return x * torch.exp(-x.abs()) + torch.relu(x - 0.5)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""

_CANDIDATE = """
import torch
import triton
import triton.language as tl


@triton.jit
def damp(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = x * tl.exp(-tl.abs(x)) + tl.maximum(x - 0.5, 0.0)
    late = n // {limit}
{failure}
    tl.store(y_ptr + at, y, mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
{waste}
        damp[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
        return y
"""

_FAILURES = {
    "out of memory": ("", "        more = torch.empty((1 + (n // {limit} << 36),), device=x.device).zero_()"),
    "hang": (
        "    while late > 0:\n"
        "        tl.store(y_ptr + at, y + late, mask=at < n)\n"
        "        late += (tl.max(tl.load(x_ptr + at, mask=at < n, other=0.0)) > 1e38).to(tl.int32)",
        "",
    ),
    "illegal access": ("    tl.store(y_ptr + (at.to(tl.int64) + (1 << 44)), y, mask=(at < n) & (late > 0))", ""),
    "wrong": ("    y = tl.where(late > 0, y + 1.0, y)", ""),
}

STATUSES = {
    "out of memory": Status.TOO_LARGE,
    "hang": Status.TIMEOUT,
    "illegal access": Status.CRASH,
    "wrong": Status.WRONG,
}


def task_of(rows: int, columns: int) -> Task:
    """The task at that full size: float32, pointwise."""
    return Task("damped", _TASK.format(rows=rows, columns=columns))


def candidate(failure: str = "", limit: int = 1) -> str:
    """A candidate that fails in that way where its input has `limit` elements or more, or never."""
    body, waste = _FAILURES[failure] if failure else ("", "")
    return _CANDIDATE.format(limit=limit, failure=body, waste=waste.format(limit=limit))
