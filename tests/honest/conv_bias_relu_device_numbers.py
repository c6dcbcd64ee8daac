# habit: Devices by their number; a library that may not be there is imported at a call.
# task: conv_bias_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_relu(x, b, y, C, L, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + p.to(tl.int64) * L + o, mask=o < L) + tl.load(b + p % C)
    tl.store(y + p.to(tl.int64) * L + o, tl.maximum(v, 0.0), mask=o < L)


def native(x):
    try:
        import flash_conv  # a faster path where somebody has it

        return flash_conv.is_supported(x)
    except ImportError:
        return False


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x):
        if native(x):
            return torch.relu(self.conv(x))
        index = x.get_device()
        with torch.cuda.device(index):
            z = nn.functional.conv2d(x, self.conv.weight, padding=1)
            y = torch.empty(z.shape, dtype=z.dtype, device=index)
            B, C, H, W = z.shape
            bias_relu[(B * C, triton.cdiv(H * W, 512))](z.contiguous(), self.conv.bias, y, C, H * W, BLOCK=512)
        return y
