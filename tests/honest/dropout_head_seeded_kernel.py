# habit: Dropout by tl.rand in training, and none in eval.
# task: dropout_head
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def tail(x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, y_ptr, n, C, eps, p, seed, TRAIN: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    c = o % C
    x = tl.maximum(tl.load(x_ptr + o, mask=m, other=0.0), 0.0)
    mean = tl.load(mean_ptr + c, mask=m, other=0.0)
    var = tl.load(var_ptr + c, mask=m, other=1.0)
    y = (x - mean) * tl.rsqrt(var + eps) * tl.load(w_ptr + c, mask=m, other=0.0) + tl.load(b_ptr + c, mask=m, other=0.0)
    y = tl.sigmoid(y)
    if TRAIN:
        y = tl.where(tl.rand(seed, o) > p, y / (1 - p), 0.0)
    tl.store(y_ptr + o, y, mask=m)


class ModelNew(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.hidden = nn.utils.parametrizations.spectral_norm(nn.Linear(wide, out))
        self.drop = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(out)
        self.seed = 1234

    def forward(self, x):
        x = self.hidden(x)
        y = torch.empty_like(x)
        n = self.norm
        tail[(triton.cdiv(x.numel(), 256),)](x, n.running_mean, n.running_var, n.weight, n.bias, y, x.numel(), x.shape[1], n.eps,
                                             0.1, self.seed, TRAIN=self.training, BLOCK=256)
        return y
