import torch
import torch.nn as nn

n_tok, d0, d1, d2, d3 = 16384, 512, 1536, 1536, 256


class Model(nn.Module):
    def __init__(self, dims):
        super().__init__()
        pairs = zip(dims[:-1], dims[1:])
        self.mats = nn.ParameterList([nn.Parameter(torch.randn(i, o) * i ** -0.5) for i, o in pairs])

    def forward(self, h):
        h = torch.mm(h, self.mats[0]).relu_()
        h = torch.mm(h, self.mats[1])
        h = nn.functional.leaky_relu(h, negative_slope=0.3)
        h = torch.mm(h, self.mats[2])
        return nn.functional.normalize(h, p=1, dim=1)


def get_inputs():
    return [torch.randn(n_tok, d0)]


def get_init_inputs():
    return [(d0, d1, d2, d3)]
