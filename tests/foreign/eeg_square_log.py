# ShallowFBCSPNet, roughly
import torch
import torch.nn as nn

TRIALS = 256
ELECTRODES = 64
TIMEPOINTS = 1125


class Model(nn.Module):
    def __init__(self, electrodes, n_time_filters=40, n_spat_filters=40):
        super().__init__()
        self.conv_time = nn.Conv2d(1, n_time_filters, (1, 25))
        self.conv_spat = nn.Conv2d(n_time_filters, n_spat_filters, (electrodes, 1), bias=False)
        self.bnorm = nn.BatchNorm2d(n_spat_filters, momentum=0.1, affine=True)
        self.pool = nn.AvgPool2d((1, 75), stride=(1, 15))

    def forward(self, eeg):
        z = self.conv_time(eeg)
        z = self.conv_spat(z)
        z = self.bnorm(z)
        z = torch.square(z)
        z = self.pool(z)
        z = torch.log(torch.clamp(z, min=1e-6))
        return z.squeeze(2)


def get_inputs():
    return [torch.randn(TRIALS, 1, ELECTRODES, TIMEPOINTS)]


def get_init_inputs():
    return [ELECTRODES]
