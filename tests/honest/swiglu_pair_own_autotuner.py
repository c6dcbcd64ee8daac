# habit: A custom autotuner class, and the tuner imported by name.
# task: swiglu_pair
import torch
import triton
import triton.language as tl


import builtins
import time
from triton.runtime.autotuner import Autotuner, Config


class CustomAutotuner(Autotuner):
    def __init__(self, fn, arg_names, configs, key, reset_to_zero=None, restore_value=None, nearest_power_of_two=False):
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value)
        self.nearest = nearest_power_of_two

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        return super().run(*args, **kwargs)


def autotune(configs, key, nearest_power_of_two=False):
    def decorator(fn):
        return CustomAutotuner(fn, fn.arg_names, configs, key, nearest_power_of_two=nearest_power_of_two)

    return decorator


@autotune(configs=[Config({"BLOCK": 256}), Config({"BLOCK": 512})], key=["n"])
@triton.jit
def k(g, u, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(g + i, mask=i < n)
    y = tl.load(u + i, mask=i < n)
    tl.store(o + i, x * tl.sigmoid(x) * y, mask=i < n)


def launch(g, u, o=None):
    o = torch.empty_like(g) if o is None else o
    k[lambda m: (triton.cdiv(g.numel(), m["BLOCK"]),)](g, u, o, g.numel())
    return o


class ModelNew(torch.nn.Module):
    def forward(self, g, u):
        return launch(g, u)
