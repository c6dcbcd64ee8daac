"""What of other modules a candidate may not replace; traced in the sandbox."""

from __future__ import annotations

import pytest
from support.front import module, trace

from kernrl.verifier.base.verdict import Rejection

LAUNCH = "return launch(x)"
REFUSED: dict[str, tuple[str, str]] = {
    "a replaced layer": (
        "import torch\ntorch.nn.Conv2d.forward = print\n" + module(LAUNCH),
        "replaces torch.nn.Conv2d.forward",
    ),
    "a number on a class": ("import torch\ntorch.nn.Identity.n = 0\n" + module(LAUNCH), "leaves torch.nn.Identity.n"),
    "a number on a function": ("import torch\ntorch.nn.functional.relu.n = 0\n" + module(LAUNCH), "leaves n on"),
    "a number on a function, in another dict": (
        "import torch\ntorch.nn.functional.relu.__dict__ = {'n': 0}\n" + module(LAUNCH),
        "leaves n on torch.nn.functional.relu",
    ),
    "a number on a function of its own": (
        "import torch\ndef f(): pass\nf.n = 0\ntorch.f = f\n" + module(LAUNCH),
        "leaves n on torch.f",
    ),
    "a decomposition": (
        "import torch\ntorch._decomp.decomposition_table[torch.ops.aten.gelu.default] = print\n" + module(LAUNCH),
        "changes torch._decomp.decomposition_table",
    ),
    "an import hook": ("import sys\nsys.meta_path.append(object())\n" + module(LAUNCH), "changes sys.meta_path"),
    "a replaced function": ("import torch\ntorch.equal = lambda a, b: True\n" + module(LAUNCH), "replaces torch.equal"),
    "a replaced method": ("import torch\ntorch.Tensor.allclose = print\n" + module(LAUNCH), "replaces torch.Tensor.allclose"),
    **{
        f"a replaced {name}(), which a look at other modules might call": (
            f"import builtins\nbuiltins.{name} = {fake}\n{module(LAUNCH)}",
            f"replaces builtins.{name}",
        )
        for name, fake in {
            "all": "lambda values: True",
            "map": "lambda *values: ()",
            "zip": "lambda *values, **_: ()",
            "enumerate": "lambda values, start=0: ()",
            "sorted": "lambda values, **_: []",
            "range": "lambda *_: ()",
            "bool": "lambda value: False",
        }.items()
    },
    **{
        f"a replaced numpy.{name}, with which others are looked at": (
            f"import numpy\nnumpy.{name} = lambda *_, **__: numpy.zeros(1)\n{module(LAUNCH)}",
            f"replaces numpy.{name}",
        )
        for name in ("frombuffer", "flatnonzero")
    },
    "a replaced part of numpy, with which others are looked at": (
        "import torch, numpy, sys\ncore = sys.modules['numpy._core._methods']\n"
        "core._any = lambda a, axis=None, *_, **__: numpy.zeros(len(a), bool)\ntorch.equal = print\n" + module(LAUNCH),
        "replaces torch.equal",
    ),
    "a function's defaults": (
        "import torch\ntorch.testing.assert_close.__kwdefaults__['rtol'] = 9.0\n" + module(LAUNCH),
        "the defaults of torch.testing",
    ),
    "a method's code": (
        "import torch\ntorch.nn.ReLU.forward.__code__ = (lambda self, input: input).__code__\n" + module(LAUNCH),
        "the code or the defaults of torch.nn.modules.activation.ReLU.forward",
    ),
    "a module": (
        "import sys, types\nsys.modules['json'] = types.ModuleType('json')\n" + module(LAUNCH),
        "replaces sys.modules['json']",
    ),
    "an operator": ("import torch\ntorch.ops.aten.__dict__['gelu'] = print\n" + module(LAUNCH), "replaces torch.ops.aten.gelu"),
    "the default type": (
        "import torch\ntorch.set_default_dtype(torch.float64)\n" + module(LAUNCH),
        "changes torch's default dtype",
    ),
    "a callback": ("import gc\ngc.callbacks.append(print)\n" + module(LAUNCH), "callback with Python's garbage collector"),
}


@pytest.mark.parametrize(("source", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(source: str, said: str) -> None:
    found = trace(source)
    assert isinstance(found, Rejection)
    assert found.status == "untraceable"
    assert said in found.reason


HONEST = {
    "what libraries fill in when it is first needed": (
        "import datetime\nBEGUN = datetime.datetime.strptime('2020', '%Y')\n"
        + module("with torch.profiler.record_function('all of it'):\n    return launch(x)")
    ),
    "a logger by the file's name": "import logging\n" + module(f"logging.getLogger(__name__).debug('called')\n{LAUNCH}"),
    "a warning": "import warnings\n" + module(f"warnings.warn('slow', stacklevel=2)\n{LAUNCH}"),
    "flags of torch": "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n" + module(LAUNCH),
    "a name that was missing": "import torch\ntorch.nn.functional.my_own = lambda x: x\n" + module(LAUNCH),
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_is_allowed(source: str) -> None:
    assert isinstance(trace(source), list)
