# task: squared_relu_linear
# Descriptors made on the host, whose block shapes an autotune hook sets; rows whose strides do not allow them are padded.
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def set_block_size(nargs):
    nargs["x_desc"].block_shape = [nargs["BM"], nargs["BK"]]
    nargs["w_desc"].block_shape = [nargs["BN"], nargs["BK"]]
    nargs["y_desc"].block_shape = [nargs["BM"], nargs["BN"]]


@triton.autotune(
    configs=[
        triton.Config({"BM": 16, "BN": 16, "BK": 16}, num_warps=2, pre_hook=set_block_size),
        triton.Config({"BM": 32, "BN": 16, "BK": 32}, num_warps=4, pre_hook=set_block_size),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul_tma(x_desc, w_desc, y_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(x_desc.load([m, k]), w_desc.load([n, k]).T, acc, input_precision="ieee")
    acc = tl.maximum(acc, 0.0)
    y_desc.store([m, n], acc * acc)


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.fc = nn.Linear(features, outputs, bias=False)

    def forward(self, x):
        w = self.fc.weight
        if x.shape[1] % 4:
            x, w = (F.pad(t, (0, -t.shape[1] % 4)) for t in (x, w))
        (M, K), N = x.shape, w.shape[0]
        y = torch.empty((M, -(-N // 4) * 4), device=x.device, dtype=x.dtype)
        dummy = [1, 1]
        x_desc = TensorDescriptor.from_tensor(x, dummy)
        w_desc = TensorDescriptor(w, w.shape, w.stride(), dummy)
        y_desc = TensorDescriptor(y, [M, N], [y.stride(0), 1], dummy)
        matmul_tma[lambda meta: (triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"]))](x_desc, w_desc, y_desc, M, N, K)
        return y[:, :N]
