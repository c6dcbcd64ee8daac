import torch
import torch.nn as nn
import torch.nn.functional as F

"""
Matched filtering of gravitational-wave strain. Templates are fixed (buffer), the output is the
largest signal-to-noise ratio in windows of 64 samples, for every template.
"""

n_segments = 8
n_samples = 131072
n_templates = 128
template_len = 255
window = 64


class Model(nn.Module):
    def __init__(self, n_templates, template_len):
        super().__init__()
        t = torch.linspace(-1, 1, template_len)
        f = torch.linspace(3, 40, n_templates)[:, None]
        bank = torch.sin(f * t) * torch.exp(-4 * t * t)
        self.register_buffer("bank", (bank / template_len ** 0.5).unsqueeze(1))
        self.sigma = nn.Parameter(torch.ones(n_templates, 1))

    def forward(self, strain):
        snr = F.conv1d(strain, self.bank, padding="same")
        snr = snr.abs() / (self.sigma.abs() + 1e-2)
        return F.max_pool1d(snr, window)


def get_inputs():
    return [torch.randn(n_segments, 1, n_samples)]


def get_init_inputs():
    return [n_templates, template_len]
