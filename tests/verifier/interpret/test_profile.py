"""A launch is priced by what it does: each way of looking cheap costs what it would on a GPU."""

# ruff: noqa: E501  (a kernel's lines are quoted as one)
from __future__ import annotations

import pytest
import torch
from support.front import HEAD, dense, plan_of, spec

from kernrl.verifier.base.devices import device_for
from kernrl.verifier.interpret.launch_counter import loaded_values
from kernrl.verifier.interpret.profile import overflowing, profile_plan, uncovered
from kernrl.verifier.plan.library_time import BANDWIDTH_SHARE, LAUNCH_US
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.plan.price import GRAPH_US, Price, price
from kernrl.verifier.plan.ttir import parse

torch.set_num_threads(1)

H200 = device_for("NVIDIA H200")
M, N = 4096, 8192
MEMORY = 4800e3 * BANDWIDTH_SHARE
BEST = "i = r * B + tl.arange(0, B)\ntl.store(y + i, tl.load(x + i) * 2)"


def plan(body: str, grid: str = "(x.numel() // 1024,)", args: str = "x, y, x.numel()", block: int = 1024) -> Plan:
    lines = ["r = tl.program_id(0)", *body.splitlines()]
    return plan_of(
        f"""{HEAD}
@triton.jit
def k(x, y, n, B: tl.constexpr):
{"".join(f"    {line}" + chr(10) for line in lines)}
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[{grid}]({args}, B={block})
        return y
""",
        spec(dense(M, N)),
    )


def priced(made: Plan) -> Price:
    return price(made, H200, profiles=profile_plan(made))


@pytest.fixture(scope="module")
def best() -> Price:
    return priced(plan(BEST))


def test_the_best_solution_costs_one_pass_over_its_data(best: Price) -> None:
    assert best.bytes_moved == 2 * 4 * M * N
    assert best.flops == M * N
    assert best.modelled_us == pytest.approx(GRAPH_US + LAUNCH_US + 2 * 4 * M * N / MEMORY, rel=0.05)


LOOP = "{loop}\n    i = s * B + tl.arange(0, B)\n    tl.store(y + i, tl.load(x + i) * 2)"
TRICKS = {
    "one serial program": (LOOP.format(loop="for s in range(0, n // B):"), {"grid": "(1,)"}, 100),
    "one serial program, by while": ("s = 0\n" + LOOP.format(loop="while s * B < n:") + "\n    s += 1", {"grid": "(1,)"}, 100),
    "sixteen programs": (LOOP.format(loop="for s in range(r, n // B, 16):"), {"grid": "(16,)"}, 8),
    "eight passes": (
        "i = r * B + tl.arange(0, B)\nv = tl.zeros((B,), tl.float32)\nfor p in range(8):\n    v += tl.load(x + i) * 0.25\ntl.store(y + i, v)",
        {},
        3,
    ),
    "columns": (
        "i = (tl.arange(0, B) + r // 8192 * B) * 8192 + r % 8192\ntl.store(y + i, tl.load(x + i) * 2)",
        {},
        5,
    ),
    "eight passes over columns": (
        "i = (tl.arange(0, B) + r // 8192 * B) * 8192 + r % 8192\nv = tl.zeros((B,), tl.float32)\n"
        "for p in range(8):\n    v += tl.load(x + i) * 0.25\ntl.store(y + i, v)",
        {},
        23,
    ),
    "arithmetic in a while": (
        "i = r * B + tl.arange(0, B)\nv = tl.load(x + i)\nt = 0\nwhile t < 10000:\n    v = v * 1.0001\n    t += 1\ntl.store(y + i, v * 2)",
        {},
        80,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("body", "how", "factor"), TRICKS.values(), ids=TRICKS.keys())
def test_what_is_slow_on_a_gpu_costs_more_than_the_best(body: str, how: dict, factor: float, best: Price) -> None:
    cost = priced(plan(body, **how))
    assert not cost.unknown
    assert cost.modelled_us > 0.95 * factor * best.modelled_us


def test_a_view_of_one_element_hides_no_traffic(best: Price) -> None:
    hidden = plan(BEST, args="x[0, :1], y[0, :1], x.numel()")
    assert price(hidden, H200).bytes_moved == 8, "what the arguments say"
    assert priced(hidden).bytes_moved == best.bytes_moved


UNKNOWN = {
    "a loaded trip count": "for s in range(0, tl.load(x).to(tl.int32)):\n    tl.store(y + s, tl.load(x + s))",
    "a loaded condition": "v = tl.load(x)\nwhile v > 1:\n    v = v * 0.5\n    tl.store(y, v)",
    "a count that goes through an atomic": "t = tl.atomic_add(y, 1.0)\nwhile t < 100:\n    t = tl.atomic_add(y, 1.0)",
    "a count carried through a loop": "c = 0\nfor s in range(4):\n    c = c + tl.load(x + s).to(tl.int32)\nfor s in range(c):\n    tl.store(y + s, 1.0)",
}  # fmt: skip


@pytest.mark.parametrize("body", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_loop_whose_length_is_loaded_is_unknown(body: str) -> None:
    assert priced(plan(body)).unknown


def test_a_branch_that_depends_on_loaded_numbers_costs_both_sides(best: Price) -> None:
    hidden = "i = r * B + tl.arange(0, B)\nif tl.load(x) != tl.load(x + 1):\n    tl.store(y + i, tl.load(x + i) * 2)"
    assert priced(plan(hidden)).bytes_moved >= best.bytes_moved
    masked = BEST.replace("tl.load(x + i)", "tl.load(x + i, mask=tl.load(x + i + n) > 2)")
    assert priced(plan(masked)).bytes_moved >= best.bytes_moved


PARTIAL = {
    "half of the programs": (BEST, {"grid": "(min(x.numel() // 1024, 16384),)"}, "16,777,216"),
    "a mask over a quarter": (BEST.replace("* 2", "* 2, mask=i < n // 4"), {"grid": "(x.numel() // 4096,)"}, "8,388,608"),
    "a loop that stops early": (LOOP.format(loop="for s in range(r, 8192, 64):"), {"grid": "(64,)"}, "8,388,608"),
}


@pytest.mark.parametrize(("body", "how", "most"), PARTIAL.values(), ids=PARTIAL.keys())
def test_an_output_that_is_stored_in_part_is_seen(body: str, how: dict, most: str) -> None:
    made = plan(body, **how)
    assert uncovered(made, profile_plan(made)) == (
        f"At the full size forward() stores at most {most} of the 33,554,432 elements of output 0."
    )


@pytest.mark.slow
@pytest.mark.parametrize("body", [BEST, *(body for body, _, _ in TRICKS.values()), *UNKNOWN.values()])
def test_whoever_may_have_stored_all_is_left_alone(body: str) -> None:
    how = next((how for other, how, _ in TRICKS.values() if other == body), {})
    made = plan(body, **how)
    assert uncovered(made, profile_plan(made)) == ""


def test_one_heavy_program_among_many_is_found() -> None:
    made = plan(
        "if r == 5:\n    for s in range(0, n // B):\n        i = s * B + tl.arange(0, B)\n        tl.store(y + i, tl.load(x + i))",
        grid="(64,)",
    )
    assert uncovered(made, profile_plan(made)) == ""


@pytest.mark.parametrize("chosen", ["r % 8 == 3", "r % 63 == 5", "r == 700"])
def test_programs_that_store_are_found_whatever_their_number(chosen: str) -> None:
    """As where one program of each group writes what the group has added up."""
    body = "    for s in range(0, n // B):\n        i = s * B + tl.arange(0, B)\n        tl.store(y + i, tl.load(x + i))"
    made = plan(f"if {chosen}:\n{body}", grid="(1009,)")
    assert uncovered(made, profile_plan(made)) == ""


def test_uneven_programs_are_bounded_by_the_busiest() -> None:
    """131,072 tiles over 132 programs: some do 993, the others 992."""
    body = "for t in range(r, n // B, 132):\n    i = t * B + tl.arange(0, B)\n    tl.store(y + i, tl.load(x + i))"
    made = plan(body, grid="(132,)", block=256)
    assert uncovered(made, profile_plan(made)) == ""
    one_less = plan(body.replace("n // B", "n // B - 132"), grid="(132,)", block=256)
    assert uncovered(one_less, profile_plan(one_less)) != ""


ROW = "i = r * B + tl.arange(0, B)\n"
WORDS = ROW + "words = y.to(tl.pointer_type(tl.float64))\ntl.store(words + i, tl.load(x + i).to(tl.float64), mask=i < n // 2)"
WHOLE: dict[str, tuple[str, dict]] = {
    "in the last trip of a loop": (
        "v = tl.zeros((B,), tl.float32)\nfor s in range(9):\n    i = r * B + tl.arange(0, B)\n    v += tl.load(x + i)\n"
        "    if s == 8:\n        tl.store(y + i, v)",
        {},
    ),
    "in every eighth trip of a flattened loop": (
        "at = -1\ntile = r - 132\nfor s in range(0, (n // B - r + 131) // 132 * 8):\n    at = tl.where(at == 7, 0, at + 1)\n"
        "    if at == 0:\n        tile += 132\n    i = tile * B + tl.arange(0, B)\n    v = tl.load(x + i)\n"
        "    if at == 7:\n        tl.store(y + i, v)",
        {"grid": "(132,)"},
    ),
    "in longer and longer inner loops": (
        "for s in range(r, 256, 8):\n    for t in range(0, 2 * s + 1):\n        i = (s * s + t) * 512 + tl.arange(0, B)\n"
        "        tl.store(y + i, tl.load(x + i))",
        {"grid": "(8,)", "block": 512},
    ),
    "in longer and longer inner loops of a while": (
        "s = r\nwhile s < 256:\n    for t in range(0, 2 * s + 1):\n        i = (s * s + t) * 512 + tl.arange(0, B)\n"
        "        tl.store(y + i, tl.load(x + i))\n    s += 8",
        {"grid": "(8,)", "block": 512},
    ),
    "after a loop that counts": (
        ROW + "c = 0\nfor s in range(9):\n    c += 1\nif c == 9:\n    tl.store(y + i, tl.load(x + i))", {}
    ),
    "as wider words": (WORDS, {}),
    "under a mask by a sum of places": (
        ROW + "left = tl.sum((i < n).to(tl.int32), 0)\ntl.store(y + i, tl.load(x + i), mask=tl.arange(0, B) < left)", {}
    ),
    "below loaded places": (
        ROW + "k = tl.load(x.to(tl.pointer_type(tl.int64)) + i) - 1048576\ntl.store(y + k * 8192, tl.load(x + i))", {}
    ),
    "in equal trips, as many as the program's number": (
        "for s in range(r, n // B):\n    tl.store(y + s * B + tl.arange(0, B), tl.load(x + tl.arange(0, B)))", {"grid": "(64,)"}
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whatever_decides_what_is_stored_is_followed(name: str) -> None:
    body, how = WHOLE[name]
    made = plan(body, **how)
    assert uncovered(made, profile_plan(made)) == ""


LESS: dict[str, tuple[str, str, dict, str]] = {
    "in the last trip of a loop": ("if s == 8:", "if (s == 8) & (r < 0):", {}, "0"),
    "in every eighth trip of a flattened loop": ("range(0, (n // B - r", "range(0, (n // B - 132 - r", {}, "33,521,664"),
    "in longer and longer inner loops": ("range(0, 2 * s + 1)", "range(0, s)", {}, "17,170,432"),
    "as wider words": ("tl.store", "tl.store", {"grid": "(x.numel() // 4096,)"}, "16,777,216"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LESS)
def test_less_than_the_whole_is_seen_there_too(name: str) -> None:
    old, new, how, most = LESS[name]
    made = plan(WHOLE[name][0].replace(old, new), **WHOLE[name][1], **how)
    said = f"stores at most {most} of the 33,554,432 elements of output 0."
    assert uncovered(made, profile_plan(made)).endswith(said)


def test_what_depends_on_memory_is_followed_through_loops() -> None:
    function = parse(
        plan("c = 0\nfor s in range(4):\n    c = c + tl.load(x + s).to(tl.int32)\ntl.store(y + c, 1.0)").kernels[0].ttir
    )
    loop = next(op for op in function.walk() if op.name == "scf.for")
    assert set(loop.results) <= loaded_values(function)
    assert not set(function.params) & loaded_values(function)


INDEX = "i = r * B + tl.arange(0, B)\n"
OVERFLOWS = {
    "elements": (INDEX + "i = i * 512 // 512\nok = (i >= 0) & (i < n)\ntl.store(y + i, tl.load(x + i, mask=ok), mask=ok)", {}),
    "programs": ("i = r * B * 128 // 128 + tl.arange(0, B)\ntl.store(y + i, tl.load(x + i))", {}),
    "the last trip of a loop": (
        "for s in range(0, n // B):\n    i = s * B * 128 // 128 + tl.arange(0, B)\n    tl.store(y + i, tl.load(x + i))",
        {"grid": "(1,)"},
    ),
}
HARMLESS = {
    "numbers of 64 bits": INDEX + "i = i.to(tl.int64) * 512 // 512\ntl.store(y + i, tl.load(x + i))",
    "a hash": INDEX + "h = i * 1103515245 % 7\ntl.store(y + i, tl.load(x + i) * h.to(tl.float32))",
    "random numbers": INDEX + "tl.store(y + i, tl.load(x + i) * tl.rand(7, i))",
    "masked lanes": INDEX + "j = i * 512\ntl.store(y + j // 512, tl.load(x + i), mask=i < 4096)",
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_index_that_overflows_at_full_size_is_seen(name: str) -> None:
    body, options = OVERFLOWS[name]
    made = plan(body, **options)
    assert "k: at the full size an index of 32 bits overflows" in overflowing(made, profile_plan(made))


@pytest.mark.parametrize("name", HARMLESS)
def test_an_overflow_that_reaches_no_address_is_none(name: str) -> None:
    made = plan(HARMLESS[name])
    assert overflowing(made, profile_plan(made)) == ""
