"""What samples completions: the narrow interface between the loop and whatever runs the model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

Finish = Literal["stop", "length", "error"]

NamedTensors = Callable[[], Iterator[tuple[str, Tensor]]]
"""Makes an iterator over the policy's weights, as often as it is called: a transport may walk it twice."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample."""

    n: int
    """Completions a prompt."""
    max_tokens: int
    """Longest completion, end token included."""
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens. Log-probs are given only with `top_p=1` and `top_k=0`: others sample from another distribution
    than the one that is trained."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a completion, and are its last one."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion."""

    prompt: int
    """Index of its prompt in the call."""
    sample: int
    """0 to n - 1 among the completions of that prompt."""
    token_ids: list[int]
    """The completion alone, stop token included."""
    logprobs: list[float] | None
    """Of `token_ids`, in nats, under the distribution they were sampled from; None where the engine does not know."""
    finish: Finish
    """`stop`: ended with a stop token. `length`: cut at `max_tokens` or the context. `error`: nothing was sampled."""
    version: int
    """Of the weights it was sampled with."""
    ended_s: float = field(default=0.0, compare=False)
    """When it ended, in seconds since the call."""


class RolloutEngine(Protocol):
    """Token ids in, token ids out; text is never tokenised again."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        """Exactly `n` rollouts a prompt, each as soon as it ends. A failure is a rollout with `finish="error"`.

        Closing the generator ends the sampling.
        """
        ...

    def sync(self, named: NamedTensors, version: int) -> None:
        """Take new weights. When it returns, no later sample can see the old ones, nor anything cached under them."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...
