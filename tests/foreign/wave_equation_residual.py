import torch
import torch.nn as nn
import torch.nn.functional as F

# --- discretisation ---------------------------------------------------------
NX, NY = 2048, 2048
N_SHOTS = 16
DT = 0.001
C0 = 1500.0


class Model(nn.Module):
    """One explicit time step of the 2-D acoustic wave equation with a fixed 5-point stencil,
    followed by a sponge (damping) and an amplitude limiter."""

    def __init__(self, dt, c0):
        super().__init__()
        stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.register_buffer("stencil", stencil[None, None])
        self.r2 = (dt * c0) ** 2 / 25.0

    def forward(self, u, u_prev, damping):
        lap = F.conv2d(u, self.stencil, padding=1)
        u_next = 2 * u - u_prev + self.r2 * lap
        u_next = u_next * damping
        return torch.tanh(u_next / 5.0) * 5.0


def get_inputs():
    u = torch.randn(N_SHOTS, 1, NX, NY)
    u_prev = torch.randn(N_SHOTS, 1, NX, NY)
    damping = torch.rand(NX, NY)
    return [u, u_prev, damping]


def get_init_inputs():
    return [DT, C0]
