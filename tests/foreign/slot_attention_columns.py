import torch
import torch.nn as nn

N_SCENES = 64
N_PIXELS = 128 * 128
N_SLOTS = 16
SLOT_DIM = 128


class Model(nn.Module):
    """One competition step of slot attention. The softmax runs over the slots, then every slot takes the weighted mean."""

    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.scale = dim ** -0.5
        self.eps = eps

    def forward(self, slots, pixels):
        k, v = self.to_k(pixels), self.to_v(pixels)
        dots = torch.einsum('bid,bjd->bij', slots, k) * self.scale
        attn = dots.softmax(dim=1) + self.eps
        attn = attn / attn.sum(dim=-1, keepdim=True)
        return torch.einsum('bjd,bij->bid', v, attn)


def get_inputs():
    return [torch.randn(N_SCENES, N_SLOTS, SLOT_DIM), torch.randn(N_SCENES, N_PIXELS, SLOT_DIM)]


def get_init_inputs():
    return [SLOT_DIM]
