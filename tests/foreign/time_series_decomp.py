import torch
import torch.nn as nn

# DLinear: trend by moving average, seasonal part is what is left; one linear map in time for each

BATCH = 256
SEQ_LEN = 336
PRED_LEN = 96
VARIATES = 21


class Model(nn.Module):
    def __init__(self, seq_len, pred_len, kernel_size=25):
        super().__init__()
        self.moving_avg = nn.AvgPool1d(kernel_size, stride=1, padding=kernel_size // 2, count_include_pad=False)
        self.linear_seasonal = nn.Linear(seq_len, pred_len)
        self.linear_trend = nn.Linear(seq_len, pred_len)

    def forward(self, series):
        # series: [batch, variates, time]
        trend = self.moving_avg(series)
        seasonal = series - trend
        return self.linear_seasonal(seasonal) + self.linear_trend(trend)


def get_inputs():
    return [torch.randn(BATCH, VARIATES, SEQ_LEN)]


def get_init_inputs():
    return [SEQ_LEN, PRED_LEN]
