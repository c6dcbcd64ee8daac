"""What a candidate may not ask for, leave behind or replace; traced in the sandbox."""

from __future__ import annotations

import pytest
from support.front import module, trace

from kernrl.verifier.base.verdict import Rejection

LAUNCH = "return launch(x)"
REFUSED = {
    "the time": (module(f"import time\ntime.time()\n{LAUNCH}"), "forward() calls time.time"),
    "a lot": (module(f"import random\nrandom.choice([1, 2])\n{LAUNCH}"), "forward() calls random.choice"),
    "the environment": (module(f"import os\nos.environ.get('HOME')\n{LAUNCH}"), "forward() calls os.environ"),
    "an alarm": (module(LAUNCH, init="import signal\nsignal.alarm(9)"), "signal.alarm leaves work for later"),
    "a replaced function": ("import torch\ntorch.equal = lambda a, b: True\n" + module(LAUNCH), "replaces torch.equal"),
    "a replaced method": ("import torch\ntorch.Tensor.allclose = print\n" + module(LAUNCH), "replaces torch.Tensor.allclose"),
    "a callback": ("import gc\ngc.callbacks.append(print)\n" + module(LAUNCH), "callback with Python's garbage collector"),
    "a mode": (
        "from torch.overrides import BaseTorchFunctionMode\nBaseTorchFunctionMode().__enter__()\n" + module(LAUNCH),
        "leaves a mode of torch on",
    ),
    "a hook of the kernel": (module(LAUNCH, init="double.add_pre_run_hook(print)"), "has a pre_run_hook"),
    "an attribute of the output": (module("y = launch(x)\ny.note = 1\nreturn y"), "class or attributes of its own"),
    "an attribute of the input": (module("x.note = 1\nreturn launch(x)"), "changes what an input stands for"),
    "another memory of the input": (module("y = launch(x)\nx.data = y\nreturn y"), "changes what an input stands for"),
}


@pytest.mark.parametrize(("source", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(source: str, said: str) -> None:
    found = trace(source)
    assert isinstance(found, Rejection)
    assert found.status == "untraceable"
    assert said in found.reason


HONEST = {
    "the environment at import": "import os\nLARGE = os.environ.get('LARGE', '1')\n" + module(LAUNCH),
    "the time at import": "import time, random\nBEGUN = time.time() + random.random()\n" + module(LAUNCH),
    "flags of torch": "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n" + module(LAUNCH),
    "a name that was missing": "import torch\ntorch.nn.functional.my_own = lambda x: x\n" + module(LAUNCH),
    "a mode that is left again": module("with torch.overrides.BaseTorchFunctionMode():\n    y = launch(x)\nreturn y"),
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_is_allowed(source: str) -> None:
    assert isinstance(trace(source), list)
