from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

JOINT_FEATURES: int = 900
MOTORS: int = 56
ROBOTS: int = 2400


class Model(nn.Module):
    """For each motor the centre of a Gaussian, within -1 and 1, and a width between NARROWEST and WIDEST."""

    NARROWEST = 0.02
    WIDEST = 4.0

    def __init__(self, joint_features: int, motors: int):
        super().__init__()
        self.both = nn.Linear(joint_features, 2 * motors)

    def forward(self, joints: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        centre, width = self.both(joints).chunk(2, dim=1)
        width = F.softplus(width) + self.NARROWEST
        return F.softsign(centre), width.clamp(max=self.WIDEST)


def get_inputs():
    return [torch.randn(ROBOTS, JOINT_FEATURES)]


def get_init_inputs():
    return [JOINT_FEATURES, MOTORS]
