import torch
import torch.nn as nn

# ImageNet-like stem, evaluated with frozen statistics.
batch, in_ch, stem_ch = 64, 3, 64
height = width = 224


class Model(nn.Module):
    def __init__(self, in_ch, stem_ch):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_ch, stem_ch, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(stem_ch),
            nn.SiLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        self.stem.eval()

    def forward(self, img):
        return self.stem(img)


def get_inputs():
    return [torch.randn(batch, in_ch, height, width)]


def get_init_inputs():
    return [in_ch, stem_ch]
