"""When a run says that fewer of its candidates are correct than before."""

import json
import random
from dataclasses import asdict
from statistics import fmean

import pytest

from kernrl.rollouts.fall_of_correctness import Correctness


def run(steps):
    """The numbers of the steps with an alarm; of each step, its tasks' shares of attempts that are right."""
    seen, found = Correctness(), []
    for number, shares in enumerate(steps, start=1):
        if seen.alarms(fmean(shares), len(shares)):
            found.append(number)
        seen.take(fmean(shares), len(shares))
    return found


def drawn(rng, tasks, mean):
    """Shares of easy and hard tasks."""
    return [rng.betavariate(2 * mean, 2 * (1 - mean)) for _ in range(tasks)]


def all_or_none(rng, tasks, mean):
    """Tasks of which each is all right or all wrong: chance cannot do more."""
    return [float(rng.random() < mean) for _ in range(tasks)]


@pytest.mark.parametrize("draw", [drawn, all_or_none])
@pytest.mark.parametrize(("tasks", "mean"), [(8, 0.5), (8, 0.75), (24, 0.5), (24, 0.95), (2, 0.5)])
def test_few_runs_of_a_model_that_stays_as_it_is_raise_one(draw, tasks, mean):
    """Of a hundred runs of 150 steps, more than a few only where each task is all right or all wrong."""
    runs = [run(draw(random.Random(seed * 1000 + n), tasks, mean) for n in range(150)) for seed in range(100)]
    assert sum(map(bool, runs)) <= (30 if draw is all_or_none else 1)


@pytest.mark.parametrize(("tasks", "mean", "after"), [(8, 0.6, 0.05), (24, 0.95, 0.7), (24, 0.95, 0.2)])
def test_a_model_that_forgets_is_seen_within_five_steps(tasks, mean, after):
    for seed in range(16):
        rng = random.Random(seed)
        steps = [drawn(rng, tasks, mean if n < 30 else after) for n in range(35)]
        assert any(number > 30 for number in run(steps))


def test_a_run_that_fails_at_once_is_seen():
    """Rates that are too high undo a model within four steps."""
    for seed in range(16):
        rng = random.Random(seed)
        assert run(drawn(rng, 24, mean) for mean in (0.95, 0.6, 0.2, 0.05)) == [3, 4]


def test_a_fall_below_ten_points_is_no_alarm():
    assert run([[1.0] * 400, [0.91] * 400]) == []
    assert run([[1.0] * 400, [0.7] * 400]) == [2]


def test_a_step_that_could_not_be_judged_says_nothing():
    seen = Correctness()
    seen.take(None, 0)
    assert seen == Correctness()
    assert seen.alarms(0.5, 8) == []
    seen.take(1.0, 8)
    assert seen.alarms(None, 0) == []


def test_a_checkpoint_keeps_it():
    seen = Correctness()
    for share in (0.75, 0.875, 0.625):
        seen.take(share, 24)
    again = Correctness(**json.loads(json.dumps(asdict(seen))))
    for one in (seen, again):
        one.take(0.875, 24)
    assert again.alarms(0.0, 24) == seen.alarms(0.0, 24) == ["0% of the attempts are correct, where 81% of the best steps were"]
    assert json.dumps(asdict(again)) == json.dumps(asdict(seen))
