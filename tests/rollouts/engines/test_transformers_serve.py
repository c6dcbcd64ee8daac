"""The server engine against a real server: `transformers serve`, as a process of its own."""

import functools
import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
from support.server_samples import changed, opened
from support.tiny import save_tiny_policy, tiny_policy

from kernrl.cli import run
from kernrl.config import BestOfNConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.http_client import Server
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.run_directory import read_lines
from kernrl.training import evaluation
from kernrl.training.open_engine import server_engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, ("fastapi", "uvicorn", "openai"))), reason="needs transformers[serving]"),
]


@functools.cache
def prompts() -> list[list[int]]:
    return [tiny_policy().tokenizer(text)["input_ids"] for text in ("a task", "another one", "b")]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    address = f"http://127.0.0.1:{port}"
    for _ in range(5):  # each get tries for 7.5 s
        try:
            Server(address, timeout_s=60).get("/health")
            break
        except InfrastructureError:
            assert process.poll() is None, log.read_text()
    yield address
    process.terminate()
    process.wait(20)


def greedy(engine, policy):
    sampling = Sampling(n=1, max_tokens=6, temperature=1e-3, stop_ids=(policy.tokenizer.eos_token_id,))
    return [policy.tokenizer.decode(r.token_ids) for r in sorted(engine.generate(prompts(), sampling), key=lambda r: r.prompt)]


def test_it_samples_from_the_weights_that_it_was_given(url, tmp_path):
    policy = tiny_policy()
    model = save_tiny_policy(tmp_path / "model")
    config = BestOfNConfig(model=str(model), output=tmp_path, engine="server", server_url=url, rounds=2)
    engine = server_engine(config, policy, tmp_path)
    embedded = GenerateEngine(policy)
    assert greedy(engine, policy) == (before := greedy(embedded, policy))
    changed(policy)
    engine.sync(policy.model.named_parameters, 1)
    assert greedy(engine, policy) == greedy(embedded, policy) != before
    rollouts = list(engine.generate(prompts(), Sampling(n=2, max_tokens=6, temperature=1.0, stop_ids=(3,))))
    assert {(r.version, r.logprobs) for r in rollouts} == {(1, None)}
    assert sorted((r.prompt, r.sample) for r in rollouts) == [(p, s) for p in range(3) for s in range(2)]


def test_nothing_is_reinforced_from_text(url, tmp_path):
    server = type("Address", (), {"url": url})
    with pytest.raises(UsageError, match="gives text and not the tokens"):
        opened(server, tiny_policy(), tmp_path)


def test_an_evaluation_asks_it(url, tmp_path, tasks, verifier, monkeypatch):
    monkeypatch.setattr(evaluation, "open_verifier", lambda config: verifier)
    model = save_tiny_policy(tmp_path / "model")
    flags = [
        "--engine",
        "server",
        "--server-url",
        url,
        "--samples",
        "2",
        "--max-tokens",
        "8",
        "--output",
        str(tmp_path / "run"),
    ]
    assert run(["eval", "--model", str(model), "--tasks", str(tasks), *flags, "--quiet"]) == 0
    assert len(read_lines(tmp_path / "run" / "samples.jsonl")) == 8
