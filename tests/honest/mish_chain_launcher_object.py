# habit: An object that is called launches; the loop has hints for the compiler.
# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr, NUM: tl.constexpr):
    start = tl.program_id(0)
    for tile in tl.range(start, tl.cdiv(n, BLOCK), NUM, num_stages=2, flatten=True, disable_licm=True):
        o = tile * BLOCK + tl.arange(0, BLOCK)
        m = o < n
        x = tl.load(x_ptr + o, mask=m, other=0.0)
        t = x * scale
        e = tl.exp(tl.minimum(t, 20.0))
        w = e * (e + 2.0)
        tl.store(y_ptr + o, tl.clamp(tl.where(t > 20.0, t, t * w / (w + 2.0)) + x, -1.0, 3.0), mask=m)


class Launcher:
    def __init__(self, scale, verbose=False):
        self.scale, self.verbose = scale, verbose
        device = triton.runtime.driver.active.get_current_device()
        self.sms = triton.runtime.driver.active.utils.get_device_properties(device)["multiprocessor_count"]

    def __call__(self, x):
        y = torch.empty_like(x)
        n = x.numel()

        def grid(meta):
            return (min(meta["NUM"], triton.cdiv(n, meta["BLOCK"])),)

        if self.verbose:
            print(f"x {tuple(x.shape)}")
        compiled = kernel[grid](x, y, n, self.scale, BLOCK=1024, NUM=2 * self.sms)
        if self.verbose:
            print(compiled.n_regs, compiled.metadata.name)
        return y


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.run = Launcher(scale)

    def forward(self, x):
        return self.run(x)
