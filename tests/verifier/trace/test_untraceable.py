"""What cannot be traced is refused with a sentence that says how to write it instead."""
# ruff: noqa: E501  (programs are quoted as models write them)

import pytest
from support.front import cases, module, trace

from kernrl.verifier.base.verdict import Rejection, Status

REFUSED = {
    "item": ("return launch(x * x.max().item())", "cannot be traced"),
    "float": ("return launch(x * float(x.max()))", "cannot be traced"),
    "branch on a value": ("return launch(x) if x.sum() > 0 else x", "condition on a tensor"),
    "tolist": ("return launch(x * x.tolist()[0][0])", "tolist"),
    "numpy": ("return launch(torch.from_numpy(x.numpy()))", "numpy"),
    "cpu": ("return launch(x.cpu())", ".cpu()"),
    "allclose": ("assert torch.allclose(launch(x), x); return launch(x)", "reads a tensor's value on the host (torch.allclose,"),
    "equal": ("assert launch(x).equal(x); return launch(x)", "reads a tensor's value on the host (torch.equal,"),
    "a function that compares": ("return launch(torch.cov(x))", "reads a tensor's value on the host (torch.equal,"),
    "environment": ("import os; os.environ.get('DEBUG'); return launch(x)", "ask it when the module is imported"),
    "nonzero": ("return launch(x[x > 0])", "torch.nonzero() makes a tensor whose shape depends on numbers"),
    "unique": ("return launch(torch.unique(x))", "makes a tensor whose shape depends on numbers"),
    "masked_select": ("return launch(x.masked_select(x > 0))", "makes a tensor whose shape depends on numbers"),
    "least squares": ("return launch(torch.linalg.lstsq(x, x).solution)", "makes a tensor whose shape depends on numbers"),
    "istft": (
        "z = torch.stft(x.view(1, -1), 16, 4, window=torch.ones(16, device=x.device), return_complex=True); "
        "return launch(torch.istft(z, 16, 4, window=torch.ones(16, device=x.device)))", "torch.istft, which looks at",
    ),
    "nested": ("return launch(torch.nested.nested_tensor([x[0], x[1]]).to_padded_tensor(0.0))", "without them"),
    "conjugated in place": (
        "y = launch(x); torch.view_as_complex(y.view(8, 16, 2)).conj().mul_(2j); return y", "call resolve_conj()",
    ),
    "negated by a mark": ("return launch(torch.view_as_complex(x.view(8, 16, 2)).conj().imag)", "call resolve_conj()"),
    "negated in place": (
        "y = launch(x); torch.view_as_complex(y.view(8, 16, 2)).conj().imag.mul_(2); return y", "call resolve_conj()",
    ),
    "bincount": ("return launch(torch.bincount(x.long()).float())", "aten::bincount makes a tensor whose shape depends"),
    "stream": ("s = torch.cuda.Stream(); return launch(x)", "streams"),
    "cuda graph": ("g = torch.cuda.CUDAGraph(); return launch(x)", "CUDA graphs"),
    "compile": ("return torch.compile(launch)(x)", "write the fusion in Triton"),
    "thread": ("import threading; threading.Thread(target=print).start(); return launch(x)", "threads"),
    "autocast": ("with torch.autocast('cuda'): return launch(x)", ".to(dtype)"),
    "machine code": ("return x * len(double.warmup(x, x, 1, BLOCK=64, grid=(1,)).function)", "not known in a trace"),
    "compiled for other arguments": (
        "y = torch.empty_like(x); k = double[(4,)](x, y, 256, BLOCK=64); k[(4, 1, 1)](x, y, 255, 64); return y",
        "a value of n (not divisible by 16)",
    ),
    "compiled for other constants": (
        "y = torch.empty_like(x); k = double[(4,)](x, y, 256, BLOCK=64); k[(4, 1, 1)](x, y, 256, 32); return y",
        "types or constants",
    ),
    "addresses in a tensor": (
        "y = torch.empty_like(x); t = torch.tensor([x.data_ptr(), y.data_ptr()], device='cuda');"
        " double[(1,)](x, t, 2, BLOCK=64); return y",
        "a tensor of addresses",
    ),
    "TorchScript": ("return torch.jit.script(launch)(x)", "TorchScript"),
    "Gluon": (
        "from triton.experimental import gluon; gluon.jit(double.fn)[(4,)](x, x, 256, 64); return launch(x)", "Gluon kernel",
    ),
    "a generator of the GPU": ("torch.Generator(device='cuda'); return launch(x)", "asks a GPU itself"),
    "the GPU's state": ("torch.cuda.get_rng_state(); return launch(x)", "asks a GPU itself"),
    "an input made larger": ("x.resize_(16, 32); return launch(x)", "resized"),
    "times kernels": ("triton.testing.do_bench(lambda: launch(x)); return launch(x)", "cannot be timed"),
    "operator of torch": (
        "torch.library.custom_op('aten::mine', mutates_args=())(launch); return launch(x)", "under a name of its own",
    ),
    "address": ("y = torch.empty_like(x); double[(4,)](x, y, y.data_ptr(), BLOCK=64); return y", "pass the tensor itself"),
    "many operations": ("for _ in range(10**9): x = x + 1\nreturn launch(x)", "operations"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "says"), cases(REFUSED, slow={"compiled for other constants", "many operations"}))
def test_what_cannot_be_traced_says_what_to_write_instead(body, says):
    rejection = trace(module(body))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.UNTRACEABLE
    assert says in rejection.reason
    assert "[line " in rejection.reason


@pytest.mark.parametrize(
    "mark",
    [
        "return z.conj()",
        "return z.conj().imag",
        "return torch._neg_view(launch(x))",
        "torch._C._set_conj(z, True); return z",
        "return torch.fft.ifft(launch(x))",
    ],
)
def test_a_result_is_not_conjugated_by_a_mark(mark):
    rejection = trace(module(f"z = torch.view_as_complex(launch(x).view(8, 16, 2)); {mark}"))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.UNTRACEABLE
    assert "by a mark alone" in rejection.reason
