"""The engine on a model server: one request a rollout, so that each is yielded as soon as it ends."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import numpy as np

from kernrl.errors import InfrastructureError, UsageError
from kernrl.http_client import Server
from kernrl.rollouts.engines.dialects import Dialect, Reply
from kernrl.rollouts.engines.engine import NamedTensors, Rollout, Sampling
from kernrl.rollouts.engines.weight_sync import WeightSync

CONCURRENCY = 256
"""Requests in flight at once: about enough to keep one GPU busy; a server queues the rest."""


class ServerEngine:
    """Samples from an OpenAI-compatible server.

    A prompt's n rollouts are n requests, each with a seed of its own: the server's prefix cache makes all but the first
    cheap. The same seed need not give the same tokens: most servers batch requests as they come.

    Args:
        server: the address.
        dialect: the form of its requests and answers.
        model: its name there, until `sync` gives another.
        context: longest prompt and completion together, in tokens.
        weights: how new weights reach the server; None where its weights never change.
    """

    def __init__(self, server: Server, dialect: Dialect, model: str, context: int, weights: WeightSync | None = None):
        self._server, self._dialect, self._model, self._context, self._weights = server, dialect, model, context, weights
        self._version = 0
        self._calling: set[Server] = set()
        """Connections of each `generate` in progress."""

    @property
    def exact(self) -> bool:
        """Whether the ids of a rollout are those that were sampled, and not text that was tokenised again."""
        return self._dialect.exact

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        """See `RolloutEngine.generate`. Only a prompt without room for a reply gives an `error`; a failing server raises.

        Raises:
            UsageError: the server refuses to sample.
            InfrastructureError: it does not answer, or its answer cannot be read.
        """
        calls = Server(self._server.url, timeout_s=self._server.timeout_s)
        self._calling.add(calls)
        started = time.perf_counter()
        with ThreadPoolExecutor(min(CONCURRENCY, len(prompts) * sampling.n) or 1, "generate") as threads:
            try:
                asked = [
                    threads.submit(self._ask, calls, prompts[p], sampling, (p, s), started)
                    for p in range(len(prompts))
                    for s in range(sampling.n)
                ]
                for done in as_completed(asked):
                    yield done.result()
            finally:
                calls.cancel()
                self._calling.discard(calls)
                threads.shutdown(wait=False, cancel_futures=True)

    def sync(self, named: NamedTensors, version: int) -> None:
        """See `RolloutEngine.sync`. Raises UsageError where there is no way to send weights to the server."""
        if self._weights is None:
            raise UsageError("--weight-sync none: this stage has new weights for the server; choose a way to send them.")
        self._model = self._weights.push(named, version)
        self._version = version

    def cancel(self) -> None:
        """Drop the requests of every `generate` in progress, from another thread; it raises there."""
        for calls in list(self._calling):
            calls.cancel()

    def close(self) -> None:
        """See `RolloutEngine.close`."""
        if self._weights is not None:
            self._weights.close()

    def _ask(self, calls: Server, prompt: Sequence[int], sampling: Sampling, place: tuple[int, int], started: float) -> Rollout:
        room = min(sampling.max_tokens, self._context - len(prompt))
        if room <= 0:
            return Rollout(*place, [], None, "error", self._version, time.perf_counter() - started)
        seed = int(np.random.SeedSequence([sampling.seed, *place]).generate_state(1)[0])
        body = self._dialect.request(self._model, prompt, replace(sampling, max_tokens=room, seed=seed))
        answer = calls.post(self._dialect.path, body)
        try:
            reply = self._checked(self._dialect.reply(answer), sampling, room)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InfrastructureError(
                f"--server-url {calls.url}: {self._dialect.path} gave no completion that can be read "
                f"({type(error).__name__}: {error})."
            ) from None
        finish = "stop" if reply.stopped else "length"
        return Rollout(*place, reply.token_ids, reply.logprobs, finish, self._version, time.perf_counter() - started)

    def _checked(self, reply: Reply, sampling: Sampling, room: int) -> Reply:
        """The reply in the form of a `Rollout`. Raises ValueError for one that cannot be a sample."""
        ids, logprobs = reply.token_ids, reply.logprobs
        if self.exact and not 0 < len(ids) <= room:  # text that was tokenised again may be longer, or empty
            raise ValueError(f"{len(ids)} tokens where 1 to {room} were asked for")
        if reply.stopped and ids[-1] not in sampling.stop_ids:
            raise ValueError(f"it ended with token {ids[-1]}, with which --model never ends; is the same model served?")
        if logprobs is None or not sampling.whole:
            return replace(reply, logprobs=None)
        if len(logprobs) != len(ids):
            raise ValueError(f"{len(logprobs)} log-probs for {len(ids)} tokens")
        return replace(reply, logprobs=[float(_required(value)) for value in logprobs])


def _required(value: Any) -> Any:
    if value is None:
        raise ValueError("a token without its log-prob")
    return value
