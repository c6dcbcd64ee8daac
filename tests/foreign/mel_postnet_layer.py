# Tacotron 2 postnet layer (tanh variant), evaluation
import torch
from torch import nn


class ConvNorm(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size=1, stride=1, padding=None, dilation=1, bias=True, w_init_gain='linear'):
        super(ConvNorm, self).__init__()
        if padding is None:
            assert(kernel_size % 2 == 1)
            padding = int(dilation * (kernel_size - 1) / 2)
        self.conv = torch.nn.Conv1d(in_channels, out_channels, kernel_size=kernel_size, stride=stride,
                                    padding=padding, dilation=dilation, bias=bias)
        torch.nn.init.xavier_uniform_(self.conv.weight, gain=torch.nn.init.calculate_gain(w_init_gain))

    def forward(self, signal):
        conv_signal = self.conv(signal)
        return conv_signal


class Model(nn.Module):
    def __init__(self, hparams):
        super(Model, self).__init__()
        self.convolutions = nn.Sequential(
            ConvNorm(hparams['n_mel_channels'], hparams['postnet_embedding_dim'],
                     kernel_size=hparams['postnet_kernel_size'], w_init_gain='tanh'),
            nn.BatchNorm1d(hparams['postnet_embedding_dim']))
        self.last = ConvNorm(hparams['postnet_embedding_dim'], hparams['n_mel_channels'],
                             kernel_size=hparams['postnet_kernel_size'])
        self.p_dropout = 0.5
        self.eval()

    def forward(self, mel):
        x = nn.functional.dropout(torch.tanh(self.convolutions(mel)), self.p_dropout, self.training)
        return mel + self.last(x)


hparams = {'n_mel_channels': 80, 'postnet_embedding_dim': 512, 'postnet_kernel_size': 5}
batch_size = 32
max_frames = 870


def get_inputs():
    return [torch.randn(batch_size, hparams['n_mel_channels'], max_frames)]


def get_init_inputs():
    return [hparams]
