import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    A single very wide projection, as found in the up-projection of large MLP blocks.

    Steps:
        1. linear (no bias)
        2. squared ReLU
        3. RMS normalisation with a learnable gain
        4. multiplication by a constant

    Args:
        d_in (int):  width of the incoming features
        d_out (int): width of the outgoing features
        eps (float): term added to the mean square, for numerical stability
    """

    def __init__(self, d_in, d_out, eps=1e-5):
        super(Model, self).__init__()
        self.up = nn.Linear(d_in, d_out, bias=False)
        self.gain = nn.Parameter(torch.ones(d_out))
        self.eps = eps

    def forward(self, x):
        """
        Args:
            x (torch.Tensor): shape (tokens, d_in)

        Returns:
            torch.Tensor: shape (tokens, d_out)
        """
        x = self.up(x)
        x = F.relu(x) ** 2
        ms = x.pow(2).mean(dim=-1, keepdim=True)
        x = x * torch.rsqrt(ms + self.eps)
        x = x * self.gain
        return x * 0.5


# Shapes
tokens = 8192
d_in = 8192
d_out = 16384


def get_inputs():
    x = torch.rand(tokens, d_in)
    return [x]


def get_init_inputs():
    return [d_in, d_out]
