"""SGLang's dialect against a strict stand-in: the same contract as vLLM's, over SGLang's own routes."""

import itertools

import pytest
import torch
from support.server_samples import PROMPTS, SAMPLING, changed, check_samples_are_of, opened, policy_for, sample
from support.sglang_stand_in import SglangStandIn
from support.tiny import tiny_policy
from support.toy_runs import reinforce_arguments as arguments
from support.toy_runs import texts

from kernrl.cli import run
from kernrl.errors import InfrastructureError, UsageError
from kernrl.http_client import Server
from kernrl.rollouts.engines.dialects import ask_server_info
from kernrl.rollouts.engines.engine import Sampling
from kernrl.runs.run_directory import read_lines

pytestmark = pytest.mark.usefixtures("verifier")


def rounded(policy):
    """With weights that bf16, in which they travel, holds exactly."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.copy_(parameter.bfloat16())
    return policy


def test_it_is_recognised():
    with SglangStandIn(context=77) as server:
        facts = ask_server_info(Server(server.url, timeout_s=5))
    assert (facts.kind, facts.models, facts.context) == ("sglang", ("served",), 77)


def test_every_prompt_gets_n_rollouts_with_the_log_probs_of_a_plain_forward(tmp_path):
    policy = rounded(tiny_policy())
    with SglangStandIn() as server:
        engine = opened(server, policy, tmp_path)
        rollouts = sample(engine)
        assert [r.token_ids for r in sample(engine)] == [r.token_ids for r in rollouts]
    assert [(r.prompt, r.sample) for r in rollouts] == list(itertools.product(range(3), range(3)))
    assert {r.finish for r in rollouts} == {"stop", "length"}
    assert len({tuple(r.token_ids) for r in rollouts}) > 6
    for r in rollouts:
        assert (r.token_ids[-1] in SAMPLING.stop_ids) == (r.finish == "stop")
        assert len(r.token_ids) == 12 or r.finish == "stop"
    check_samples_are_of(policy, rollouts)


def test_a_cut_distribution_is_asked_for_as_such_and_has_no_logprobs(tmp_path):
    with SglangStandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        sampling = Sampling(n=1, max_tokens=4, temperature=0.7, top_k=3, stop_ids=SAMPLING.stop_ids)
        assert all(r.logprobs is None for r in sample(engine, sampling=sampling))


@pytest.mark.slow
def test_no_sample_sees_old_weights_or_their_cached_prefixes(tmp_path):
    with SglangStandIn() as server:
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path)
        before = sample(engine)
        for version in (1, 2):
            changed(policy, seed=version)
            rounded(policy)
            engine.sync(policy.model.named_parameters, version)
            check_samples_are_of(policy, after := sample(engine))
            assert {r.version for r in after} == {version}
        assert [r.token_ids for r in before] != [r.token_ids for r in after]
        engine.close()
        assert not (tmp_path / "run" / "server").exists()


def test_a_cache_that_is_not_flushed_would_be_seen(tmp_path, monkeypatch):
    """What the test above is worth: the same without the flush."""
    with SglangStandIn() as server:
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path)
        sample(engine)
        real = server.update_from_disk
        monkeypatch.setattr(server, "update_from_disk", lambda body: real({**body, "flush_cache": False}))
        changed(policy)
        rounded(policy)
        engine.sync(policy.model.named_parameters, 1)
        with pytest.raises(AssertionError):
            check_samples_are_of(policy, sample(engine))


@pytest.mark.parametrize(
    ("way", "complaint"), [("nccl", "only vLLM takes weights in that way"), ("lora", "only vLLM loads adapters")]
)
def test_ways_that_it_has_not_are_refused(tmp_path, way, complaint):
    with SglangStandIn() as server, pytest.raises(UsageError, match=complaint):
        opened(server, policy_for(way), tmp_path, weight_sync=way)


def test_a_reply_that_was_given_up_is_none(tmp_path):
    answer = {"output_ids": [5], "meta_info": {"finish_reason": {"type": "abort"}, "output_token_logprobs": [[-1.0, 5, None]]}}
    with SglangStandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        server.faults = [lambda handler: handler.send(200, answer)]
        with pytest.raises(InfrastructureError, match=r"/generate gave no completion .* ended for the reason 'abort'"):
            sample(engine, PROMPTS[:1], Sampling(n=1, max_tokens=4, temperature=0.7, stop_ids=SAMPLING.stop_ids))


def test_weights_that_it_cannot_read_end_the_run(tmp_path, monkeypatch):
    with SglangStandIn() as server:
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path)
        real = server.update_from_disk
        monkeypatch.setattr(server, "update_from_disk", lambda body: real({**body, "model_path": "/elsewhere"}))
        with pytest.raises(UsageError, match="/update_weights_from_disk: status 400: Failed to load weights"):
            engine.sync(policy.model.named_parameters, 1)


@pytest.mark.slow
def test_reinforce_on_it_learns_and_goes_on(model, tasks, tmp_path):
    with SglangStandIn() as server:
        flags = ("--engine", "server", "--server-url", server.url)
        whole, output = tmp_path / "whole", tmp_path / "run"
        assert run(arguments(model, tasks, whole, *flags, steps=3)) == 0
        assert run(arguments(model, tasks, output, *flags, steps=2)) == 0
        assert run(arguments(model, tasks, output, *flags, "--resume", steps=3)) == 0
    assert texts(output) == texts(whole)
    assert all(0 < line["mismatch_kl"] < 1e-3 for line in read_lines(output / "metrics.jsonl"))
