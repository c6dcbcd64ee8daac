# Removes what the vocoder would turn into a buzz: guess it, take half of it away. Evaluation only.
import torch
from torch import nn


def same_length(n_in, n_out, reach, groups=1):
    return nn.Conv1d(n_in, n_out, 2 * reach + 1, padding=reach, groups=groups, bias=False)


class Model(nn.Module):
    def __init__(self, options):
        super(Model, self).__init__()
        bands, inner, reach = options['bands'], options['inner'], options['reach']
        self.buzz = nn.Sequential(
            same_length(bands, inner, reach),
            nn.BatchNorm1d(inner),
            nn.Hardtanh(-options['limit'], options['limit']),
            nn.Dropout(options['drop']),
            same_length(inner, bands, reach, groups=4))
        self.eval()

    def forward(self, spectrogram):
        return spectrogram - 0.5 * self.buzz(spectrogram)


options = {'bands': 96, 'inner': 480, 'reach': 3, 'limit': 2.5, 'drop': 0.2}
sentences = 36
frames = 800


def get_inputs():
    return [torch.randn(sentences, options['bands'], frames)]


def get_init_inputs():
    return [options]
