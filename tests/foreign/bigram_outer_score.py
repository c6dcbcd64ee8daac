import torch
import torch.nn as nn

b = 16
t = 512
h = 256


class Model(nn.Module):
    """span scores: s . a_i + e . c_j + a_i . c_j / 16, with log-softmax over the ends j"""

    def __init__(self, h):
        super().__init__()
        self.start = nn.Linear(h, h)
        self.end = nn.Linear(h, h)
        self.s = nn.Linear(h, 1, bias=False)
        self.e = nn.Linear(h, 1, bias=False)

    def forward(self, x):
        a = torch.relu(self.start(x))
        c = torch.relu(self.end(x))
        pair = torch.einsum("bih,bjh->bij", a, c) / 16.0
        single = self.s(a) + self.e(c).transpose(1, 2)
        return torch.log_softmax(pair + single, dim=2)


def get_inputs():
    return [torch.randn(b, t, h)]


def get_init_inputs():
    return [h]
