"""DiffWave residual layer.

Inputs: audio features (B, C, T), step embedding (B, E), conditioner (B, 2C, T) already upsampled.
Outputs: residual and skip paths.
"""
import math

import torch
import torch.nn as nn

BATCH = 8
RES_CHANNELS = 64
STEP_EMB = 512
SAMPLES = 24000 * 2
DILATION = 4


class Model(nn.Module):
    def __init__(self, channels, step_emb, dilation):
        super().__init__()
        self.dilated_conv = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.diffusion_projection = nn.Linear(step_emb, channels)
        self.output_projection = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x, step, cond):
        y = x + self.diffusion_projection(step).unsqueeze(-1)
        y = self.dilated_conv(y) + cond
        gate, filt = torch.chunk(y, 2, dim=1)
        y = torch.sigmoid(gate) * torch.tanh(filt)
        residual, skip = torch.chunk(self.output_projection(y), 2, dim=1)
        return (x + residual) / math.sqrt(2.0), skip


def get_inputs():
    return [
        torch.randn(BATCH, RES_CHANNELS, SAMPLES),
        torch.randn(BATCH, STEP_EMB),
        torch.randn(BATCH, 2 * RES_CHANNELS, SAMPLES),
    ]


def get_init_inputs():
    return [RES_CHANNELS, STEP_EMB, DILATION]
