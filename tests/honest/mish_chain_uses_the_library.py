# habit: Uses of the standard library that ask nothing of the process: a home folder, logs, limits, caches, warnings, formats.
# task: mish_chain
import contextlib
import csv
import enum
import functools
import io
import json
import logging
import math
import operator
import os
import resource
import struct
import typing
import warnings

import torch
import torch.nn as nn
import triton
import triton.language as tl

log = logging.getLogger("mish")
STACK = resource.getrlimit(resource.RLIMIT_STACK)
NAMES = list(csv.reader(io.StringIO("flat,rows")))[0]


class Kind(enum.Enum):
    FLAT = 1


class Choice(typing.NamedTuple):
    kind: Kind
    block: int


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


@functools.lru_cache(maxsize=None)
def choice(n: int) -> Choice:
    return Choice(Kind.FLAT, min(1024, 2 ** math.ceil(math.log2(n))))


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.cache = os.path.join(os.path.expanduser("~"), ".cache", os.environ.get("MISH_CACHE", "mish"))

    def forward(self, x):
        picked = choice(functools.reduce(operator.mul, x.shape))
        log.debug("block %d of %s in %s", picked.block, picked.kind, os.path.basename(self.cache))
        with contextlib.suppress(KeyError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            json.loads(json.dumps({"block": picked.block}))["rows"]
        [scale] = struct.unpack("d", struct.pack("d", self.scale))
        return launch(x, scale)
