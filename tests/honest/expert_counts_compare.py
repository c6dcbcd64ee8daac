# task: expert_counts
# One program an expert compares every token's choice with its own number.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def one_expert(p, expert, hits, mean, T, E, BLOCK: tl.constexpr):
    e = tl.program_id(0)
    n = tl.zeros((BLOCK,), tl.int32)
    s = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        n += (tl.load(expert + t, mask=t < T, other=-1) == e).to(tl.int32)
        s += tl.load(p + t * E + e, mask=t < T, other=0.0)
    tl.store(hits + e, tl.sum(n, 0))
    tl.store(mean + e, tl.sum(s, 0) / T)


class ModelNew(nn.Module):
    def forward(self, probabilities, expert):
        T, E = probabilities.shape
        hits = torch.empty(E, dtype=torch.int32, device=expert.device)
        mean = torch.empty_like(hits, dtype=probabilities.dtype)
        one_expert[(E,)](probabilities, expert, hits, mean, T, E, BLOCK=16)
        return hits, mean
