"""Attentive statistics pooling (weighted mean only)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, CHANNELS, STEPS = 64, 1536, 300
BOTTLENECK = 128


class Model(nn.Module):
    def __init__(self, channels, bottleneck):
        super().__init__()
        self.tdnn = nn.Conv1d(channels, bottleneck, 1)
        self.score = nn.Conv1d(bottleneck, channels, 1)

    def forward(self, feats):
        alpha = self.score(torch.tanh(F.relu(self.tdnn(feats))))
        alpha = F.softmax(alpha, dim=2)
        return torch.sum(alpha * feats, dim=2)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, STEPS)]


def get_init_inputs():
    return [CHANNELS, BOTTLENECK]
