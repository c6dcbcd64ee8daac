import torch
import torch.nn as nn

# a coarse temperature field corrects a fine one
B = 28
C_COARSE, C_FINE = 56, 14
R = 32


class Model(nn.Module):
    def __init__(self, c_coarse, c_fine):
        super().__init__()
        self.spread = nn.ConvTranspose3d(c_coarse, c_fine, 3, 2, 1, output_padding=1)
        self.trust = nn.Parameter(torch.full((c_fine, 1, 1, 1), 0.3))

    def forward(self, coarse, fine):
        correction = torch.tanh_(self.spread(coarse))
        return fine + self.trust * correction


def get_inputs():
    return [torch.randn(B, C_COARSE, R, R, R), torch.randn(B, C_FINE, 2 * R, 2 * R, 2 * R)]


def get_init_inputs():
    return [C_COARSE, C_FINE]
