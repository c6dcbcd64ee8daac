"""The reward against the best known: by hand, within the noise, and the same whatever a run was interrupted by."""

import itertools
import math
from dataclasses import replace

import pytest
from support.tiny import verdict_of

from kernrl.rollouts.best_known import BestKnown, verdicts_until
from kernrl.rollouts.reward import reward
from kernrl.verifier.base.verdict import Speedup, Status

NOISE = 0.02


def verdict(eager_x, compile_x=None, *, significant=True, spread=0.01, status=Status.CORRECT, task="t", kind="measured"):
    """Intervals of ± `spread`, and a noise band of 2 %."""
    found = verdict_of("", status, speedup_x=eager_x, compile_x=compile_x, significant=significant, task_id=task)
    assert found.timing
    speedups = {
        name: Speedup(s.value, s.value * (1 - spread), s.value * (1 + spread), significant)
        for name, s in found.timing.speedups_x.items()
    }
    return replace(found, timing=replace(found.timing, speedups_x=speedups, noise=NOISE, kind=kind))


def known(*verdicts, modelled=False):
    found = BestKnown(modelled)
    found.take(verdicts)
    return found


def test_before_anything_is_known_the_faster_baseline_counts():
    nothing = BestKnown()
    assert nothing.speed_x(verdict(2.0, 1.25)) == 1.25
    assert nothing.speed_x(verdict(2.0, 0.8)) == 0.8
    assert nothing.speed_x(verdict(1.5, 3.0)) == 1.5
    assert nothing.speed_x(verdict(1.5)) == 1.5
    assert nothing.speed_x(verdict_of("")) == 1.0  # correct, and not timed
    # what is within the noise of the faster baseline earns nothing, however much faster than the other it is
    one = verdict(2.0, 1.25)
    assert one.timing
    close = replace(one.timing, speedups_x=one.timing.speedups_x | {"compile": Speedup(1.01, 0.99, 1.03, False)})
    assert nothing.speed_x(replace(one, timing=close)) == 1.0


def test_later_the_fastest_candidate_counts():
    best = known(verdict(2.0, 1.25))
    assert best.speed_x(verdict(3.0, 1.875)) == 1.5
    assert best.speed_x(verdict(1.0, 0.625)) == 0.5
    assert best.speed_x(verdict(2.0, 1.25)) == 1.0
    # by eager alone, where the GPU's clock has changed and both times with it
    assert best.speed_x(verdict(3.0, 10.0)) == 1.5
    # of its own task
    assert best.speed_x(verdict(3.0, 1.875, task="another")) == 1.875


def test_the_reward_is_the_logarithm_by_hand():
    best = known(verdict(2.0, 1.25))
    found = [reward(v, "best-known", known=best, cap_x=10.0) for v in (verdict(3.0, 1.9), verdict(2.0, 1.3), verdict(1.0, 0.6))]
    assert [r.value for r in found if r] == pytest.approx([1 + math.log(1.5), 1.0, 1 + math.log(0.5)])
    assert [r.parts["speed_x"] for r in found if r] == pytest.approx([1.5, 1.0, 0.5])
    capped = reward(verdict(50.0, 40.0), "best-known", known=best, cap_x=3.0)
    assert capped
    assert capped.value == pytest.approx(1 + math.log(3))
    wrong = reward(verdict(50.0, 40.0, status=Status.WRONG), "best-known", known=best)
    slowest = reward(verdict(0.01, 0.01), "best-known", known=best)
    assert wrong
    assert slowest
    assert (wrong.value, slowest.value) == (0.0, 0.1)
    # half of what is faster is the candidate's own: a = 0.25
    mixed = replace(verdict(3.0, 1.9), plan={"nodes": [{"kind": "authored", "us": 1.0}, {"kind": "unfused", "us": 3.0}]})
    share = reward(mixed, "best-known", known=best, cap_x=10.0)
    assert share
    assert share.value == pytest.approx(0.8 + 0.2 * 0.25 + 0.25 * math.log(1.5))


@pytest.mark.parametrize(
    ("eager_x", "counts"),
    # 2.0 within ± 1 % and twice the noise: 2.0 · 1.01 / 0.99 · e^0.02 = 2.0816, and 2.0 · 0.99 / 1.01 · e^−0.02 = 1.9216
    [(2.09, True), (2.07, False), (1.93, False), (1.91, True)],
)
def test_what_may_be_luck_counts_as_equal(eager_x, counts):
    best = known(verdict(2.0, 1.5))
    assert best.speed_x(verdict(eager_x, eager_x * 0.75)) == (pytest.approx(eager_x / 2) if counts else 1.0)


def test_the_luckiest_of_many_is_not_the_one_to_beat():
    best = known(*(verdict(2.0 + 0.005 * n, 1.5) for n in range(13)))
    assert best.fastest["t"].value == 2.0
    best.take([verdict(2.2, 1.6)])
    assert best.fastest["t"].value == 2.2
    best.take([verdict(2.0, 1.5), verdict(9.0, 9.0, status=Status.WRONG), verdict_of("", task_id="t")])
    assert best.fastest["t"].value == 2.2


def test_what_is_no_faster_than_the_baselines_is_not_known():
    assert known(verdict(2.0, 0.9), verdict(2.0, 1.01, significant=False), verdict(0.9, 2.0)).fastest == {}


def test_modelled_speeds_count_where_they_are_asked_for():
    first, second = verdict(2.0, kind="modelled", significant=False), verdict(2.001, kind="modelled", significant=False)
    assert known(first).fastest == {}
    assert BestKnown().speed_x(first) == 1.0
    best = known(first, modelled=True)
    assert best.speed_x(second) == pytest.approx(1.0005)  # a model has no noise
    assert replace(best, modelled=False).speed_x(second) == 1.0


def test_rewards_of_a_step_change_nothing_for_each_other():
    """So that the order in which its verdicts come does not matter."""
    best = known(verdict(1.2, 1.2))
    verdicts = [verdict(x, x) for x in (1.5, 3.0, 2.0)]
    for order in itertools.permutations(verdicts):
        found = {r.value for v in order if (r := reward(v, "best-known", known=best))}
        assert found == {1 + math.log(x / 1.2) for x in (1.5, 3.0, 2.0)}


def row(step, member, eager_x, *, group=0, turn=1, status=Status.CORRECT):
    found = verdict(eager_x, eager_x, status=status).to_json()
    return {
        "id": f"{step}-{group}-{member}-{turn}",
        "step": step,
        "group": group,
        "member": member,
        "turn": turn,
        "verdict": found,
    }


def test_a_run_that_goes_on_knows_what_it_knew():
    """Lines come as verdicts do; a step that was repeated is there twice, and one in flight is not over."""
    steps = [[row(1, 0, 2.0), row(1, 1, 2.07)], [row(2, 0, 3.0), row(2, 1, 3.1), row(2, 2, 1.0)], [row(3, 0, 9.0)]]
    live = BestKnown()
    for step in steps[:2]:
        live.take(v for v in verdicts_until(9, step))
    judged_late = [row(2, 0, 5.0, status=Status.INFRA_ERROR)]
    lines = [*steps[0][::-1], *judged_late, *steps[1][::-1], *steps[2]]
    again = BestKnown()
    again.take(verdicts_until(2, lines))
    assert again.fastest == live.fastest
    assert again.fastest["t"].value == 3.0
    # in the order of their lines, 2.07 and 3.1 would have come first
    other = BestKnown()
    other.take(verdicts_until(1, lines))
    assert other.fastest["t"].value == 2.0
