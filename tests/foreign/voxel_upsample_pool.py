import torch
import torch.nn as nn

batch_size = 16
latent = 64
hidden = 32
D = H = W = 24


class Model(nn.Module):
    """Voxel decoder step. Upsample x2 (transposed conv), tanh, average over 2x2x2, shift, elu."""

    def __init__(self, latent, hidden):
        super().__init__()
        self.up = nn.ConvTranspose3d(latent, hidden, kernel_size=4, stride=2, padding=1)
        self.pool = nn.AvgPool3d(2)
        self.shift = nn.Parameter(torch.randn(hidden, 1, 1, 1) * 0.02)

    def forward(self, z):
        z = torch.tanh(self.up(z))
        z = self.pool(z)
        return nn.functional.elu(z + self.shift, alpha=0.5)


def get_inputs():
    return [torch.randn(batch_size, latent, D, H, W)]


def get_init_inputs():
    return [latent, hidden]
