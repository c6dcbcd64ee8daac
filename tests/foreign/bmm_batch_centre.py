import torch
import torch.nn as nn

groups = 512
points = 1024
dim = 64
inner = 128


class Model(nn.Module):
    def __init__(self, groups, dim, inner):
        super().__init__()
        # one expert per group
        self.experts = nn.Parameter(torch.empty(groups, dim, inner))
        nn.init.xavier_uniform_(self.experts)
        self.expert_bias = nn.Parameter(torch.zeros(groups, 1, inner))
        self.alpha = nn.Parameter(torch.full((inner,), 0.25))

    def forward(self, tokens):
        y = torch.baddbmm(self.expert_bias, tokens, self.experts)
        y = nn.functional.gelu(y)
        y = y - y.mean(dim=1, keepdim=True)
        return y * self.alpha


def get_inputs():
    return [torch.randn(groups, points, dim)]


def get_init_inputs():
    return [groups, dim, inner]
