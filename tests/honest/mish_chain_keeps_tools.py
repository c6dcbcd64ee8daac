# habit: Keeps tables, loggers, partials, patterns, settings and what libraries make at the top level.
# task: mish_chain
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

import numpy as np, functools, logging, re, enum, typing, dataclasses, pathlib, collections, math, operator, contextlib, fractions, decimal, datetime, warnings, types, string, textwrap, json, time, os, copy, inspect, abc
T = np.arange(10.0)
P = functools.partial(math.ceil)
LOGGER = logging.getLogger(__name__)
R = re.compile('a')
class K(enum.IntEnum):
    A = 1
V = typing.TypeVar('V')
PATH = pathlib.Path('.')
CTX = contextlib.nullcontext()
D = collections.defaultdict(list)
ENC = json.JSONEncoder()
S = torch.finfo(torch.float32)
DT = torch.float32
DEV = torch.device('cuda')
class B(abc.ABC):
    pass
NT = collections.namedtuple('NT', 'a b')
X = NT(1, 2)
I = inspect.signature(math.cos)
W = torch.cuda.get_device_properties(0)
OP = torch.ops.aten.mm
OV = torch.ops.aten.mm.default

@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


def launch(x, scale):
    y = torch.empty_like(x)
    n = x.numel()
    mish_chain[(triton.cdiv(n, 1024),)](x, y, n, scale, BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return launch(x, self.scale)
