import torch
from torch import nn

ROIS = 256
FEATURES = 256
CLASSES = 80
ROI_SIZE = 14


class Model(nn.Module):
    """Mask head: 2x transposed convolution, relu, 1x1 predictor, sigmoid."""

    def __init__(self, features, classes):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(features, features, 2, stride=2)
        self.relu = nn.ReLU(inplace=True)
        self.predictor = nn.Conv2d(features, classes, 1)

    def forward(self, rois):
        rois = self.relu(self.deconv(rois))
        return self.predictor(rois).sigmoid()


def get_inputs():
    return [torch.randn(ROIS, FEATURES, ROI_SIZE, ROI_SIZE)]


def get_init_inputs():
    return [FEATURES, CLASSES]
