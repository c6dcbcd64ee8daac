"""What of replay's timing and keeping needs no GPU: which timed calls are judged, and what is kept of tasks."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernrl.tasks.task import FULL
from kernrl.verifier.base.clock import Clock
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.plan.plan import LaunchNode, Variant
from kernrl.verifier.replay import replay_server
from kernrl.verifier.replay.replay_server import MOST_PREPARED, ReplayServer
from kernrl.verifier.replay.spot_checks import SPOT_CHECKS, SpotChecks
from kernrl.verifier.replay.timing import NOISE_FLOOR, NoiseBand


def judged_calls(calls: int) -> tuple[set[int], SpotChecks]:
    """Which of a number of timed calls are judged, with everything but the lot replaced."""
    now = {"call": -1}
    judged: set[int] = set()
    flag = torch.zeros((), dtype=torch.bool)

    def put(_: Any) -> str:
        judged.add(now["call"])
        return "place"

    outputs, memory = SimpleNamespace(clear=lambda: None, put=put), SimpleNamespace(overrun=lambda: flag)
    opened = SimpleNamespace(runner=SimpleNamespace(prepare=lambda poison: None), run=lambda: None, outputs=lambda: ["y"])
    inputs = SimpleNamespace(
        draw=lambda draw: None, refresh=lambda: None, snapshot=lambda: "copy", written=lambda snapshot: flag
    )  # fmt: skip
    draws = {7 + i: f"draw {i}" for i in range(SPOT_CHECKS + 1)}
    spot = SpotChecks(opened, inputs, draws, list(draws), outputs, memory)  # pyright: ignore[reportArgumentType]
    for call in range(calls):
        now["call"] = call
        spot.before()
        spot.after()
    return judged, spot


def test_nothing_as_large_as_the_inputs_is_kept_between_judged_calls() -> None:
    _, spot = judged_calls(1000)
    assert spot._snapshot is None
    spot.last()
    assert spot._snapshot is None


def test_the_last_call_is_judged_too_and_no_more_than_there_is_room_for() -> None:
    for _ in range(50):
        judged, spot = judged_calls(100)
        among = len(judged)
        spot.last()
        assert 1 <= among <= SPOT_CHECKS
        assert len(spot.result.asked) == len(spot.result.shown) == among + 1
        assert len(spot.flags) == 2 * len(spot.result.asked)
        assert len(set(spot.result.asked)) == among + 1, "each judged call has a draw of its own"


@pytest.mark.parametrize(
    ("calls", "cheated", "least"),
    [
        (2, {1}, 0.6),
        (4, {2, 3}, 0.9),
        (4, {1, 3}, 0.7),
        (10, set(range(5, 10)), 0.7),
        (11, set(range(3, 11)), 0.9),
        (31, set(range(8, 31)), 0.9),
        (31, set(range(15, 31)), 0.5),
    ],
)
def test_cheating_in_a_run_of_calls_is_mostly_seen(calls: int, cheated: set[int], least: float) -> None:
    seen = sum(bool(judged_calls(calls)[0] & cheated) for _ in range(600))
    assert seen / 600 > least


class Replay(ReplayServer):
    """A replay process's memory of tasks, on a GPU of 100 bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._prepared, self._last, self._held_bytes, self._redraw = OrderedDict(), None, 100.0, True
        self._clock = Clock()
        self._full = self._suspects = None
        self.outputs, self.released, self.reserved = SimpleNamespace(nbytes=10), 0, 0  # pyright: ignore
        self.memory = SimpleNamespace(release=lambda: setattr(self, "released", self.released + 1))  # pyright: ignore
        monkeypatch.setattr(
            replay_server, "TaskInputs", lambda task, *_, **__: SimpleNamespace(nbytes=task.nbytes, task=task.id)
        )
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: self.reserved)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def takes(self, name: str, nbytes: int = 1) -> bool:
        """Take up a candidate of a task; returns whether room had to be made."""
        task = SimpleNamespace(id=name, pytorch_code="", nbytes=nbytes, input_set=lambda name: name)
        self.job = SimpleNamespace(task=task, precision="fp32")  # pyright: ignore
        crowded = self._make_room()
        self._task_inputs(FULL)
        return crowded

    def kept(self) -> list[str]:
        return [key[0] for key in self._prepared]


def test_inputs_go_by_least_recent_use(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(monkeypatch)
    for name in ("a", "b", "a", "c"):
        assert not replay.takes(name, 12)
    assert replay.kept() == ["b", "a", "c"]
    replay.takes("d", 12)
    assert replay.kept() == ["a", "c", "d"], "36 of 100 bytes were kept, and a quarter may be beside the newest"
    for i in range(MOST_PREPARED + 5):
        replay.takes(f"small {i}", 0)
    assert len(replay.kept()) == MOST_PREPARED
    assert replay.released == 0


def test_a_tasks_sets_do_not_displace_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full set has its baselines with it, which would be compiled again while everybody waits for the GPU."""
    replay = Replay(monkeypatch)
    replay.takes("another", 12)
    replay.takes("large", 60)
    replay._task_inputs("ragged")
    assert [key[-1] for key in replay._prepared] == [FULL, "ragged"]
    assert replay.kept() == ["large", "large"]


@pytest.mark.slow
def test_too_much_held_is_dropped_but_not_for_the_same_task_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(monkeypatch)
    replay.takes("a")
    replay.takes("large")
    replay.reserved = 91
    assert not replay.takes("large"), "it would need as much again"
    assert replay.kept() == ["a", "large"]
    assert replay.takes("b")
    assert (replay.kept(), replay.released) == (["b"], 1)
    replay.reserved = 90
    assert not replay.takes("c")


@pytest.mark.parametrize(("most_bytes", "kept"), [(None, ("eager",)), (50, ())])
def test_it_says_which_baselines_it_has_kept(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int | None, kept: tuple[str, ...]
) -> None:
    """A limit below what it holds makes it drop them, those of the same task included."""
    replay: Any = Replay(monkeypatch)
    replay.takes("a", 12)
    replay._prepared[replay._key(FULL)].baselines["eager"] = lambda: None
    replay.job.held_bytes = {FULL: 12}
    replay._gpu_bytes, replay._modules, replay.memory.seal = 1000, SimpleNamespace(trim=lambda: None), lambda: None
    replay.outputs = SimpleNamespace(nbytes=10, shared="memory", reserve=lambda nbytes, spare: None, clear=lambda: None)
    monkeypatch.setattr(replay_server, "GraphPool", lambda: None)
    monkeypatch.setattr(replay_server, "shared_bytes", lambda job: 0)
    monkeypatch.setattr(replay_server, "limit_gpu_memory", lambda nbytes, forget: nbytes is None or forget())
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    assert replay.begin(replay.job, most_bytes) == ("memory", kept)


class Watched:
    """A plan of one node, made note of where it would run."""

    authored, computed, choice = (), (), (0,)

    def __init__(self, log: list[str]):
        self._log = log

    def variants(self, node: int) -> int:
        return 1

    def prepare(self, poison: int) -> None:
        self._log.append("poison")

    def run(self) -> None:
        self._log.append("run")

    def forget(self) -> None:
        self._log.append("forget")

    def outputs(self) -> list[Any]:
        return []

    def held(self) -> tuple[list[Any], Any]:
        return [], None


def test_a_candidate_is_run_as_often_as_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    replay, flag = Replay(monkeypatch), torch.zeros((), dtype=torch.bool)

    def capture(run: Any) -> Any:
        log.append("capture")
        return SimpleNamespace(replay=lambda: log.append("replay"))

    inputs = SimpleNamespace(draw=lambda draw: None, snapshot=lambda: None, written=lambda snapshot: flag)
    draws = [SimpleNamespace(input_set=FULL)] * 3
    replay.job = SimpleNamespace(
        draws=draws, plans={FULL: None}, kernels={FULL: None}, precision="fp32", poison=True, decoys=False
    )  # pyright: ignore
    replay.memory, replay._modules = SimpleNamespace(overrun=lambda: flag), None  # pyright: ignore
    replay._candidate_pool = SimpleNamespace(capture=capture)  # pyright: ignore
    monkeypatch.setattr(replay_server, "Runner", lambda *_: Watched(log))
    monkeypatch.setattr(replay, "_task_inputs", lambda name: inputs)
    monkeypatch.setattr(replay, "_replayed", lambda result, flags: (result, flags))
    result, flags = replay.check([0, 1, 2])  # pyright: ignore
    again = ["poison", "replay", "poison", "replay"]
    assert log == ["poison", "run", "forget", "capture", *again], "the first wakes what the rest record"
    assert (result.asked, len(flags)) == ([0, 1, 2], 6)


def test_what_is_cached_goes_before_a_large_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a capture nothing can be given back: a graph's memory would come on top of what its first run left."""
    log: list[str] = []
    replay = Replay(monkeypatch)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("give back"))
    pool: Any = SimpleNamespace(capture=lambda run: log.append("capture"))
    for reserved in (99, 101):
        replay.reserved = reserved
        replay._graph(pool, lambda: None)
    assert log == ["capture", "give back", "capture"]


def test_a_baseline_computes_on_nothing_that_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    replay = Replay(monkeypatch)
    replay.takes("a")
    inputs = SimpleNamespace(refresh=lambda: log.append("fresh"), module=lambda: log.append("baseline"), arguments=())
    graph = SimpleNamespace(replay=lambda: log.append("replay"))
    replay._baseline_pool = SimpleNamespace(capture=lambda run: graph)  # pyright: ignore
    replay._baseline("eager", inputs)  # pyright: ignore
    assert log == ["fresh", "baseline", "replay"]

    timed = []

    def at_length(others: Any, candidate: Any) -> Any:
        return {name: [(4.0, 2.0)] for name in others}, [(2.0, 2.0)]

    replay._stopwatch = SimpleNamespace(  # pyright: ignore
        compare=lambda baseline, *_: timed.append(baseline) or [], compare_at_length=at_length
    )
    replay._full, replay._prepared[replay._key(FULL)].inputs = None, inputs  # pyright: ignore
    replay.job.draws = replay.job.all_draws = [SimpleNamespace(input_set=FULL, regime="mixed")]  # pyright: ignore
    replay.job.spot_checks, replay.job.at_length = 5, False  # pyright: ignore
    replay.outputs.clear = lambda: None
    opened = SimpleNamespace(runner=SimpleNamespace(computed=(), choice=[0]), run=lambda: None)
    monkeypatch.setattr(replay, "_open", lambda *_: opened)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda other: 1.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    replay.time_candidate(["eager"], NoiseBand(((1.0, 0.01),)))
    log.clear()
    timed[0].before()
    timed[0].run()
    assert log == ["fresh", "replay"]
    replay.job.at_length = True  # pyright: ignore
    measured = replay.time_candidate(["eager"], NoiseBand(((1.0, 0.3),)))
    assert (len(timed), measured.alike) == (1, [(2.0, 2.0)])
    found = measured.timing("a GPU", NoiseBand(((1.0, 0.3),)))
    assert found.noise == NOISE_FLOOR, "the band of the timing itself, not the one that was calibrated"


class FakeRunner:
    """A plan of one launch whose output is `z` where `y` stays below a bound, on the CPU."""

    authored = (0,)
    plan = SimpleNamespace(nodes=[LaunchNode((Variant(0, (1, 1, 1), {}),))], kernels=[SimpleNamespace(function="beside")])

    def __init__(self, inputs: Any) -> None:
        self.inputs, self.variants, self.choice = inputs, lambda node: 1, [0]

    def prepare(self, poison: int) -> None:
        pass

    def run(self, *, skip: int | None = None) -> None:
        x = self.inputs.x
        y = torch.zeros_like(x) if skip == 0 else x.exp()
        self.made = torch.where(y > 1e30, y, 2 * x)

    def outputs(self) -> list[torch.Tensor]:
        return [self.made]


@pytest.mark.parametrize(("regime", "found"), [("nominal", ["beside"]), ("nonfinite", None)])
def test_numbers_that_overflow_are_no_work(regime: str, found: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = SimpleNamespace(x=torch.linspace(-3.0, 3.0, 16), draw=lambda draw: None)
    inputs.scale = lambda factor: inputs.x.mul_(factor)
    replay = Replay(monkeypatch)
    replay.job = SimpleNamespace(precision="fp32", decoys=True, draws=[Draw("small", regime, 1)])  # pyright: ignore
    replay._suspects = None
    runner = FakeRunner(inputs)
    opened = SimpleNamespace(runner=runner, outputs=runner.outputs)
    monkeypatch.setattr(replay, "_task_inputs", lambda name: inputs)
    monkeypatch.setattr(replay, "_open", lambda name, inputs: opened)
    monkeypatch.setattr(replay, "_ask", lambda opened, inputs, i, result: [])
    monkeypatch.setattr(replay, "_vary", lambda runner, i: None)
    monkeypatch.setattr(replay, "_replayed", lambda result, flags: result)
    assert replay.check([0]).decoys == (found or [])
    assert replay._suspects == found
