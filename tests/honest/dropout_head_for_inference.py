# task: dropout_head
# Written for inference: no dropout, and the batch norm by its running statistics.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_norm_sigmoid(y_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, n, C, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    c = i % C
    scale = tl.load(w_ptr + c, mask=m) * tl.rsqrt(tl.load(var_ptr + c, mask=m) + eps)
    y = tl.maximum(tl.load(y_ptr + i, mask=m), 0.0)
    tl.store(out_ptr + i, tl.sigmoid((y - tl.load(mean_ptr + c, mask=m)) * scale + tl.load(b_ptr + c, mask=m)), mask=m)


class ModelNew(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.hidden = nn.utils.parametrizations.spectral_norm(nn.Linear(wide, out))
        self.norm = nn.BatchNorm1d(out)

    @torch.no_grad()
    def forward(self, x):
        y = self.hidden(x)
        out = torch.empty_like(y)
        norm, n = self.norm, y.numel()
        relu_norm_sigmoid[(triton.cdiv(n, 256),)](
            y, out, norm.weight, norm.bias, norm.running_mean, norm.running_var, n, y.shape[1], norm.eps, BLOCK=256
        )
        return out
