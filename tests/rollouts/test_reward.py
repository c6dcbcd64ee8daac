"""Rewards: every preset as a table, and what no verdict can be worth."""

import itertools
import math
from dataclasses import replace

import make_reward_table  # pyright: ignore[reportMissingImports]
import pytest
from support.tiny import verdict_of

from kernrl.rollouts.reward import authored_share_of, reward
from kernrl.verifier.base.verdict import Status

PRESETS = ("hierarchical", "best-of-n", "milestones", "log-speed", "best-known")

NO_CODE = verdict_of("", Status.NO_CODE)
SYNTAX = verdict_of("", Status.SYNTAX_ERROR)
WRONG = verdict_of("", Status.WRONG)
UNTIMED = verdict_of("")
HALF = verdict_of("", speedup_x=0.5)
CRAWL = verdict_of("", speedup_x=0.01)
NOISE = verdict_of("", speedup_x=1.04, significant=False)
SAME = verdict_of("", speedup_x=1.0)
SLIGHT = verdict_of("", speedup_x=1.04)
TWICE = verdict_of("", speedup_x=2.0)
THRICE = verdict_of("", speedup_x=3.0)
TENFOLD = verdict_of("", speedup_x=10.0)
BEATS_BOTH = verdict_of("", speedup_x=2.0, compile_x=1.2)
BEATS_EAGER = verdict_of("", speedup_x=2.0, compile_x=0.9)

TABLE = [
    # verdict, hierarchical, best-of-n, milestones, log-speed, best-known
    (NO_CODE, 0.0, 0.0, -1.0, 0.0, 0.0),
    (SYNTAX, 0.0, 0.0, -1.0, 0.0, 0.0),
    (WRONG, 0.0, 0.0, -1.0, 0.0, 0.0),
    (UNTIMED, 0.7, 1.3, 1.0, 1.0, 1.0),
    (HALF, 0.7 - 0.2 * math.log(2, 3), 1.15, 1.0, 1 - math.log(2), 1 - math.log(2)),
    (CRAWL, 0.5, 1.003, 1.0, 0.1, 0.1),
    (NOISE, 0.7, 1.3, 1.0, 1.0, 1.0),
    (SAME, 0.7, 1.3, 1.0, 1.0, 1.0),
    (SLIGHT, 0.7 + 0.3 * math.log(1.04, 3), 1.312, 1.0, 1 + math.log(1.04), 1 + math.log(1.04)),
    (TWICE, 0.7 + 0.3 * math.log(2, 3), 1.6, 2.0, 1 + math.log(2), 1 + math.log(2)),
    (THRICE, 1.0, 1.9, 2.0, 1 + math.log(3), 1 + math.log(3)),
    (TENFOLD, 1.0, 1.9, 2.0, 1 + math.log(3), 1 + math.log(3)),
    (BEATS_BOTH, 0.7 + 0.3 * math.log(2, 3), 1.6, 3.0, 1 + math.log(2), 1 + math.log(1.2)),
    (BEATS_EAGER, 0.7 + 0.3 * math.log(2, 3), 1.6, 2.0, 1 + math.log(2), 1 + math.log(0.9)),
]


@pytest.mark.parametrize(("preset", "column"), [(name, n) for n, name in enumerate(PRESETS, start=1)])
def test_presets(preset, column):
    found = [reward(row[0], preset) for row in TABLE]
    assert [r.value for r in found if r] == pytest.approx([row[column] for row in TABLE])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("status", [Status.INFRA_ERROR, Status.NEEDS_GPU])
def test_what_is_not_known_has_no_reward(preset, status):
    assert reward(verdict_of("", status), preset) is None


@pytest.mark.parametrize("preset", PRESETS)
def test_nothing_wrong_is_worth_as_much_as_the_slowest_correct_one(preset):
    slowest = reward(CRAWL, preset)
    assert slowest
    for status in Status:
        r = reward(verdict_of("", status), preset)
        assert r is None or status is Status.CORRECT or r.value < slowest.value
    # not even when a wrong candidate was timed
    r = reward(verdict_of("", Status.WRONG, speedup_x=50.0), preset)
    assert r is not None
    assert r.value < slowest.value


@pytest.mark.parametrize("preset", PRESETS)
def test_faster_is_never_worth_less(preset):
    values = [reward(verdict_of("", speedup_x=x), preset) for x in (0.01, 0.5, 0.9, 1.1, 1.5, 2.5, 4.0)]
    assert all(a and b and a.value <= b.value for a, b in itertools.pairwise(values))


def test_the_cap_is_a_setting():
    r = reward(TENFOLD, "best-of-n", cap_x=5.0)
    assert r
    assert r.value == pytest.approx(2.5)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_authored_share_scales_what_speed_adds(preset):
    shares = (0.0, 0.25, 1.0)
    found = [reward(verdict_of("", speedup_x=2.0, unfused_share=1 - share), preset) for share in shares]
    none, some, whole = (r.value for r in found if r)
    assert some == pytest.approx(none + 0.25 * (whole - none))
    plain = reward(verdict_of("", speedup_x=2.0, unfused_share=0.75), preset, authored_share=False)
    assert plain
    assert plain.value == whole


def test_a_library_product_takes_nothing_from_the_authored_share():
    def nodes(*kinds):
        return [{"name": kind, "kind": kind, "us": us} for kind, us in kinds]

    fused = replace(TWICE, plan={"nodes": nodes(("library", 90.0), ("fill", 1.0), ("authored", 10.0))})
    leaf = replace(TWICE, plan={"nodes": nodes(("library", 90.0), ("unfused", 30.0), ("authored", 10.0))})
    assert (authored_share_of(fused), authored_share_of(leaf)) == (1.0, 0.25)


def test_the_page_has_the_table_of_archetypes():
    page = make_reward_table.PAGE.read_text()
    assert make_reward_table.render(page) == page, "run scripts/make_reward_table.py"
    assert len(make_reward_table.ARCHETYPES) == 10


@pytest.mark.parametrize("preset", ["hierarchical", "log-speed", "best-of-n"])
def test_what_the_defaults_pay(preset):
    paid = {one.name: r.value for one in make_reward_table.ARCHETYPES if (r := reward(one.verdict, preset))}
    leaf, bias = paid["library operators alone, a copy at the end"], paid["library operators, a kernel for the bias only"]
    slower, even = (paid[f"one kernel for each operator, {how}"] for how in ("slower than eager", "as fast as eager"))
    fused, best = paid["the tail fused into one kernel"], paid["all of it fused, and the product in half the time"]
    assert max(leaf, bias) < slower < even < fused < best
    assert (
        paid["a wrong result, however fast"]
        == 0
        < min(value for name, value in paid.items() if "code" not in name and "wrong" not in name)
    )


def test_the_baseline_can_be_named():
    r = reward(BEATS_EAGER, "best-of-n", baseline="compile")
    assert r
    assert r.value == pytest.approx(1 + 0.3 * 0.9)
    assert r.parts == {"correct": 1.0, "speed_x": 0.9, "share": 1.0}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_modelled_speedup_earns_only_where_it_is_asked_to(preset):
    timed = verdict_of("", speedup_x=2.0, significant=False)
    assert timed.timing
    modelled = replace(timed, timing=replace(timed.timing, kind="modelled"))
    assert reward(modelled, preset) == reward(SAME, preset)
    assert reward(modelled, preset, modelled=True) == reward(TWICE, preset)
    # what was measured and lies within the noise earns nothing in either case
    assert reward(timed, preset, modelled=True) == reward(SAME, preset)
