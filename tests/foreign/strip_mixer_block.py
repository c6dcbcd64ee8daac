import torch
import torch.nn as nn

n_scenes, n_ch = 30, 176
side = 60


class Model(nn.Module):
    r""" Mixes along rows, then along columns, then among channels.

    Each of the first two is a depthwise convolution with a strip for a kernel. The channel part is a
    1 x 1 convolution to ``widen * n_ch``, its own soft sign, and one back.

    Args:
        n_ch (int): channels in and out.
        widen (int): how much wider the inner channels are.
        reach (int): length of a strip, odd.
    """

    def __init__(self, n_ch, widen=3, reach=9):
        super().__init__()
        half = reach // 2
        self.rows = nn.Conv2d(n_ch, n_ch, (1, reach), padding=(0, half), groups=n_ch)
        self.columns = nn.Conv2d(n_ch, n_ch, (reach, 1), padding=(half, 0), groups=n_ch)
        self.inner = nn.Conv2d(n_ch, widen * n_ch, 1)
        self.outer = nn.Conv2d(widen * n_ch, n_ch, 1)

    def forward(self, scene):
        mixed = self.columns(self.rows(scene))
        energy = mixed.square().mean(dim=1, keepdim=True)
        mixed = mixed / (energy + 1e-5).sqrt()
        inner = nn.functional.softsign(self.inner(mixed))
        return scene + self.outer(inner)


def get_inputs():
    return [torch.randn(n_scenes, n_ch, side, side)]


def get_init_inputs():
    return [n_ch]
