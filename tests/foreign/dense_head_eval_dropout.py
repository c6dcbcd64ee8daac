import torch
import torch.nn as nn

# Transfer learning head (inference). Dropout is there because the checkpoint was trained with it.

batch_size = 256
num_features = 2048
num_classes = 1000


class Model(nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.head = nn.Sequential(
            nn.BatchNorm1d(num_features),
            nn.Dropout(0.5),
            nn.Linear(num_features, 512),
            nn.ReLU(),
            nn.BatchNorm1d(512),
            nn.Dropout(0.25),
            nn.Linear(512, num_classes),
        )
        self.head.eval()

    def forward(self, features):
        return torch.softmax(self.head(features), dim=1)


def get_inputs():
    return [torch.randn(batch_size, num_features)]


def get_init_inputs():
    return [num_features, num_classes]
