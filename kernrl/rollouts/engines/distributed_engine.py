"""One engine over all ranks: rank 0 sends the prompts, every rank decodes, and each rollout comes back as soon as it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from queue import SimpleQueue
from threading import Event
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
        busy: of a rank, the context entered on rank 0 while that one decodes; None where no rank does, since a server samples.
    """

    def __init__(
        self, engine: RolloutEngine | None, ranks: Ranks, busy: Callable[[int], AbstractContextManager[None]] | None = None
    ):
        self._engine, self._ranks, self._busy = engine, ranks, busy
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
        if self._busy is None:
            yield from self._engine.generate(prompts, sampling)
            return
        self._calls += 1
        call = f"call {self._calls} is off"
        arrived: SimpleQueue[Rollout | BaseException | None] = SimpleQueue()
        cancelled = Event()
        with ThreadPoolExecutor(1, "generate") as thread:
            decoding = thread.submit(self._decode_on_all, self._busy, call, prompts, sampling, arrived, cancelled)
            decoding.add_done_callback(lambda _: arrived.put(None))
            try:
                while (rollout := arrived.get()) is not None:
                    if isinstance(rollout, BaseException):
                        raise rollout
                    yield rollout
            finally:
                if not decoding.done():  # the caller stopped early
                    cancelled.set()
                    self._ranks.note(call)
            decoding.result()

    def sync(self, named: NamedTensors, version: int) -> None:
        """See `RolloutEngine.sync`; on every rank."""
        if self._engine:
            self._engine.sync(named, version)

    def close(self) -> None:
        """See `RolloutEngine.close`."""
        if self._engine:
            self._engine.close()

    def _decode_on_all(
        self,
        busy: Callable[[int], AbstractContextManager[None]],
        call: str,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        arrived: SimpleQueue[Rollout | BaseException | None],
        cancelled: Event,
    ) -> None:
        """Decode on every rank until all are done, however slowly the caller takes the rollouts: it may wait for a verdict
        before it takes the next, and on a GPU that is busy no candidate is timed. Each is free when its rank has decoded."""
        assert self._engine
        others = range(1, self._ranks.size)
        with ExitStack() as held, ThreadPoolExecutor(len(others), "rollouts") as threads:
            turns = [held.enter_context(ExitStack()) for _ in range(self._ranks.size)]
            for rank, turn in enumerate(turns):
                turn.enter_context(busy(rank))
            self._ranks.tell((call, prompts, sampling))
            for rank in others:
                threads.submit(_pass_on, iter(partial(self._ranks.receive, rank), None), arrived, turns[rank])
            with closing(self._engine.generate(prompts, sampling)) as own:
                _pass_on(takewhile(lambda _: not cancelled.is_set(), own), arrived, turns[0])


def _pass_on(rollouts: Iterable[Rollout], arrived: SimpleQueue[Rollout | BaseException | None], turn: ExitStack) -> None:
    """Pass rollouts on to the thread that takes them, and end the turn of who decodes them; an error is raised there, too."""
    try:
        with turn:
            for rollout in rollouts:
                arrived.put(rollout)
    except BaseException as error:
        arrived.put(error)
