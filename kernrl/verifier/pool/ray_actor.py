"""What every actor in Ray's workers has in common. Imports no torch: a worker that needs none starts seconds sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernrl.verifier.rpc.answers import Answer, answer_to

if TYPE_CHECKING:
    from kernrl.verifier.replay.timing import NoiseBand

AboutGpu = tuple[dict[str, str], "NoiseBand"]
"""Which GPU an actor has, and its noise."""


class Actor:
    """What `ray` calls."""

    def about(self) -> AboutGpu | None:
        """Answers when the actor is ready, with its GPU if it has one."""
        return None

    def answer(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        """Call a method; see `answers`."""
        return answer_to(lambda: getattr(self, method)(*arguments))
