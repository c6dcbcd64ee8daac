# task: token_embedding_norm
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def embed_norm(ids, table, w, b, out, E, scale, eps, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    token = tl.load(ids + t)  # int64
    c = tl.arange(0, BLOCK)
    m = c < E
    v = tl.load(table + token * E + c, mask=m, other=0.0).to(tl.float32) * scale
    mean = tl.sum(v, axis=0) / E
    d = tl.where(m, v - mean, 0.0)
    inv = tl.rsqrt(tl.sum(d * d, axis=0) / E + eps)
    y = d * inv * tl.load(w + c, mask=m) + tl.load(b + c, mask=m)
    tl.store(out + t * E + c, y, mask=m)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        E = self.tokens.embedding_dim
        flat = ids.reshape(-1)
        out = torch.empty(*ids.shape, E, device=ids.device, dtype=self.tokens.weight.dtype)
        embed_norm[(flat.numel(),)](flat, self.tokens.weight, self.norm.weight, self.norm.bias, out, E, E ** 0.5, self.norm.eps, BLOCK=triton.next_power_of_2(E))
        return out
