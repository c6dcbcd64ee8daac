"""`kernrl optimize --model`: replies of a folder's model and of a server's become candidates, and sampling ends when asked."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from support.instant_verifier import InstantVerifier
from support.server_samples import opened
from support.tiny import save_tiny_policy, tiny_policy
from support.vllm_stand_in import Refusal, StandIn

from kernrl import cli
from kernrl.http_client import Cancelled
from kernrl.optimization.search import proposals
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.stages import optimize

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, whatever of which counts as a candidate."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guides" / "optimize.md").read_text()
    Path("my_module.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    monkeypatch.setattr(optimize, "HardenedVerifier", type("Fresh", (InstantVerifier,), {"asked": []}))
    monkeypatch.setattr(proposals, "parse_reply", lambda text: SimpleNamespace(source=f"class ModelNew: speed = 3 # {text!r}"))
    folder = save_tiny_policy(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))  # a chat prompt is long
    return folder


def run(*more: str) -> int:
    return cli.run(["optimize", "my_module.py", "--max-tokens", "8", "--n", "32", "--output", "out", "--quiet", *more])


def replies() -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in Path("out/candidates.jsonl").read_text().splitlines()]
    return [row for row in rows if row["origin"] == "model"]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["nano", "chat"])
def test_replies_of_a_folder_s_model_are_tried(model: Path, prompt: str) -> None:
    assert run("--model", str(model), "--prompt", prompt) == 0
    found = replies()
    assert 3 <= len(found) <= 9
    assert len({row["text"] for row in found}) == len(found)
    assert all(str(model) in row["name"] for row in found)
    assert json.loads(Path("out/results.json").read_text())["by_origin"]["model"] == 3


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    words = ["my_module.py", "--max-tokens", "8", "--n", "32", "--output", "out", "--model", str(model), "--prompt", "chat"]
    assert cli.run(["optimize", *words]) == 0
    assert "the prompt leaves no room for a reply in its context" in capsys.readouterr().err
    assert replies() == []


def test_a_model_that_is_not_asked_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["optimize", "heldout#2", "--n", "2", "--output", "out", "--model", str(model)]) == 0
    assert "the model is not asked: candidates that are there already take all --n 2." in capsys.readouterr().err
    assert replies() == []


@pytest.mark.slow
def test_replies_of_a_server_are_tried(model: Path) -> None:
    with StandIn() as server:
        assert run("--model", str(model), "--engine", "server", "--server-url", server.url) == 0
    assert len(replies()) >= 3


@pytest.mark.slow
def test_a_server_that_is_gone_ends_the_samples_and_not_the_search(model: Path) -> None:
    with StandIn() as server:
        url = server.url

        def refuse(body: Any) -> Any:
            raise Refusal(400, "out of order")

        server.complete = refuse
        assert run("--model", str(model), "--engine", "server", "--server-url", url) == 0
    assert replies() == []
    assert json.loads(Path("out/results.json").read_text())["by_origin"]["style"] == 1.0


def test_decoding_ends_at_the_next_token_when_another_thread_says_so() -> None:
    policy = tiny_policy()
    engine = GenerateEngine(policy)
    decoded: list[int] = []

    def watch(tokens: int) -> None:
        decoded.append(tokens)
        engine.cancel()

    engine.on_tokens = watch
    sampling = Sampling(n=2, max_tokens=400, temperature=1.0, seed=0, stop_ids=())
    assert list(engine.generate([[5, 6, 7]], sampling)) == []
    assert len(decoded) == 1
    engine.on_tokens = lambda tokens: None
    assert len(list(engine.generate([[5, 6, 7]], Sampling(n=2, max_tokens=4, temperature=1.0, seed=0, stop_ids=())))) == 2


def test_requests_that_are_never_answered_are_dropped_when_another_thread_says_so(tmp_path: Path) -> None:
    with StandIn() as server:
        engine = opened(server, tiny_policy(), tmp_path)
        asked, over, raised = threading.Event(), threading.Event(), []

        def never(handler: Any) -> None:
            asked.set()
            over.wait()

        server.faults = [never] * 2

        def sample() -> None:
            try:
                list(engine.generate([[5, 6]], Sampling(n=2, max_tokens=4, temperature=1.0, seed=0, stop_ids=())))
            except Cancelled as error:
                raised.append(error)

        thread = threading.Thread(target=sample)
        thread.start()
        asked.wait()
        engine.cancel()
        thread.join()
        over.set()
        assert len(raised) == 1
