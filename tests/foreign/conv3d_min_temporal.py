import torch
import torch.nn as nn


class Model(nn.Module):
    """
    What stays when things move: the weakest response over the time of the clip, per place and
    filter, set in relation to the strongest place.
    """

    def __init__(self, colours, n_filters):
        super(Model, self).__init__()
        self.scan = nn.Conv3d(colours, n_filters, (3, 5, 5), stride=(1, 2, 2))
        self.bend = nn.CELU(alpha=0.8)

    def forward(self, clip):
        still = self.bend(self.scan(clip).amin(dim=2))
        top = still.amax(dim=(2, 3), keepdim=True)
        return still / (top.abs() + 0.1)


n_clips = 24
colours = 8
n_filters = 28
T, H, W = 16, 96, 128


def get_inputs():
    return [torch.rand(n_clips, colours, T, H, W)]


def get_init_inputs():
    return [colours, n_filters]
