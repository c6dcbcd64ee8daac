"""What of replay's timing and keeping needs no GPU: which timed calls are judged, and what is kept of tasks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet, ref

import pytest
import torch
from torch import Tensor

from kernrl.tasks.task import FULL
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.plan.plan import LaunchNode, Variant
from kernrl.verifier.replay import replay_server
from kernrl.verifier.replay.replay_server import MOST_PREPARED, ReplayServer
from kernrl.verifier.replay.spot_checks import SPOT_CHECKS, SpotChecks
from kernrl.verifier.replay.timing import NOISE_FLOOR, NoiseBand


class Copy:
    """Of inputs, for as long as somebody holds it."""


def judged_calls(calls: int, copied: Callable[[], Any] = Copy) -> tuple[set[int], SpotChecks]:
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
        draw=lambda draw: None, refresh=lambda: None, snapshot=copied, written=lambda snapshot: flag
    )  # fmt: skip
    draws = {7 + i: f"draw {i}" for i in range(SPOT_CHECKS + 1)}
    spot = SpotChecks(opened, inputs, draws, list(draws), outputs, memory)  # pyright: ignore[reportArgumentType]
    for call in range(calls):
        now["call"] = call
        spot.before()
        spot.after()
    return judged, spot


def test_nothing_as_large_as_the_inputs_is_kept_between_judged_calls() -> None:
    copies: list[ref[Copy]] = []

    def copied() -> Copy:
        made = Copy()
        copies.append(ref(made))
        return made

    _, spot = judged_calls(1000, copied)
    assert copies
    assert not any(copy() for copy in copies)
    spot.last()
    assert not any(copy() for copy in copies)


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


class Watched:
    """A plan of one node, made note of where it would run."""

    authored, computed, choice = (), (), (0,)

    def __init__(self, log: list[str]):
        self.log = log

    def variants(self, node: int) -> int:
        return 1

    def prepare(self, poison: int) -> None:
        self.log.append("poison")

    def run(self) -> None:
        self.log.append("run")

    def forget(self) -> None:
        self.log.append("forget")

    def outputs(self) -> list[Any]:
        return []

    def held(self) -> tuple[list[Any], Any]:
        return [], None


class MadeUpGpu:
    """A replay process that may keep 100 bytes on a GPU of 1000, and a note of what it does there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.log: list[str] = []
        self.reserved = 0
        self.forgot = 0
        """How often everything kept was dropped."""
        self.spoilt: set[int] = set()
        """Draws whose inputs are found to be written to."""
        self.timed: list[dict[str, Any]] = []
        """Baselines, as they are timed."""
        self.alive: WeakSet[Any] = WeakSet()
        self.runner: Callable[[Any], Any] = lambda inputs: Watched(self.log)
        gpu, no = self, torch.zeros((), dtype=torch.bool)

        class Inputs:
            """A task's, at one of its sets."""

            arguments = ()

            def __init__(self, task: Any, name: str, *_: Any, **__: Any):
                self.task, self.name, self.nbytes, self.drawn = task.id, name, task.nbytes, -1
                gpu.alive.add(self)

            def draw(self, draw: Any) -> None:
                self.drawn, self.x = draw.seed, torch.linspace(-3.0, 3.0, 16)

            def scale(self, factor: float) -> None:
                self.x.mul_(factor)

            def refresh(self) -> None:
                gpu.log.append("fresh")

            def settle(self) -> None:
                """No forward here assigns a tensor to its module."""

            def snapshot(self) -> int:
                return self.drawn

            def written(self, snapshot: int) -> Tensor:
                return torch.tensor(snapshot in gpu.spoilt)

            def module(self) -> None:
                gpu.log.append("baseline")

        def capture(run: Any) -> Any:
            gpu.log.append("capture")
            return SimpleNamespace(replay=lambda: gpu.log.append("replay"))

        def release() -> None:
            gpu.forgot += 1

        def at_length(others: Any, candidate: Any) -> Any:
            return {name: [(4.0, 2.0)] for name in others}, [(2.0, 2.0)]

        memory = SimpleNamespace(release=release, seal=lambda: None, overrun=lambda: no, field_overrun=lambda: no)
        outputs = SimpleNamespace(
            nbytes=10, shared="memory", reserve=lambda nbytes, spare: None, clear=lambda: None, put=lambda y: None
        )
        stopwatch = SimpleNamespace(
            compare=lambda baselines, *_: gpu.timed.append(baselines) or {}, compare_at_length=at_length, nbytes=0
        )
        event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda other: 1.0)
        ours = {
            "TaskInputs": Inputs,
            "Runner": lambda plan, kernels, inputs, *_: gpu.runner(inputs),
            "DeviceMemory": lambda: memory,
            "SharedOutputs": lambda **_: outputs,
            "Modules": lambda: SimpleNamespace(trim=lambda: None),
            "GraphPool": lambda: SimpleNamespace(capture=capture),
            "Stopwatch": lambda: stopwatch,
            "shared_bytes": lambda job: 0,
            "limit_gpu_memory": lambda nbytes, forget: nbytes is None or forget(),
        }
        cuda = {
            "Stream": lambda: None,
            "set_stream": lambda stream: None,
            "get_device_properties": lambda device: SimpleNamespace(total_memory=1000),
            "memory_reserved": lambda: gpu.reserved,
            "empty_cache": lambda: gpu.log.append("give back"),
            "reset_peak_memory_stats": lambda: None,
            "max_memory_allocated": lambda: 0,
            "max_memory_reserved": lambda: 0,
            "Event": lambda **_: event,
        }
        for name, stand_in in ours.items():
            monkeypatch.setattr(replay_server, name, stand_in)
        for name, stand_in in cuda.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", torch.backends.cudnn.benchmark_limit)
        monkeypatch.setattr(replay_server.cuda_driver, "forbid_persisting_l2", lambda: None)
        monkeypatch.setattr(replay_server.cuda_driver, "granted_bytes", lambda share: 100.0)
        self.replay = ReplayServer()

    def begins(self, name: str, nbytes: int = 1, **changes: Any) -> Any:
        """Take up a candidate of a task, whose job is the answer."""
        task = SimpleNamespace(id=name, pytorch_code="", nbytes=nbytes, input_set=lambda name: name)
        nothing = dict.fromkeys((FULL, "ragged", "small"), 0)
        settings = {
            "task": task, "precision": "fp32", "held_bytes": nothing, "temporary_bytes": nothing, "plans": nothing,
            "kernels": nothing, "poison": True, "decoys": False, "overwrites": True, "at_length": False, "spot_checks": 5,
            "draws": [],
        }  # fmt: skip
        job: Any = SimpleNamespace(**settings | changes)
        job.all_draws = job.draws
        self.replay.begin(job)
        return job

    def takes(self, name: str, nbytes: int = 1) -> bool:
        """Take up a candidate of a task, and make its inputs; returns whether room had to be made."""
        before = self.forgot
        self.begins(name, nbytes)
        self.replay.prepare([])
        return self.forgot > before

    def kept(self) -> list[str]:
        """The inputs that are held, by task and set."""
        return sorted(f"{inputs.task} {inputs.name}" for inputs in self.alive)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> MadeUpGpu:
    return MadeUpGpu(monkeypatch)


def test_inputs_go_by_least_recent_use(gpu: MadeUpGpu) -> None:
    for name in ("a", "b", "a", "c"):
        assert not gpu.takes(name, 12)
    assert gpu.kept() == ["a full", "b full", "c full"]
    gpu.takes("d", 12)
    assert gpu.kept() == ["a full", "c full", "d full"], "36 of 100 bytes were kept, and a quarter may be beside the newest"
    for i in range(MOST_PREPARED + 5):
        gpu.takes(f"small {i}", 0)
    assert len(gpu.kept()) == MOST_PREPARED
    assert gpu.forgot == 0


def test_a_tasks_sets_do_not_displace_one_another(gpu: MadeUpGpu) -> None:
    """A full set has its baselines with it, which would be compiled again while everybody waits for the GPU."""
    gpu.takes("another", 12)
    gpu.takes("large", 60)
    gpu.begins("large", 60, draws=[Draw("ragged", "nominal", 1)])
    gpu.replay.check([0])
    assert gpu.kept() == ["large full", "large ragged"]


@pytest.mark.slow
def test_too_much_held_is_dropped_but_not_for_the_same_task_again(gpu: MadeUpGpu) -> None:
    gpu.takes("a")
    gpu.takes("large")
    gpu.reserved = 91
    assert not gpu.takes("large"), "it would need as much again"
    assert gpu.kept() == ["a full", "large full"]
    assert gpu.takes("b")
    assert (gpu.kept(), gpu.forgot) == (["b full"], 1)
    gpu.reserved = 90
    assert not gpu.takes("c")


@pytest.mark.slow
@pytest.mark.parametrize(("most_bytes", "kept"), [(None, ("eager",)), (50, ())])
def test_it_says_which_baselines_it_has_kept(gpu: MadeUpGpu, most_bytes: int | None, kept: tuple[str, ...]) -> None:
    """A limit below what it holds makes it drop them, those of the same task included."""
    job = gpu.begins("a", 12)
    gpu.replay.prepare(["eager"])
    assert gpu.replay.begin(job, most_bytes) == ("memory", kept)


def test_a_candidate_is_run_as_often_as_it_is_asked(gpu: MadeUpGpu) -> None:
    gpu.begins("a", draws=[Draw(FULL, "nominal", seed) for seed in range(3)])
    gpu.spoilt = {1}
    result = gpu.replay.check([0, 1, 2])
    again = ["poison", "replay", "poison", "replay"]
    assert gpu.log == ["poison", "run", "forget", "capture", *again], "the first wakes what the rest record"
    assert (result.asked, result.written, result.overrun) == ([0, 1, 2], [1], [])


def test_what_is_cached_goes_before_a_large_graph_is_captured(gpu: MadeUpGpu) -> None:
    """Within a capture nothing can be given back: a graph's memory would come on top of what its first run left."""
    for name, reserved in (("a", 99), ("b", 101)):
        gpu.reserved = 0
        gpu.takes(name)
        gpu.reserved = reserved
        gpu.replay.prepare(["eager"])
    first = ["fresh", "baseline", "capture", "replay"]
    assert gpu.log == [*first, "fresh", "baseline", "give back", "capture", "replay"]


def test_a_baseline_computes_on_nothing_that_is_judged(gpu: MadeUpGpu) -> None:
    job = gpu.begins("a", draws=[Draw(FULL, "mixed", 1)])
    gpu.replay.prepare(["eager"])
    assert gpu.log == ["fresh", "baseline", "capture", "replay"]

    gpu.replay.time_candidate(["eager"], NoiseBand(((1.0, 0.01),)))
    gpu.log.clear()
    gpu.timed[0]["eager"].before()
    gpu.timed[0]["eager"].run()
    assert gpu.log == ["fresh", "replay"]
    job.at_length = True
    measured = gpu.replay.time_candidate(["eager"], NoiseBand(((1.0, 0.3),)))
    assert (len(gpu.timed), measured.alike) == (1, [(2.0, 2.0)])
    found = measured.timing("a GPU", NoiseBand(((1.0, 0.3),)))
    assert found.noise == NOISE_FLOOR, "the band of the timing itself, not the one that was calibrated"


def test_all_baselines_are_timed_together(gpu: MadeUpGpu) -> None:
    gpu.begins("a", draws=[Draw(FULL, "mixed", 1)])
    gpu.replay.time_candidate(["eager", "eager again"], NoiseBand(((1.0, 0.01),)))
    assert [list(baselines) for baselines in gpu.timed] == [["eager", "eager again"]]
    assert "time" in gpu.replay.spent().seconds


class OneLaunch:
    """A plan of one launch whose output is `z` where `y` stays below a bound, on the CPU."""

    authored = (0,)
    plan = SimpleNamespace(
        nodes=[LaunchNode((Variant(0, (1, 1, 1), {}),))], kernels=[SimpleNamespace(function="beside", takes_extreme=False)]
    )

    def __init__(self, inputs: Any, skipped: list[int]) -> None:
        self.inputs, self.skipped, self.choice = inputs, skipped, [0]

    def variants(self, node: int) -> int:
        return 1

    def prepare(self, poison: int) -> None:
        pass

    def run(self, *, skip: int | None = None) -> None:
        self.skipped += [] if skip is None else [skip]
        x = self.inputs.x
        y = torch.zeros_like(x) if skip == 0 else x.exp()
        self.made = torch.where(y > 1e30, y, 2 * x)

    def outputs(self) -> list[torch.Tensor]:
        return [self.made]


def test_numbers_that_overflow_are_no_work(gpu: MadeUpGpu) -> None:
    skipped: list[int] = []
    gpu.runner = lambda inputs: OneLaunch(inputs, skipped)
    gpu.begins("a", decoys=True, draws=[Draw("small", "nonfinite", 1), Draw("small", "nominal", 2)])
    assert gpu.replay.check([0]).decoys == []
    assert not skipped, "numbers that are no numbers tell nothing of a launch: another draw is waited for"
    assert gpu.replay.check([1]).decoys == ["beside"]


class Bound:
    """A softmax in two launches on the CPU, of which the first finds the maximum; or one that only seems to use it."""

    authored = (0, 1)

    def __init__(self, inputs: Any, used: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.inputs, self.used, self.choice = inputs, used, [0, 0]
        kernels = [SimpleNamespace(function=name, takes_extreme=name == "row_max") for name in ("row_max", "shares")]
        self.plan = SimpleNamespace(nodes=[LaunchNode((Variant(i, (1, 1, 1), {}),)) for i in range(2)], kernels=kernels)

    def variants(self, node: int) -> int:
        return 1

    def prepare(self, poison: int) -> None:
        self.blank = torch.full((4 * 16,), poison, dtype=torch.uint8).view(torch.float32)

    def run(self, *, skip: int | None = None) -> None:
        x = torch.nn.functional.layer_norm(self.inputs.x, (16,))
        top = self.blank[:1] if skip == 0 else x.amax(keepdim=True)
        self.made = self.blank if skip == 1 else self.used(x, top)

    def outputs(self) -> list[torch.Tensor]:
        return [self.made]


@pytest.mark.parametrize(
    ("used", "decoys"),
    [
        (lambda x, top: (x - top).exp() / (x - top).exp().sum(), []),
        (lambda x, top: top + (x - top).exp().sum().log(), []),
        (lambda x, top: x.exp() + 0.0 * top, ["row_max"]),
        (lambda x, top: x.exp() + 1e-30 * top, ["row_max"]),
    ],
    ids=["softmax", "logsumexp", "times zero", "rounded away"],
)
def test_a_maximum_that_keeps_exponentials_in_range_is_work(
    gpu: MadeUpGpu, used: Callable[[Tensor, Tensor], Tensor], decoys: list[str]
) -> None:
    gpu.runner = lambda inputs: Bound(inputs, used)
    gpu.begins("a", decoys=True, draws=[Draw("small", "nominal", 1)])
    assert gpu.replay.check([0]).decoys == decoys
