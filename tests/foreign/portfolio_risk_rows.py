import torch
import torch.nn as nn

# scenarios x assets; factor model, then the loss of the portfolio and a smooth maximum of the single losses

SCENARIOS = 100_000
FACTORS = 60
ASSETS = 3_000


class Model(nn.Module):
    def __init__(self, factors, assets, temperature=0.25):
        super().__init__()
        self.exposure = nn.Parameter(torch.randn(assets, factors) * 0.1)
        self.drift = nn.Parameter(torch.full((assets,), 1e-3))
        self.register_buffer("holdings", torch.full((assets,), 1.0 / assets))
        self.temperature = temperature

    def forward(self, factor_returns):
        asset_returns = factor_returns.matmul(self.exposure.t()).add(self.drift)
        losses = torch.expm1(asset_returns.neg()).clamp(max=5.0)
        portfolio = losses.mul(self.holdings).sum(-1)
        return portfolio, self.temperature * torch.logsumexp(losses / self.temperature, -1)


def get_inputs():
    return [torch.randn(SCENARIOS, FACTORS) * 0.3]


def get_init_inputs():
    return [FACTORS, ASSETS]
