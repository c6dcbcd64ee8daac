# habit: Sorts a padded row by tl.sort; what the compiler is asked for is asserted and printed.
# task: sort_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _sort_kernel(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    tl.static_assert((BLOCK & (BLOCK - 1)) == 0, "BLOCK must be a power of two")
    tl.static_print("sorting", BLOCK)
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + offs, mask=offs < n_cols, other=float("-inf"))
    x = tl.sort(x, descending=True)
    tl.store(out_ptr + row * n_cols + offs, x, mask=offs < n_cols)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        out = torch.empty_like(x)
        _sort_kernel[rows,](x, out, x.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
        return out
