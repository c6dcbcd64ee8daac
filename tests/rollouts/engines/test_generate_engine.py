"""The embedded engine: exact log-probs, fixed random streams, rollouts handed out as they end."""

import itertools

import pytest
import torch
from support.tiny import tiny_policy
from transformers import GenerationConfig

from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


def sampling(policy, **changes):
    settings = {"n": 3, "max_tokens": 12, "temperature": 0.7, "stop_ids": tuple(range(100, 130)), "seed": 1}
    return Sampling(**{**settings, **changes})


def sample(policy, batch_size=4, prompts=PROMPTS, graphs=True, **changes):
    engine = GenerateEngine(policy, batch_size=batch_size, graphs=graphs)
    return sorted(engine.generate(prompts, sampling(policy, **changes)), key=lambda r: (r.prompt, r.sample))


def test_every_prompt_gets_n_rollouts_that_end_where_they_should(policy):
    rollouts = sample(policy)
    assert [(r.prompt, r.sample) for r in rollouts] == list(itertools.product(range(3), range(3)))
    assert {r.finish for r in rollouts} == {"stop", "length"}
    for r in rollouts:
        stops = [token in range(100, 130) for token in r.token_ids]
        assert not any(stops[:-1])
        assert stops[-1] == (r.finish == "stop")
        assert len(r.token_ids) == 12 or r.finish == "stop"
    assert len({tuple(r.token_ids) for r in rollouts}) > 6


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_those_of_a_plain_forward(policy, temperature, graphs):
    for r in sample(policy, temperature=temperature, graphs=graphs):
        prompt = PROMPTS[r.prompt]
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + r.token_ids])).logits[0].double()
        expected = torch.log_softmax(logits / temperature, -1)[len(prompt) - 1 : -1]
        expected = expected.gather(1, torch.tensor(r.token_ids)[:, None])[:, 0]
        assert r.logprobs is not None
        assert torch.allclose(torch.tensor(r.logprobs).double(), expected, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_settings_of_the_model_do_not_bend_the_distribution(graphs):
    policy = tiny_policy()
    plain = sample(policy, graphs=graphs)
    bent = GenerationConfig(repetition_penalty=3.0, top_k=2, temperature=0.1, min_new_tokens=9, do_sample=True)
    policy.model.generation_config = bent
    assert sample(policy, graphs=graphs) == plain
    assert policy.model.generation_config is bent


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_the_seed_decides_and_the_global_stream_is_left_alone(policy, graphs):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = sample(policy, graphs=graphs)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    assert sample(policy, graphs=graphs) == first
    assert sample(policy, seed=2, graphs=graphs) != first
    policy.model.train()
    assert sample(policy, graphs=graphs) == first
    assert policy.model.training
    policy.model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_a_global_stream_that_others_set_back_does_not_repeat_itself(policy, monkeypatch, graphs):
    clean = sample(policy, graphs=graphs)
    plain = policy.model.forward

    def forward(*given, **named):  # as an export in another thread does, at any step
        torch.manual_seed(0)
        return plain(*given, **named)

    monkeypatch.setattr(policy.model, "forward", forward)
    assert [r.token_ids for r in sample(policy, graphs=graphs)] == [r.token_ids for r in clean]


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("cut", [{}, {"top_k": 4}, {"top_p": 0.98}, {"min_p": 0.1}])
def test_tokens_come_as_often_as_their_probability_says(policy, cut, graphs):
    [prompt], n = [[5, 6, 7]], 4000
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1].double() / 0.5
    share, order = torch.softmax(logits, -1), logits.argsort(descending=True)
    if "top_k" in cut:
        share[order[4:]] = 0
    if "top_p" in cut:
        share[order[1:][share[order].cumsum(0)[:-1] >= 0.98]] = 0
    if "min_p" in cut:
        share[share < 0.1 * share.max()] = 0
    share /= share.sum()
    found = sample(policy, batch_size=n, prompts=[prompt], n=n, max_tokens=1, temperature=0.5, graphs=graphs, **cut)
    counts = torch.bincount(torch.tensor([r.token_ids[0] for r in found]), minlength=len(share)).double() / n
    assert not counts[share == 0].any()
    assert ((counts - share).abs() <= 5 * (share * (1 - share) / n).sqrt() + 3 / n).all()
    assert (share > 0.005).sum() > 1, "or nothing was seen"


def test_batches_differ_from_each_other(policy):
    same = sample(policy, batch_size=1, prompts=[[5, 6, 7]], n=4)
    assert len({tuple(r.token_ids) for r in same}) > 1


def test_rollouts_are_handed_out_before_the_longest_ends(policy):
    engine = GenerateEngine(policy, batch_size=32)
    finishes = [r.finish for r in engine.generate([[5, 6, 7]], sampling(policy, n=32, max_tokens=64))]
    assert len(finishes) == 32
    lengths = [len(r.token_ids) for r in engine.generate([[5, 6, 7]], sampling(policy, n=32, max_tokens=64))]
    assert lengths.index(max(lengths)) > 16


def test_a_caller_may_stop_listening(policy):
    engine = GenerateEngine(policy, batch_size=1)
    rollouts = engine.generate(PROMPTS, sampling(policy, n=200))
    next(rollouts)
    rollouts.close()
    assert len(list(engine.generate(PROMPTS, sampling(policy, n=1)))) == 3


def test_cut_distributions_have_no_logprobs(policy):
    assert all(r.logprobs is None for r in sample(policy, top_p=0.9))
    assert all(r.logprobs is None for r in sample(policy, top_k=5))


@pytest.mark.parametrize("graphs", [False, True])
def test_a_prompt_that_fills_the_context_is_an_error_value_and_spoils_no_other(policy, graphs):
    rollouts = sample(policy, prompts=[[5] * 512, [5, 6, 7], [5] * 600], n=2, batch_size=64, graphs=graphs)
    assert [r.finish == "error" for r in rollouts] == [True, True, False, False, True, True]
    assert all(r.token_ids == [] and r.logprobs is None for r in rollouts if r.finish == "error")
    assert rollouts[2].token_ids


def test_a_copy_in_another_dtype_follows_the_policy_when_synced(monkeypatch):
    policy, sampled = tiny_policy(), []
    engine = GenerateEngine(policy, dtype=torch.bfloat16)
    forward = type(policy.model).forward
    monkeypatch.setattr(type(policy.model), "forward", lambda model, **k: sampled.append(model) or forward(model, **k))

    def greedy():
        rollouts = list(engine.generate(PROMPTS, sampling(policy, n=1, temperature=1e-3, stop_ids=())))
        return [r.token_ids for r in sorted(rollouts, key=lambda r: r.prompt)], rollouts[0].version

    before = greedy()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    assert greedy() == before
    engine.sync(policy.model.named_parameters, 5)
    after = greedy()
    assert after[1] == 5
    assert after[0] != before[0]
    copied = sampled[-1]
    assert copied is not policy.model
    assert copied.dtype == torch.bfloat16
    assert policy.model.dtype == torch.float32
    assert copied.model.rotary_emb.inv_freq.dtype == torch.float32


def test_errors_in_decoding_reach_the_caller(policy):
    with pytest.raises(IndexError):
        list(GenerateEngine(policy).generate([[10**6]], sampling(policy)))
