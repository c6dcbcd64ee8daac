# Houlsby-style bottleneck adapter: down, nonlinearity, up, scale, add back, norm.
import torch as th
import torch.nn as nn

BSZ, SEQ, HID, BOTTLENECK = 8, 512, 768, 64


class Adapter(nn.Module):
    def __init__(self, hid, bottleneck, scale):
        super().__init__()
        self.down_proj = nn.Linear(hid, bottleneck)
        self.up_proj = nn.Linear(bottleneck, hid)
        self.act = nn.GELU(approximate="tanh")
        self.scale = scale

    def forward(self, h):
        return self.up_proj(self.act(self.down_proj(h))) * self.scale


class Model(nn.Module):
    def __init__(self, hid, bottleneck, scale):
        super().__init__()
        self.adapter = Adapter(hid, bottleneck, scale)
        self.ln = nn.LayerNorm(hid, eps=1e-6)

    def forward(self, h):
        return self.ln(h + self.adapter(h))


def get_inputs():
    return [th.randn(BSZ, SEQ, HID)]


def get_init_inputs():
    return [HID, BOTTLENECK, 0.25]
