import torch
import torch.nn as nn

ROWS = 6144
FEATURES = 5120
R = 16
ALPHA = 32


class Model(nn.Module):
    """Frozen linear plus LoRA, then tanh-GELU written out (older torch had no approximate argument)."""

    def __init__(self, features, r, alpha):
        super().__init__()
        self.base = nn.Linear(features, features)
        for prm in self.base.parameters():
            prm.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, features) * 0.02)
        self.lora_B = nn.Parameter(torch.randn(features, r) * 0.02)
        self.scaling = alpha / r

    def gelu(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    def forward(self, x):
        h = self.base(x) + self.scaling * ((x @ self.lora_A.T) @ self.lora_B.T)
        return self.gelu(h)


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES, R, ALPHA]
