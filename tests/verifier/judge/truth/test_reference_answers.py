"""The model of rounding that sets tolerances: it moves no whole number, and is no matter of luck for small outputs."""

from __future__ import annotations

import pytest
import torch

from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.judge.compare import Inputs, error_figures, excess, tolerances_for
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.truth.discontinuities import Jumps
from kernrl.verifier.judge.truth.exact import Exact, cut_to_tf32
from kernrl.verifier.judge.truth.reference_answers import Answer, ReferenceAnswers
from kernrl.verifier.judge.truth.reference_copy import ReferenceCopy

QUANTISE = """
import pytest
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127.0
        return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8)

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""
LOSS = """
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, x, target):
        return F.cross_entropy(x, target, label_smoothing=0.1)

def get_inputs():
    return [torch.randn(7, 43), torch.randint(43, (7,))]

def get_init_inputs():
    return []
"""


WEIGHT_NORM = """
import torch.nn as nn
import torch

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.weight_norm(nn.Linear(8, 4))

    def forward(self, x):
        return self.linear(x)

def get_inputs():
    return [torch.randn(16, 8)]

def get_init_inputs():
    return []
"""


MASKED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
        return torch.softmax((x * 3.0).masked_fill(~mask, float("-inf")), -1)

def get_inputs():
    return [torch.randn(4, 11, 11)]

def get_init_inputs():
    return []
"""
ONE_ROW = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.log_softmax(x * torch.tensor([FACTORS])[:, None], -1)

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""


TO_A_POWER = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("power", torch.tensor(3.0))

    def forward(self, x):
        return torch.softmax((x ** self.power) ** 2, -1)

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""


def of_one_line(result: str, x: str = "torch.randn(16, 8)") -> str:
    """A task that returns this of x."""
    return f"""
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return {result}

def get_inputs():
    return [{x}]

def get_init_inputs():
    return []
"""


CONTRACTED = of_one_line("torch.OP(x * x, -1)")
BEYOND_MEASURE = of_one_line("torch.exp(300.0 * torch.cos(1e7 * x))")
NORMALISED = of_one_line("torch.tanh(x / (1.0 + x.std(-1, keepdim=True)))")
LARGE_LOGITS = of_one_line("torch.softmax(x.square().mean(-1) * 1e4, 0)", "torch.randn(8, 512)")

BOUNDED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32, 16) + 0.5)

    def forward(self, x):
        return torch.sigmoid((x @ self.weight).clamp(-1.0, 1.0))

def get_inputs():
    return [torch.randn(32, 64, 32)]

def get_init_inputs():
    return []
"""


def reference(code: str, precision: str = "fp32") -> ReferenceAnswers:
    task = Task(id="t", pytorch_code=code, input_sets=(InputSet("full"),), precision=precision)
    return ReferenceAnswers(TaskInputs(task, task.input_sets[0], precision, "cpu"))


def test_codes_that_are_cut_are_not_taken_for_rounding() -> None:
    """Moved by a rounding, the whole number 84 would be cut to 83, and every code could be off by one."""
    quantised = reference(QUANTISE)
    quantised.inputs.draw(Draw("full", "nominal", 3))
    answer = quantised.answer()
    x = quantised.inputs.inputs[0]
    cut = (x / (x.abs().amax(-1, keepdim=True) / 127.0)).to(torch.int8)
    (bound,) = tolerances_for([answer.levels], 0)[0]
    assert excess(error_figures(cut, answer.truth[0], answer.levels[0]).tolist(), bound) > 1
    whole = answer.truth[0].to(torch.int8)
    assert excess(error_figures(whole, answer.truth[0], answer.levels[0]).tolist(), bound) == 0


@pytest.mark.slow
def test_a_loss_of_one_number_is_right_whatever_the_draw() -> None:
    """Inputs far from zero magnify rounding: by luck, the errors of eager and of one model are both far below another's."""
    loss = reference(LOSS)
    for seed in range(60):
        draws = [Draw("full", regime, 1000 * seed + i) for i, regime in enumerate(("nominal", "offset", "small", "far"))]
        answers = []
        for draw in draws:
            loss.inputs.draw(draw)
            answers.append(loss.answer(Inputs.OWN if draw.regime == "nominal" else Inputs.FINITE))
        x, target = (one.clone() for one in loss.inputs.inputs)  # of the last draw
        top = x.max(1, keepdim=True).values
        normaliser = top + (x - top).exp().sum(1, keepdim=True).log()
        rows = 0.9 * (normaliser - x.gather(1, target[:, None])) + 0.1 * (normaliser - x).mean(1, keepdim=True)
        bound = tolerances_for([a.levels for a in answers], 0)[-1][0]
        figures = error_figures(rows.mean(), answers[-1].truth[0], answers[-1].levels[0]).tolist()
        assert excess(figures, bound) <= 1, seed


def test_a_mask_of_infinities_leaves_a_model_of_the_other_numbers_rounding() -> None:
    """A logarithm of the sum, taken from what has no mask yet, rounds once more than the reference: at 3,000, by much."""
    answers = reference(MASKED)
    for seed in range(40):
        answers.inputs.draw(Draw("full", "far", seed))
        answer = answers.answer(Inputs.FINITE)
        (x,) = answers.inputs.arguments
        scores = (x * 3.0).masked_fill(~torch.ones(11, 11, dtype=torch.bool).tril(), float("-inf"))
        y = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
        (tolerances,) = tolerances_for([answer.levels], 0)
        assert excess(error_figures(y, answer.truth[0], answer.levels[0]).tolist(), tolerances[0]) < 1, seed


@pytest.mark.parametrize(("factors", "several"), [("1, " * 32, False), ("1, " * 31 + "900", True)], ids=["even", "one row"])
def test_an_error_that_few_rows_hold_is_modelled_several_times(
    factors: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, measuring = [], Jumps.measuring
    monkeypatch.setattr(Jumps, "measuring", lambda self: runs.append(1) or measuring(self))
    answers = reference(ONE_ROW.replace("FACTORS", factors))
    answers.inputs.draw(Draw("full", "nominal", 7))
    answers.answer()
    assert (len(runs) > 1) is several


def test_errors_whose_squares_overflow_have_an_answer() -> None:
    """A rounding decides whether an element is 1e100 or 1."""
    powers = reference(BEYOND_MEASURE)
    powers.inputs.draw(Draw("full", "nominal", 3))
    answer = powers.answer()
    assert answer.truth[0].max() > 1e100
    assert answer.levels[0].misplaced


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operands_are_cut_to_the_bits_that_tensor_cores_read(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 33).to(dtype).T * torch.logspace(-30, 30, 64, dtype=dtype)
    mantissa, exponent = torch.frexp(x)
    assert torch.equal(cut_to_tf32(x), torch.ldexp(torch.trunc(mantissa * 2048.0) / 2048.0, exponent))
    ends = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0], dtype=dtype)
    assert torch.equal(cut_to_tf32(ends), ends)
    assert cut_to_tf32(torch.tensor([torch.nan], dtype=dtype)).isnan().all()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_hooks_compute_follow_the_parameters() -> None:
    normed = reference(WEIGHT_NORM)
    normed.inputs.draw(Draw("full", "nominal", 3))
    state = normed.inputs.state
    v, g = state["linear.weight_v"].double(), state["linear.weight_g"].double()
    expected = normed.inputs.inputs[0].double() @ (v * g / v.norm(dim=1, keepdim=True)).T + state["linear.bias"].double()
    torch.testing.assert_close(normed.answer().truth[0], expected)


def exceeds(y: torch.Tensor, answer: Answer) -> bool:
    (bound,) = tolerances_for([answer.levels], 0)[0]
    return excess(error_figures(y, answer.truth[0], answer.levels[0]).tolist(), bound) > 1


def test_whole_exponents_stay_whole() -> None:
    """Moved by a rounding, they would give NaN of negative numbers, which says nothing of rounding's effect."""
    powers = reference(TO_A_POWER)
    powers.inputs.draw(Draw("full", "nominal", 3))
    x = powers.inputs.inputs[0]
    x[:, 0], x[:, 1] = 4.0, -4.0  # the two largest of each row are as large as each other but for a rounding
    answer = powers.answer()
    moved = x.clone()
    moved[:, 0] *= 1 + 1e-7
    assert not exceeds(torch.softmax(moved**6, -1), answer)
    assert exceeds(torch.softmax(x**6, -1) * 1.1, answer)


def test_what_a_softmax_reads_may_be_rounded_twice_apart() -> None:
    logits = reference(LARGE_LOGITS)
    logits.inputs.draw(Draw("full", "nominal", 3))
    answer = logits.answer()
    x = logits.inputs.inputs[0].square().mean(-1) * 1e4
    top = x.max()
    apart = x * (1 + 6e-8 * torch.tensor([1.0, -1.0] * 4))  # computed again, for the shares
    shares = torch.exp(apart - top)
    assert not exceeds(shares / torch.exp(x - top).sum(), answer)
    assert exceeds(torch.softmax(x, 0) * 1.02, answer)


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_an_exponential_that_compilers_contract_has_no_answer_at_numbers_beyond_all_measure(op: str) -> None:
    """exp(x·x − maximum) as one multiply-add is the exponential of what x·x was rounded by."""
    powers = reference(CONTRACTED.replace("OP", op))
    for regime, kind, size, right in (
        ("nominal", Inputs.OWN, 1e6, False),
        ("far", Inputs.FINITE, 1e6, True),
        ("far", Inputs.FINITE, 1e3, False),
    ):
        powers.inputs.draw(Draw("full", regime, 3))
        x = powers.inputs.inputs[0]
        x[:, :8] = torch.linspace(0.1, 1.0, 8)
        x[0, :8] *= size
        answer = powers.answer(kind)
        y = answer.truth[0].float()
        y[0] = torch.nan
        assert exceeds(y, answer) is not right
        y[1] = torch.nan  # a row of ordinary numbers
        assert exceeds(y, answer)


@pytest.mark.parametrize(("size", "right"), [(2e38, True), (1e37, False)])
def test_a_mean_whose_sum_overflows_has_no_answer_where_inputs_are_not_the_tasks_own(size: float, right: bool) -> None:
    """Eager averages as it goes; a kernel that adds first has an infinite mean."""
    norms = reference(NORMALISED)
    for kind, expected in ((Inputs.FINITE, right), (Inputs.OWN, False)):
        norms.inputs.draw(Draw("full", "far" if kind is Inputs.FINITE else "nominal", 3))
        norms.inputs.inputs[0].copy_(torch.linspace(0.1, 1.0, 8))
        norms.inputs.inputs[0][0, :] = size * torch.linspace(0.8, 1.0, 8)
        answer = norms.answer(kind)
        y = answer.truth[0].float()
        y[0] = torch.nan
        assert exceeds(y, answer) is not expected
        y[1] = torch.nan
        assert exceeds(y, answer)


def to_nearest_tf32(x: torch.Tensor) -> torch.Tensor:
    """As cuBLAS rounds; `cut_to_tf32` is what tensor cores do with numbers that are not rounded."""
    return ((x.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)


def test_tf32_may_be_rounded_either_way() -> None:
    """Cut operands give the same errors each time. Where large rows are bounded, those of few elements are all there is, and
    numbers that are rounded instead reached 0.8 of a tolerance made of them."""
    products = reference(BOUNDED, "tf32")
    excesses = []
    for seed in range(12):
        products.inputs.draw(Draw("full", "mixed", seed))
        answer, x = products.answer(Inputs.FINITE), products.inputs.inputs[0]
        found = torch.sigmoid((to_nearest_tf32(x) @ to_nearest_tf32(products.inputs.state["weight"])).clamp(-1.0, 1.0))
        (bound,) = tolerances_for([answer.levels], 0)[0]
        excesses.append(excess(error_figures(found, answer.truth[0], answer.levels[0]).tolist(), bound))
    assert max(excesses) < 0.6


HELD = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))
        self.register_buffer("running_mean", torch.zeros(5))
        self.register_buffer("running_var", torch.ones(5))

    def forward(self, x):
        mean, var = x.mean(0), x.var(0)
        {}
        return (x - mean + self.running_mean) * self.weight

def get_inputs():
    return [torch.randn(16, 5)]

def get_init_inputs():
    return []
"""
IN_PLACE = "self.running_mean.mul_(0.9).add_(mean, alpha=0.1); self.running_var.lerp_(var, 0.1); self.weight.mul_(2.0)"
NEW_TENSORS = {
    "assigned": "self.running_mean = self.running_mean.lerp(mean, 0.1); self.running_var = self.running_var.lerp(var, 0.1)"
    "; self.weight.mul_(2.0)",
    "data": "self.running_mean.data = self.running_mean.lerp(mean, 0.1); self.running_var.lerp_(var, 0.1)"
    "; self.weight.data = 2.0 * self.weight.data",
    "replaced": "self._buffers['running_mean'] = self.running_mean.lerp(mean, 0.1); self.running_var.lerp_(var, 0.1)"
    "; self.weight = nn.Parameter(2.0 * self.weight)",
}


@pytest.mark.parametrize("how", NEW_TENSORS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_reference_that_puts_new_tensors_in_the_place_of_its_own_has_the_same_answers(how: str, precision: str) -> None:
    """On every draw: the second one is of state that the first call must not have displaced."""
    full = InputSet("full", {})
    made = [TaskInputs(Task("t", HELD.format(body)), full, precision, "cpu") for body in (IN_PLACE, NEW_TENSORS[how])]
    references = [ReferenceAnswers(inputs) for inputs in made]
    for seed in (1, 2, 3):
        answers = []
        for inputs, reference in zip(made, references, strict=True):
            inputs.draw(Draw("full", "nominal", seed))
            answers.append(reference.answer())
        for y, other in zip(*(answer.truth for answer in answers), strict=True):
            torch.testing.assert_close(other, y, rtol=1e-12, atol=1e-12)
        for name, held in made[0].state.items():
            torch.testing.assert_close(made[1].state[name], held, rtol=1e-2, atol=1e-2)
        assert answers[1].statistics == ("running_mean", "running_var")


ORDERED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, table):
        return RESULT

def get_inputs():
    return [torch.randn(64, 9), torch.randn(7, 9)]

def get_init_inputs():
    return []
"""
NEAREST = "table[(x.square().sum(-1, keepdim=True) - 2.0 * x @ table.T + table.square().sum(-1)).argmin(-1)]"


@pytest.mark.parametrize(
    ("result", "free"),
    [
        ("x.sort(-1).values", "NaN"),
        ("x.topk(3, -1).values", "NaN"),
        ("table[:, 0][x.max(-1).indices % 7]", "NaN"),
        (NEAREST, "NaN or infinity"),  # all distances of a row with an infinity are infinite or NaN
        ("torch.where(x > 0, 1.0, 0.0)", ""),  # a comparison with NaN is false everywhere
        ("torch.where(x.isfinite(), x, 0.0)", ""),
        ("x.nan_to_num(0.0, 1.0, -1.0)", ""),
        ("torch.sigmoid(x) + 0.0 * table[0].max(0).values", ""),
    ],
    ids=["sort", "topk", "max", "argmin", "comparison", "isfinite", "nan_to_num", "sigmoid"],
)
def test_where_nan_is_put_in_order_any_answer_is_right(result: str, free: str) -> None:
    """Everything else of such inputs is judged: other rows, what a mask leaves out, and what saturates at infinity."""
    inputs = TaskInputs(Task("t", ORDERED.replace("RESULT", result)), InputSet("full"), "fp32", "cpu")
    inputs.draw(Draw("full", "nonfinite", 5))
    x, table = inputs.inputs
    table.copy_(torch.randn_like(table))
    answer = ReferenceAnswers(inputs).answer(Inputs.NONFINITE)
    truth = answer.truth[0]
    rows = {"NaN": x.isnan().any(1), "NaN or infinity": ~x.isfinite().all(1), "": torch.zeros(len(x), dtype=torch.bool)}[free]
    asked = truth.isfinite()
    unasked = asked & rows.reshape(-1, *[1] * (truth.dim() - 1))
    assert bool(unasked.any()) is bool(free)
    assert x.isinf().any()
    assert not exceeds(torch.where(unasked, 5.0, truth).float(), answer)
    assert not exceeds(torch.where(unasked, torch.nan, truth).float(), answer)
    for place in (asked & ~unasked).nonzero()[::11]:
        for wrong in (truth[tuple(place)] + 0.1, torch.nan):
            y = truth.float()
            y[tuple(place)] = wrong
            assert exceeds(y, answer)


WAVES = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(8), torch.arange(8.0)))

    def forward(self, x, z):
        named = torch.exp((x.to(torch.complex64) * 0.3 + z) * self.turn)
        return named * (0.5 - 2j), torch.fft.fft(named).abs()

def get_inputs():
    return [torch.randn(16, 8), torch.randn(16, 8, dtype=torch.complex64)]

def get_init_inputs():
    return []
"""


def test_the_truth_of_complex_numbers_is_as_wide_as_that_of_real_ones() -> None:
    """Also where complex64 is named, and for complex inputs and buffers."""
    inputs = TaskInputs(Task("waves", WAVES), InputSet("full"), "fp32", "cpu")
    inputs.draw(Draw("full", "nominal", 1))
    x, z, turn = inputs.inputs[0].double(), inputs.inputs[1].to(torch.complex128), inputs.state["turn"].to(torch.complex128)
    named = torch.exp((x * 0.3 + z) * turn)
    answer = ReferenceAnswers(inputs).answer()
    right = torch.view_as_real(named * (0.5 - 2j)), torch.fft.fft(named).abs()
    for truth, expected in zip(answer.truth, right, strict=True):
        assert truth.dtype == torch.float64
        assert truth.shape == expected.shape
        assert float((truth - expected).abs().max() / expected.abs().max()) < 1e-14
    assert answer.dtypes == [torch.float32, torch.float32], "a complex output is judged as pairs"
    assert all(0 < level.rms < 1e-6 * level.scale for level in answer.levels)


def of_table(x: torch.Tensor, bins: int, dtype: torch.dtype) -> torch.Tensor:
    """The first frequencies of rows as a product with a table of roots of unity, in pairs, summed one by one."""
    places = torch.arange(x.shape[-1], dtype=torch.float64)
    angle = -2 * torch.pi * torch.outer(places, torch.arange(bins)) / x.shape[-1]
    table, made = torch.stack([angle.cos(), angle.sin()], -1).to(dtype), torch.zeros(len(x), bins, 2, dtype=dtype)
    for row, roots in zip(x.to(dtype).unbind(-1), table, strict=True):
        made += row[:, None, None] * roots
    return made.float()


def back_by_table(z: torch.Tensor, places: int, dtype: torch.dtype) -> torch.Tensor:
    """The first places of complex rows' inverse transform, in pairs, summed one by one."""
    count = z.shape[-1]
    angle = 2 * torch.pi * torch.outer(torch.arange(count, dtype=torch.float64), torch.arange(places)) / count
    roots, made = torch.stack([angle.cos(), angle.sin()], -1).to(dtype), torch.zeros(len(z), places, 2, dtype=dtype)
    for k in range(count):
        re, im = torch.view_as_real(z[:, k]).to(dtype).unbind(-1)
        cos, sin = roots[k].unbind(-1)
        made += torch.stack([re[:, None] * cos - im[:, None] * sin, re[:, None] * sin + im[:, None] * cos], -1)
    return (made / count).float()


TABLES = {
    "of real numbers": ("torch.fft.rfft(x)[:, :5]", "torch.randn(8, 4096)", lambda x, dtype: of_table(x, 5, dtype)),
    "of complex numbers": (
        "torch.fft.ifft(x)[:, :5]", "torch.randn(8, 4096, dtype=torch.complex64)",
        lambda x, dtype: back_by_table(x, 5, dtype),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_transform_may_be_a_product_with_a_table_but_not_of_half_numbers(name: str) -> None:
    expression, made_by, by_table = TABLES[name]
    inputs = TaskInputs(Task("dft", of_one_line(expression, made_by)), InputSet("full"), "fp32", "cpu")
    answers = ReferenceAnswers(inputs)
    for seed in range(2):
        inputs.draw(Draw("full", "nominal", seed))
        answer = answers.answer()
        [[tolerance]] = tolerances_for([answer.levels], 0)
        beyond = [
            excess(error_figures(by_table(inputs.inputs[0], dtype), answer.truth[0], answer.levels[0]).tolist(), tolerance)
            for dtype in (torch.float32, torch.bfloat16)
        ]
        assert beyond[0] <= 1
        assert beyond[1] > 10


def test_operands_of_complex_products_are_cut_to_tf32_part_by_part() -> None:
    source = of_one_line("torch.view_as_complex(x) @ torch.view_as_complex(x).T", "torch.randn(16, 64, 2)")
    errors = {}
    for precision in ("fp32", "tf32"):
        inputs = TaskInputs(Task("products", source), InputSet("full"), precision, "cpu")
        inputs.draw(Draw("full", "nominal", 1))
        [level] = ReferenceAnswers(inputs).answer().levels
        errors[precision] = level.rms / level.scale
    assert errors["fp32"] < 1e-5 < 1e-4 < errors["tf32"]


GIVES_BACK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x, index):
        return x * self.weight, self.weight, index, x

def get_inputs():
    return [torch.randn(16, 64), torch.randint(1000, (16,))]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_given_back_as_it_came_is_not_that_of_the_next_draw(dtype: torch.dtype) -> None:
    inputs = TaskInputs(Task("gives_back", GIVES_BACK), InputSet("full"), "fp32", "cpu")
    reference, found = ReferenceCopy(inputs, dtype), list[tuple[list[torch.Tensor], list[torch.Tensor]]]()
    for seed in (1, 2):
        inputs.draw(Draw("full", "nominal", seed))
        given = [inputs.state["weight"], *inputs.inputs[::-1]]
        found.append((reference.run(None, Exact(jumps=Jumps())), [x.clone().double() for x in given]))
    for truth, given in found:
        assert all(torch.equal(y.double(), x) for y, x in zip(truth[1:], given, strict=True))
