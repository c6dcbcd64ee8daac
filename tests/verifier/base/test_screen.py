"""Advice before anything runs: what is refused, in which words, and that honest habits are not."""

import pytest

from kernrl.verifier.base.screen import screen
from kernrl.verifier.base.verdict import Status

HONEST = """
from __future__ import annotations
import math
from typing import Optional
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

class ModelNew(nn.Module):
    def forward(self, x: Optional[torch.Tensor]):
        y = torch.empty_like(x)
        k[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), B=64)
        return y
"""


def test_an_honest_module_passes():
    assert screen(HONEST) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import os\nos.system('ls')", "os is out of reach"),
        ("import os\nos.makedirs('cache')", "leave files, folders and processes alone"),
        ("from os import system as run\nrun('ls')", "os is out of reach"),
        ("import subprocess as sp\nsp.run(['ls'])", "processes"),
        ("from ctypes import CDLL\nlibrary = CDLL('x')", "native code"),
        ("import threading\nt = threading.Thread(target=print)", "threads"),
        ("from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()", "threads"),
        ("import requests\nrequests.get('x')", "network"),
        ("from torch.utils.cpp_extension import load_inline\nload_inline('x')", "@triton.jit"),
        ("from torch.utils import cpp_extension\ncpp_extension.load('x')", "@triton.jit"),
        ("f = torch.compile(lambda x: x)", "torch.compile"),
        ("@torch.compile\ndef f(x): return x\ny = f", "torch.compile"),
        (
            "@torch.compile\ndef f(x): return x\ndef g(x): return f(x)\nclass A:\n    def h(self): return g(1)\nA()",
            "torch.compile",
        ),
        ("import torch as t\nf = t.compile(abs)", "torch.compile"),
        ("s = torch.cuda.Stream()", "streams"),
        ("g = torch.cuda.CUDAGraph()", "CUDA graphs"),
        ("f = torch.jit.script(abs)", "TorchScript"),
        ("from torch._inductor.runtime import triton_heuristics\n@triton_heuristics.pointwise()\ndef f(): pass\nf()", "tuning"),
        ("from torch._inductor.async_compile import AsyncCompile\nk = AsyncCompile().triton('k', '')", "kernels in strings"),
        ("import torch._inductor as i\nf = i.compile(abs)", "compiled graphs"),
        ("torch.distributed.all_reduce(1)", "one GPU"),
        ("import importlib\nm = importlib.import_module(name)", "top of the module"),
        ("import importlib\nm = importlib.import_module('.a', 'b')", "top of the module"),
        ("import importlib\nm = importlib.import_module('os')\nm.system('ls')", "os is out of reach"),
        ("from importlib import import_module\nm = import_module('torch.cuda')\ns = m.Stream()", "streams"),
        ("if __name__ != '__main__':\n    exec('x = 1')", "exec"),
        ("if __name__ == '__main__':\n    pass\nelse:\n    exec('x = 1')", "exec"),
        ("if __name__ == '__main__' or torch:\n    exec('x = 1')", "exec"),
        ("if exec('x = 1') and __name__ == '__main__':\n    pass", "exec"),
        ("if not torch.distributed.is_initialized():\n    torch.distributed.init_process_group()", "one GPU"),
        ("r = 0 if torch.distributed.is_initialized() else torch.distributed.get_rank()", "one GPU"),
        ("if torch.cuda.is_initialized():\n    s = torch.cuda.Stream()", "streams"),
        ("exec('x = 1')", "exec"),
        ("x = eval('1')", "eval"),
        ("x = __import__('os')", "__import__"),
        ("x = open('/etc/passwd').read()", "files"),
        ("from . import secrets", "relative"),
    ],
)
def test_what_is_refused_says_what_to_write_instead(line, says):
    rejection = screen(HONEST + "\n" + line + "\n")
    assert rejection is not None
    assert rejection.status is Status.POLICY
    assert says in rejection.reason
    assert rejection.reason.startswith("Line ")


@pytest.mark.parametrize(
    "line",
    [
        "import os\nDEBUG = os.environ.get('DEBUG', '0') == '1'",
        "import os, sys, importlib, einops, requests, subprocess",
        "import importlib.util\nHAS_APEX = importlib.util.find_spec('apex') is not None",
        "try:\n    import apex\nexcept ImportError:\n    apex = None",
        "import importlib\ntry:\n    apex = importlib.import_module('apex')\nexcept ImportError:\n    apex = None",
        "try:\n    from torch.utils.cpp_extension import load\n    fused = load('x')\nexcept Exception:\n    fused = None",
        "import torch.distributed as dist\ndef local(x): return isinstance(x, dist.tensor.DTensor)\nlocal(1)",
        "import threading\nLOCK = threading.Lock()",
        "import importlib\nMATH = importlib.import_module('triton.language.extra.libdevice')\nf = MATH.tanh",
        "from importlib import import_module\nimport_module('os').getenv('A')",
        "if __name__ == '__main__':\n    import subprocess\n    subprocess.run(['nvidia-smi'])\n    s = torch.cuda.Event()",
        "if '__main__' == __name__ and torch:\n    open('/tmp/x').read()",
        "import torch.distributed as dist\nif dist.is_available() and dist.is_initialized():\n    dist.all_reduce(1)",
        "from torch import distributed as dist\nRANK = dist.get_rank() if dist.is_initialized() else 0",
        "@torch.compile\ndef reference(x): return x + 1",
        "def benchmark(f):\n    s = torch.cuda.Event(enable_timing=True)\n    return open('/tmp/x')",
        "from torch._inductor.runtime import triton_helpers as h\nf = h.maximum",
        "from torch._inductor.runtime.triton_helpers import libdevice\nf = libdevice.rsqrt",
        "import os, json\nif os.path.exists('a'):\n    with open('a') as f:\n        A = json.load(f)",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ctypes\n    P = ctypes.c_void_p",
        "COMPILE = False\nf = torch.compile(g) if COMPILE else g",
        "PROFILE: bool = False\nif PROFILE and torch:\n    s = torch.cuda.Event()",
    ],
)
def test_what_is_mentioned_and_not_used_passes(line):
    assert screen(HONEST + "\n" + line + "\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "COMPILE = True\nf = torch.compile(g) if COMPILE else g",
        "COMPILE = False\nCOMPILE = len('a')\nif COMPILE:\n    f = torch.compile(g)",
        "COMPILE = False\nf = g if COMPILE else torch.compile(g)",
        "COMPILE = False\nif not COMPILE:\n    f = torch.compile(g)",
    ],
)
def test_what_a_flag_does_not_switch_off_is_refused(line):
    assert screen(HONEST + "\n" + line + "\n") is not None


def test_inline_assembly_is_refused():
    rejection = screen(
        HONEST.replace("tl.load(x + i, mask=i < n)", "tl.inline_asm_elementwise('', '', [x], tl.int32, True, 1)")
    )
    assert rejection is not None
    assert "inline assembly" in rejection.reason


def test_syntax_errors_name_their_line():
    rejection = screen("import torch\nclass ModelNew(\n    x = = 1\n")
    assert rejection is not None
    assert rejection.status is Status.SYNTAX_ERROR
    assert "line" in rejection.reason


@pytest.mark.parametrize("source", ["\x00", "(" * 5000, "x = " + "-" * 100_000 + "1", "if 1:\n" * 200, "\ud800"])
def test_hostile_text_is_a_syntax_error(source):
    rejection = screen(source)
    assert rejection is not None
    assert rejection.status in (Status.SYNTAX_ERROR, Status.NO_CODE)


def test_a_module_without_the_model_is_no_code():
    rejection = screen(HONEST.replace("ModelNew", "Model"))
    assert rejection is not None
    assert rejection.status is Status.NO_CODE
    assert screen(HONEST.replace("class ModelNew", "class Fused") + "\nModelNew = Fused\n") is None


def test_a_kernel_in_a_text_that_becomes_a_file_is_none():
    written = HONEST.replace("@triton.jit", "TEXT = '@triton.jit'")
    assert "not in one that is written to a file" in str(screen(written))


def test_a_module_without_a_kernel_is_refused():
    rejection = screen("import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x\n")
    assert rejection is not None
    assert "@triton.jit" in rejection.reason
