# task: dropout_head
# All modules of the reference, with the end in a kernel: what draws numbers in training mode is still called.
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def sigmoid_kernel(y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.sigmoid(tl.load(y_ptr + i, mask=i < n)), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.hidden = nn.utils.parametrizations.spectral_norm(nn.Linear(wide, out))
        self.drop = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(out)

    def forward(self, x):
        y = self.norm(self.drop(torch.relu(self.hidden(x))))
        sigmoid_kernel[(triton.cdiv(y.numel(), 256),)](y, y.numel(), BLOCK=256)
        return F.dropout(y, 0.1, training=self.training)
