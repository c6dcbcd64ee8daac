import torch
import torch.nn as nn

# wav2vec2-like feature extractor, layer 1 (after the raw-waveform layer)
WAVES = 32
FRAMES_IN = 32000
DIM = 512


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim // 4, dim, 3, stride=2, bias=False)
        self.layer_norm = nn.LayerNorm(dim)
        self.activation = nn.GELU()

    def forward(self, hidden_states):
        hidden_states = self.conv(hidden_states)
        # layer norm wants channels last
        hidden_states = hidden_states.transpose(-2, -1)
        hidden_states = self.layer_norm(hidden_states)
        hidden_states = hidden_states.transpose(-2, -1)
        return self.activation(hidden_states)


def get_inputs():
    return [torch.randn(WAVES, DIM // 4, FRAMES_IN // 4)]


def get_init_inputs():
    return [DIM]
