"""Tasks that state no input set but the full one, as people write them, and candidates for them."""

from __future__ import annotations

ROW_SUM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Doubles, shifts by a learned offset, and averages over the features."""

    def __init__(self, features):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return (2.0 * x + self.offset).mean(dim=1)


batch_size = {rows}
features = {columns}


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
'''

CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, offset_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < columns
        x = tl.load(x_ptr + row * columns + i, mask=mask, other=0.0)
        total += 2.0 * x + tl.load(offset_ptr + i, mask=mask, other=0.0)
    tl.store(out_ptr + row, tl.sum(total) / columns)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(features))

    def forward(self, x):
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        mean_kernel[(x.shape[0],)](x, self.offset, out, x.shape[1], BLOCK=16)
        return out
"""
"""Right at every size."""

SCALED = CANDIDATE.replace("tl.sum(total) / columns", "tl.sum(total) * SCALE")
"""For `scaled_code`; holds the scale as a number."""

WRONG = CANDIDATE.replace("2.0 * x +", "2.5 * x +")
"""A plain mistake."""


def task_code(rows: int, columns: int) -> str:
    """The task at these sizes; 4 · rows · columns bytes are its input."""
    return ROW_SUM.replace("{rows}", str(rows)).replace("{columns}", str(columns))


def scaled_code(rows: int, columns: int) -> str:
    """A task that scales its sums by a number which it computes of a size: a candidate may write out that number."""
    summed = task_code(rows, columns).replace(".mean(dim=1)", ".sum(dim=1) * self.scale")
    return summed.replace("super().__init__()", "super().__init__()\n        self.scale = features**-0.5")


def written_out(columns: int) -> str:
    """A candidate with the number of features written out: right at that number alone."""
    return CANDIDATE.replace("self.offset, out, x.shape[1]", f"self.offset, out, {columns}")


def specialised(how: str, columns: int) -> str:
    """A candidate that is right where the features are so many: written out as numbers, or without masks."""
    if how == "unmasked":  # 16 divides them
        return CANDIDATE.replace(", mask=mask, other=0.0", "")
    if how == "viewed":
        return CANDIDATE.replace("        mean_kernel[(", f"        x = x.view(-1, {columns})\n        mean_kernel[(")
    return written_out(columns)
