"""Decoding on a GPU: a captured step computes what transformers computes, whatever changes between replays.

python -m pytest tests/gpu/test_decode_gpu.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.tiny import tiny_policy
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from kernrl.policy.decode_attention import NO_COLUMN, attend_by_sdpa, attend_in_one_kernel
from kernrl.policy.fused_norm import fuse_norms
from kernrl.policy.load import Policy
from kernrl.rollouts.engines import graph_decode
from kernrl.rollouts.engines.engine import Rollout, Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14], [20, 21, 22, 23]]


class CountedGraph(torch.cuda.CUDAGraph):
    made, replays = 0, 0

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        CountedGraph.made += 1
        super().capture_begin(*args, **kwargs)

    def replay(self) -> None:
        CountedGraph.replays += 1
        super().replay()


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    CountedGraph.made = CountedGraph.replays = 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CountedGraph)
    return CountedGraph


@pytest.fixture
def policy() -> Policy:
    made = tiny_policy()
    made.model.to("cuda").eval()  # pyright: ignore[reportArgumentType]
    return made


def sampled(engine: GenerateEngine, prompts=PROMPTS, **changes: Any) -> list[Rollout]:
    settings = {"n": 3, "max_tokens": 60, "temperature": 0.8, "stop_ids": tuple(range(100, 104)), "seed": 5, **changes}
    return sorted(engine.generate(prompts, Sampling(**settings)), key=lambda r: (r.prompt, r.sample))


def plain_logits(policy: Policy, rollout: Rollout, prompts=PROMPTS) -> torch.Tensor:
    """float32 [T, V]: those that each token of a rollout was sampled from, by one ordinary forward."""
    prompt = prompts[rollout.prompt]
    with torch.no_grad():
        ids = torch.tensor([prompt + rollout.token_ids], device="cuda")
        return policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()


def test_the_likeliest_tokens_are_those_of_transformers(policy, counted):
    ours = sampled(GenerateEngine(policy), temperature=0.0, stop_ids=())
    assert (counted.made, counted.replays) == (1, 58)  # of 60 tokens, one is the prompts' and one the step before capturing
    theirs = sampled(GenerateEngine(policy, graphs=False), temperature=0.0, stop_ids=())
    assert [r.token_ids for r in ours] == [r.token_ids for r in theirs]


def test_log_probs_are_those_of_a_plain_forward(policy, counted):
    rollouts = sampled(GenerateEngine(policy, batch_size=5))
    assert counted.replays > 0
    assert {r.finish for r in rollouts} == {"stop", "length"}
    for r in rollouts:
        exact = (plain_logits(policy, r) / 0.8).log_softmax(-1)
        exact = exact.gather(1, torch.tensor(r.token_ids, device="cuda")[:, None])[:, 0].tolist()
        assert r.logprobs == pytest.approx(exact, abs=1e-4)  # float32, in sums of another order


@pytest.mark.parametrize(
    ("changes", "cut"),
    [
        ({"top_k": 3}, TopKLogitsWarper(3)),
        ({"top_p": 0.6}, TopPLogitsWarper(0.6)),
        ({"min_p": 0.2}, MinPLogitsWarper(0.2)),
    ],
    ids=["top_k", "top_p", "min_p"],
)
def test_no_token_is_sampled_that_is_cut(policy, counted, changes, cut):
    rollouts = sampled(GenerateEngine(policy), n=8, **changes)
    assert counted.replays > 0
    whole = cuts = 0
    for r in rollouts:
        kept = cut(None, plain_logits(policy, r) / 0.8).isfinite()
        ids = torch.tensor(r.token_ids, device="cuda")
        whole, cuts = whole + len(ids), cuts + int((~kept.gather(1, ids[:, None])).sum())
        assert r.logprobs is None
    assert cuts <= whole // 200  # one whose share is the limit itself to float32's precision


def test_a_seed_gives_the_same_samples_from_graphs_and_from_first_steps(policy):
    engine = GenerateEngine(policy)
    first, again = sampled(engine), sampled(engine)
    assert first == again
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    assert sampled(GenerateEngine(policy)) == first
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert sampled(engine, seed=6) != first
    assert len({tuple(r.token_ids) for r in first}) > len(first) // 2


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("cut", [{}, {"top_k": 4}, {"top_p": 0.98}, {"min_p": 0.1}], ids=str)
def test_tokens_come_as_often_as_their_probability_says(policy, counted, cut, graphs):
    """Of a second token, which is decoded by a replay."""
    engine, prompt = GenerateEngine(policy, batch_size=8192, graphs=graphs), PROMPTS[0]
    settings = {"n": 8192, "temperature": 0.5, "stop_ids": (), **cut}
    sampled(engine, [prompt], **settings, max_tokens=2)
    before = counted.replays
    pairs = torch.tensor([r.token_ids for r in sampled(engine, [prompt], **settings, max_tokens=2, seed=9)])
    assert counted.replays - before == int(graphs)
    common = int(pairs[:, 0].mode().values)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, common]], device="cuda")).logits[0, -1].double().cpu() / 0.5
    share, order = logits.softmax(-1), logits.argsort(descending=True)
    if "top_k" in cut:
        share[order[4:]] = 0
    if "top_p" in cut:
        share[order[1:][share[order].cumsum(0)[:-1] >= 0.98]] = 0
    if "min_p" in cut:
        share[share < 0.1 * share.max()] = 0
    share /= share.sum()
    seconds = pairs[pairs[:, 0] == common, 1]
    n = len(seconds)
    found = torch.bincount(seconds, minlength=len(share)).double() / n
    assert not found[share == 0].any()
    # a share's deviation is sqrt(p (1 - p) / n); five of them for the worst of a few hundred tokens
    assert ((found - share).abs() <= 5 * (share * (1 - share) / n).sqrt() + 3 / n).all()
    assert n > 1000
    assert (share > 0.005).sum() > 1, "or nothing was seen"


@pytest.mark.parametrize("graphs", [False, True])
def test_global_streams_that_others_set_back_do_not_repeat_themselves(policy, graphs):
    """As an export in another thread does."""
    clean = sampled(GenerateEngine(policy, graphs=graphs), stop_ids=())
    engine = GenerateEngine(policy, graphs=graphs)
    engine.on_tokens = lambda tokens: torch.manual_seed(0)  # of the GPU's stream too
    assert sampled(engine, stop_ids=()) == clean


def test_a_step_that_cannot_be_captured_runs_as_it_is(policy, counted, monkeypatch, logged):
    wanted = sampled(GenerateEngine(policy))
    replays, plain = counted.replays, policy.model.forward

    def forward(*given, **named):
        out = plain(*given, **named)
        if torch.cuda.is_current_stream_capturing():
            out.logits.sum().item()  # waits for the GPU
        return out

    engine = GenerateEngine(policy)
    with monkeypatch.context() as patch:
        patch.setattr(policy.model, "forward", forward)
        assert sampled(engine) == wanted
        assert sampled(engine) == wanted
    assert counted.replays == replays
    assert [record.getMessage() for record in logged.records if "CUDA graphs" in record.getMessage()]
    torch.rand(3, device="cuda")  # the global generator is not left in the capture
    assert sampled(GenerateEngine(policy)) == wanted
    assert counted.replays > replays


def test_weights_that_change_are_the_weights_that_sample(policy, counted):
    engine = GenerateEngine(policy)
    before = sampled(engine, temperature=0.0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    in_place = sampled(engine, temperature=0.0)
    assert counted.made == 1
    assert in_place == sampled(GenerateEngine(policy), temperature=0.0) != before
    made = counted.made
    for parameter in policy.model.parameters():
        parameter.data = parameter.data * -0.7
    moved = sampled(engine, temperature=0.0)
    assert counted.made == made + 1
    assert moved == sampled(GenerateEngine(policy), temperature=0.0) != in_place


def test_a_cache_that_grows_keeps_what_it_holds(policy, monkeypatch):
    wanted = sampled(GenerateEngine(policy), stop_ids=())
    monkeypatch.setattr(graph_decode, "GROWTH", 16)
    assert sampled(GenerateEngine(policy), stop_ids=()) == wanted


def test_memory_is_given_back(policy):
    engine = GenerateEngine(policy)
    sampled(engine)
    held = torch.cuda.memory_allocated()
    engine.close()
    assert torch.cuda.memory_allocated() < held
    assert sampled(engine)


def test_two_threads_sample_as_one(policy):
    """Both capture while the other decodes; and two calls of one engine take turns."""
    other = tiny_policy(1)
    other.model.to("cuda").eval()  # pyright: ignore[reportArgumentType]
    alone = [sampled(GenerateEngine(p), n=40, stop_ids=()) for p in (policy, other)]
    for engines in ([GenerateEngine(policy), GenerateEngine(other)], [GenerateEngine(policy)] * 2):
        with ThreadPoolExecutor(2) as threads:
            together = list(threads.map(lambda engine: sampled(engine, n=40, stop_ids=()), engines))
        assert together == (alone if engines[0] is not engines[1] else [alone[0]] * 2)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 2, 64), (28, 4, 128), (4, 4, 80), (3, 1, 256)])
def test_the_attention_of_a_step(dtype, limit, heads, kv_heads, dim):
    torch.manual_seed(0)
    rows, capacity, position = 5, 512, 300
    query = torch.randn(rows, 1, heads, dim, device="cuda", dtype=dtype).transpose(1, 2)
    key, value = torch.randn(2, rows, kv_heads, 1, dim, device="cuda", dtype=dtype).unbind()
    keys, values = torch.randn(2, rows, kv_heads, capacity, dim, device="cuda", dtype=dtype).unbind()
    starts = torch.tensor([0, 1, 299, 300, NO_COLUMN], device="cuda")
    at = torch.tensor([position], device="cuda")
    exact = [x.double() for x in (query, key, value, keys.clone(), values.clone())]
    found = attend_in_one_kernel(query, key, value, keys, values, starts, at, dim**-0.5)
    wanted = attend_by_sdpa(*exact, starts, at, dim**-0.5)
    assert (found - wanted).abs().max() < limit * wanted.abs().max()
    assert torch.equal(keys[:, :, position], key[:, :, 0])
    assert torch.equal(values[:, :, position], value[:, :, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [512, 896, 3584])
def test_the_norm_of_a_step(dtype, size):
    torch.manual_seed(0)
    norm = torch.nn.Sequential(Qwen2RMSNorm(size)).to("cuda", dtype)
    torch.nn.init.normal_(norm[0].weight)
    x = torch.randn(7, 1, size, device="cuda", dtype=dtype)
    with torch.no_grad():
        wanted = norm(x)
        fuse_norms(norm)
        found = norm(x)
    assert type(norm[0].forward).__name__ == "partial"  # it is not transformers' any more
    # sums differ in order: by a few units in the last place of float32, which seldom decides how bf16 is rounded
    assert torch.allclose(found, wanted, rtol=2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-6, atol=0)
    if dtype == torch.bfloat16:
        assert (found != wanted).float().mean() < 0.01
