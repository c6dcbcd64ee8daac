import torch
import torch.nn as nn

MEL_BINS = 80
CHANNELS = 256
FRAMES = 3000
BATCH = 16


class GatedTDNN(nn.Module):
    """One dilated TDNN layer with a WaveNet gate; returns the skip path."""

    def __init__(self, bins, channels, dilation):
        super().__init__()
        self.filter_conv = nn.Conv1d(bins, channels, 5, dilation=dilation, padding=2 * dilation)
        self.gate_conv = nn.Conv1d(bins, channels, 5, dilation=dilation, padding=2 * dilation)

    def forward(self, mel):
        return torch.tanh(self.filter_conv(mel)) * torch.sigmoid(self.gate_conv(mel))


class Model(nn.Module):
    def __init__(self, bins, channels, dilation=2):
        super().__init__()
        self.tdnn = GatedTDNN(bins, channels, dilation)

    def forward(self, mel):
        # utterance-level statistics: mean and standard deviation over time
        z = self.tdnn(mel)
        mu = z.mean(dim=2)
        var = (z - mu.unsqueeze(2)).square().mean(dim=2)
        return mu, torch.sqrt(var + 1e-5)


def get_inputs():
    return [torch.randn(BATCH, MEL_BINS, FRAMES)]


def get_init_inputs():
    return [MEL_BINS, CHANNELS]
