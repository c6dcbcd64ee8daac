# habit: A loop whose ends are loaded, in an autotuned kernel.
# task: embedding_bag
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK_D": d}, num_warps=w) for d in (32, 64) for w in (1, 2)],
    key=["D"], warmup=5, rep=20,
)
@triton.jit
def bag_kernel(weight, indices, offsets, scale, out, N, BAGS, D, stride_w, stride_o, BLOCK_D: tl.constexpr):
    bag = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    start = tl.load(offsets + bag)
    end = tl.load(offsets + bag + 1, mask=bag + 1 < BAGS, other=N)
    acc = tl.zeros((BLOCK_D,), dtype=tl.float32)
    i = start
    while i < end:
        row = tl.load(indices + i)
        acc += tl.load(weight + row * stride_w + d, mask=d < D, other=0.0) * tl.load(scale + i)
        i += 1
    tl.store(out + bag * stride_o + d, acc, mask=d < D)


class ModelNew(torch.nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, dim))
        torch.nn.init.normal_(self.weight)

    def forward(self, indices, offsets, weights):
        bags, D = offsets.numel(), self.weight.size(1)
        out = self.weight.new_empty(bags, D)
        grid = lambda META: (bags, triton.cdiv(D, META["BLOCK_D"]))
        bag_kernel[grid](self.weight, indices, offsets, weights, out, indices.numel(), bags, D, self.weight.stride(0), out.stride(0))
        return out
