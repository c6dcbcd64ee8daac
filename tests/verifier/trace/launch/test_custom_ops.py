"""Operators that a candidate registers with `torch.library` are traced by their names."""
# ruff: noqa: E501  (programs are quoted as models write them)

import pytest
from support.front import HEAD, launches, plan_of

OPERATORS = {
    "custom_op": "@torch.library.custom_op('mine::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return launch(x)\n",
    "triton_op": "@torch.library.triton_op('mine::f', mutates_args={})\ndef f(x: torch.Tensor) -> torch.Tensor: return launch(x)\n",
    "define": "torch.library.define('mine::f', '(Tensor x) -> Tensor')\n@torch.library.impl('mine::f', 'cuda')\ndef f(x): return launch(x)\n",
    "Library": (
        "L = torch.library.Library('mine', 'FRAGMENT')\nL.define('f(Tensor x, float by=2.0) -> Tensor')\n"
        "def f(x, by): assert by == 2.0; return launch(x)\nL.impl('f', f, 'CUDA')\nL.impl('f', lambda x, by: 1 / 0, 'CPU')\n"
    ),
    "Library, described": (
        "L = torch.library.Library('mine', 'FRAGMENT')\ndef f(x: torch.Tensor) -> torch.Tensor: return launch(x)\n"
        "L.define('f' + torch.library.infer_schema(f, mutates_args=[]))\nL.impl('f', f, dispatch_key='CUDA')\n"
        "L._register_fake('f', lambda x: 1 / 0)\n"
    ),
    "impl on a library": (
        "L = torch.library.Library('mine', 'DEF')\nL.define('f(Tensor x) -> Tensor')\n"
        "@torch.library.impl(L, 'f', 'CUDA')\ndef f(x): return launch(x)\n"
        "@torch.library.register_fake('mine::f')\ndef _(x): return 1 / 0\n"
    ),
}


@pytest.mark.parametrize("call", ["torch.ops.mine.f(x)", "torch.ops.mine.f.default(x)"])
@pytest.mark.parametrize("registered", OPERATORS.values(), ids=OPERATORS.keys())
def test_registered_operators_are_traced_by_their_names(registered, call):
    source = HEAD + registered + f"class ModelNew(nn.Module):\n    def forward(self, x): return {call}\n"
    assert len(launches(plan_of(source))) == 1


BODIES = {
    "for CUDA and for all": "L.impl('f', f, 'CUDA')\nL.impl('f', lambda x: x.exp(), 'CompositeExplicitAutograd')\n",
    "around another": "L.impl('f', f, 'CUDA')\nL.impl('f', lambda x: torch.ops.mine.f(x), 'Autograd')\n",
}


@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES.keys())
def test_the_body_is_traced_that_torch_would_call(bodies):
    source = HEAD + (
        "L = torch.library.Library('mine', 'DEF')\nL.define('f(Tensor x) -> Tensor')\ndef f(x): return launch(x)\n"
        f"{bodies}class ModelNew(nn.Module):\n    def forward(self, x): return torch.ops.mine.f(x)\n"
    )
    assert len(launches(plan_of(source))) == 1
