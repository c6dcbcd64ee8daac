"""The interface between training and whatever samples completions from the model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

Finish = Literal["stop", "length", "error"]

NamedTensors = Callable[[], Iterator[tuple[str, Tensor]]]
"""Returns an iterator over the policy's weights (name, tensor); it can be called again, as some transports read twice."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample."""

    n: int
    """Completions a prompt."""
    max_tokens: int
    """Longest completion, end token included."""
    temperature: float
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens."""
    min_p: float = 0.0
    """Least probability of a token as a share of the likeliest one's."""
    stop_ids: tuple[int, ...] = ()
    """A completion ends with the first of these tokens, which it includes."""
    seed: int = 0

    @property
    def whole(self) -> bool:
        """Whether any token can be sampled. Log-probs are given only then: a cut distribution is not what is trained."""
        return self.temperature > 0 and self.top_p == 1.0 and self.top_k == 0 and self.min_p == 0.0


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
    """Of `token_ids`, in nats, under the distribution they were sampled from; None where the engine gives none."""
    finish: Finish
    """`stop`: ended with a stop token. `length`: cut at `max_tokens` or the context. `error`: nothing was sampled."""
    version: int
    """Version of the weights that sampled it: the `version` of the last `sync`."""
    ended_s: float = field(default=0.0, compare=False)
    """When it ended, in seconds since the call."""


class RolloutEngine(Protocol):
    """Token ids in, token ids out: text is never tokenised again."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        """Exactly `n` rollouts a prompt, each as soon as it ends. A failure is a rollout with `finish="error"`.

        Closing the generator ends the sampling.
        """
        ...

    def sync(self, named: NamedTensors, version: int) -> None:
        """Take new weights. Once it returns, no sample comes from the old ones or from what was cached under them."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...
