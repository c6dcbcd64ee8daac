import torch
import torch.nn as nn

n_patch = 2048
n_bands = 200        # hyperspectral
n_endmembers = 12
side = 9


class Model(nn.Module):
    """Hyperspectral unmixing: abundances by softmax over end members, then rescaled to the range of the patch"""

    def __init__(self, n_bands, n_endmembers):
        super().__init__()
        self.unmix = nn.Conv2d(n_bands, n_endmembers, 1, bias=False)
        self.shift = nn.Parameter(torch.zeros(n_endmembers, 1, 1))

    def forward(self, patch):
        a = torch.softmax(self.unmix(patch) + self.shift, 1)
        lo = a.amin(dim=(2, 3), keepdim=True)
        hi = a.amax(dim=(2, 3), keepdim=True)
        return (a - lo) / (hi - lo + 1e-2)


def get_inputs():
    return [torch.randn(n_patch, n_bands, side, side)]


def get_init_inputs():
    return [n_bands, n_endmembers]
