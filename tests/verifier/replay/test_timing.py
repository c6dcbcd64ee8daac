"""The statistics of timing, on made-up clocks. No test here looks at a real one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

from kernrl.verifier.replay import timing
from kernrl.verifier.replay.stopwatch import Stopwatch, Timed
from kernrl.verifier.replay.timing import (
    Block,
    NoiseBand,
    Sampling,
    block_order,
    far_slower,
    interval,
    null_quantile,
    own_noise,
    rounds_at_length,
    speedup,
)

BAND = NoiseBand(((10.0, 0.03), (1000.0, 0.005)))


def clock(baseline_us: float, candidate_us: float, noise: float, seed: int):
    rng = random.Random(seed)

    def blocks(count: int, calls: int) -> list[Block]:
        return [(baseline_us * rng.gauss(1, noise), candidate_us * rng.gauss(1, noise)) for _ in range(count)]

    return blocks


def sampled(measured: Callable[[int, int], list[Block]], first: Block, band: NoiseBand = BAND) -> list[Block]:
    """The blocks of one pair: `measured(n, calls)` gives further ones."""
    pair = Sampling(band, [first[0]], [first[1]])
    while count := pair.wanted():
        pair.blocks += measured(count, pair.calls)
    return pair.blocks


def judged(baseline_us: float, candidate_us: float, noise: float = 0.001, seed: int = 0, band: NoiseBand = BAND):
    measured = clock(baseline_us, candidate_us, noise, seed)
    blocks = sampled(measured, measured(1, 1)[0], band)
    return speedup(blocks, band), len(blocks)


def test_the_band_is_interpolated_in_log_time_and_has_a_floor() -> None:
    assert BAND.at(10) == pytest.approx(0.03)
    assert BAND.at(100) == pytest.approx(0.0175)
    assert BAND.at(1) == pytest.approx(0.03)
    assert BAND.at(5000) == 0.01


def test_the_same_program_is_not_faster_than_itself() -> None:
    false = sum(judged(500, 500, 0.004, seed)[0].significant for seed in range(400))
    assert false <= 4


def test_a_loss_of_five_per_cent_is_seen() -> None:
    seen = [judged(500, 525, 0.004, seed)[0] for seed in range(200)]
    assert sum(s.significant and s.high < 1 for s in seen) >= 190


def test_plain_answers_need_few_blocks() -> None:
    assert judged(1500, 3000)[1] == 1
    assert judged(500, 1000)[1] == 2
    assert judged(1000, 500)[1] == 2
    assert judged(50, 100)[1] == 2
    assert judged(100, 50)[1] == 2
    assert judged(500, 490)[1] >= 5


def test_far_slower_is_seen_in_one_look_whose_interval_is_wide() -> None:
    assert far_slower([30, 31], [95, 96])
    assert not far_slower([30, 31], [85, 500]), "one call was far too long"
    assert not far_slower([30, 31], [10, 9])
    for us in (30.0, 300.0, 3000.0):
        found = speedup([(us, 3.5 * us)], BAND)
        assert found.significant
        assert found.high / found.low > 1.2
    assert speedup([(3000.0, 1500.0)], BAND).high < 2.2, "others' are as wide as their noise"


def test_a_disturbance_of_a_few_blocks_does_not_decide() -> None:
    told = iter([(295.0, 69.0), (392.0, 69.0), (294.0, 69.0), (391.0, 69.0), (393.0, 69.0)])

    def blocks(count: int, calls: int) -> list[Block]:
        return [next(told, (295.0, 69.0)) for _ in range(count)]

    found = sampled(blocks, (295.0, 69.0))
    assert len(found) > 10
    assert speedup(found, BAND).value == pytest.approx(295 / 69)


class Clock(Stopwatch):
    """Programs that take as long as they say."""

    def __init__(self) -> None:
        self.calls = 0

    def time(self, order: Sequence[Timed]) -> list[float]:
        self.calls += len(order)
        return [float(program.run()) for program in order]  # pyright: ignore[reportArgumentType]


class Noisy(Clock):
    """Programs that take about as long as they say."""

    def __init__(self, noise: float, seed: int) -> None:
        super().__init__()
        self.noise, self.rng = noise, random.Random(seed)

    def time(self, order: Sequence[Timed]) -> list[float]:
        return [us * self.rng.gauss(1, self.noise) for us in super().time(order)]


def program(us: float) -> Timed:
    return Timed(lambda: None, lambda: us)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("candidate_us", "calls", "blocks"), [(1000, 4, 1), (600, 8, 2), (60, 20, 2), (40, 36, 2), (300, 20, 5)]
)
def test_no_more_calls_are_made_than_it_takes(candidate_us: int, calls: int, blocks: int) -> None:
    clock = Clock()
    found = clock.compare({"eager": program(300.0)}, program(candidate_us), BAND)["eager"]
    assert (clock.calls, len(found)) == (calls, blocks)
    assert set(found) == {(300.0, candidate_us)}


def asked(us: float) -> list[tuple[int, int]]:
    """How many blocks are asked for, and of how many calls, where two programs are alike."""
    found: list[tuple[int, int]] = []

    def blocks(count: int, calls: int) -> list[Block]:
        found.append((count, calls))
        return [(us, us)] * count

    sampled(blocks, (us, us))
    return found


def test_the_first_block_warms_and_counts_unless_its_calls_were_too_few() -> None:
    assert asked(500) == [(1, 1), (3, 1)]
    assert asked(60) == [(2, 2), (3, 2)]
    assert asked(30) == [(2, 4), (3, 4)]
    assert asked(1500) == [(2, 1)]


def test_of_long_programs_three_blocks_decide_what_they_agree_on() -> None:
    for other, blocks, significant in ((1510, 3, False), (1600, 3, True), (1522, 5, True)):
        found, count = judged(1500, other, noise=0.0003)
        assert (count, found.significant) == (blocks, significant), other


def test_what_takes_less_than_a_launch_is_not_significant() -> None:
    found, _ = judged(12, 6)
    assert found.value == pytest.approx(2, rel=0.02)
    assert not found.significant


def test_an_interval_holds_its_estimate_and_narrows() -> None:
    rng = random.Random(3)
    few, many = ([rng.gauss(0.2, 0.02) for _ in range(n)] for n in (6, 60))
    for logs in (few, many):
        low, high = interval(logs)
        assert low <= sorted(logs)[len(logs) // 2] <= high
    assert interval(many)[1] - interval(many)[0] < interval(few)[1] - interval(few)[0]


def test_null_quantile_is_of_absolute_values() -> None:
    assert null_quantile([-0.02, 0.01, 0.0], 1.0) == pytest.approx(0.02)


# --- several baselines, which share the candidate's calls --------------------------------------------------------------


class Noted(Clock):
    """Notes what is called, each time that the GPU is asked, and takes as long as `us` says of each call so far."""

    def __init__(self, us: Callable[[str, int], float]) -> None:
        super().__init__()
        self.us, self.asked = us, []

    def time(self, order: Sequence[Timed]) -> list[float]:
        names = [str(program.run()) for program in order]
        self.asked.append("".join(name[0] for name in names))
        before, self.calls = self.calls, self.calls + len(order)
        return [self.us(name, before + i) for i, name in enumerate(names)]


def named(name: str) -> Timed:
    return Timed(lambda: None, lambda: name)  # pyright: ignore[reportArgumentType]


def noted(us: Callable[[str, int], float], *baselines: str) -> tuple[Noted, dict[str, list[Block]]]:
    """What is called, by initials, and the blocks: x is the candidate."""
    clock = Noted(us)
    return clock, clock.compare({name: named(name) for name in baselines}, named("x"), BAND)


def lasting(**us: float) -> Callable[[str, int], float]:
    return lambda name, call: us[name]


@pytest.mark.parametrize(
    ("eager", "x", "asked"),
    [
        (300, 1000, ["xeex"]),
        (300, 600, ["xeex", "exxe"]),
        (1500, 600, ["xeex", "exxe"]),
        (3000, 1500, ["xeex"]),
        (60, 60, ["xeex", "exxeexxe" "xeexxeex", "exxeexxe" "xeexxeex" "exxeexxe"]),
        (30, 60, ["xeex", "exxe" * 4 + "xeex" * 4]),
        (300, 300, ["xeex", "exxe", "xeex" "exxe" "xeex"]),
        (1500, 1500, ["xeex", "exxe" "xeex"]),
    ],
)  # fmt: skip
def test_one_baseline_and_the_candidate_take_turns(eager: float, x: float, asked: list[str]) -> None:
    clock, blocks = noted(lasting(eager=eager, x=x), "eager")
    assert clock.asked == asked
    assert set(blocks["eager"]) == {(eager, x)}


def test_two_baselines_share_the_candidates_calls() -> None:
    clock, blocks = noted(lasting(eager=300, compile=300, x=300), "eager", "compile")
    assert clock.asked == ["xeccex", "cexxec", "ecxxcexceecxcxeexc"]
    assert {name: len(found) for name, found in blocks.items()} == {"eager": 5, "compile": 5}
    assert list(blocks) == ["eager", "compile"]


def test_a_baseline_whose_answer_is_certain_drops_out() -> None:
    clock, blocks = noted(lasting(eager=600, compile=300, x=300), "eager", "compile")
    assert clock.asked == ["xeccex", "cexxec", "xccxcxxcxccx"]
    assert blocks == {"eager": [(600, 300)] * 2, "compile": [(300, 300)] * 5}


def test_a_candidate_far_slower_than_one_baseline_is_timed_on_against_the_other() -> None:
    clock, blocks = noted(lasting(eager=900, compile=250, x=900), "eager", "compile")
    assert clock.asked == ["xeccex", "exxe", "xeexexxexeex"]
    assert blocks == {"eager": [(900, 900)] * 5, "compile": [(250, 900)]}
    clock, blocks = noted(lasting(eager=20, compile=25, x=100), "eager", "compile")
    assert clock.asked == ["xeccex"], "of short programs too"
    assert blocks == {"eager": [(20, 100)], "compile": [(25, 100)]}


def test_a_baseline_far_slower_than_the_candidate_drops_out_after_two_blocks() -> None:
    clock, blocks = noted(lasting(eager=9000, compile=300, x=300), "eager", "compile")
    assert clock.asked == ["xeccex", "cexxec", "xccxcxxcxccx"]
    assert blocks["eager"] == [(9000, 300)] * 2


def test_a_baseline_takes_part_in_as_many_repeats_as_it_needs() -> None:
    """The candidate's time beside a baseline is of the repeats that both are in."""
    clock, blocks = noted(lasting(eager=101, compile=60, x=100), "eager", "compile")
    assert clock.asked[:2] == ["xeccex", "cexxeccxxc" + "xccxxccx"], "eager's first block counts, compile's does not"
    assert blocks == {"eager": [(101, 100)] * 5, "compile": [(60, 100)] * 2}
    _, blocks = noted(
        lambda name, call: {"eager": 100, "compile": 60, "x": 1000 if 12 <= call < 16 else 100}[name], "eager", "compile"
    )
    assert blocks["eager"] == [(100, 100)] * 5
    assert blocks["compile"][0] == (60, 550), "the mean of four calls, of which two are in no block of eager's"


def test_no_baseline_needs_no_call() -> None:
    clock, blocks = noted(lasting())
    assert (clock.calls, blocks) == (0, {})


@pytest.mark.parametrize("programs", [2, 3, 4, 5])
def test_every_program_goes_first_equally_often_and_no_pairs_order_is_favoured(programs: int) -> None:
    orders = [block_order(programs, number) for number in range(2 * programs)]
    assert orders[0] == [*range(programs), *reversed(range(programs))]
    assert Counter(order[0] for order in orders[:programs]) == dict.fromkeys(range(programs), 1)
    for one, two in combinations(range(programs), 2):
        outer = [order.index(one) < order.index(two) for order in orders]
        assert all(earlier != later for earlier, later in zip(outer[::2], outer[1::2], strict=True))


DRIFTS = {
    "linear": lambda call: 1 + 1e-3 * call,
    "falling": lambda call: 1 - 1e-3 * call,
    "geometric": lambda call: 1.001**call,
}


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("us", [30.0, 60.0, 300.0, 1500.0])
def test_drift_cancels_between_the_candidate_and_every_baseline(us: float, drift: str) -> None:
    """Within every block, not only on average, while everything changes by 0.1 % from call to call."""
    own = {"eager": 1.02 * us, "compile": 0.98 * us, "max-autotune": us, "x": us}
    for names in (["eager"], ["eager", "compile"], ["eager", "compile", "max-autotune"]):
        clock, blocks = noted(lambda name, call: own[name] * DRIFTS[drift](call), *names)
        assert clock.calls > 4
        for name in names:
            assert len(blocks[name]) >= 3
            for other, mine in blocks[name]:
                assert other / mine == pytest.approx(own[name] / us, rel=1e-9 if drift != "geometric" else 3e-5)


class Drifting(Noisy):
    """Noise of single calls, which become slower, and of which the first of each round is slower still."""

    def time(self, order: Sequence[Timed]) -> list[float]:
        before = self.calls
        us = [us * (1 + 2e-4 * (before + i)) for i, us in enumerate(super().time(order))]
        return [us[0] * 1.02, *us[1:]]


def calibrated(us: float, noise: float) -> NoiseBand:
    """As `Stopwatch.null` and its caller do it: always with one baseline."""
    blocks = [Drifting(noise, -1 - i).compare({"": program(us)}, program(us), NoiseBand(((1.0, 0.0),)))[""] for i in range(200)]
    return NoiseBand(((1.0, null_quantile([timing.median_log(found) for found in blocks])),))


@pytest.mark.parametrize(
    ("us", "noise"),
    [(300.0, 0.008), pytest.param(40.0, 0.03, marks=pytest.mark.slow), pytest.param(1500.0, 0.008, marks=pytest.mark.slow)],
)
def test_baselines_that_share_calls_are_told_apart_as_well_as_alone(us: float, noise: float) -> None:
    band, runs = calibrated(us, noise), 300

    def seen(candidate_us: float) -> list[int]:
        """How often eager and compile, which take `us`, are found significantly different."""
        found = Counter()
        for seed in range(runs):
            others = {"eager": program(us), "compile": program(us)}
            for name, blocks in Drifting(noise, seed).compare(others, program(candidate_us), band).items():
                speed = speedup(blocks, band)
                found[name] += speed.significant and (candidate_us == us or speed.high < 1)
        return [found["eager"], found["compile"]]

    assert max(seen(us)) <= runs // 100, "the same against the same"
    assert min(seen(1.05 * us)) >= 0.95 * runs


@pytest.mark.parametrize("x", [20.0, 40.0, 60.0, 100.0, 500.0, 1500.0, 5000.0])
def test_two_baselines_take_fewer_calls_than_one_after_the_other(x: float) -> None:
    for eager, compiled in product((0.2, 0.5, 0.6, 1.0, 1.02, 1.3, 3.0), repeat=2):
        us = lasting(eager=eager * x, compile=compiled * x, x=x)
        joint, blocks = noted(us, "eager", "compile")
        alone = [noted(us, name) for name in ("eager", "compile")]
        assert blocks == {name: found for _, each in alone for name, found in each.items()}
        calls, (one, other) = Counter("".join(joint.asked)), (Counter("".join(clock.asked)) for clock, _ in alone)
        assert (calls["e"], calls["c"]) == (one["e"], other["c"])
        assert max(one["x"], other["x"]) <= calls["x"] < one["x"] + other["x"]


# --- at length, beside the noise of the same moments -------------------------------------------------------------------


def at_length(clock: Clock, candidate_us: float, *others_us: float):
    """Speedups over each of the others, and the band of those moments."""
    others = {f"baseline {i}": program(us) for i, us in enumerate(others_us)}
    blocks, alike = clock.compare_at_length(others, program(candidate_us))
    return [speedup(blocks[name], own_noise(alike)) for name in others], own_noise(alike)


def test_at_length_every_baseline_is_timed_in_turns_with_the_shortest_program_beside_itself() -> None:
    clock = Clock()
    blocks, alike = clock.compare_at_length({"eager": program(300.0), "compile": program(80.0)}, program(100.0))
    assert set(blocks["eager"]) == {(300.0, 100.0)}
    assert set(blocks["compile"]) == {(80.0, 100.0)}
    assert set(alike) == {(80.0, 80.0)}
    assert len(alike) == len(blocks["eager"]) == len(blocks["compile"]) == 5, "both differences are clear"
    assert clock.calls == 2 * 4 + 5 * 3 * 4, "one round warms up"
    clock = Clock()
    blocks, _ = clock.compare_at_length({"eager": program(300.0), "compile": program(105.0)}, program(100.0))
    assert len(blocks["eager"]) == 15
    assert clock.calls == 2 * 4 + 15 * 3 * 4


def test_rounds_at_length_are_fewer_where_calls_are_long() -> None:
    found = [rounds_at_length(us, 30 * us) for us in (100, 900, 1_100, 5_000, 100_000)]
    assert found == [(5, 15), (5, 7), (3, 6), (3, 3), (1, 1)]


def test_at_length_one_round_of_a_very_long_program_claims_no_small_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LONG_ROUND_US", 0.0)
    monkeypatch.setattr(timing, "LENGTH_US", 0.0)
    runs = [at_length(Noisy(0.003, seed), 50_000.0, 50_000.0) for seed in range(300)]
    assert sum(found.significant for [found], _ in runs) <= 3
    [found], _ = at_length(Noisy(0.003, 0), 50_000.0, 100_000.0)
    assert found.significant


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("us", [100.0, 20_000.0])
def test_at_length_the_same_program_is_not_faster_than_itself(us: float, noise: float) -> None:
    runs = [at_length(Noisy(noise, seed), us, us, us) for seed in range(300)]
    assert sum(found.significant for speeds, _ in runs for found in speeds) <= 6


def test_at_length_five_per_cent_is_seen_whatever_the_noise_was_before() -> None:
    runs = [at_length(Noisy(0.01, seed), 100.0, 105.0) for seed in range(100)]
    assert sum(found.significant and found.value > 1 for [found], _ in runs) >= 97
    assert max(band.at(100.0) for _, band in runs) < 0.02


# --- a host that is held up --------------------------------------------------------------------------------------------


class HeldUp:
    """A made-up host and GPU: the host queues, and is stopped now and then; the GPU does what is queued, in order."""

    FLUSH_US, QUEUE_US, PAUSE_US, PAUSES = 30.0, 4.0, 400.0, 0.05

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
        self.host_us = self.gpu_us = 0.0
        self.queued, self.pause_at = 0, -1
        self.rng = random.Random(seed)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1))
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: Reached(self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", lambda *_, **__: self)  # whose `zero_` flushes
            self.time = Stopwatch().time

    def queue(self, us: float, queue_us: float = QUEUE_US) -> None:
        held_up = self.queued == self.pause_at or self.rng.random() < self.PAUSES
        self.host_us += queue_us + (self.PAUSE_US if held_up else 0.0)
        self.gpu_us = max(self.gpu_us, self.host_us) + us
        self.queued += 1

    def zero_(self) -> None:
        self.queue(self.FLUSH_US)

    def synchronize(self) -> None:
        self.host_us = max(self.host_us, self.gpu_us)

    def program(self, us: float, queue_us: float = QUEUE_US) -> Timed:
        return Timed(lambda: None, lambda: self.queue(us, queue_us))


class Reached:
    """When the made-up GPU came to a place in its queue."""

    def __init__(self, machine: HeldUp) -> None:
        self.machine, self.us = machine, 0.0

    def record(self) -> None:
        self.machine.queue(0.0)
        self.us = self.machine.gpu_us

    def query(self) -> bool:
        return self.us <= self.machine.host_us

    def elapsed_time(self, later: Reached) -> float:
        return (later.us - self.us) / 1e3


def test_what_the_gpu_waits_for_the_host_is_no_time_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        machine = HeldUp(monkeypatch, seed)
        found = machine.time([machine.program(us) for us in (36.0, 120.0, 700.0)] * 20)
        assert found == pytest.approx([36.0, 120.0, 700.0] * 20)


def test_one_pause_makes_no_longer_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = HeldUp(monkeypatch)
    machine.PAUSES, machine.pause_at = 0.0, 5
    program = machine.program(36.0)
    assert machine.time([program, program]) == pytest.approx([36.0, 36.0])
    assert machine.queued == 3 + 3 * 4, "the first call is made twice"
    assert program.lead == 1


def test_a_graph_that_takes_long_to_queue_gets_a_longer_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = HeldUp(monkeypatch)
    machine.PAUSES = 0.0
    large = machine.program(50.0, queue_us=200.0)
    assert machine.time([large] * 10) == pytest.approx([50.0] * 10)
    assert large.lead == 8
    before = machine.queued
    machine.time([large])
    assert machine.queued - before == 3 + 8 + 3, "its next call is made once"


def test_a_host_that_is_always_late_is_asked_no_more_than_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = HeldUp(monkeypatch)
    machine.PAUSES, calls = 0.0, 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        machine.queue(10.0, queue_us=1e5)

    program = Timed(lambda: None, counted)
    machine.time([program])
    assert calls == 12
    machine.time([program])
    assert calls == 12 + 3
