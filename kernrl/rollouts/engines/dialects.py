"""Requests and answers of each kind of server: token ids from vLLM and SGLang, text from other OpenAI-compatible servers.

Read off the sources of vLLM 0.33 (`entrypoints/openai/completion`), SGLang 0.5.23 (`managers/io_struct.py`) and
transformers 5.23 (`cli/serving`). Every field that changes the distribution is sent: servers fill in missing ones from
the model's own generation settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from transformers import PreTrainedTokenizerBase

from kernrl.errors import UsageError
from kernrl.http_client import Refused, Server
from kernrl.rollouts.engines.engine import Sampling

Kind = Literal["vllm", "sglang", "transformers", "openai"]

SCALED_LOGPROBS = ("processed_logprobs", "processed_logits")
"""Modes of vLLM whose log-probs are those of the distribution that was sampled from, temperature included."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's completion of one prompt."""

    token_ids: list[int]
    """Stop token included."""
    logprobs: list[float] | None
    stopped: bool


class Dialect(Protocol):
    """The form of one kind of server's requests and answers."""

    path: str
    exact: bool
    """Whether ids are those that were sampled, and not text that was tokenised again."""

    def request(self, model: str, prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        """The body of a request for one rollout of at most `sampling.max_tokens`, with `sampling.seed`."""
        ...

    def reply(self, answer: Any) -> Reply:
        """Parse the answer. Raises KeyError, IndexError, TypeError or ValueError where it has another form."""
        ...


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's `/v1/completions`: ids in, ids and log-probs out."""

    scaled: bool
    """Whether its log-probs are known to be at the sampling temperature; otherwise they are ignored."""
    path = "/v1/completions"
    exact = True

    def request(self, model: str, prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_ids),
            "logprobs": 0,  # of the sampled token alone
            "return_token_ids": True,
        }

    def reply(self, answer: Any) -> Reply:
        choice = answer["choices"][0]
        given = choice["logprobs"] if self.scaled else None
        return Reply(choice["token_ids"], given and given["token_logprobs"], _stopped(choice["finish_reason"]))


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang's `/generate`: ids in, ids and log-probs out. Its OpenAI routes give text alone."""

    path = "/generate"
    exact = True

    def request(self, model: str, prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        settings = {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(sampling.stop_ids),
            "sampling_seed": sampling.seed,  # has effect under --enable-deterministic-inference
        }
        return {"input_ids": list(prompt), "sampling_params": settings, "return_logprob": True}

    def reply(self, answer: Any) -> Reply:
        about = answer["meta_info"]
        logprobs = [value for value, *_ in about["output_token_logprobs"]]
        return Reply(answer["output_ids"], logprobs, _stopped(about["finish_reason"]["type"]))


@dataclass(frozen=True, slots=True)
class Text:
    """Text in, text out: our tokenizer makes the ids from the text, so they may differ from those sampled."""

    tokenizer: PreTrainedTokenizerBase
    whole_settings: bool
    """Whether the server takes all of transformers' generation settings; otherwise only temperature and top-p are sent."""
    path = "/v1/completions"
    exact = False

    def request(self, model: str, prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        if (sampling.top_k or sampling.min_p) and not self.whole_settings:
            flag = "--top-k" if sampling.top_k else "--min-p"
            raise UsageError(f"{flag}: this server takes --temperature and --top-p alone; leave it out.")
        text = self.tokenizer.decode(list(prompt), clean_up_tokenization_spaces=False)
        body = {
            "model": model,
            "prompt": text,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        }
        if self.whole_settings:
            pad: Any = self.tokenizer.pad_token_id
            settings = {
                "do_sample": sampling.temperature > 0,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p or None,
                "eos_token_id": list(sampling.stop_ids),
                "pad_token_id": pad,
            }
            body["generation_config"] = json.dumps(settings)
        return body

    def reply(self, answer: Any) -> Reply:
        choice = answer["choices"][0]
        ids: Any = self.tokenizer(choice["text"], add_special_tokens=False)["input_ids"]
        end: Any = self.tokenizer.eos_token_id
        stopped = choice["finish_reason"] == "stop"
        return Reply([*ids, end] if stopped else ids, None, stopped)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself."""

    kind: Kind
    models: tuple[str, ...]
    """Names it answers to."""
    context: int | None
    """Longest prompt and completion together, in tokens; None where unknown."""
    settings: dict[str, Any]
    """vLLM's configuration; empty where the server does not show it."""
    adapters: tuple[str, ...] = ()
    """Names of adapters that it answers to besides."""


def ask_server_info(server: Server) -> ServerInfo:
    """Ask a server what it is. Raises UsageError or InfrastructureError where it does not answer as OpenAI's API does."""
    # first: `transformers serve` lists no models where nothing was ever downloaded
    if "/load_model" in (_or_empty(server, "/openapi.json").get("paths") or {}):
        return ServerInfo("transformers", (), None, {})
    answer = server.get("/v1/models")
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        raise UsageError(f"--server-url {server.url}: this is no OpenAI-compatible server: /v1/models lists no models.")
    cards: list[dict[str, Any]] = [card for card in answer["data"] if not card.get("parent")]  # an adapter has one
    adapters = tuple(card["id"] for card in answer["data"] if card.get("parent"))
    owner = cards[0].get("owned_by") if cards else None
    kind: Kind = owner if owner in ("vllm", "sglang") else "openai"
    settings = _or_empty(server, "/server_info?config_format=json") if kind == "vllm" else {}
    context = cards[0].get("max_model_len") if cards else None
    return ServerInfo(kind, tuple(card["id"] for card in cards), context, settings.get("vllm_config") or {}, adapters)


def dialect_of(info: ServerInfo, tokenizer: PreTrainedTokenizerBase, temperature: float) -> Dialect:
    """The dialect of a server. Raises UsageError for a vLLM whose log-probs are at another temperature."""
    if info.kind == "vllm":
        mode = info.settings.get("model_config", {}).get("logprobs_mode")
        if temperature not in (0.0, 1.0) and mode and mode not in SCALED_LOGPROBS:
            raise UsageError(
                f"--server-url: the server's log-probs leave out the temperature of {temperature:g}: start vLLM with "
                f"--logprobs-mode {SCALED_LOGPROBS[0]}."
            )
        return Vllm(scaled=temperature == 1.0 or mode in SCALED_LOGPROBS)
    return Sglang() if info.kind == "sglang" else Text(tokenizer, info.kind == "transformers")


def _stopped(reason: Any) -> bool:
    """Whether a completion ended by itself. One that the server aborted is incomplete, and an error."""
    if reason not in ("stop", "length"):
        raise ValueError(f"it ended for the reason {reason!r}")
    return reason == "stop"


def _or_empty(server: Server, path: str) -> dict[str, Any]:
    """The answer of a route; empty where the server does not have it."""
    try:
        answer = server.get(path)
    except Refused:
        return {}
    return answer if isinstance(answer, dict) else {}
