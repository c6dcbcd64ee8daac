import torch
import torch.nn as nn

TRACES = 64
SAMPLES = 30_000
FILTERS = [8, 16, 32]


class Model(nn.Module):
    """Phase picker encoder: three strided convolutions, each with ReLU, then the loudest response of every filter."""

    def __init__(self, filters):
        super().__init__()
        c = 3
        layers = []
        for f in filters:
            layers.append(nn.Conv1d(c, f, kernel_size=11, stride=4, padding=5))
            c = f
        self.layers = nn.ModuleList(layers)

    def forward(self, wave):
        for layer in self.layers:
            wave = torch.relu(layer(wave))
        return wave.max(dim=-1)[0]


def get_inputs():
    return [torch.randn(TRACES, 3, SAMPLES)]


def get_init_inputs():
    return [FILTERS]
