import torch
import torch.nn as nn

N_UTT = 128
N_FFT_BINS = 257
N_MELS = 80
N_FRAMES = 1000


class Model(nn.Module):
    """power spectrum -> mel -> log -> minus the mean over time -> tiny affine"""

    def __init__(self, n_bins, n_mels):
        super().__init__()
        # not a real mel filter bank, but positive and of the same shape
        fb = torch.rand(n_mels, n_bins) / n_bins
        self.register_buffer("fb", fb)
        self.gain = nn.Parameter(torch.ones(n_mels, 1))

    def forward(self, spec):
        power = spec.pow(2)
        mel = torch.matmul(self.fb, power)
        logmel = torch.log(mel + 1e-6)
        logmel = logmel - logmel.mean(dim=-1, keepdim=True)
        return logmel * self.gain


def get_inputs():
    return [torch.randn(N_UTT, N_FFT_BINS, N_FRAMES)]


def get_init_inputs():
    return [N_FFT_BINS, N_MELS]
