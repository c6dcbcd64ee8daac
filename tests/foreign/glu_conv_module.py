"""Conformer convolution module (inference): LN, pointwise + GLU, depthwise, BN, swish, pointwise, residual."""
import torch
import torch.nn as nn

batch, time, d_model, kernel = 16, 1200, 256, 31


class Model(nn.Module):
    def __init__(self, d_model, kernel):
        super().__init__()
        self.layer_norm = nn.LayerNorm(d_model)
        self.pointwise_conv1 = nn.Conv1d(d_model, 2 * d_model, 1)
        self.depthwise_conv = nn.Conv1d(d_model, d_model, kernel, padding=(kernel - 1) // 2, groups=d_model)
        self.batch_norm = nn.BatchNorm1d(d_model)
        self.pointwise_conv2 = nn.Conv1d(d_model, d_model, 1)
        self.batch_norm.eval()

    def forward(self, x):
        y = self.layer_norm(x).transpose(1, 2)
        y = nn.functional.glu(self.pointwise_conv1(y), dim=1)
        y = self.batch_norm(self.depthwise_conv(y))
        y = y * y.sigmoid()
        y = self.pointwise_conv2(y).transpose(1, 2)
        return x + y


def get_inputs():
    return [torch.randn(batch, time, d_model)]


def get_init_inputs():
    return [d_model, kernel]
