# task: expert_counts
# cpu: correct|needs_gpu @ timing|correctness : tt.histogram cannot be interpreted
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def count(expert, hits, T, E: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(expert + i, mask=i < T, other=E).to(tl.int32)
    found = tl.histogram(e, 2 * E)
    place = tl.arange(0, 2 * E)
    tl.atomic_add(hits + place, found, mask=place < E)


@triton.jit
def column_means(p, mean, T, E: tl.constexpr, BLOCK: tl.constexpr):
    e = tl.arange(0, E)
    acc = tl.zeros((E,), tl.float32)
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        acc += tl.sum(tl.load(p + t[:, None] * E + e[None, :], mask=t[:, None] < T, other=0.0), 0)
    tl.store(mean + e, acc / T)


class ModelNew(nn.Module):
    def forward(self, probabilities, expert):
        T, E = probabilities.shape
        hits = torch.zeros(E, dtype=torch.int32, device=expert.device)
        mean = torch.empty(E, dtype=probabilities.dtype, device=expert.device)
        count[(triton.cdiv(T, 32),)](expert, hits, T, E=E, BLOCK=32)
        column_means[(1,)](probabilities, mean, T, E=E, BLOCK=16)
        return hits, mean
