# Surface EMG of the forearm: filter in time, rectify, take the envelope, then mix the electrodes.
import torch
import torch.nn as nn

GRASPS = 200
ELECTRODES = 60
SAMPLES = 1200


class Model(nn.Module):
    def __init__(self, electrodes, n_bands=24, n_muscles=36):
        super().__init__()
        self.bands = nn.Conv2d(1, n_bands, (1, 33), bias=False)
        self.envelope = nn.AvgPool2d((1, 50), stride=(1, 10))
        self.muscles = nn.Conv2d(n_bands, n_muscles, (electrodes, 1))

    def forward(self, emg):
        rectified = self.bands(emg).abs()
        drive = self.muscles(torch.log1p(self.envelope(rectified)))
        return nn.functional.softplus(drive).squeeze(2)


def get_inputs():
    return [torch.randn(GRASPS, 1, ELECTRODES, SAMPLES)]


def get_init_inputs():
    return [ELECTRODES]
