import torch
import torch.nn as nn

MEL_BINS = 80
CHANNELS = 256
FRAMES = 3000
BATCH = 16


class GatedFrames(nn.Module):
    """One dilated convolution for the signal and one for its gate."""

    def __init__(self, bins, channels, dilation):
        super().__init__()
        self.signal = nn.Conv1d(bins, channels, 5, dilation=dilation, padding=2 * dilation)
        self.gate = nn.Conv1d(bins, channels, 5, dilation=dilation, padding=2 * dilation)

    def forward(self, mel):
        return torch.tanh(self.signal(mel)) * torch.sigmoid(self.gate(mel))


class Model(nn.Module):
    def __init__(self, bins, channels, dilation=2):
        super().__init__()
        self.frames = GatedFrames(bins, channels, dilation)

    def forward(self, mel):
        # utterance-level statistics: mean and standard deviation over time
        z = self.frames(mel)
        mu = z.mean(dim=2)
        var = (z - mu.unsqueeze(2)).square().mean(dim=2)
        return mu, torch.sqrt(var + 1e-5)


def get_inputs():
    return [torch.randn(BATCH, MEL_BINS, FRAMES)]


def get_init_inputs():
    return [MEL_BINS, CHANNELS]
