import torch
import torch.nn as nn

# 3-D GAN generator tail, large batch
B = 32
C1 = 64
C2 = 16
R = 32


class Model(nn.Module):
    def __init__(self, c1, c2):
        super().__init__()
        self.deconv = nn.ConvTranspose3d(c1, c2, 4, 2, 1, bias=False)
        self.bn = nn.BatchNorm3d(c2)
        self.to_occ = nn.Conv3d(c2, 1, 1)

    def forward(self, z):
        y = self.bn(self.deconv(z))
        y = torch.relu_(y)
        return torch.sigmoid(self.to_occ(y) - 0.5)


def get_inputs():
    return [torch.randn(B, C1, R, R, R)]


def get_init_inputs():
    return [C1, C2]
