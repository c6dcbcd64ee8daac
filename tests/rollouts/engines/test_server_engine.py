"""The server engine: exact tokens and log-probs, weights that arrive whole, and one clear sentence for each failure."""

import itertools
import threading
import time
from pathlib import Path

import pytest
from support.server_samples import END, PROMPTS, SAMPLING, changed, check_samples_are_of, opened, policy_for, sample
from support.tiny import tiny_policy
from support.toy_runs import reinforce_arguments as arguments
from support.toy_runs import texts
from support.vllm_stand_in import StandIn, install_vllm

from kernrl import http_client
from kernrl.cli import run
from kernrl.config import EvalConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.http_client import Server
from kernrl.rollouts.engines import weight_sync
from kernrl.rollouts.engines.engine import Sampling
from kernrl.runs.run_directory import read_lines
from kernrl.training import evaluation, open_engine
from kernrl.training.open_engine import open_evaluation_engine

pytestmark = pytest.mark.usefixtures("verifier")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Retries without their pauses."""
    monkeypatch.setattr(http_client, "FIRST_WAIT_S", 0.001)


# --- sampling --------------------------------------------------------------------------------------------------------


def test_every_prompt_gets_n_rollouts_with_the_log_probs_of_a_plain_forward(tmp_path):
    policy = tiny_policy()
    with StandIn() as server:
        rollouts = sample(opened(server, policy, tmp_path))
    assert [(r.prompt, r.sample) for r in rollouts] == list(itertools.product(range(3), range(3)))
    assert {r.finish for r in rollouts} == {"stop", "length"}
    assert len({tuple(r.token_ids) for r in rollouts}) > 6
    for r in rollouts:
        assert (r.token_ids[-1] in SAMPLING.stop_ids) == (r.finish == "stop")
        assert len(r.token_ids) == 12 or r.finish == "stop"
    check_samples_are_of(policy, rollouts)


@pytest.mark.slow
def test_the_seed_decides(tmp_path):
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        first = [r.token_ids for r in sample(engine)]
        assert [r.token_ids for r in sample(engine)] == first
        other = Sampling(n=3, max_tokens=12, temperature=0.7, seed=2, stop_ids=SAMPLING.stop_ids)
        assert [r.token_ids for r in sample(engine, sampling=other)] != first


def test_a_prompt_that_fills_the_context_is_an_error_value_and_the_next_is_cut(tmp_path):
    with StandIn(context=16) as server:
        engine = opened(server, tiny_policy(), tmp_path)
        sampling = Sampling(n=1, max_tokens=12, temperature=0.7, stop_ids=(END,))
        full, cut = sample(engine, [[5] * 16, [5] * 13], sampling)
    assert (full.finish, full.token_ids, full.logprobs) == ("error", [], None)
    assert len(cut.token_ids) <= 3


def test_cut_distributions_have_no_logprobs(tmp_path):
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        sampling = Sampling(n=1, max_tokens=4, temperature=0.7, top_p=0.9, stop_ids=SAMPLING.stop_ids)
        assert all(r.logprobs is None for r in sample(engine, sampling=sampling))


@pytest.mark.slow
def test_log_probs_of_another_temperature_are_refused(tmp_path):
    with StandIn(logprobs_mode="raw_logprobs") as server:
        with pytest.raises(UsageError, match="--logprobs-mode processed_logprobs"):
            opened(server, tiny_policy(), tmp_path)
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path, temperature=1.0)
        sampling = Sampling(n=3, max_tokens=12, temperature=1.0, stop_ids=SAMPLING.stop_ids)
        check_samples_are_of(policy, sample(engine, sampling=sampling), temperature=1.0)


@pytest.mark.slow
def test_a_caller_may_stop_listening(tmp_path):
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        rollouts = engine.generate(PROMPTS, Sampling(n=200, max_tokens=12, temperature=0.7, stop_ids=SAMPLING.stop_ids))
        next(rollouts)
        rollouts.close()
        assert server.calls.count("/v1/completions") < 600
        assert len(sample(engine)) == 9


# --- failures --------------------------------------------------------------------------------------------------------


def hang_up(handler):
    handler.connection.close()


def no_json(handler):
    handler.send(200, "<html>")


@pytest.mark.slow
def test_a_server_that_is_busy_or_hangs_up_is_asked_again(tmp_path):
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        expected = [r.token_ids for r in sample(engine)]
        server.faults = [503, hang_up, 429, 500, hang_up]
        assert [r.token_ids for r in sample(engine)] == expected


@pytest.mark.slow
def test_a_server_that_stays_broken_is_no_reward_of_zero(tmp_path):
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        server.faults = [500] * 100
        with pytest.raises(InfrastructureError, match="/v1/completions: status 500: out of order"):
            sample(engine)
        server.faults = [hang_up] * 100
        with pytest.raises(InfrastructureError, match=r"nobody answers .* is the server running"):
            sample(engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("<html>", "no completion that can be read"),
        ({"choices": []}, "no completion that can be read"),
        ({"choices": [{"token_ids": None, "logprobs": None, "finish_reason": "stop"}]}, "no completion that can be read"),
        ({"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": []}, "finish_reason": "length"}]}, "0 log-probs for 1"),
        ({"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [None]}, "finish_reason": "length"}]}, "without its"),
        ({"choices": [{"token_ids": [5] * 13, "logprobs": None, "finish_reason": "length"}]}, "13 tokens where 1 to 12"),
        ({"choices": [{"token_ids": [5], "logprobs": None, "finish_reason": "stop"}]}, "is the same model served"),
        ({"choices": [{"token_ids": [5], "logprobs": None, "finish_reason": "abort"}]}, "ended for the reason 'abort'"),
    ],
)
def test_what_is_no_completion_is_said_so(tmp_path, answer, complaint):
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        server.faults = [lambda handler: handler.send(200, answer)]
        with pytest.raises(InfrastructureError, match=complaint):
            sample(engine, [[5, 6]], Sampling(n=1, max_tokens=12, temperature=0.7, stop_ids=(END,)))


def test_no_answer_in_time(tmp_path):
    with StandIn() as server:
        stuck = threading.Event()
        engine = opened(server, tiny_policy(), tmp_path, server_timeout_s=0.3, weight_sync="checkpoint")
        server.faults = [lambda handler: stuck.wait(10)]
        with pytest.raises(InfrastructureError, match=r"no answer within 0\.3 s"):
            sample(engine, [[5, 6]], Sampling(n=1, max_tokens=2, temperature=0.7, stop_ids=(END,)))
        stuck.set()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:port"])
def test_what_is_no_address_is_said_so(url):
    with pytest.raises(UsageError, match="give an address such as"):
        Server(url, timeout_s=1)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1(ending):
    with StandIn() as server:
        assert Server(server.url + ending, timeout_s=5).get("/v1/models")["data"]


def test_nobody_there(tmp_path):
    with StandIn() as server:
        pass
    with pytest.raises(InfrastructureError, match=r"--server-url http://127.* is the server running"):
        opened(server, tiny_policy(), tmp_path)


def test_a_server_that_speaks_otherwise(tmp_path):
    with StandIn() as server:
        server.faults = [no_json, no_json]
        with pytest.raises(UsageError, match="no OpenAI-compatible server"):
            opened(server, tiny_policy(), tmp_path)


# --- weights ---------------------------------------------------------------------------------------------------------

WAYS = {"nccl": {"backend": "nccl"}, "ipc": {"backend": "ipc"}, "checkpoint": {}, "lora": {"lora": True}}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_sample_sees_old_weights_or_their_cached_prefixes(tmp_path, monkeypatch, way):
    install_vllm(monkeypatch)
    with StandIn(**WAYS[way]) as server:
        policy = policy_for(way)
        engine = opened(server, policy, tmp_path)
        check_samples_are_of(policy, before := sample(engine))
        assert {r.version for r in before} == {0}
        for version in (1, 2):
            changed(policy, seed=version)
            engine.sync(policy.model.named_parameters, version)
            check_samples_are_of(policy, after := sample(engine))
            assert {r.version for r in after} == {version}
        assert [r.token_ids for r in before] != [r.token_ids for r in after]
        assert server.state == "running"
        engine.close()
        assert not server.adapters
        assert not (tmp_path / "run" / "server").exists()


def test_a_cache_that_is_not_reset_would_be_seen(tmp_path, monkeypatch):
    """What the test above is worth: the same without the reset."""
    with StandIn() as server:
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path)
        sample(engine)
        monkeypatch.setattr(server, "reset", lambda: {"success": True})
        changed(policy)
        engine.sync(policy.model.named_parameters, 1)
        with pytest.raises(AssertionError):
            check_samples_are_of(policy, sample(engine))


def test_a_cache_that_cannot_be_reset_at_once_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_sync.time, "sleep", lambda seconds: None)
    with StandIn() as server:
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path)
        real, answers = server.reset, iter([False, False])
        monkeypatch.setattr(server, "reset", lambda: real() if next(answers, True) else {"success": False})
        engine.sync(policy.model.named_parameters, 1)
        monkeypatch.setattr(server, "reset", lambda: {"success": False})
        with pytest.raises(InfrastructureError, match="prefix cache cannot be reset"):
            engine.sync(policy.model.named_parameters, 2)


def test_a_transfer_that_breaks_leaves_the_server_paused(tmp_path, monkeypatch):
    install_vllm(monkeypatch)
    with StandIn(backend="ipc") as server:
        policy = tiny_policy()
        engine = opened(server, policy, tmp_path)
        monkeypatch.setattr(server, "update", lambda body: server.move((), "broken"))
        with pytest.raises(InfrastructureError, match="/update_weights: status 500"):
            engine.sync(policy.model.named_parameters, 1)
        assert server.state != "running"


def test_adapters_of_two_runs_never_share_a_name(tmp_path):
    with StandIn(lora=True) as server:
        for run_ in ("a", "b"):
            opened(server, policy_for("lora"), tmp_path / run_)
        assert len(server.adapters) == 2


def test_the_first_weights_are_pushed_since_another_run_may_have_left_its_own(tmp_path):
    with StandIn() as server:
        changed(server.policy)
        policy = tiny_policy()
        check_samples_are_of(policy, sample(opened(server, policy, tmp_path)))


MISFITS = {
    "no vllm here": ({"backend": "nccl"}, {}, "needs vllm 0.28 or later beside kernrl"),
    "another backend": ({"backend": "ipc"}, {"weight_sync": "nccl"}, "--weight-transfer-config"),
    "no dev mode": ({"dev_mode": False}, {}, "VLLM_SERVER_DEV_MODE=1"),
    "no sync": ({}, {"weight_sync": "none"}, "this stage samples from weights that it has changed"),
    "an adapter of none": ({}, {"weight_sync": "lora"}, "under --lora the adapter is what changes"),
}


@pytest.mark.parametrize(("served", "asked", "complaint"), MISFITS.values(), ids=MISFITS)
def test_a_server_that_cannot_follow_is_refused_at_once(tmp_path, served, asked, complaint):
    with StandIn(**served) as server, pytest.raises(UsageError, match=complaint):
        opened(server, tiny_policy(), tmp_path, **asked)


def test_adapters_that_are_not_allowed_are_refused(tmp_path):
    with StandIn(lora=False) as server, pytest.raises(UsageError, match="/v1/load_lora_adapter: status 404"):
        opened(server, policy_for("lora"), tmp_path)


# --- stages ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reinforce_on_a_server_learns_and_goes_on(model, tasks, tmp_path):
    with StandIn() as server:
        flags = ("--engine", "server", "--server-url", server.url)
        output = tmp_path / "run"
        assert run(arguments(model, tasks, output, *flags, steps=2, samples=8)) == 0
        lines = read_lines(output / "metrics.jsonl")
        assert all(abs(line["mismatch_kl"]) < 1e-5 for line in lines)
        assert [row["version"] for row in read_lines(output / "samples.jsonl")] == [0] * 16 + [1] * 16
        whole = tmp_path / "whole"
        assert run(arguments(model, tasks, whole, *flags, steps=3, samples=8)) == 0
        assert run(arguments(model, tasks, output, *flags, "--resume", steps=3, samples=8)) == 0
        assert texts(output) == texts(whole)
        assert not (output / "server").exists()


@pytest.mark.slow
def test_a_server_that_dies_ends_the_run_with_a_sentence(model, tasks, tmp_path, capfd):
    with StandIn() as server:
        real = server.complete
        server.complete = lambda body: real(body) if server.calls.count("/v1/completions") < 9 else server.move((), "dead")
        flags = ("--engine", "server", "--server-url", server.url)
        assert run(arguments(model, tasks, tmp_path / "run", *flags, steps=3)) == 3
    assert "/v1/completions: status 500" in capfd.readouterr().err
    assert (tmp_path / "run" / "step_1").exists()


@pytest.mark.slow
def test_an_evaluation_goes_on_where_its_server_died(model, tasks, tmp_path, verifier, monkeypatch):
    monkeypatch.setattr(evaluation, "open_verifier", lambda config: verifier)
    output = tmp_path / "run"

    def evaluated(server, *more):
        flags = ["--engine", "server", "--server-url", server.url, "--samples", "4", "--max-tokens", "8", "--quiet"]
        return run(["eval", "--model", str(model), "--tasks", str(tasks), "--output", str(output), *flags, *more])

    with StandIn() as server:
        real, calls = server.complete, itertools.count()

        def dies(body):
            if next(calls) < 8:
                return real(body)
            while len(verifier.asked) < 2:
                time.sleep(0.01)
            return server.move((), "dead")

        server.complete = dies
        assert evaluated(server) == 3
    kept = {row["id"] for row in read_lines(output / "samples.jsonl")}
    assert kept
    judged = list(verifier.asked)
    verifier.asked.clear()
    with StandIn() as another:
        assert evaluated(another, "--resume") == 0
    rows = read_lines(output / "samples.jsonl")
    assert len(rows) == len({row["id"] for row in rows}) > len(kept)
    assert not set(judged) & set(verifier.asked)


def test_a_server_may_ask_for_a_key(tmp_path, monkeypatch):
    with StandIn() as server:
        server.key = "secret"
        with pytest.raises(UsageError, match=r"status 401: Unauthorized .*KERNRL_SERVER_KEY"):
            opened(server, tiny_policy(), tmp_path)
        monkeypatch.setenv("KERNRL_SERVER_KEY", "secret")
        assert len(sample(opened(server, tiny_policy(), tmp_path))) == 9


def test_a_server_needs_its_address(model, tasks, tmp_path, capfd):
    assert run(arguments(model, tasks, tmp_path / "run", "--engine", "server")) == 2
    assert run(["eval", "--engine", "server", "--output", str(tmp_path / "run")]) == 2
    assert capfd.readouterr().err.count("--engine server needs --server-url") == 2
    assert not (tmp_path / "run").exists()


def test_the_settings_of_the_shipped_model_are_not_asked_of_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr(open_engine.GenerationConfig, "from_pretrained", lambda source, **_: asked.append(source))
    with StandIn() as server:
        open_evaluation_engine(EvalConfig(model="nano", engine="server", server_url=server.url))
    assert [Path(source).is_dir() for source in asked] == [True]
