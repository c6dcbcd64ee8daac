import torch
import torch.nn as nn


class Model(nn.Module):
    """12-lead ECG, one wide kernel, adaptive max pooling, linear classifier, sigmoid (multi-label)."""

    def __init__(self, leads, filters, labels):
        super().__init__()
        self.conv = nn.Conv1d(leads, filters, kernel_size=15, stride=2, padding=7)
        self.bn = nn.BatchNorm1d(filters)
        self.classifier = nn.Linear(filters, labels)
        self.eval()

    def forward(self, ecg):
        z = torch.relu(self.bn(self.conv(ecg)))
        z = nn.functional.adaptive_max_pool1d(z, 1).flatten(1)
        return torch.sigmoid(self.classifier(z))


LEADS, FS, SECONDS = 12, 500, 10
RECORDS = 64
FILTERS = 96
LABELS = 71


def get_inputs():
    return [torch.randn(RECORDS, LEADS, FS * SECONDS)]


def get_init_inputs():
    return [LEADS, FILTERS, LABELS]
