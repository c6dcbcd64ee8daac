import torch
import torch.nn as nn

#: sweeps, channels, z, y, x of the voxel grid
SWEEPS, CIN, COUT, Z, Y, X = 2, 32, 64, 16, 400, 352


class Model(nn.Module):
    """Collapse the height of a voxel grid with a gate: conv, frozen BN, x * hardsigmoid(x), mean over z."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        conv = nn.Conv3d(cin, cout, (3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0), bias=False)
        bn = nn.BatchNorm3d(cout, eps=1e-3)
        self.block = nn.ModuleDict({"conv": conv, "bn": bn.eval()})

    def forward(self, grid: torch.Tensor) -> torch.Tensor:
        g = self.block["bn"](self.block["conv"](grid))
        g = g * nn.functional.hardsigmoid(g)
        return g.mean(2)


def get_inputs():
    return [torch.randn(SWEEPS, CIN, Z, Y, X)]


def get_init_inputs():
    return [CIN, COUT]
