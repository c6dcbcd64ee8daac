"""What a candidate may not ask for, and what it may not leave behind; traced in the sandbox."""

from __future__ import annotations

import pytest
from support.front import dense, module, spec, trace

from kernrl.verifier.base.verdict import Rejection

LAUNCH = "return launch(x)"
REFUSED: dict[str, tuple[str, str]] = {
    "the time": (module(f"import time\ntime.time()\n{LAUNCH}"), "forward() calls time.time"),
    **{
        f"the date by {asked}": (f"import datetime\nclass Mine(datetime.datetime): pass\n{module(f'{asked}; {LAUNCH}')}", said)
        for asked, said in {
            "datetime.date.today()": "forward() calls datetime.date.today",
            "datetime.datetime.today()": "forward() calls datetime.date.today",
            "datetime.datetime.now(datetime.UTC)": "forward() calls datetime.datetime.now",
            "Mine.utcnow()": "forward() calls datetime.datetime.utcnow",
            "datetime.datetime(2020, 1, 1).now()": "forward() calls datetime.datetime.now",
        }.items()
    },
    "a lot": (module(f"import random\nrandom.choice([1, 2])\n{LAUNCH}"), "forward() calls random.choice"),
    **{
        f"a lot by {made}": (f"import secrets\nimport numpy as np\n{module(f'{made}{LAUNCH}')}", f"forward() calls {said}")
        for made, said in {
            "secrets.randbits(8);": "secrets.randbits",
            "np.random.mtrand.RandomState();": "a generator of numpy without a seed",
            "np.random.Generator(np.random.PCG64());": "a generator of numpy without a seed",
            "np.random.Philox(seed=None);": "a generator of numpy without a seed",
            "np.random.SeedSequence();": "a generator of numpy without a seed",
        }.items()
    },
    **{
        f"a lot of its own, {made}": (
            f"import numpy as np\n{module(f'return launch(launch(x) if {drawn} else x)', init=f'self.lot = np.random.{made}')}",
            "keeps a count or a history (self.lot",
        )
        for made, drawn in {
            "default_rng(0)": "self.lot.random() > 0.97",
            "RandomState(0)": "self.lot.rand() > 0.97",
            "PCG64(0)": "self.lot.random_raw() % 1000 == 0",
            "SeedSequence(0)": "len(self.lot.spawn(1)[0].spawn_key) > 1",
        }.items()
    },
    "the number of GPUs": (
        module(f"torch.accelerator.device_count()\n{LAUNCH}"),
        "forward() calls torch.accelerator.device_count",
    ),
    "the environment": (module(f"import os\nos.environ.get('HOME')\n{LAUNCH}"), "forward() calls os.environ"),
    "an address": (module(f"id(x)\n{LAUNCH}"), "forward() calls id()"),
    "the hash of an object": (module(f"hash(object())\n{LAUNCH}"), "forward() calls hash() of an object"),
    "writes to a tensor": (module(f"x._version\n{LAUNCH}"), "forward() calls Tensor._version"),
    "hits of a cache": (
        "import functools\n@functools.cache\ndef f(n): return n\n" + module(f"f.cache_info()\n{LAUNCH}"),
        "forward() calls cache_info",
    ),
    "its name": (module("return launch(launch(x)) if __name__ == '__main__' else launch(x)"), "does something else"),
    "gradients": (module("torch.set_grad_enabled(False)\nreturn launch(x)"), "leaves gradients switched on or off"),
    "an operator's kernel": (
        "import torch\ntorch.ops.aten.allclose.default.py_impl(torch._C.DispatchKey.CUDA)(print)\n" + module(LAUNCH),
        "py_impl",
    ),
    "an alarm": (module(LAUNCH, init="import signal\nsignal.alarm(9)"), "signal.alarm leaves work for later"),
    "work after a fork": (
        "import os\nos.register_at_fork(after_in_child=print)\n" + module(LAUNCH),
        "os.register_at_fork leaves",
    ),
    "work at an end": (module(LAUNCH) + "\n    def __del__(self): pass\n", "__del__ of its own"),
    "work at the end of a part": (
        "class Part:\n    def __del__(self): pass\n" + module(LAUNCH, init="self.part = Part()"),
        "__del__ of its own",
    ),
    "a hook that says it is of torch": (
        "def hook(*_): pass\nhook.__module__ = 'torch.nn'\n" + module(LAUNCH, init="self._register_state_dict_hook(hook)"),
        "has a hook",
    ),
    "hooks that are not listed": (
        "class Empty(dict):\n    def values(self): return []\n" + module(LAUNCH, init="self._forward_hooks = Empty()"),
        "keeps its _forward_hooks in an object of another class",
    ),
    "another module's name": (module(LAUNCH) + "\n    __module__ = 'math'\n", "says that it is of another module"),
    "a kernel's hash": (module(LAUNCH, init="double.hash = 'x'"), "hash decides what runs"),
    "a kernel's hash, behind its back": (
        module(LAUNCH, init="vars(double)['hash'] = 'x'"),
        "the hash of double is not the one",
    ),
    "how a kernel is compiled": (module(LAUNCH, init="double._do_compile = print"), "the _do_compile of double is not the one"),
    "a tensor of a class of its own": (
        "import torch\nclass T(torch.Tensor): pass\n" + module("return launch(x.as_subclass(T))"),
        "the launch argument x_ptr is a T",
    ),
    "a number that equals all": (
        "import triton, triton.language as tl\n@triton.jit\ndef put(y, value):\n    tl.store(y, value)\n"
        "class N(float):\n    __eq__ = lambda self, other: True\n    __hash__ = float.__hash__\n"
        + module("self.n += 1\ny = launch(x)\nput[(1,)](y, N(self.n > 1))\nreturn y", init="self.n = 0"),
        "does something else when it is called again",
    ),
    "another stage of a compiled kernel": (
        module("return x if 'ptx' in double.warmup(x, x, 1, BLOCK=64, grid=(1,)).asm else launch(x)"),
        "holds its ttir alone",
    ),
    "a body for another key": (
        "import torch\nL = torch.library.Library('mine', 'DEF')\nL.define('f(Tensor x) -> Tensor')\n"
        "L.impl('f', print, 'BackendSelect')\n" + module(LAUNCH),
        "gets a body for BackendSelect",
    ),
    "a body for an operator of torch": (
        "import torch\ntorch.library.Library('aten', 'IMPL').impl('mish', print, 'AutogradCUDA')\n" + module(LAUNCH),
        "aten::mish replaces an operator of torch",
    ),
    "a mode": (
        "from torch.overrides import BaseTorchFunctionMode\nBaseTorchFunctionMode().__enter__()\n" + module(LAUNCH),
        "leaves a mode of torch on",
    ),
    "a default device": (
        "import torch\ntorch.set_default_device('cuda')\n" + module(LAUNCH),
        "leaves torch.set_default_device on",
    ),
    "a hook of the kernel": (module(LAUNCH, init="double.add_pre_run_hook(print)"), "has a pre_run_hook"),
    "an attribute of the output": (module("y = launch(x)\ny.note = 1\nreturn y"), "class or attributes of its own"),
    "a parameter": (
        module("launch(x)\nreturn self.held", init="self.held = torch.nn.Parameter(torch.ones(4))"),
        "returns a parameter: return a plain tensor",
    ),
    "an attribute of the input": (module("x.note = 1\nreturn launch(x)"), "changes what an input stands for"),
    "which library's names an attribute holds": (
        "import cmath, math\n"
        + module(f"self.names = vars(cmath if self.names is vars(math) else math)\n{LAUNCH}", init="self.names = None"),
        "keeps a count or a history (self.names",
    ),
    "which library's names hang on a kernel": (
        "import cmath, math\n"
        + module(f"double.held = vars(cmath if double.held is vars(math) else math)\n{LAUNCH}", init="double.held = None"),
        "keeps a count or a history (",
    ),
    "what torch knows of an operator": (
        "from torch._library.simple_registry import singleton\n"
        + module(f"known = singleton.find('aten::bmm')\nknown.calls = getattr(known, 'calls', 0) + 1\n{LAUNCH}"),
        "keeps a count or a history (",
    ),
    "another memory of the input": (module("y = launch(x)\nx.data = y\nreturn y"), "changes what an input stands for"),
}


@pytest.mark.parametrize(("source", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(source: str, said: str) -> None:
    found = trace(source)
    assert isinstance(found, Rejection)
    assert found.status == "untraceable"
    assert said in found.reason


HONEST = {
    "the hash of a shape": module("hash(tuple(x.shape))\nreturn launch(x)"),
    "a part for scripts": module(LAUNCH) + "\nif __name__ == '__main__':\n    raise SystemExit\n",
    "the environment at import": "import os\nLARGE = os.environ.get('LARGE', '1')\n" + module(LAUNCH),
    "the time at import": "import time, random\nBEGUN = time.time() + random.random()\n" + module(LAUNCH),
    "the type of autocast": module(
        "on = torch.is_autocast_enabled()\nreturn launch(x.to(torch.get_autocast_gpu_dtype() if on else x.dtype))"
    ),
    "inputs that need gradients": module("return launch(x.detach() if x.requires_grad and torch.is_grad_enabled() else x)"),
    "the text of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass Block:\n    size: int = 64\n" + module(f"str(Block())\n{LAUNCH}")
    ),
    "dates are what they are": (
        "import copy, datetime, pickle\n"
        "now = datetime.datetime.now()\n"
        "assert isinstance(now, datetime.datetime) and isinstance(now, datetime.date) and type(now.date()) is datetime.date\n"
        "for one in (now, now.date(), datetime.date.today(), datetime.datetime.today(), datetime.datetime.now(datetime.UTC)):\n"
        "    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one\n"
        + module(f"self.made - datetime.datetime(2020, 1, 1)\n{LAUNCH}", init="self.made = datetime.datetime.utcnow()")
    ),
    "lots of numpy with a seed": (
        "import numpy as np\n"
        + module(
            "np.random.Generator(np.random.Philox(key=3)).random(), np.random.RandomState(3).rand()\n"
            "np.random.default_rng(np.random.SeedSequence(3)).random()\nreturn launch(x)"
        )
    ),
    "the names of libraries": module(LAUNCH, init="self.names, double.held = vars(torch), vars(torch.nn)"),
    "a mode that is left again": module("with torch.overrides.BaseTorchFunctionMode():\n    y = launch(x)\nreturn y"),
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_is_allowed(source: str) -> None:
    assert isinstance(trace(source), list)


def test_a_class_may_have_the_methods_that_torch_gives_one_with_a_parametrization() -> None:
    source = module(
        "return launch(x + self.l.weight.sum())",
        init="self.l = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))",
    )
    shapes = {"l.bias": (4,), "l.parametrizations.weight.original0": (4, 1), "l.parametrizations.weight.original1": (4, 4)}
    assert isinstance(trace(source, spec(state={name: dense(*shape) for name, shape in shapes.items()})), list)
