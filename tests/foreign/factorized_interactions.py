import torch
import torch.nn as nn

batch_size = 2048
num_fields = 39
k = 16


class Model(nn.Module):
    """Second-order factorization-machine term, plus a bias and a squash.

    0.5 * ((sum v)^2 - sum v^2), summed over the latent axis.
    """

    def __init__(self, num_fields, k):
        super().__init__()
        self.proj = nn.Linear(k, k, bias=False)
        self.w0 = nn.Parameter(torch.zeros(1))

    def forward(self, emb):
        v = self.proj(emb)                      # (B, F, k)
        square_of_sum = v.sum(dim=1).pow(2)     # (B, k)
        sum_of_square = v.pow(2).sum(dim=1)     # (B, k)
        ix = 0.5 * (square_of_sum - sum_of_square).sum(dim=1, keepdim=True)
        return torch.sigmoid(ix + self.w0)


def get_inputs():
    return [torch.randn(batch_size, num_fields, k) * 0.1]


def get_init_inputs():
    return [num_fields, k]
