import torch
import torch.nn as nn

BATCH_SIZE = 32768
NUM_DENSE = 13
BOTTOM = (512, 256, 64)


def make_mlp(n_in, sizes, last):
    blocks = []
    for i, n_out in enumerate(sizes):
        blocks += [nn.Linear(n_in, n_out), nn.ReLU() if i + 1 < len(sizes) or not last else nn.Sigmoid()]
        n_in = n_out
    return nn.Sequential(*blocks)


class Model(nn.Module):
    """DLRM: bottom MLP on dense features, elementwise product with a pooled embedding, dot, top bias."""

    def __init__(self, num_dense, bottom):
        super().__init__()
        self.bottom = make_mlp(num_dense, bottom, last=False)
        self.top_bias = nn.Parameter(torch.tensor(-1.0))

    def forward(self, dense, pooled):
        z = self.bottom(dense)
        dot = (z * pooled).sum(dim=1, keepdim=True)
        return torch.sigmoid(dot + self.top_bias)


def get_inputs():
    return [torch.rand(BATCH_SIZE, NUM_DENSE), torch.randn(BATCH_SIZE, BOTTOM[-1])]


def get_init_inputs():
    return [NUM_DENSE, BOTTOM]
