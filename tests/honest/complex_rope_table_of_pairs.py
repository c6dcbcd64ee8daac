# habit: A complex table, made in the constructor and read as pairs.
# task: complex_rope
import torch
import triton
import triton.language as tl


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, device=freqs.device, dtype=torch.float32)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


@triton.jit
def rope_interleaved(x, f, y, S, H, D: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = (row // H) % S
    i = tl.arange(0, HALF)
    m = i < D // 2
    cos = tl.load(f + t * D + 2 * i, mask=m, other=1.0)
    sin = tl.load(f + t * D + 2 * i + 1, mask=m, other=0.0)
    j = tl.arange(0, 2 * HALF)
    v = tl.load(x + row * D + j, mask=j < D, other=0.0).reshape(HALF, 2)
    a, b = tl.split(v)
    o = tl.interleave(a * cos - b * sin, a * sin + b * cos)
    tl.store(y + row * D + j, o, mask=j < D)


class ModelNew(torch.nn.Module):
    def __init__(self, dim, theta, max_len):
        super().__init__()
        self.register_buffer("freqs", torch.view_as_real(precompute_freqs_cis(dim, max_len, theta)).contiguous(), persistent=False)

    def forward(self, x):
        B, S, H, D = x.shape
        y = torch.empty_like(x)
        rope_interleaved[(B * S * H,)](x, self.freqs, y, S, H, D=D, HALF=triton.next_power_of_2(D // 2))
        return y
