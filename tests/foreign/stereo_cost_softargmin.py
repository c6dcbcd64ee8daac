import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
FEATS = 32
MAX_DISP = 48
H, W = 96, 312


class Model(nn.Module):
    """
    Disparity regression (soft argmin).

    A 3-D convolution reduces the cost volume to one channel; softmax of the negative cost over
    the disparity axis; expectation of the disparity.
    """

    def __init__(self, feats, max_disp):
        super().__init__()
        self.reduce = nn.Conv3d(feats, 1, kernel_size=3, padding=1, bias=False)
        self.register_buffer("disp", torch.arange(max_disp, dtype=torch.float32).view(1, max_disp, 1, 1))

    def forward(self, volume):
        cost = self.reduce(volume).squeeze(1)
        prob = F.softmax(-cost, dim=1)
        return torch.sum(prob * self.disp, dim=1)


def get_inputs():
    return [torch.randn(BATCH, FEATS, MAX_DISP, H, W)]


def get_init_inputs():
    return [FEATS, MAX_DISP]
