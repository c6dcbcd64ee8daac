"""One engine over all ranks: rank 0 sends the prompts, every rank decodes, and each rollout comes back as soon as it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from kernrl.policy.ranks import Ranks
from kernrl.rollouts.engines.engine import NamedTensors, Rollout, RolloutEngine, Sampling

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Done:
    result: Any


class DistributedEngine:
    """The engines of all ranks as one.

    Each rank's engine decodes its share of the batches (`deal` of `GenerateEngine`). What a batch samples depends on its
    number alone, so the rollouts are the same on any number of ranks. Only one call of `generate` may be under way.

    Args:
        engine: this rank's; None on other ranks than 0 where a server samples.
        helped: whether the other ranks decode too.
        busy: context entered on rank 0 while any rank decodes.
    """

    def __init__(
        self, engine: RolloutEngine | None, ranks: Ranks, *, helped: bool, busy: Callable[[], AbstractContextManager[None]]
    ):
        self._engine, self._ranks, self._helped, self._busy = engine, ranks, helped, busy
        self._calls = 0

    def lead(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0; the other ranks decode for it until it returns, and then return its result too."""
        if self._ranks.leads:
            result = work()
            self._ranks.tell(_Done(result))
            return result
        while not isinstance(message := self._ranks.tell(), _Done):
            assert self._engine
            call, prompts, sampling = message
            with closing(self._engine.generate(prompts, sampling)) as rollouts:
                for rollout in rollouts:
                    if self._ranks.noted(call):
                        break
                    self._ranks.send(rollout)
            self._ranks.send(None)
        return message.result

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        """See `RolloutEngine.generate`; on rank 0 alone, within `lead`."""
        assert self._engine
        if not self._helped:
            yield from self._engine.generate(prompts, sampling)
            return
        arrived: SimpleQueue[Rollout | BaseException | None] = SimpleQueue()
        at_work = self._ranks.size - 1
        self._calls += 1
        call = f"call {self._calls} is off"

        def others(wait: bool) -> Iterator[Rollout]:
            nonlocal at_work
            while at_work and (wait or not arrived.empty()):
                message = arrived.get()
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    at_work -= 1
                else:
                    yield message

        with self._busy(), ThreadPoolExecutor(at_work, "rollouts") as threads:
            self._ranks.tell((call, prompts, sampling))
            for rank in range(1, self._ranks.size):
                threads.submit(self._receive, rank, arrived)
            try:
                with closing(self._engine.generate(prompts, sampling)) as own:
                    for rollout in own:
                        yield rollout
                        yield from others(wait=False)
                yield from others(wait=True)
            finally:
                if at_work:  # the caller stopped early: tell the other ranks
                    self._ranks.note(call)

    def sync(self, named: NamedTensors, version: int) -> None:
        """See `RolloutEngine.sync`; on every rank."""
        if self._engine:
            self._engine.sync(named, version)

    def close(self) -> None:
        """See `RolloutEngine.close`."""
        if self._engine:
            self._engine.close()

    def _receive(self, rank: int, arrived: SimpleQueue[Any]) -> None:
        try:
            while (rollout := self._ranks.receive(rank)) is not None:
                arrived.put(rollout)
            arrived.put(None)
        except BaseException as error:  # raised in the thread that generates
            arrived.put(error)
