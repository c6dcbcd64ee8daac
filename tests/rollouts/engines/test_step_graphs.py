"""Graphs of a decoding step, by stand-ins on a CPU: what is replayed, what is dropped, and what happens if one fails."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from support.tiny import tiny_policy

from kernrl.rollouts.engines import graph_decode, step_graphs
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
OTHER_KIND = {"top_k": 4}


class Graph:
    """Runs its step again, from the memory where that was when it was captured, as a graph would."""

    def __init__(self, policy, step):
        self.policy, self.step, self.replays = policy, step, 0
        self.captured_at = self.memory()

    def memory(self) -> list[int]:
        state = self.step.args[0]  # its cache grows with its tokens
        own = [state.kv.starts, state.kv.position, state.tokens, state.logprobs, state.ids, state.padding]
        return [state.kv.capacity, *(tensor.data_ptr() for tensor in [*own, *self.policy.model.parameters()])]

    def replay(self) -> None:
        assert self.memory() == self.captured_at
        self.replays += 1
        self.step()

    def pool(self) -> int:
        return id(self)


@pytest.fixture
def policy():
    return tiny_policy()


@pytest.fixture
def captured(policy, monkeypatch):
    """The graphs captured so far."""
    graphs = []

    def capture(step, generator, pool=None):
        graphs.append(Graph(policy, step))
        return graphs[-1]

    monkeypatch.setattr(step_graphs, "can_capture", lambda device: True)
    monkeypatch.setattr(step_graphs, "capture", capture)
    return graphs


def sampled(engine, n=3, **changes):
    sampling = Sampling(**{"n": n, "max_tokens": 40, "temperature": 0.8, "seed": 5, **changes})
    return sorted(engine.generate(PROMPTS, sampling), key=lambda r: (r.prompt, r.sample))


def plain(policy, batch_size=256, **changes):
    """By the same steps without graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_graphs, "can_capture", lambda device: False)
        return sampled(GenerateEngine(policy, batch_size=batch_size), **changes)


@pytest.mark.slow
def test_one_graph_is_replayed_for_all_batches_alike(policy, captured):
    engine = GenerateEngine(policy, batch_size=3)  # two batches a call
    for seed in (5, 6):
        assert sampled(engine, seed=seed) == plain(policy, batch_size=3, seed=seed)
    assert [graph.replays for graph in captured] == [38 + 39 * 3]  # the first batch has a step uncaptured


@pytest.mark.slow
def test_each_kind_of_choice_has_a_graph(policy, captured):
    engine = GenerateEngine(policy)
    for changes in ({}, OTHER_KIND, {}, OTHER_KIND):
        assert sampled(engine, **changes) == plain(policy, **changes)
    assert [graph.replays for graph in captured] == [38 + 39] * 2


@pytest.mark.slow
def test_a_graph_is_dropped_when_memory_moves(policy, captured, monkeypatch):
    monkeypatch.setattr(graph_decode, "GROWTH", 16)
    engine = GenerateEngine(policy)
    assert sampled(engine) == plain(policy)  # 40 tokens after 6: the cache grows twice
    assert len(captured) == 3
    assert sampled(engine, n=5) == plain(policy, n=5)  # other rows
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)  # in place: the graphs stay
    before = len(captured)
    assert sampled(engine, n=5) == plain(policy, n=5)
    assert len(captured) == before
    for parameter in policy.model.parameters():
        parameter.data = parameter.data * -0.7
    assert sampled(engine, n=5) == plain(policy, n=5)
    assert len(captured) > before


FAILURES = {
    "no memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
    "an op": RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might ..."),
    "the model": ValueError("this model looks at its numbers"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_capture_is_said_once_and_changes_no_sample(policy, captured, monkeypatch, logged, name):
    tried = []

    def capture(step, generator, pool=None):
        tried.append(step)
        raise FAILURES[name]

    monkeypatch.setattr(step_graphs, "capture", capture)
    engine = GenerateEngine(policy)
    for changes in ({}, {"seed": 6}, OTHER_KIND, {"n": 5}):
        assert sampled(engine, **changes) == plain(policy, **changes)
    assert len(tried) == (2 if name == "no memory" else 1)  # for memory it is tried again, with what torch kept
    [record] = logged.records
    assert str(FAILURES[name]).splitlines()[0] in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.slow
def test_graphs_from_before_a_failure_are_dropped(policy, captured, monkeypatch):
    """The generator that they draw from may have been given up."""
    engine = GenerateEngine(policy)
    sampled(engine)
    [first] = captured
    replays = first.replays

    def capture(step, generator, pool=None):
        assert pool == first.pool()
        raise RuntimeError

    monkeypatch.setattr(step_graphs, "capture", capture)
    for changes in (OTHER_KIND, {}):
        assert sampled(engine, **changes) == plain(policy, **changes)
    assert first.replays == replays


@pytest.mark.slow
def test_a_capture_without_memory_is_tried_again_with_what_was_kept(policy, captured, monkeypatch, logged):
    engine = GenerateEngine(policy)
    sampled(engine)
    capture, pools, emptied = step_graphs.capture, [], []

    def scarce(step, generator, pool=None):
        pools.append(pool)
        if not emptied:
            raise FAILURES["no memory"]
        return capture(step, generator, pool)

    monkeypatch.setattr(step_graphs, "capture", scarce)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    assert sampled(engine, **OTHER_KIND) == plain(policy, **OTHER_KIND)
    assert captured[-1].replays == 38
    assert sampled(engine) == plain(policy)
    assert captured[0].replays == 38  # it gave its memory, and its generator may be another
    assert pools == [captured[0].pool(), None, captured[1].pool()]
    assert not logged.records


class FakeGenerator:
    """Stuck from `capture_begin` on, until it has another state or the capture ends well."""

    device = torch.device("cuda", 0)
    stuck = False

    def clone_state(self):
        return "fresh"

    def graphsafe_set_state(self, state):
        self.stuck = state != "fresh"


@pytest.mark.parametrize("given_up", [False, True])
def test_a_failed_capture_leaves_torch_as_it_was(monkeypatch, given_up):
    own, of_all, calls = FakeGenerator(), FakeGenerator(), []

    class FakeGraph:
        def register_generator_state(self, generator):
            assert generator is own

        def capture_begin(self, pool, capture_error_mode):
            assert capture_error_mode == "thread_local"
            own.stuck = of_all.stuck = True
            calls.append(("begin", pool))

        def capture_end(self):
            if given_up:
                raise RuntimeError("operation failed due to a previous error during capture")
            own.stuck = of_all.stuck = False
            calls.append(("end", (0, 7)))

    def run():
        raise ValueError("as it was")

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(step_graphs, "side_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "default_generators", (of_all,))
    for name in ("end", "release"):
        function = {"end": "_cuda_endAllocateToPool", "release": "_cuda_releasePool"}[name]
        note = lambda device, pool, name=name: calls.append((name, pool))  # noqa: E731
        monkeypatch.setattr(torch._C, function, note, raising=False)
    for _ in range(2):  # the lock is free again
        with pytest.raises(ValueError, match="as it was"):
            step_graphs.capture(run, own)  # pyright: ignore[reportArgumentType]
    assert not own.stuck
    assert not of_all.stuck
    assert [name for name, _ in calls] == (["begin", "end", "release"] if given_up else ["begin", "end"]) * 2
    assert {pool for _, pool in calls} == {(0, 7)}
