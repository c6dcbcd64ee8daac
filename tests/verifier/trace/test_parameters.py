"""What a constructor makes: parameters that stand for the reference's, constants, and what every call makes anew."""
# ruff: noqa: E501  (programs are quoted as models write them)

import pytest
from support.front import HEAD, dense, module, ops, plan_of, spec, trace

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan.plan import AtenNode

LINEAR = {"linear.weight": dense(16, 32), "linear.bias": dense(16)}


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("self.linear = nn.Linear(32, 16)", "return launch(self.linear(x))"),
        ("self.w = nn.Parameter(torch.empty(16, 32)); self.b = nn.Parameter(torch.zeros(16))", "return launch(F.linear(x, self.w, self.b))"),
        ("self.fc = nn.Linear(32, 16).cuda()", "return launch(torch.addmm(self.fc.bias, x, self.fc.weight.t()))"),
        ("linear = nn.Linear(32, 16); self.linear = linear; self.w = linear.weight", "return launch(x @ self.w.t() + self.linear.bias)"),
        ("self.linear = nn.Linear(32, 16); self.wt = self.linear.weight.data.t()", "return launch(x @ self.wt + self.linear.bias)"),
        ("self.linear = nn.Linear(32, 16); nn.init.xavier_uniform_(self.linear.weight)", "return launch(self.linear(x))"),
    ],
    ids=["by name", "by order", "other name", "alias", "view of a parameter", "initialised"],
)  # fmt: skip
def test_parameters_stand_for_the_reference_s(init, body):
    plan = plan_of(module(body, init), spec(dense(8, 32), state=LINEAR))
    assert {s.source for s in plan.storages if s.kind == "state"} == set(LINEAR)
    assert not plan.setup, "initialisation is not replayed"


TWO = {"norm1.weight": dense(8), "norm2.weight": dense(8)}


@pytest.mark.parametrize(
    ("init", "found"),
    [
        ("self.norm2_weight = nn.Parameter(torch.ones(8)); self.norm1_weight = nn.Parameter(torch.ones(8))", [1, 0]),
        ("self.w2 = nn.Parameter(torch.ones(8)); self.w1 = nn.Parameter(torch.ones(8))", [1, 0]),
        ("self.a = nn.Parameter(torch.ones(8)); self.norm1 = nn.LayerNorm(8, bias=False)", [1, 0]),
        ("self.alpha = nn.Parameter(torch.ones(8)); self.omega = nn.Parameter(torch.ones(8))", "alpha or omega may stand for the reference's norm1.weight or norm2.weight"),
    ],
    ids=["words", "numbers", "one left", "neither"],
)  # fmt: skip
def test_parameters_of_one_shape_are_never_swapped_in_silence(init, found):
    source = module("a, b = self.parameters(); return launch(x * a - b)", init)
    plans = trace(source, spec(dense(4, 8), state=TWO))
    if isinstance(found, str):
        assert isinstance(plans, Rejection)
        assert (plans.status, found in plans.reason) == (Status.UNTRACEABLE, True), plans
        return
    assert isinstance(plans, list), plans
    order = [plans[0].storages[n.args[1].storage].source for n in plans[0].nodes if isinstance(n, AtenNode)]
    assert order == [list(TWO)[i] for i in found]


def test_precision_casts_parameters_and_inputs():
    state = {k: dense(*v.shape, dtype="bfloat16") for k, v in LINEAR.items()}
    source = module(
        "assert x.dtype == self.linear.weight.dtype == torch.bfloat16; return launch(self.linear(x))",
        "self.linear = nn.Linear(32, 16)",
    )
    plan = plan_of(source, spec(dense(8, 32, dtype="bfloat16"), state=state, precision="bf16"))
    assert plan.outputs[0].dtype == "bfloat16"


def test_batch_norm_in_training_leaves_state_alone():
    state = {
        "bn.weight": dense(4),
        "bn.bias": dense(4),
        "bn.running_mean": dense(4),
        "bn.running_var": dense(4),
        "bn.num_batches_tracked": dense(dtype="int64"),
    }
    source = module("return launch(self.bn(x))", "self.bn = nn.BatchNorm2d(4)")
    plan = plan_of(source, spec(dense(2, 4, 3, 3), state=state))
    assert ops(plan) == ["aten.native_batch_norm.default"]
    assert "bn.running_mean" not in {s.source for s in plan.storages}
    plan = plan_of(source, spec(dense(2, 4, 3, 3), state=state, training=False))
    assert "bn.running_mean" in {s.source for s in plan.storages}


def test_buffers_that_are_parts_of_one_tensor_have_memory_of_their_own():
    init = "both = torch.arange(64.).view(2, 32); self.register_buffer('a', both[0]); self.register_buffer('b', both[1])"
    asked = spec(state={"a": dense(32), "b": dense(32)})
    plan = plan_of(module("return launch(x + self.a * self.b)", init), asked)
    held = [(s.source, s.nbytes) for s in plan.storages if s.kind == "state"]
    assert sorted(held) == [("a", 128), ("b", 128)]


def test_constants_of_the_constructor_are_setup():
    source = module(
        "return launch(x + self.table + self.two.to(x.device) + self.mask)",
        "self.register_buffer('table', torch.arange(32).float() * 0.5); self.two = torch.tensor([2.0, 3.0]).sum();"
        " self.mask = torch.ones(32, device='cuda'); self.unused = torch.zeros(99)",
    )
    plan = plan_of(source)
    assert [n.op for n in plan.setup if isinstance(n, AtenNode)] == [
        "aten.arange.default", "aten._to_copy.default", "aten.mul.Tensor", "kernrl.constant", "aten.sum.default", "aten.ones.default",
    ]  # fmt: skip
    constant = plan.setup[3]
    assert isinstance(constant, AtenNode)
    assert constant.args == ((2.0, 3.0), (2,))


def test_module_level_tensors_are_constants_of_every_plan():
    source = (
        HEAD
        + "TABLE = torch.arange(32, device='cuda').float()\nclass ModelNew(nn.Module):\n    def forward(self, x): return launch(x + TABLE)\n"
    )
    plans = trace(source, spec(name="a"), spec(dense(4, 32), name="b"))
    assert isinstance(plans, list)
    assert [p.input_set for p in plans] == ["a", "b"]
    assert all(
        [n.op for n in p.setup if isinstance(n, AtenNode)] == ["aten.arange.default", "aten._to_copy.default"] for p in plans
    )


def test_a_constructor_may_read_its_own_constants_again_after_a_launch():
    """Another object is made once forward has launched kernels."""
    plan_of(module("return launch(x)", init="self.size = int(torch.tensor(3.0))"))


@pytest.mark.parametrize(
    ("init", "body", "says"),
    [
        ("self.extra = nn.Parameter(torch.randn(5, 32))", "return launch(x @ self.extra.t())", "no counterpart"),
        ("self.noise = torch.randn(32, device='cuda')", "return launch(x + self.noise)", "random"),
    ],
)  # fmt: skip
def test_what_the_constructor_may_not_make(init, body, says):
    rejection = trace(module(body, init), spec(dense(8, 32), state=LINEAR))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.UNTRACEABLE
    assert says in rejection.reason


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("self.linear = nn.Linear(32, 16); self.w = (self.linear.weight * 2).cuda()", "return launch(x @ self.w.t())"),
        ("self.linear = nn.Linear(32, 16); self.w = self.linear.weight.t().contiguous()", "return launch(x @ self.w.cuda())"),
    ],
)
def test_what_the_constructor_makes_of_a_weight_is_made_in_every_call(init, body):
    """Weights change; a constructor's work on them is no gain that is not timed."""
    plan = plan_of(module(body, init), spec(dense(8, 32), state=LINEAR))
    assert not plan.setup
    made = plan.nodes[0]
    assert isinstance(made, AtenNode)
    assert made.op in ("aten.mul.Tensor", "aten.clone.default")
    assert plan.storages[made.args[0].storage].source == "linear.weight"
