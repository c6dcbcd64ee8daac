import torch
import torch.nn as nn
import torch.nn.functional as F

bsz = 8
label_nc = 36
norm_nc = 128
hgt, wid = 128, 256


class Model(nn.Module):
    """Spatially adaptive normalisation (without the shared hidden layer)"""

    def __init__(self, norm_nc, label_nc):
        super().__init__()
        self.param_free_norm = nn.InstanceNorm2d(norm_nc, affine=False)
        self.mlp_gamma = nn.Conv2d(label_nc, norm_nc, kernel_size=3, padding=1)
        self.mlp_beta = nn.Conv2d(label_nc, norm_nc, kernel_size=3, padding=1)

    def forward(self, x, segmap):
        # Part 1. generate parameter-free normalized activations
        normalized = self.param_free_norm(x)

        # Part 2. produce scaling and bias conditioned on semantic map
        gamma = self.mlp_gamma(segmap)
        beta = self.mlp_beta(segmap)

        # apply scale and bias
        out = normalized * (1 + gamma) + beta
        return F.leaky_relu(out, 2e-1)


def get_inputs():
    return [torch.randn(bsz, norm_nc, hgt, wid), torch.rand(bsz, label_nc, hgt, wid)]


def get_init_inputs():
    return [norm_nc, label_nc]
